"""What a site model promises, and for whom, in plain words (SITE.md S9 and S10)."""

from __future__ import annotations

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.metrics.wording import listed, percent
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
    "reviewed cases, the time after the site changes, set size or informative rate."
)
AVERAGE = (
    " The promise is an average over reviewed samples: one sample's coverage of a class with n labels scatters by "
    "about sqrt(0.05 x 0.95 / (n + 2))."
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
    pooled: BoolArray,
    unlabelled_share: float,
    failure: float | None,
    sharp: bool,
) -> tuple[str, ...]:
    """One sentence per statement; each begins with the kind of the statement.

    Parameters
    ----------
    settings : SiteSettings
    audit : {"site", "home", "off"}
    counts : ndarray of shape (K,)
        Labels of each class.
    levels : ndarray of shape (K,)
        The level of each class, which may depend on its count.
    silenced : ndarray of bool, shape (K,)
        Classes that are in every set.
    pooled : ndarray of bool, shape (K,)
        Rare classes that share one promise (SITE.md S4).
    unlabelled_share : float
        Share of the reviewed cases without a label.
    failure : float or None
        Failure probability that this look spends, in the assured form.
    sharp : bool
        Whether the site is home (sharp mode).
    """
    unit = "group" if settings.unit == "group" else "image (approximate: images of one patient are not independent)"
    weighted = " after weighting by the review probability" if settings.calibrate_with == "weighted" else ""
    promised = "Promised"
    if failure is not None:
        promised = f"Promised with probability {1 - failure:.4g} over the reviewed sample"
    weakened = unlabelled_share > 0 and settings.unlabelled == "report"
    promises: list[tuple[str, str, int, float]] = []
    silent: list[str] = []
    rare: list[tuple[str, str, int, float]] = []
    rows = zip(settings.sampling.items(), counts, levels, silenced, pooled, strict=True)
    for (name, design), count, level, in_every_set, in_pool in rows:
        if in_every_set:
            silent.append(f"In every set: '{name}', {count} reviewed labels ({design}) are too few to leave it out.")
        else:
            (rare if in_pool else promises).append((f"'{name}'", _CHOSEN[design], count, level))
    if rare:
        names, designs, labels, (level, *_) = zip(*rare, strict=True)
        pool = f"the rare classes {listed(names)} together, not of each,"
        promises.append((pool, listed(list(dict.fromkeys(designs)), last="or"), sum(labels), level))
    sentences = []
    for whose, chosen, count, level in promises:
        all_cases = f"; about {(1 - level) * (1 - unlabelled_share):.3f} for all cases" if weakened else ""
        sentences.append(
            f"{promised}: coverage of {whose} at {1 - level:.4g} for the representative of a new {unit} {chosen}"
            f"{weighted} ({count} labels{all_cases})."
        )
    sentences += silent
    if weakened:
        sentences.append(
            f"Unlabelled: {percent(unlabelled_share)} of the reviewed cases got no label. The promise is for cases "
            "that get one; for all cases it is smaller by that share."
        )
    else:
        sentences.append(f"Unlabelled: {percent(unlabelled_share)} of the reviewed cases.")
    # The assured form promises coverage for the sample at hand, not on average.
    sentences += [AUDITS[audit], NOT_PROMISED + AVERAGE * (failure is None)]
    if sharp:
        sentences.append(SHARP_NOTE)
    return tuple(sentences)
