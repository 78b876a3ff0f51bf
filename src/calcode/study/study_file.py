"""Read a study file: TOML in, a checked `Study` out."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from calcode.baselines.registry import METHODS
from calcode.errors import StudyError
from calcode.method.decisions import COST_REGIMES, Costs
from calcode.method.levels import LEVELS
from calcode.study.feature_paths import find_backbones
from calcode.study.method_groups import named_methods
from calcode.study.specification import (
    COMPLETE,
    Backbone,
    Condition,
    MotivatingCase,
    OutsideRows,
    Point,
    Resplits,
    Sensitivities,
    Setting,
    Study,
)
from calcode.study.toml_values import TomlTable

#: What the paper's paired bootstrap compares with.
_COMPARATORS = ("aps", "mondrian", "lcp-vlm", "stacp", "localized-calibration")


def read_study(
    path: Path, *, features: Mapping[str, Path] | None = None, output: Path | None = None
) -> Study:
    """The study that a file describes, every value checked before any work.

    Parameters
    ----------
    path : Path
    features : mapping of str to Path, optional
        Feature files by backbone, instead of those in the file.
    output : Path, optional
        Instead of the folder in the file. Paths in the file are relative to it.

    Raises
    ------
    StudyError
        Naming the key, what is wrong with it and, for an unknown one, the nearest that exists.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise StudyError(f"{path}: not TOML ({error})") from error
    table = TomlTable(content, where="study")
    study = _study(table, folder=path.parent, features=dict(features or {}), output=output)
    table.finish()
    return study


def _study(table: TomlTable, *, folder: Path, features: dict[str, Path], output: Path | None) -> Study:
    backbones, left_out = find_backbones(table.tables("backbones"), folder=folder, given=features)
    settings = _settings(table.tables("settings"), backbones, left_out)
    methods = table.table("methods")
    run = named_methods(methods.texts("run", default=["all"]), where="methods.run")
    comparators = named_methods(
        methods.texts("comparators", default=_COMPARATORS), where="methods.comparators"
    )
    methods.finish()
    where_to = Path(table.words("output", default="output"))
    return Study(
        title=table.words("title"),
        output=output if output is not None else folder / where_to,
        seeds=_different(table.wholes("seeds", default=[0]), where="seeds"),
        backbones=backbones,
        settings=settings,
        methods=run,
        comparators=tuple(name for name in comparators if name != COMPLETE),
        points=_points(table.tables("operating_points")),
        costs=_costs(table.tables("costs")),
        experiments=_experiments(table),
        n_resamples=table.whole("bootstrap_resamples", default=1000, low=1),
        projected_images=table.whole("projected_images", default=1000, low=2),
        sensitivities=_sensitivities(table.table("sensitivities")),
        resplits=_resplits(table.table("resplits")),
        motivating=_motivating(table.tables("motivating_cases"), settings, backbones, left_out),
        left_out=left_out,
        **_subgroups(table.table("subgroups")),
    )


def _settings(
    tables: Sequence[TomlTable], backbones: Sequence[Backbone], left_out: Mapping[str, str]
) -> tuple[Setting, ...]:
    if not tables:
        raise StudyError("settings: none given; write at least one [[settings]]")
    known = [*(backbone.name for backbone in backbones), *left_out]
    settings = tuple(_setting(table, known) for table in tables)
    names = _different(tuple(setting.name for setting in settings), where="settings.name")
    _check_classes(settings, backbones)
    reserved = {"all", "shifted"} & set(names)
    if reserved:
        raise StudyError(f"settings.name: {sorted(reserved)} stand for averages; choose other names")
    return settings


def _check_classes(settings: Sequence[Setting], backbones: Sequence[Backbone]) -> None:
    for setting in settings:
        for backbone in backbones:
            features = backbone.features_for(setting.name)
            if features is None or (setting.backbones and backbone.name not in setting.backbones):
                continue
            unknown = [name for name in setting.classes or () if name not in features.classes]
            if unknown:
                raise StudyError(
                    f"settings.classes: {unknown} of {setting.name} are not among the prompts of {backbone.name}, "
                    f"which are {list(features.classes)}"
                )


def _setting(table: TomlTable, backbones: Sequence[str]) -> Setting:
    only = table.texts("backbones")
    unknown = [name for name in only if name not in backbones]
    if unknown:
        raise StudyError(f"{table.where}.backbones: {unknown} not among {list(backbones)}")
    classes = table.texts("classes")
    if len(classes) == 1 or len(set(classes)) != len(classes):
        raise StudyError(f"{table.where}.classes: two or more different classes needed, got {list(classes)}")
    name = table.name("name")
    setting = Setting(
        name=name,
        title=table.words("title", default=name),
        description=table.words("description", default=""),
        shifted=table.truth("shifted", default=True),
        source=_conditions(table.table("source")),
        target=_conditions(table.table("target")),
        classes=classes or None,
        outside=table.texts("out_of_space"),
        outside_rows=cast(
            OutsideRows, table.choice("out_of_space_rows", ("apart", "included"), default="apart")
        ),
        min_images=table.whole("min_images", default=20, low=1),
        backbones=only or None,
    )
    if not setting.target:
        raise StudyError(
            f"{table.where}.target: missing; say which rows are decided on, such as role = 'test'"
        )
    table.finish()
    return setting


def _conditions(table: TomlTable) -> tuple[Condition, ...]:
    """`column = value`, `column = [values]` or `column = { not = value or values }`."""
    conditions = []
    for column, value in table.items():
        negated = isinstance(value, dict)
        if negated and set(value) != {"not"}:
            raise StudyError(
                f"{table.where}.{column}: {value!r} is no condition; write a value, a list of values, or "
                "{ not = ... }"
            )
        chosen = value["not"] if negated else value
        values = chosen if isinstance(chosen, list) else [chosen]
        if not values or any(isinstance(entry, bool) or not _is_value(entry) for entry in values):
            raise StudyError(f"{table.where}.{column}: texts or numbers needed, got {chosen!r}")
        conditions.append(Condition(column=column, values=tuple(values), negated=negated))
    return tuple(conditions)


def _is_value(value: object) -> bool:
    return isinstance(value, str | int | float)


def _points(tables: Sequence[TomlTable]) -> tuple[Point, ...]:
    points = []
    for table in tables:
        miscoverage = _share(table, "miscoverage", default=0.05)
        points.append(
            Point(
                name=table.name("name"),
                miscoverage=miscoverage,
                guard_miscoverage=_share(table, "guard_miscoverage", default=miscoverage),
                deferral_level=table.between("deferral_level", default=0.05),
            )
        )
        table.finish()
    _different(tuple(point.name for point in points), where="operating_points.name")
    return tuple(points) or (Point(),)


def _share(table: TomlTable, key: str, *, default: float) -> float:
    value = table.between(key, default=default)
    if value in (0.0, 1.0):
        raise StudyError(f"{table.where}.{key}: {value} must lie strictly between 0 and 1")
    return value


def _costs(tables: Sequence[TomlTable]) -> dict[str, Costs]:
    regimes = {}
    for table in tables:
        regimes[table.name("name")] = Costs(
            error=table.between("error", default=10.0, high=1e9),
            set_size=table.between("set_size", default=1.0, high=1e9),
            deferral=table.between("deferral", default=1.0, high=1e9),
        )
        table.finish()
    return regimes or dict(COST_REGIMES)


def _experiments(table: TomlTable) -> tuple[str, ...]:
    from calcode.study.registry import EXPERIMENTS

    wanted = table.texts("experiments", default=["all"])
    if "all" in wanted:
        return tuple(EXPERIMENTS)
    unknown = [name for name in wanted if name not in EXPERIMENTS]
    if unknown:
        raise StudyError(f"experiments: {unknown} unknown; choose among {', '.join(EXPERIMENTS)} or 'all'")
    return tuple(name for name in EXPERIMENTS if name in wanted)


def _sensitivities(table: TomlTable) -> Sensitivities:
    usual = Sensitivities()
    levels = table.texts("level", default=usual.level)
    unknown = [name for name in levels if name not in LEVELS]
    if unknown:
        raise StudyError(f"{table.where}.level: {unknown} unknown; choose among {', '.join(LEVELS)}")
    chosen = Sensitivities(
        discovery_margin=table.numbers("discovery_margin", default=usual.discovery_margin),
        guard_level=table.numbers("guard_level", default=usual.guard_level, low=0.01, high=0.999),
        deferral_level=table.numbers("deferral_level", default=usual.deferral_level),
        support_budget=table.numbers("support_budget", default=usual.support_budget),
        trim=table.wholes("trim", default=usual.trim),
        n_neighbors=table.wholes("n_neighbors", default=usual.n_neighbors, low=1),
        n_folds=table.wholes("n_folds", default=usual.n_folds, low=2),
        level=levels,
    )
    table.finish()
    return chosen


def _resplits(table: TomlTable) -> Resplits:
    usual = Resplits()
    chosen = Resplits(
        n=table.whole("n", default=usual.n),
        methods=named_methods(table.texts("methods", default=usual.methods), where=f"{table.where}.methods"),
    )
    table.finish()
    return chosen


def _subgroups(table: TomlTable) -> dict[str, Any]:
    columns = table.texts("columns")
    methods = named_methods(table.texts("methods", default=[COMPLETE]), where=f"{table.where}.methods")
    table.finish()
    return {"subgroups": columns, "subgroup_methods": methods}


def _motivating(
    tables: Sequence[TomlTable],
    settings: Sequence[Setting],
    backbones: Sequence[Backbone],
    left_out: Mapping[str, str],
) -> tuple[MotivatingCase, ...]:
    cases = []
    for table in tables:
        case = MotivatingCase(
            setting=table.words("setting"),
            backbone=table.words("backbone"),
            comparator=_one_method(table.words("comparator"), where=f"{table.where}.comparator"),
            class_name=table.words("class") if table.has("class") else None,
        )
        table.finish()
        for key, value, known in (
            ("setting", case.setting, [setting.name for setting in settings]),
            ("backbone", case.backbone, [*(backbone.name for backbone in backbones), *left_out]),
        ):
            if value not in known:
                raise StudyError(f"{table.where}.{key}: {value!r} is none of {known}")
        if case.backbone not in left_out:
            cases.append(case)
    return tuple(cases)


def _one_method(name: str, *, where: str) -> str:
    named_methods([name], where=where)
    if name not in METHODS:
        raise StudyError(f"{where}: {name!r} is a group; name one method")
    return name


def _different(values: tuple[Any, ...], *, where: str) -> tuple[Any, ...]:
    if not values and where == "seeds":
        raise StudyError("seeds: empty; give at least one")
    repeated = sorted({value for value in values if values.count(value) > 1})
    if repeated:
        raise StudyError(f"{where}: {repeated} given more than once")
    return values
