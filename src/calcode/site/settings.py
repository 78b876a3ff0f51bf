"""The settings of a site model, checked once (SITE.md S12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from calcode.arrays import FloatArray, IntArray
from calcode.errors import SettingsError
from calcode.method.home_sums import HOME_WEIGHT, RIDGE, SHARPNESS
from calcode.method.settings import Kind
from calcode.site.levels import labels_needed

DESIGNS = ("archive", "consecutive", "coin")
DEFAULT_MISCOVERAGE = 0.05
#: With a smaller ridge the closed form loses precision: at 1e-6 its error is 0.15 (SITE.md S11).
_SMALLEST_RIDGE = 1.0
#: Upper bound of weight, ridge and sharpness; beyond it float64 rounding would decide instead of the data.
_LARGEST = 1e6
_KINDS: dict[str, Kind] = {
    "home_weight": Kind("number", high=_LARGEST),
    "ridge": Kind("number", low=_SMALLEST_RIDGE, high=_LARGEST),
    "sharpness": Kind("number", high=_LARGEST),
    "miscoverage": Kind("shares", inside=True),
    "unit": Kind("word", words=("group", "image")),
    "calibrate_with": Kind("word", words=("coin", "weighted", "all")),
    "unlabelled": Kind("word", words=("report", "inf")),
    "rare": Kind("word", words=("keep", "count", "pool")),
    "slack": Kind("word", words=("keep", "thin")),
    "always_protect": Kind("names"),
    "random_state": Kind("count", high=2**32 - 1),
    "trim": Kind("count", high=2**32 - 1),
    "assurance": Kind("number", inside=True, optional=True),
    "audit": Kind("word", words=("site", "home", "off"), optional=True),
}
_REVIEW_BIAS = (
    "calibrate_with: 'all' needs review probabilities that are all equal, given as e=...; ignoring that some cases "
    "were reviewed because they looked malignant costs the malignant classes 2 to 7 points of coverage while the "
    "overall figure stays near its target. Use 'coin' (drawn cases calibrate) or 'weighted' (known probabilities)"
)


@dataclass(frozen=True, kw_only=True)
class SiteSettings:
    """Every choice of a user of `calcode.site.SiteModel`, in checked form."""

    sampling: dict[str, str]
    miscoverage: dict[str, float]
    home_weight: float
    ridge: float
    sharpness: float
    unit: str
    calibrate_with: str
    unlabelled: str
    rare: str
    slack: str
    always_protect: tuple[str, ...]
    assurance: float | None
    audit: str | None
    random_state: int
    trim: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @property
    def levels(self) -> FloatArray:
        """delta of each class, in class order; shape (K,)."""
        return np.array(list(self.miscoverage.values()))

    def require_review(self, e: FloatArray | None) -> None:
        """Raise unless the reviewed rows may calibrate under these settings (SITE.md S5)."""
        if self.calibrate_with == "all" and (e is None or np.ptp(e) > 0):
            raise SettingsError(_REVIEW_BIAS)
        if self.calibrate_with == "weighted" and e is None:
            raise SettingsError(
                "e: calibrate_with='weighted' needs the review probability of every reviewed row; give e=..., or "
                "evidence with review_probability"
            )

    def require_one_level(self, labels: IntArray) -> None:
        """Raise unless all classes that a pool may hold with these labels have the same level (SITE.md S4)."""
        counts = np.bincount(labels, minlength=len(self.miscoverage))
        rare = {
            name: delta
            for (name, delta), count in zip(self.miscoverage.items(), counts, strict=True)
            if count <= labels_needed(delta) and name not in self.always_protect
        }
        if len(set(rare.values())) > 1:
            raise SettingsError(
                f"miscoverage: rare='pool' needs one level for the pool and its classes have {rare}; give them one, "
                "or name some in always_protect"
            )


@dataclass(kw_only=True, eq=False)
class SiteChoices:
    """Every choice of a user of `SiteModel` as given; `checked` returns them in plain form or says which is wrong.

    See `calcode.site.SiteModel` for their meaning.
    """

    sampling: str | Mapping[str, str]
    miscoverage: float | Mapping[str, float] = DEFAULT_MISCOVERAGE
    home_weight: float = HOME_WEIGHT
    ridge: float = RIDGE
    sharpness: float = SHARPNESS
    unit: str = "group"
    calibrate_with: str = "coin"
    unlabelled: str = "report"
    rare: str = "keep"
    slack: str = "keep"
    always_protect: Sequence[str] = ()
    assurance: float | None = None
    audit: str | None = None
    random_state: int = 0
    trim: int | None = None

    def checked(self, *, classes: Sequence[str], trim: int) -> SiteSettings:
        """Return the settings in plain form, or raise an error that names the first wrong one.

        Parameters
        ----------
        classes : sequence of str
            The label space, whose names the entries per class must use.
        trim : int
            The home model's setting, or that of sharp mode.
        """
        values = {entry.name: getattr(self, entry.name) for entry in fields(SiteChoices)} | {"trim": trim}
        checked = {name: kind.check(name, values[name]) for name, kind in _KINDS.items()}
        checked["miscoverage"] = _per_class(
            "miscoverage", checked["miscoverage"], classes=classes, default=DEFAULT_MISCOVERAGE
        )
        sampling = _per_class("sampling", values["sampling"], classes=classes, default=None)
        for name, design in sampling.items():
            if design not in DESIGNS:
                raise SettingsError(
                    f"sampling: {design!r} for {name} is none of {', '.join(map(repr, DESIGNS))}; say how the reviewed "
                    "cases were chosen"
                )
        unknown = [name for name in checked["always_protect"] if name not in classes]
        if unknown:
            raise SettingsError(f"always_protect: {unknown} not among the classes {list(classes)}")
        settings = SiteSettings(sampling=sampling, **checked)
        # Combinations for which SITE.md makes no promise.
        archive = "archive" in settings.sampling.values()
        weighted = settings.calibrate_with == "weighted"
        refused = {
            "rare='pool' with archive cases: the pool's promise needs the site's own class mix": (
                settings.rare == "pool" and archive
            ),
            "rare='pool' with calibrate_with='weighted'": settings.rare == "pool" and weighted,
            "calibrate_with='weighted' with archive cases: they have no review probability": weighted and archive,
            "slack='thin' with calibrate_with='weighted'": settings.slack == "thin" and weighted,
            "slack='thin' with rare='pool'": settings.slack == "thin" and settings.rare == "pool",
            "unlabelled='inf' with calibrate_with='weighted'": settings.unlabelled == "inf" and weighted,
            "assurance with calibrate_with='weighted'": settings.assurance is not None and weighted,
            "assurance with rare, slack or unlabelled other than their defaults": settings.assurance is not None
            and (settings.rare, settings.slack, settings.unlabelled) != ("keep", "keep", "report"),
        }
        for words, is_so in refused.items():
            if is_so:
                raise SettingsError(f"{words}: no promise is known; change one of them")
        return settings


def _per_class(name: str, value: Any, *, classes: Sequence[str], default: Any) -> dict[str, Any]:
    """Return one value per class, from one value for all or from a mapping by class."""
    if not isinstance(value, Mapping):
        return dict.fromkeys(classes, value)
    unknown = [key for key in value if key not in classes]
    if unknown:
        raise SettingsError(f"{name}: {unknown} not among the classes {list(classes)}")
    missing = [key for key in classes if key not in value]
    if missing and default is None:
        raise SettingsError(f"{name}: no entry for {missing}; name every class or give one value for all")
    return {key: value.get(key, default) for key in classes}
