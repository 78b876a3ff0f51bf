"""What a site model promises, and to whom, in plain words (SITE.md S9 and S10)."""

from __future__ import annotations

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.metrics.wording import percent
from calcode.site.settings import SiteSettings

AUDITS = {
    "site": "Audit: images unlike the site gate are deferred; the promises are for images that it accepts.",
    "home": "Audit: images unlike the home gate are deferred, which at another hospital may be a third or more; the "
    "promises are for images that it accepts.",
    "off": "Audit: off, nothing is deferred for support.",
}
_CHOSEN = {
    "archive": "drawn like the archive cases",
    "consecutive": "like the consecutive cases",
    "coin": "like the cases drawn by coin",
}
NOT_PROMISED = (
    "Not promised: anything for a single image, a returning patient (known_group), a subgroup, a camera not among the "
    "reviewed cases, the time after the site changes, set size or informative rate. The promise is an average over "
    "reviewed samples: one sample's coverage of a class with n labels scatters by about sqrt(0.05 x 0.95 / (n + 2))."
)
SHARP_NOTE = (
    "Sharp mode: nothing is left of the protection that localized thresholds give under shift. Watch the support "
    "(monitor M1) before every use away from home."
)


def site_promises(
    settings: SiteSettings,
    *,
    audit: str,
    counts: IntArray,
    levels: FloatArray,
    silenced: BoolArray,
    unlabelled_share: float,
    failure: float | None,
    sharp: bool,
) -> tuple[str, ...]:
    """One sentence per statement, each beginning with what kind of statement it is.

    Parameters
    ----------
    settings : SiteSettings
    audit : {"site", "home", "off"}
    counts : ndarray of shape (K,)
        Labels of each class.
    levels : ndarray of shape (K,)
        The level of each class, which may follow its count.
    silenced : ndarray of bool, shape (K,)
        Classes that are in every set.
    unlabelled_share : float
        Share of the reviewed cases that got no label.
    failure : float or None
        What this look spends, in the assured form.
    sharp : bool
        Whether home is the site.
    """
    unit = "group" if settings.unit == "group" else "image (approximate: images of one patient are not independent)"
    weighted = " after weighting by the review probability" if settings.calibrate_with == "weighted" else ""
    rows = list(zip(settings.sampling.items(), counts, levels, silenced, strict=True))
    sentences = []
    for (name, design), count, level, silent in rows:
        if silent:
            sentences.append(f"In every set: '{name}', {count} reviewed labels are too few to leave it out.")
            continue
        case = f"the representative of a new {unit} {_CHOSEN[design]}{weighted}"
        if failure is None:
            sentences.append(f"Promised: coverage of '{name}' at {1 - level:.4g} for {case} ({count} labels).")
        else:
            sentences.append(
                f"Promised with probability {1 - failure:.4g} over the reviewed sample: coverage of '{name}' at "
                f"{1 - level:.4g} for {case} ({count} labels)."
            )
    if settings.rare == "pool":
        sentences.append("Rare classes are promised together, not each: the figure is that of their pool.")
    if unlabelled_share > 0 and settings.unlabelled == "report":
        sentences.append(
            f"Unlabelled: {percent(unlabelled_share)} of the reviewed cases got no label. The promise is for cases "
            f"that get one; for all cases of a class it is its level times the share of them that get one, about "
            f"{1 - unlabelled_share:.3f}."
        )
    else:
        sentences.append(f"Unlabelled: {percent(unlabelled_share)} of the reviewed cases.")
    sentences += [AUDITS[audit], NOT_PROMISED]
    if sharp:
        sentences.append(SHARP_NOTE)
    return tuple(sentences)
