"""A study as data: the contents of a study file, and the checked study that a run uses."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from calcode.errors import StudyError
from calcode.method.decisions import COST_REGIMES, WORST_CLASS_MIN, Costs
from calcode.study.methods import COMPLETE, named_methods
from calcode.toml_mistakes import unknown

#: Key of the features used for every setting that has none of its own.
EVERY_SETTING = "*"
#: Names of averages, which no setting may use.
SHIFTED, ALL = "shifted", "all"


class Entry(BaseModel):
    """A table of a study file: unknown keys are errors, values are not converted to other types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _different(values: tuple[Any, ...]) -> tuple[Any, ...]:
    names = [getattr(value, "name", value) for value in values]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"{repeated} given more than once")
    return values


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$", description="Part of file names.")]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
OpenShare = Annotated[float, Field(gt=0.0, lt=1.0)]
Text = Annotated[str, Field(min_length=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Methods = Annotated[
    tuple[str, ...], AfterValidator(lambda names: named_methods(names)), Field(description="Names or groups.")
]


class Features(BaseModel):
    """A feature file with its prompts.

    Attributes
    ----------
    path : Path
    prompts : Path or None
        Default: looked for next to the features.
    digest : str
        SHA-256 of both files, so that a change of features is noticed.
    classes : tuple of str
        Classes of the prompts.
    columns : tuple of str
        Columns of the feature file.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Path
    prompts: Path | None
    digest: str
    classes: tuple[str, ...]
    columns: tuple[str, ...]


class Condition(Entry):
    """Rows whose column has one of the values or, if negated, none of them."""

    column: str
    values: tuple[str | int | float, ...]
    negated: bool = False

    def __str__(self) -> str:
        return f"{self.column} {'not ' * self.negated}in {list(self.values)}"


def _conditions(written: object) -> object:
    """Read `column = value`, `column = [values]` or `column = { not = value or values }`."""
    if not isinstance(written, Mapping):
        return written
    found = []
    for column, value in written.items():
        negated = isinstance(value, Mapping)
        if negated and set(value) != {"not"}:
            raise ValueError(
                f"{column}: {value!r} is no condition; write a value, a list of values, or {{ not = ... }}"
            )
        chosen = value["not"] if negated else value
        values = chosen if isinstance(chosen, list) else [chosen]
        if not values or any(isinstance(v, bool) or not isinstance(v, str | int | float) for v in values):
            raise ValueError(f"{column}: texts or numbers needed, got {chosen!r}")
        found.append(Condition(column=column, values=tuple(values), negated=negated))
    return tuple(found)


Conditions = Annotated[
    tuple[Condition, ...],
    BeforeValidator(_conditions),
    WithJsonSchema({"type": "object", "description": "column = value, [values] or { not = value or values }"}),
]


class Setting(Entry):
    """The images on which a method is fitted, and those on which it decides.

    Attributes
    ----------
    name : str
        Part of file names.
    short, title, description : str
        Texts for readers, from the shortest to the longest.
    shifted : bool
        Whether the target differs from the source by more than chance.
    source, target : tuple of Condition
        Conditions for the rows with the fitted roles, and for the rows to decide on.
    classes : tuple of str or None
        The label space; None for all classes of the prompts.
    out_of_space : tuple of str
        Diagnoses beyond the label space that are examined; "*" means all.
    out_of_space_rows : {"apart", "included"}
        Whether they are part of the comparison itself, or only of the out-of-space experiment.
    min_n : int
        Fewest answered images with which a class can be the worst class (METHOD.md 11).
    backbones : tuple of str or None
        Only these backbones; None for all.
    """

    name: Name
    short: str = ""
    title: str = ""
    description: str = ""
    shifted: bool = True
    source: Conditions = ()
    target: Conditions
    classes: Annotated[tuple[str, ...], Field(min_length=2), AfterValidator(_different)] | None = None
    out_of_space: tuple[str, ...] = ()
    out_of_space_rows: Literal["apart", "included"] = "apart"
    min_n: Annotated[int, Field(ge=1, le=10**9)] = WORST_CLASS_MIN
    backbones: tuple[str, ...] | None = None

    @field_validator("name")
    @classmethod
    def _no_average(cls, name: str) -> str:
        if name in (SHIFTED, ALL):
            raise ValueError(f"{name!r} stands for an average; choose another name")
        return name

    @field_validator("target")
    @classmethod
    def _some_target(cls, target: tuple[Condition, ...]) -> tuple[Condition, ...]:
        if not target:
            raise ValueError("empty; say which rows are decided on, such as role = 'test'")
        return target


def packaged_settings(name: str) -> tuple[Setting, ...]:
    """Settings that are included in calcode.

    Examples
    --------
    >>> [setting.name for setting in packaged_settings("dermatology")]
    ['HAM', 'PAD', 'ROSENDAHL']
    """
    return TypeAdapter(tuple[Setting, ...]).validate_json(json.dumps(packaged_tables(name)))


def packaged_tables(name: str) -> Any:
    """The same settings as in their file, unchecked."""
    file = files("calcode.study") / "settings" / f"{name}.toml"
    if not file.is_file():
        raise StudyError(f"settings: none named {name!r} come with calcode; write [[settings]]")
    return tomllib.loads(file.read_text(encoding="utf-8"))["settings"]


class Point(Entry):
    """An operating point. Methods other than CALCoDe use only its miscoverage."""

    name: Name = "fixed"
    miscoverage: OpenShare = 0.05
    guard_miscoverage: OpenShare = 0.05
    deferral_level: Share = 0.05

    @model_validator(mode="before")
    @classmethod
    def _guard_as_sets(cls, written: Any) -> Any:
        """Use the level of the sets for the guard, unless it is given."""
        if isinstance(written, Mapping) and "miscoverage" in written:
            return {"guard_miscoverage": written["miscoverage"], **written}
        return written

    @property
    def target(self) -> float:
        """The target coverage."""
        return round(1.0 - self.miscoverage, 12)


class Regime(Entry):
    """Costs of an error, of set size and of a deferral, under one name."""

    name: Name
    error: Annotated[float, Field(ge=0.0)] = 10.0
    set_size: Annotated[float, Field(ge=0.0)] = 1.0
    deferral: Annotated[float, Field(ge=0.0)] = 1.0

    @property
    def costs(self) -> Costs:
        """The costs for the formula of METHOD.md 9."""
        return Costs(error=self.error, set_size=self.set_size, deferral=self.deferral)


_USUAL_REGIMES = tuple(Regime(name=name, **asdict(costs)) for name, costs in COST_REGIMES.items())


class Compared(Entry):
    """Methods of the main comparison, and those of the paired bootstrap."""

    run: Methods = Field(default=("all",), validate_default=True)
    comparators: Methods = ("aps", "mondrian", "lcp-vlm", "stacp", "localized-calibration")


class BackboneEntry(Entry):
    """A frozen model as named in the file: one path, or one per setting; paths may contain environment variables."""

    name: Name
    title: str = ""
    features: Annotated[str, Field(min_length=1)] | Annotated[dict[str, str], Field(min_length=1)]
    prompts: Text | None = None
    optional: bool = False


class Backbone(Entry):
    """A frozen model with the features that were found, by setting; `EVERY_SETTING` applies to all others."""

    name: Name
    title: str
    features: dict[str, Features]

    def __hash__(self) -> int:
        return hash(self.name)

    def features_for(self, setting: str) -> Features | None:
        """The features with a setting's images; None if there are none."""
        return self.features.get(setting, self.features.get(EVERY_SETTING))


#: A setting on a backbone.
Combination = tuple[Setting, Backbone]


class Common(Entry):
    """Keys that the file and the resolved study have in common."""

    title: Text
    output: str = "output"
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1, max_length=1000), AfterValidator(_different)] = (0,)
    experiments: tuple[str, ...] = Field(default=("all",), validate_default=True)
    settings: Annotated[tuple[Setting, ...], Field(min_length=1), AfterValidator(_different)]
    methods: Compared = Compared()
    operating_points: Annotated[tuple[Point, ...], Field(min_length=1), AfterValidator(_different)] = (Point(),)
    costs: Annotated[tuple[Regime, ...], Field(min_length=1), AfterValidator(_different)] = Field(
        default_factory=lambda: _USUAL_REGIMES
    )

    @field_validator("experiments")
    @classmethod
    def _known_experiments(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        from calcode.study.registry import EXPERIMENTS

        for name in names:
            if name != ALL and name not in EXPERIMENTS:
                raise ValueError(unknown("experiment", name, [*EXPERIMENTS, ALL]))
        return tuple(name for name in EXPERIMENTS if ALL in names or name in names)


class StudyFile(Common):
    """A study file as it is written; editors use its JSON schema."""

    backbones: Annotated[tuple[BackboneEntry, ...], Field(min_length=1), AfterValidator(_different)]


class Study(Common):
    """A study with the features that were found: everything a run needs, and what its manifest keeps.

    Attributes
    ----------
    operating_points : tuple of Point
        The first is the fixed comparison point of every experiment except the main comparison.
    options : dict
        Options of single experiments, by their table in the file, such as "resplits".
    left_out : dict
        Optional backbones without features, and why.
    """

    backbones: tuple[Backbone, ...]
    options: dict[str, Any] = {}
    left_out: dict[str, str] = {}

    @property
    def point(self) -> Point:
        """The fixed comparison point."""
        return self.operating_points[0]

    @property
    def seed(self) -> int:
        """The seed of every experiment except the main comparison, which runs all seeds."""
        return self.seeds[0]

    @property
    def compared(self) -> tuple[str, ...]:
        """Methods of the main comparison, always including the complete one."""
        return self.methods.run if COMPLETE in self.methods.run else (*self.methods.run, COMPLETE)

    @property
    def comparators(self) -> tuple[str, ...]:
        """Methods with which the complete one is compared in detail."""
        return tuple(name for name in self.methods.comparators if name != COMPLETE)

    def combinations(self) -> list[Combination]:
        """Every setting on every backbone for which it is meant, ordered by backbone."""
        return [
            (setting, backbone)
            for backbone in self.backbones
            for setting in self.settings
            if (setting.backbones is None or backbone.name in setting.backbones)
            and backbone.features_for(setting.name) is not None
        ]

    def classes_of(self, setting: Setting, backbone: Backbone) -> tuple[str, ...]:
        """The label space of a combination."""
        features = backbone.features_for(setting.name)
        return setting.classes or (features.classes if features is not None else ())

    def scopes(self) -> dict[str, tuple[str, ...]]:
        """Scopes of averages: the shifted settings, all settings, and each setting alone."""
        every = tuple(setting.name for setting in self.settings)
        shifted = tuple(setting.name for setting in self.settings if setting.shifted)
        scopes: dict[str, tuple[str, ...]] = {name: (name,) for name in every}
        return scopes | ({SHIFTED: shifted} if shifted else {}) | {ALL: every}


def option_types() -> dict[str, tuple[Any, Any]]:
    """Type and default of the options of each experiment, by their table in the file."""
    from calcode.study.registry import EXPERIMENTS

    return {entry.options[0]: entry.options[1:] for entry in EXPERIMENTS.values() if entry.options}


def checked_options(written: Mapping[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Options of every experiment, with defaults if none are given, and the errors in them."""
    options, errors = {}, []
    for key, (kind, usual) in option_types().items():
        try:
            options[key] = TypeAdapter(kind).validate_json(json.dumps(written[key])) if key in written else usual
        except ValidationError as error:
            errors += [{**entry, "loc": (key, *entry["loc"])} for entry in error.errors()]
    return options, errors
