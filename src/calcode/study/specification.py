"""A study as data: what a study file says, every value checked, and all that is wrong reported at once."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

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

from calcode.errors import FeatureFileError, StudyError
from calcode.files import require_regular
from calcode.method.decisions import COST_REGIMES, WORST_CLASS_MIN, Costs
from calcode.study.features import Features, find_features
from calcode.study.methods import COMPLETE, named_methods

#: Key of the features that serve every setting without its own.
EVERY_SETTING = "*"
#: Names of averages, which no setting may have.
SHIFTED, ALL = "shifted", "all"


class Entry(BaseModel):
    """A table of a study file: unknown keys are errors, values keep their type."""

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


class Condition(Entry):
    """Rows whose column has one of the values, or none of them."""

    column: str
    values: tuple[str | int | float, ...]
    negated: bool = False

    def __str__(self) -> str:
        return f"{self.column} {'not ' * self.negated}in {list(self.values)}"


def _conditions(written: object) -> object:
    """`column = value`, `column = [values]` or `column = { not = value or values }`."""
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
    """Which images a method is fitted on, and which it decides on.

    Attributes
    ----------
    name : str
        Part of file names.
    short, title, description : str
        Words for readers, from the shortest to the longest.
    shifted : bool
        Whether the target differs from the source by more than chance.
    source, target : tuple of Condition
        Rows that hold the fitted roles, and rows that are decided on.
    classes : tuple of str or None
        The label space; None for all classes of the prompts.
    out_of_space : tuple of str
        Diagnoses beyond the label space that are examined; "*" for every one.
    out_of_space_rows : {"apart", "included"}
        Whether they enter the comparison itself, or the out-of-space experiment alone.
    min_n : int
        Answered images that a class needs to be called the worst (METHOD.md 11).
    backbones : tuple of str or None
        Only these; None for all.
    """

    name: Name
    short: str = ""
    title: str = ""
    description: str = ""
    shifted: bool = True
    source: Conditions = ()
    target: Conditions
    classes: tuple[str, ...] | None = None
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

    @field_validator("classes")
    @classmethod
    def _two_classes(cls, classes: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if classes is not None and (len(classes) < 2 or len(set(classes)) != len(classes)):
            raise ValueError(f"two or more different classes needed, got {list(classes)}")
        return classes


def packaged_settings(name: str) -> tuple[Setting, ...]:
    """Settings that come with calcode.

    Examples
    --------
    >>> [setting.name for setting in packaged_settings("dermatology")]
    ['HAM', 'PAD', 'ROSENDAHL']
    """
    return TypeAdapter(tuple[Setting, ...]).validate_json(json.dumps(_packaged(name)))


def _packaged(name: str) -> Any:
    file = files("calcode.study") / "settings" / f"{name}.toml"
    if not file.is_file():
        raise StudyError(f"settings: none named {name!r} come with calcode; write [[settings]]")
    return tomllib.loads(file.read_text(encoding="utf-8"))["settings"]


class Point(Entry):
    """An operating point. Methods other than CALCoDe take its miscoverage alone."""

    name: Name = "fixed"
    miscoverage: OpenShare = 0.05
    guard_miscoverage: OpenShare = 0.05
    deferral_level: Share = 0.05

    @model_validator(mode="before")
    @classmethod
    def _guard_as_sets(cls, written: Any) -> Any:
        """The guard has the level of the sets unless given."""
        if isinstance(written, Mapping) and "miscoverage" in written:
            return {"guard_miscoverage": written["miscoverage"], **written}
        return written

    @property
    def target(self) -> float:
        """Coverage that counts as a hit."""
        return round(1.0 - self.miscoverage, 12)


class Regime(Entry):
    """Costs of an error, a full set and a deferral under one name."""

    name: Name
    error: Annotated[float, Field(ge=0.0)] = 10.0
    set_size: Annotated[float, Field(ge=0.0)] = 1.0
    deferral: Annotated[float, Field(ge=0.0)] = 1.0

    @property
    def costs(self) -> Costs:
        """For the formula of METHOD.md 9."""
        return Costs(error=self.error, set_size=self.set_size, deferral=self.deferral)


_USUAL_REGIMES = tuple(
    Regime(name=name, error=cost.error, set_size=cost.set_size, deferral=cost.deferral)
    for name, cost in COST_REGIMES.items()
)


class Compared(Entry):
    """Methods of the main comparison, and those of the paired bootstrap."""

    run: Methods = Field(default=("all",), validate_default=True)
    comparators: Methods = ("aps", "mondrian", "lcp-vlm", "stacp", "localized-calibration")


class BackboneEntry(Entry):
    """A frozen model as the file names it: one path, or one per setting; environment variables may stand in it."""

    name: Name
    title: str = ""
    features: Annotated[str, Field(min_length=1)] | Annotated[dict[str, str], Field(min_length=1)]
    prompts: Text | None = None
    optional: bool = False


class Backbone(Entry):
    """A frozen model with the features that were found, by setting; `EVERY_SETTING` serves the others."""

    name: Name
    title: str
    features: dict[str, Features]

    def __hash__(self) -> int:
        return hash(self.name)

    def features_for(self, setting: str) -> Features | None:
        """The features that hold a setting's images; None where there are none."""
        return self.features.get(setting, self.features.get(EVERY_SETTING))


class _Common(Entry):
    """What the file says and the resolved study repeats."""

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
                raise ValueError(_unknown("experiment", name, [*EXPERIMENTS, ALL]))
        return tuple(name for name in EXPERIMENTS if ALL in names or name in names)


class StudyFile(_Common):
    """A study file as it is written; its JSON schema serves editors."""

    backbones: Annotated[tuple[BackboneEntry, ...], Field(min_length=1), AfterValidator(_different)]


class Study(_Common):
    """A study with the features that were found; everything a run needs, and what its manifest keeps.

    Attributes
    ----------
    operating_points : tuple of Point
        The first is the fixed comparison point of every experiment but the main comparison.
    options : dict
        Options of single experiments by their table in the file, such as "resplits".
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
        """The seed of every experiment but the main comparison, which runs them all."""
        return self.seeds[0]

    @property
    def compared(self) -> tuple[str, ...]:
        """Methods of the main comparison; the complete one is always among them."""
        return self.methods.run if COMPLETE in self.methods.run else (*self.methods.run, COMPLETE)

    @property
    def comparators(self) -> tuple[str, ...]:
        """Methods that the complete one is compared with closely."""
        return tuple(name for name in self.methods.comparators if name != COMPLETE)

    def combinations(self) -> list[tuple[Setting, Backbone]]:
        """Every setting on every backbone it is meant for, backbone by backbone."""
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
        """What is averaged over: the shifted settings, all of them, each one alone."""
        every = tuple(setting.name for setting in self.settings)
        shifted = tuple(setting.name for setting in self.settings if setting.shifted)
        scopes: dict[str, tuple[str, ...]] = {name: (name,) for name in every}
        return scopes | ({SHIFTED: shifted} if shifted else {}) | {ALL: every}


def _option_types() -> dict[str, tuple[Any, Any]]:
    """Table of the file to the type and the default of the options of an experiment."""
    from calcode.study.registry import EXPERIMENTS

    return {entry.options[0]: entry.options[1:] for entry in EXPERIMENTS.values() if entry.options}


def checked_options(written: Mapping[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Options of every experiment, the usual ones where none are given, and what is wrong with them."""
    options, errors = {}, []
    for key, (kind, usual) in _option_types().items():
        try:
            options[key] = TypeAdapter(kind).validate_json(json.dumps(written[key])) if key in written else usual
        except ValidationError as error:
            errors += [{**entry, "loc": (key, *entry["loc"])} for entry in error.errors()]
    return options, errors


def read_study(path: Path, *, features: Mapping[str, Path] | None = None, output: Path | None = None) -> Study:
    """The study that a file describes, every value checked before any work.

    Parameters
    ----------
    path : Path
    features : mapping of str to Path, optional
        Feature files instead of those in the file, by "backbone" or "backbone/setting".
    output : Path, optional
        Instead of the folder in the file. Paths in the file are relative to it.

    Raises
    ------
    StudyError
        Naming every key that is wrong, and for an unknown one the nearest that exists.
    """
    try:
        content = tomllib.loads(require_regular(path).read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise StudyError(f"{path}: not UTF-8 text, so no TOML") from error
    except FeatureFileError as error:
        raise StudyError(str(error)) from error
    except (ValueError, RecursionError, OSError) as error:
        raise StudyError(f"{path}: not TOML ({error})") from error
    if isinstance(content.get("settings"), str):
        content["settings"] = _packaged(content["settings"])
    own = {key: content.pop(key) for key in _option_types() if key in content}
    options, errors = checked_options(own)
    try:
        written = StudyFile.model_validate_json(json.dumps(content, default=str))
    except ValidationError as error:
        errors += error.errors()
    if errors:
        raise StudyError(_listed(path, [_sentence(entry) for entry in errors]))
    given = dict(features or {})
    backbones, left_out = [], {}
    problems: list[str] = []
    for i, entry in enumerate(written.backbones):
        where = f"backbones[{i}]"
        paths = _paths(entry, given)
        try:
            found = {
                setting: find_features(text, prompts=entry.prompts, folder=path.parent, name=entry.name)
                for setting, text in paths.items()
            }
        except StudyError as error:
            if entry.optional and entry.name not in {key.partition("/")[0] for key in given}:
                left_out[entry.name] = str(error)
            else:
                problems.append(f"{where}.features: {error}")
            continue
        backbones.append(Backbone(name=entry.name, title=entry.title or entry.name, features=found))
    if not backbones and not problems:
        problems.append("backbones: no features found: " + "; ".join(left_out.values()))
    known = [entry.name for entry in written.backbones]
    problems += [
        f"features: {_unknown('backbone', key.partition('/')[0], known)}"
        for key in given
        if key.partition("/")[0] not in known
    ]
    common = {name: getattr(written, name) for name in _Common.model_fields}
    study = Study.model_construct(**common, backbones=tuple(backbones), options=options, left_out=left_out)
    problems += _mismatches(study, known)
    if problems:
        raise StudyError(_listed(path, problems))
    where_to = output if output is not None else path.parent / written.output
    titled = tuple(entry.model_copy(update={"title": entry.title or entry.name}) for entry in study.settings)
    return study.model_copy(update={"output": str(where_to), "settings": titled})


def _paths(entry: BackboneEntry, given: Mapping[str, Path]) -> dict[str, str]:
    """Paths by setting: those of the user instead of those in the file."""
    own = {
        key.partition("/")[2] or EVERY_SETTING: str(path.absolute())
        for key, path in given.items()
        if key.partition("/")[0] == entry.name
    }
    if EVERY_SETTING in own:
        return own
    return ({EVERY_SETTING: entry.features} if isinstance(entry.features, str) else entry.features) | own


def _mismatches(study: Study, backbones: Sequence[str]) -> list[str]:
    """What the settings ask of features that these do not have: backbones, classes, columns."""
    problems = []
    for i, setting in enumerate(study.settings):
        for name in setting.backbones or ():
            if name not in backbones:
                problems.append(f"settings[{i}].backbones: {_unknown('backbone', name, backbones)}")
    columns: dict[str, list[str]] = {}
    for setting, backbone in study.combinations():
        features = backbone.features_for(setting.name)
        assert features is not None, "as in combinations"
        unknown = [name for name in setting.classes or () if name not in features.classes]
        if unknown:
            problems.append(
                f"settings.classes: {unknown} of {setting.name} are not among the prompts of {backbone.name}, "
                f"which are {list(features.classes)}"
            )
        for part in ("source", "target"):
            for condition in getattr(setting, part):
                if condition.column not in features.columns:
                    wrong = _unknown("column", condition.column, features.columns)
                    where = f"settings.{part} of {setting.name}: {wrong}"
                    columns.setdefault(where, []).append(str(features.path))
    return problems + [f"{where}, in {' and '.join(dict.fromkeys(paths))}" for where, paths in columns.items()]


def json_schema() -> dict[str, Any]:
    """The JSON schema of a study file, for editors that complete and check TOML."""
    schema = StudyFile.model_json_schema()
    settings = schema["properties"]["settings"]
    schema["properties"]["settings"] = {"anyOf": [{"type": "string", "enum": ["dermatology"]}, settings]}
    for key, (kind, _) in _option_types().items():
        own = TypeAdapter(kind).json_schema(ref_template="#/$defs/{model}")
        schema["$defs"] |= own.pop("$defs", {})
        schema["properties"][key] = own
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "calcode study", **schema}


def _listed(path: Path, problems: Sequence[str]) -> str:
    if len(problems) == 1:
        return f"{path}: {problems[0]}"
    return "\n  ".join([f"{path}: {len(problems)} things are wrong", *problems])


def _unknown(what: str, name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
    return f"no {what} {name!r}; {advice}"


def _sentence(error: Any) -> str:
    """One finding of pydantic as a sentence that names the key."""
    # The union of a path and a table of paths shows up in the place; it is no key.
    loc = [part for part in error["loc"] if part != "str" and "[" not in str(part)]
    where = re.sub(r"\.\[", "[", ".".join(f"[{part}]" if isinstance(part, int) else str(part) for part in loc))
    if error["type"] == "missing":
        return f"{where}: missing; add it"
    if error["type"] == "extra_forbidden":
        parent, known = where.rpartition(".")[0] or "study", _known_keys(loc[:-1])
        near = difflib.get_close_matches(str(loc[-1]), known, n=1)
        advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        return f"{parent}: unknown key {str(loc[-1])!r}; {advice}"
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return f"{where}: {message}"
    if error["type"] == "string_pattern_mismatch":
        return f"{where}: {error['input']!r} cannot be part of a file name; use letters, digits, _ . + -"
    return f"{where}: {message[0].lower()}{message[1:]}, not {error['input']!r}"


def _known_keys(loc: Sequence[Any]) -> list[str]:
    """Keys of the table at a place of the file."""
    kind: Any = StudyFile
    for part in loc:
        if isinstance(part, int):
            continue
        options = {key: own for key, (own, _) in _option_types().items()}
        kind = options[part] if kind is StudyFile and part in options else kind.model_fields[part].annotation
        while not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            kind = next(entry for entry in get_args(kind) if entry is not type(None))
    return [*kind.model_fields, *_option_types()] if kind is StudyFile else list(kind.model_fields)
