"""A study as data: cohorts, settings, methods, operating points and experiments, all checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, Literal

from calcode.method.decisions import COST_REGIMES, Costs

OutsideRows = Literal["apart", "included"]
#: The method that comparisons, ablations and sensitivities are about.
COMPLETE = "calcode"
#: Key of the features that serve every setting without its own.
EVERY_SETTING = "*"


@dataclass(frozen=True, kw_only=True)
class Condition:
    """Rows whose column has one of the values, or none of them."""

    column: str
    values: tuple[str | float, ...]
    negated: bool = False


@dataclass(frozen=True, kw_only=True)
class Features:
    """A feature file with its prompts.

    Attributes
    ----------
    path : Path
    prompts : Path or None
        Looked for beside the features unless given.
    digest : str
        SHA-256 of both files, so that changed features are noticed.
    classes : tuple of str
        Of the prompts.
    """

    path: Path
    prompts: Path | None
    digest: str
    classes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """A frozen model by its features.

    Attributes
    ----------
    name, title : str
    features : mapping of str to Features
        By setting; `EVERY_SETTING` serves those that are not named.
    """

    name: str
    title: str
    features: Mapping[str, Features]

    def features_for(self, setting: str) -> Features | None:
        """The features that hold a setting's images; None where there are none."""
        return self.features.get(setting, self.features.get(EVERY_SETTING))


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Which images a method is fitted on, and which it decides on.

    Attributes
    ----------
    name, title, description : str
    shifted : bool
        Whether the target differs from the source by more than chance.
    source, target : tuple of Condition
        Rows that hold the fitted roles, and rows that are decided on.
    classes : tuple of str or None
        The label space; None for all classes of the prompts.
    outside : tuple of str
        Diagnoses outside the label space that are looked at.
    outside_rows : {"apart", "included"}
        Whether they enter the comparison itself, or the out-of-space experiment alone.
    min_images : int
        Target images that a class needs to be called the worst.
    backbones : tuple of str or None
        Only these; None for all.
    """

    name: str
    title: str
    description: str = ""
    shifted: bool = True
    source: tuple[Condition, ...] = ()
    target: tuple[Condition, ...] = ()
    classes: tuple[str, ...] | None = None
    outside: tuple[str, ...] = ()
    outside_rows: OutsideRows = "apart"
    min_images: int = 20
    backbones: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Point:
    """An operating point. Methods other than CALCoDe take its miscoverage alone."""

    name: str = "fixed"
    miscoverage: float = 0.05
    guard_miscoverage: float = 0.05
    deferral_level: float = 0.05

    @property
    def target(self) -> float:
        """Coverage that counts as a hit."""
        return round(1.0 - self.miscoverage, 12)


@dataclass(frozen=True, kw_only=True)
class Sensitivities:
    """The values that are tried, one setting of the method at a time."""

    discovery_margin: tuple[float, ...] = (0.0, 0.02, 0.04, 0.05, 0.06, 0.08, 0.10)
    guard_level: tuple[float, ...] = (0.90, 0.95)
    deferral_level: tuple[float, ...] = (0.01, 0.02, 0.05, 0.10)
    support_budget: tuple[float, ...] = (0.05, 0.10, 0.25, 0.50)
    trim: tuple[int, ...] = (0, 1, 2)
    n_neighbors: tuple[int, ...] = (5, 10, 20, 50)
    n_folds: tuple[int, ...] = (3, 5, 10)
    level: tuple[str, ...] = ("loo", "exact", "upper", "certified")


@dataclass(frozen=True, kw_only=True)
class Resplits:
    """Seeded re-splits of the source by group; none unless asked for."""

    n: int = 0
    methods: tuple[str, ...] = ("aps", "mondrian", "localized-calibration", "calcode")


@dataclass(frozen=True, kw_only=True)
class MotivatingCase:
    """The class whose misses are shown; the comparator's worst one unless named."""

    setting: str
    backbone: str
    comparator: str
    class_name: str | None = None


@dataclass(frozen=True, kw_only=True)
class Study:
    """Everything a run needs; `calcode study init` writes a file that explains its keys.

    Attributes
    ----------
    comparators : tuple of str
        Methods of the paired bootstrap and the motivating case.
    points : tuple of Point
        The first is the fixed comparison point of every experiment but the main comparison.
    left_out : mapping of str to str
        Optional backbones without features, and why.
    """

    title: str
    output: Path
    seeds: tuple[int, ...] = (0,)
    backbones: tuple[Backbone, ...]
    settings: tuple[Setting, ...]
    methods: tuple[str, ...]
    comparators: tuple[str, ...] = ()
    points: tuple[Point, ...] = (Point(),)
    costs: Mapping[str, Costs] = field(default_factory=lambda: dict(COST_REGIMES))
    experiments: tuple[str, ...] = ()
    n_resamples: int = 1000
    subgroups: tuple[str, ...] = ()
    subgroup_methods: tuple[str, ...] = ()
    projected_images: int = 1000
    sensitivities: Sensitivities = Sensitivities()
    resplits: Resplits = Resplits()
    motivating: tuple[MotivatingCase, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def point(self) -> Point:
        """The fixed comparison point."""
        return self.points[0]

    @property
    def seed(self) -> int:
        """The seed of every experiment but the main comparison, which runs them all."""
        return self.seeds[0]

    def combinations(self) -> list[tuple[Setting, Backbone]]:
        """Every setting on every backbone it is meant for, backbone by backbone."""
        return [
            (setting, backbone)
            for backbone in self.backbones
            for setting in self.settings
            if (setting.backbones is None or backbone.name in setting.backbones)
            and backbone.features_for(setting.name) is not None
        ]

    def n_classes(self, setting: Setting, backbone: Backbone) -> int:
        """Size of the label space of a combination."""
        features = backbone.features_for(setting.name)
        return len(setting.classes or (features.classes if features is not None else ()))

    def setting_scopes(self) -> dict[str, tuple[str, ...]]:
        """What is averaged over: each setting alone, the shifted ones, all of them."""
        scopes: dict[str, tuple[str, ...]] = {setting.name: (setting.name,) for setting in self.settings}
        shifted = tuple(setting.name for setting in self.settings if setting.shifted)
        if shifted:
            scopes["shifted"] = shifted
        scopes["all"] = tuple(setting.name for setting in self.settings)
        return scopes


def plain(value: Any) -> Any:
    """A specification as plain values for JSON and for keys."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    # JSON knows no infinity.
    unwritable = isinstance(value, Path) or (isinstance(value, float) and not math.isfinite(value))
    return str(value) if unwritable else value
