"""Write the report of a study from its folder: one page, and every table and figure as a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from calcode.files import replacing
from calcode.metrics.wording import count, counted, listed, number, percent, percent_estimate, short_percent
from calcode.report.figure_files import can_draw, write_figure
from calcode.report.latex import file_stem, latex_table
from calcode.report.page import write_page
from calcode.report.parts import Fold, Part, Section, Table, Terms, Text, columns
from calcode.study.methods import COMPLETE, PAPER_SETS, title_of
from calcode.study.output import StudyOutput
from calcode.study.paper import reported_parts
from calcode.study.registry import EXPERIMENTS
from calcode.study.view import cost_words, estimate, single_words

PAGE = "report.html"
#: Share of full sets from which the summary explains what they mean.
_MANY_FULL = 0.25
#: Number of other methods that a sentence names; the rest are only counted.
_NAMED = 4
#: Number of slowest combinations that are named.
_SLOWEST = 10
_GLOSSARY = (
    ("Answered", "an image that is not deferred; every figure about sets is over answered images."),
    ("Coverage", "share of answered images of the label space whose set holds the true label."),
    ("Worst class", "the class with the smallest coverage, among those with enough answered images."),
    ("Set size", "labels in the set of an answered image, on average. A full set holds every label and says nothing."),
    ("Informative", "share of all images that are answered with at least one label and not all of them."),
    ("Single answers", "answers with exactly one label, and how many of them are the true one."),
    ("Deferred", "share of all images that go to a clinician instead of getting an answer."),
    ("Target met", "combinations of setting and backbone whose coverage is at least the target."),
    ("Shifted", "images unlike the calibration images: every figure there is observed, and no theorem promises it."),
    ("The paper's sets", "CALCoDe without the rule that the first-ranked label is always in the set."),
    ("Reconstruction", "a method without published code, built from its description."),
    ("Reported", "a number that the paper prints; never computed here."),
)


@dataclass(frozen=True, kw_only=True)
class WrittenReport:
    """The written files; `drawn` is False if matplotlib is not installed, so that figures were left out."""

    page: Path
    latex: tuple[Path, ...]
    figures: tuple[Path, ...]
    drawn: bool


def write_report(folder: Path, *, page: Path | None = None) -> WrittenReport:
    """Write `report.html`, `latex/*.tex` and `figures/*` (SVG, PDF and PNG) into a study's folder.

    Parameters
    ----------
    folder : Path
        Output of `calcode study run`.
    page : Path, optional
        Where to write the page; default: `report.html` in the folder.

    Returns
    -------
    WrittenReport
    """
    output = StudyOutput(folder)
    sections = report_sections(output)
    target = folder / PAGE if page is None else page
    write_page(target, sections, title=output.study.title)
    drawn = can_draw()
    latex: list[Path] = []
    figures: list[Path] = []
    for name in ("latex", "figures"):
        (folder / name).mkdir(exist_ok=True)
    for section in sections:
        for table in section.tables:
            latex.append(folder / "latex" / f"{file_stem(table.name)}.tex")
            with replacing(latex[-1]) as temporary:
                temporary.write_text(latex_table(table), encoding="utf-8")
        for figure in section.figures:
            if drawn and figure.charts:
                figures += write_figure(figure, folder / "figures" / file_stem(figure.name))
    return WrittenReport(page=target, latex=tuple(latex), figures=tuple(figures), drawn=drawn)


def write_study_page(folder: Path) -> Path:
    """Write only the page, which takes a second."""
    output = StudyOutput(folder)
    write_page(folder / PAGE, report_sections(output), title=output.study.title)
    return folder / PAGE


def report_sections(output: StudyOutput) -> list[Section]:
    """The summary, every experiment with results, the paper's tables and the record of the run."""
    found = [Section(key="summary", title="In short", parts=summary_parts(output))]
    for name, experiment in EXPERIMENTS.items():
        known = any(len(output.table(schema.name)) for schema in experiment.schemas)
        parts = tuple(experiment.section(output)) if known else ()
        if parts:
            found.append(Section(key=name, title=experiment.title, parts=parts))
    names = [setting.name for setting in output.settings]
    return [
        *found,
        Section(key="reported", title="Reported in the paper", parts=reported_parts(names, list(output.backbones))),
        Section(key="words", title="What the words mean", parts=(Terms(entries=_GLOSSARY),)),
        Section(key="record", title="Record of the run", parts=tuple(record_parts(output))),
    ]


# ---------------------------------------------------------------------- in short


def summary_parts(output: StudyOutput) -> tuple[Part, ...]:
    """A few sentences, one table, and further findings in a fold."""
    failed = listed([entry["what"] for entry in output.manifest["failures"]])
    missing = f"Failed, and missing here: {failed}. The record says why." if failed else ""
    first = (setup_sentence, ordinary_sentence, complete_sentence, singles_sentence)
    more = (better_sentence, full_sets_sentence, beyond_sentence, splits_sentence, observed_sentence)
    folded = tuple(said for write in more if (said := write(output)))
    table = summary_table(output)
    return (
        Text(sentences=tuple(filter(None, (*(write(output) for write in first), missing))), style="lead"),
        *((table,) if table is not None else ()),
        *((Fold(title="More findings", parts=(Text(sentences=folded, style="list"),)),) if folded else ()),
    )


def beyond_sentence(output: StudyOutput) -> str:
    """How many images with a diagnosis beyond the label space the complete method defers."""
    said = [
        f"{percent(row.out_of_space_deferral)} of {count(row.n_out_of_space)} on {row.setting} with {row.backbone} "
        f"({percent(row.in_space_deferral)} of the others)"
        for row in output.table("out_of_space_detection", score=COMPLETE).itertuples(index=False)
    ]
    return f"Of images with a diagnosis that no set can hold, CALCoDe defers {listed(said)}." if said else ""


def observed_sentence(output: StudyOutput) -> str:
    """The settings for which nothing is promised."""
    verb = "differ" if len(output.shifted) > 1 else "differs"
    return (
        f"{listed(output.shifted)} {verb} from the calibration images by more than chance: every figure there is "
        "observed, and nothing is promised."
        if output.shifted
        else ""
    )


def setup_sentence(output: StudyOutput) -> str:
    """How many methods, images and backbones there are, and the target of the sets."""
    own = output.main[output.main["method"] == COMPLETE]
    if not output.combinations():
        return "No combination of setting and backbone has a result."
    images = dict(zip(own["setting"], own["n"], strict=True))
    settings = listed([f"{name} ({counted(size, 'image')})" for name, size in images.items()])
    return (
        f"{counted(len(output.study.compared), 'method')} on {settings or counted(len(output.settings), 'setting')}, "
        f"with {counted(len(output.backbones), 'frozen backbone')}. A set of diagnoses should hold the true one for "
        f"{short_percent(output.target)} of the images, whatever the disease."
    )


def _reach(output: StudyOutput, method: str) -> str:
    """How often a method reaches the target, and where its worst class has the least coverage."""
    rows = output.main[output.main["method"] == method]
    judged = rows[rows["worst_class"] != ""].sort_values("worst_class_coverage", kind="stable")
    least = "".join(
        f" Its least covered disease is {row.worst_class} on {output.where(row.setting, row.backbone)}: "
        f"{percent_estimate(estimate(row, 'worst_class_coverage'))} of {counted(row.worst_class_n, 'image')}."
        for row in judged.head(1).itertuples(index=False)
    )
    return (
        f"reaches the target over all diseases in {int(rows['coverage_hit'].sum())} of "
        f"{counted(len(rows), 'combination')}, and for its least covered disease in "
        f"{int(rows['worst_class_hit'].sum())}.{least}"
    )


def ordinary_sentence(output: StudyOutput) -> str:
    """How often an ordinary conformal predictor reaches the target."""
    method = output.ordinary
    if method is None or not (output.main["method"] == method).any():
        return ""
    return f"An ordinary conformal predictor ({title_of(method)}) {_reach(output, method)}"


def complete_sentence(output: StudyOutput) -> str:
    """How often the complete method reaches the target, and its cost."""
    if not (output.main["method"] == COMPLETE).any():
        return "CALCoDe has no result."
    own = output.mean(output.average, COMPLETE)
    price = f" Its price over {output.scope_words(output.average)}: {cost_words(own)}." if own is not None else ""
    return f"CALCoDe {_reach(output, COMPLETE)}{price}"


def singles_sentence(output: StudyOutput) -> str:
    """How many answers of the complete method are one diagnosis, and how many of these are right."""
    rows = output.main[output.main["method"] == COMPLETE]
    said = [
        f"{single_words(row)} on {output.where(row.setting, row.backbone)}"
        for row in rows.itertuples(index=False)
        if row.n_single
    ]
    if said:
        return f"Answers of CALCoDe that are one diagnosis: {listed(said)}."
    return "No answer of CALCoDe is one diagnosis." if len(rows) else ""


def better_sentence(output: StudyOutput) -> str:
    """Other methods and own variants that cover the least covered disease better, and their cost."""
    own = output.mean(output.average, COMPLETE)
    if own is None or len(output.study.compared) < 2:
        return ""

    def named(frame: pd.DataFrame) -> str:
        better = (frame["method"] != COMPLETE) & (frame["worst_class_coverage"] > own.worst_class_coverage)
        rows = frame[better & (frame["scope"] == output.average)]
        first = rows.sort_values("worst_class_coverage", ascending=False, kind="stable").head(_NAMED)
        found = [
            f"{row.title} ({percent(row.worst_class_coverage)}, {cost_words(row)})"
            for row in first.itertuples(index=False)
        ]
        return listed([*found, f"{len(rows) - _NAMED} more"] if len(rows) > _NAMED else found)

    average = f"{percent(own.worst_class_coverage)} on average, {cost_words(own)}"
    others = named(output.means[output.means["method"] != PAPER_SETS])
    variants = named(output.table("calcode_matched_ablation_means"))
    first = f"No other method covers its least covered disease better than CALCoDe ({average})."
    if others:
        first = f"Better than CALCoDe ({average}) on the least covered disease: {others}."
    return f"{first} Of its own variants these do: {variants}." if variants else first


def full_sets_sentence(output: StudyOutput) -> str:
    """Settings in which many sets of the complete method say nothing."""
    means = [(setting.name, output.mean(setting.name, COMPLETE)) for setting in output.settings]
    found = [
        f"{percent(row.full_set_rate)} on {name} (an informative answer for {percent(row.informative_rate)} of the "
        "images)"
        for name, row in means
        if row is not None and row.full_set_rate >= _MANY_FULL
    ]
    said = f"Of CALCoDe's sets, {listed(found)} hold every label: they cover the truth and say nothing."
    return said if found else ""


def splits_sentence(output: StudyOutput) -> str:
    """How much the complete method's coverage varies when the same images get other roles."""
    rows = output.table("resplit_spread", method=COMPLETE, metric="coverage")
    known = list(rows[rows["n_splits"] > 1].itertuples(index=False))
    if not known:
        return ""
    widest = max(known, key=lambda row: row.highest - row.lowest)
    return (
        f"Over {widest.n_splits} other deals of the same images into the roles, CALCoDe's coverage on {widest.setting} "
        f"with {widest.backbone} goes from {percent(widest.lowest)} to {percent(widest.highest)}; the given split has "
        f"{percent(widest.given)}."
    )


def summary_table(output: StudyOutput) -> Table | None:
    """Rows are figures, columns are settings; a cell goes from the ordinary predictor to the complete method."""
    compared = [name for name in (output.ordinary, COMPLETE) if name is not None]
    rows = {setting.name: [output.mean(setting.name, name) for name in compared] for setting in output.settings}
    settings = [name for name, found in rows.items() if None not in found]
    if not settings:
        return None
    shown = (
        ("coverage", lambda row: percent(row.coverage)),
        ("coverage of the least covered disease", lambda row: percent(row.worst_class_coverage)),
        ("labels per set", lambda row: number(row.set_size)),
        ("full sets", lambda row: percent(row.full_set_rate)),
        ("informative answers", lambda row: percent(row.informative_rate)),
        ("single answers", single_words),
        ("deferred", lambda row: percent(row.deferral)),
    )
    return Table(
        name="summary",
        caption=f"{' → '.join(map(title_of, compared))}. Averages over {counted(len(output.backbones), 'backbone')}.",
        columns=columns("", *settings),
        rows=[[label, *(" → ".join(map(write, rows[name])) for name in settings)] for label, write in shown],
        layout="matrix",
    )


# ---------------------------------------------------------------------- the record of the run


def record_parts(output: StudyOutput) -> list[Part]:
    """Failures, warnings, inputs, settings, versions and durations."""
    failures = output.manifest["failures"]
    said = f"All {counted(len(output.manifest['combinations']), 'job')} were done; none failed."
    tables: list[Part] = []
    if failures:
        said = f"{counted(len(failures), 'failure')}: {listed([entry['what'] for entry in failures])}."
        rows = [[entry["what"], entry["error"]] for entry in failures]
        tables = [_text_table("failures", "What failed, and why.", ("what", "error"), rows)]
    left_out = [f"Backbone {name} was left out: {why}." for name, why in output.study.left_out.items()]
    parts: list[Part] = [Text(heading="Failures", sentences=(said, *left_out)), *tables]
    warned: dict[str, list[str]] = {}
    for entry in output.manifest["combinations"]:
        for warning in entry["warnings"]:
            warned.setdefault(warning, []).append(entry["name"])
    if warned:
        rows = [[warning, ", ".join(names)] for warning, names in warned.items()]
        table = _text_table("warnings", "Warnings of the methods.", ("warning", "where"), rows)
        parts.append(Fold(title=f"{counted(len(warned), 'warning')} of the methods", parts=(table,)))
    return [*parts, *input_parts(output), settings_fold(output), *duration_parts(output)]


def _text_table(name: str, caption: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    return Table(name=name, caption=caption, columns=columns(*headings, words=len(headings)), rows=rows)


def input_parts(output: StudyOutput) -> list[Part]:
    """Feature files by hash, versions, commit and hardware."""
    rows = [
        [backbone.name, setting, features.path.name, features.digest]
        for backbone in output.study.backbones
        for setting, features in backbone.features.items()
    ]
    manifest = output.manifest
    libraries = ", ".join(f"{name} {version}" for name, version in manifest["libraries"].items())
    commit = f" (commit {manifest['commit']})" if manifest.get("commit") else ""
    hardware = manifest.get("hardware") or {}
    written: dict[str, Callable[[Any], str]] = {
        "processor": str,
        "cores": lambda cores: counted(cores, "core"),
        "memory_gib": lambda size: f"{size} GiB of memory",
        "system": str,
    }
    machine = ", ".join(write(hardware[name]) for name, write in written.items() if hardware.get(name))
    caption = "Feature files with the SHA-256 of features and prompts; * stands for every setting."
    made = [f"calcode {manifest['calcode']}{commit}, Python {manifest['python']}, {libraries}."]
    return [
        Text(heading="Inputs and versions", sentences=(*made, *((f"Run on {machine}.",) if machine else ()))),
        _text_table("inputs", caption, ("backbone", "setting", "file", "SHA-256"), rows),
    ]


def settings_fold(output: StudyOutput) -> Fold:
    """The resolved study as keys and values."""
    resolved = output.manifest["study"]
    hidden = ("output", "title", "backbones", "left_out", "settings", "options")
    given = {name: value for name, value in resolved.items() if name not in hidden} | resolved["options"]
    rows = [[name, _value(value)] for name, value in given.items()]
    for entry in resolved["settings"]:
        words = ("name", "short", "title", "description")
        kept = [f"{name} {_value(value)}" for name, value in entry.items() if name not in words and value]
        rows.append([f"setting {entry['name']}", "; ".join(kept)])
    table = _text_table("settings", "The resolved study.", ("key", "value"), rows)
    return Fold(title="The resolved study", parts=(table,))


def _value(value: object) -> str:
    if isinstance(value, list) and all(isinstance(entry, str | int | float) for entry in value):
        return ", ".join(str(entry) for entry in value) or "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def duration_parts(output: StudyOutput) -> list[Part]:
    """How long the last run took, and its longest jobs."""
    durations = output.manifest["durations"]
    timed = {name: seconds for name, seconds in durations["combinations"].items() if seconds is not None}
    reused = len(durations["combinations"]) - len(timed)
    sentence = (
        f"The last run took {number(durations['total_seconds'], digits=0)} s and did {counted(len(timed), 'job')}; "
        f"{count(reused)} had been finished before or failed."
    )
    slowest = sorted(timed.items(), key=lambda entry: -entry[1])[:_SLOWEST]
    table = Table(
        name="durations",
        caption=f"The {len(slowest)} longest jobs; manifest.json holds all of them.",
        columns=columns("job", "seconds"),
        rows=[[name.rsplit(".", 1)[0], number(seconds, digits=1)] for name, seconds in slowest],
    )
    return [Text(sentences=(sentence,)), *([Fold(title="The longest jobs", parts=(table,))] if slowest else [])]
