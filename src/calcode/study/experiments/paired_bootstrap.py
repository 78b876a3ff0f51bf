"""Item 2: the complete method against chosen comparators, by paired class-stratified bootstrap."""

from __future__ import annotations

from dataclasses import fields

from calcode.errors import StudyError
from calcode.metrics import PairedDifference, paired_difference
from calcode.metrics.comparisons import Difference
from calcode.study.decision_rows import DecisionRows
from calcode.study.experiment import Experiment, Rows
from calcode.study.jobs import Job
from calcode.study.method_decisions import method_job
from calcode.study.results import Results
from calcode.study.schema import Cell, TableSchema, flag, integer, number, text
from calcode.study.specification import COMPLETE, Backbone, Setting, Study
from calcode.study.summary_columns import SETTING, title_of

SCHEMA = TableSchema(
    name="recent_baselines_paired_bootstrap",
    about="One row per setting, comparator and metric: the complete method minus the comparator on the same images, "
    "averaged over backbones, decisions fixed.",
    columns=(
        SETTING,
        text("comparator", "Name of the other method."),
        text("comparator_title", "Its name in tables."),
        text("metric", "What the difference is of."),
        number("difference", "Complete method minus comparator."),
        number("low", "Lower end of the 95 % interval."),
        number("high", "Upper end of the 95 % interval."),
        flag("excludes_zero", "Whether zero lies outside the interval."),
        integer("n_backbones", "Backbones averaged over."),
        integer("n_resamples", "Bootstrap resamples."),
        integer("min_images", "Images a class needed to be called the worst."),
    ),
    key=("setting", "comparator", "metric"),
)


def _job(study: Study, method: str, setting: Setting, backbone: Backbone) -> Job:
    return method_job(method, setting=setting, backbone=backbone, point=study.point, seed=study.seed)


def jobs(study: Study) -> list[Job]:
    """The complete method and every comparator."""
    return [
        _job(study, method, setting, backbone)
        for setting, backbone in study.combinations()
        for method in (COMPLETE, *study.comparators)
    ]


def rows(study: Study, results: Results) -> Rows:
    """Differences of every metric, setting by setting."""
    table: list[dict[str, Cell]] = []
    for setting in study.settings:
        backbones = [backbone for place, backbone in study.combinations() if place.name == setting.name]
        for comparator in study.comparators:
            pairs = []
            for backbone in backbones:
                first = results.decisions(_job(study, COMPLETE, setting, backbone))
                second = results.decisions(_job(study, comparator, setting, backbone))
                if first is not None and second is not None:
                    pairs.append((first, second))
            if pairs:
                table += _compared(study, setting, comparator, pairs)
    return {SCHEMA.name: table}


def _compared(
    study: Study, setting: Setting, comparator: str, pairs: list[tuple[DecisionRows, DecisionRows]]
) -> list[dict[str, Cell]]:
    for first, second in pairs:
        if first.ids.tolist() != second.ids.tolist():
            raise StudyError(f"{setting.name}: {comparator} was run on other images than {COMPLETE}")
    difference = paired_difference(
        [first.outcome for first, _ in pairs],
        [second.outcome for _, second in pairs],
        labels=[first.labels for first, _ in pairs],
        min_n=setting.min_images,
        n_resamples=study.n_resamples,
        random_state=study.seed,
    )
    return [
        {
            "setting": setting.name,
            "comparator": comparator,
            "comparator_title": title_of(comparator),
            "metric": name,
            "difference": entry.value,
            "low": entry.low,
            "high": entry.high,
            "excludes_zero": bool(entry.low > 0 or entry.high < 0),
            "n_backbones": difference.n_backbones,
            "n_resamples": study.n_resamples,
            "min_images": setting.min_images,
        }
        for name, entry in _entries(difference)
    ]


def _entries(difference: PairedDifference) -> list[tuple[str, Difference]]:
    values = [(entry.name, getattr(difference, entry.name)) for entry in fields(difference)]
    return [(name, value) for name, value in values if isinstance(value, Difference)]


EXPERIMENT = Experiment(
    name="paired-bootstrap", title="Paired bootstrap", tables=(SCHEMA,), jobs=jobs, rows=rows
)
