"""The head of the report: what was found, for readers who read nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from calcode.report.wording import count, counted, listed, number, percent, short_percent
from calcode.study.page.cells import count_of, value_of, words_of
from calcode.study.page.figure_words import cost_words, observed_words, place_words
from calcode.study.page.output import StudyOutput
from calcode.study.page.parts import Heading, Passage, Section, TableView, entries
from calcode.study.schema import Row
from calcode.study.specification import COMPLETE

#: From this share of full sets on, the summary says what they mean.
_MANY_FULL = 0.25
#: Other methods that a sentence names before it only counts the rest.
_NAMED = 4


def summary_section(output: StudyOutput) -> Section:
    """Sentences a clinician understands, and one table with what the answers cost."""
    sentences = [
        _what_was_done(output),
        _ordinary(output),
        _complete(output),
        _others(output),
        _full_sets(output),
        _outside(output),
        _other_splits(output),
        observed_words(output),
        _failures(output),
    ]
    table = _table(output)
    passage = Passage(sentences=tuple(sentence for sentence in sentences if sentence))
    return Section(key="summary", title="In short", parts=(passage, table) if table else (passage,))


def _what_was_done(output: StudyOutput) -> str:
    n = len(output.combinations())
    images = {
        words_of(row, "setting"): count_of(row, "n")
        for row in output.main_rows(method=COMPLETE)
        if count_of(row, "n")
    }
    settings = listed([f"{name} ({counted(size, 'image')})" for name, size in images.items()])
    if not n:
        return "No combination of setting and backbone has a result."
    return (
        f"{counted(len(output.methods), 'method')} on {settings or counted(len(output.settings), 'setting')}, with "
        f"{counted(len(output.backbones), 'frozen backbone')}: {counted(n, 'combination')}. A set of diagnoses "
        f"should hold the true one for {short_percent(output.target)} of the images, whatever the disease."
    )


def _lowest(output: StudyOutput, method: str) -> tuple[Row, str, int] | None:
    """The combination where a method's worst class is covered least, in words, with its number of classes."""
    found = []
    for setting, backbone in output.combinations():
        for row in output.main_rows(setting=setting.name, backbone=backbone, method=method):
            if words_of(row, "worst_class"):
                place = place_words(output, setting, backbone)
                found.append((row, place, output.n_classes(setting, backbone)))
    return min(found, key=lambda entry: value_of(entry[0], "worst_class_coverage"), default=None)


def _hits(output: StudyOutput, method: str) -> tuple[int, int, int]:
    """Combinations with a result; how many reach the target, and how many do with their worst class."""
    rows = output.main_rows(method=method)
    return (
        len(rows),
        sum(row["coverage_hit"] is True for row in rows),
        sum(row["worst_class_hit"] is True for row in rows),
    )


def _lowest_words(output: StudyOutput, method: str) -> str:
    lowest = _lowest(output, method)
    if lowest is None:
        return ""
    row, place, n_classes = lowest
    return (
        f" The least covered disease is {words_of(row, 'worst_class')} on {place}: "
        f"{percent(value_of(row, 'worst_class_coverage'))} of {counted(count_of(row, 'worst_class_n'), 'image')} "
        f"({cost_words(row, n_classes=n_classes)})."
    )


def _ordinary(output: StudyOutput) -> str:
    method = output.ordinary
    if method is None or not output.main_rows(method=method):
        return ""
    n, marginal, worst = _hits(output, method)
    return (
        f"An ordinary conformal predictor ({output.method_title(method)}) reaches the target over all diseases in "
        f"{marginal or 'none'} of {counted(n, 'combination')}, and for its least covered disease in {worst or 'none'}."
        f"{_lowest_words(output, method)}"
    )


def _complete(output: StudyOutput) -> str:
    n, marginal, worst = _hits(output, COMPLETE)
    if not n:
        return "CALCoDe has no result."
    prices = [
        f"{setting.name} {cost_words(row)}"
        for setting in output.settings
        if (row := output.mean_row(scope=setting.name, method=COMPLETE)) is not None
    ]
    return (
        f"CALCoDe reaches the target over all diseases in {marginal or 'none'} of {counted(n, 'combination')}, and "
        f"for its least covered disease in {worst or 'none'}.{_lowest_words(output, COMPLETE)} "
        f"Its price, averaged over backbones: {'; '.join(prices)}."
    )


def _others(output: StudyOutput) -> str:
    """Whether another method does better on the worst class, and what that one costs."""
    own = output.mean_row(scope="all", method=COMPLETE)
    if own is None or len(output.methods) < 2:
        return ""
    rows = [output.mean_row(scope="all", method=name) for name in output.methods if name != COMPLETE]
    worst = value_of(own, "worst_class_coverage")
    better = sorted(
        (row for row in rows if row is not None and value_of(row, "worst_class_coverage") > worst),
        key=lambda row: -value_of(row, "worst_class_coverage"),
    )
    average = f"{percent(worst)} on average, {cost_words(own)}"
    variants = _better_variants(output, worst)
    if not better:
        return f"No other method covers its least covered disease better than CALCoDe ({average}).{variants}"
    return f"Better than CALCoDe ({average}) on the least covered disease: {_named(better)}.{variants}"


def _better_variants(output: StudyOutput, worst: float) -> str:
    """CALCoDe without one of its parts where that covers the least covered disease better."""
    rows = output.chosen("calcode_matched_ablation_means", scope="all")
    better = sorted(
        (
            row
            for row in rows
            if words_of(row, "method") != COMPLETE and value_of(row, "worst_class_coverage") > worst
        ),
        key=lambda row: -value_of(row, "worst_class_coverage"),
    )
    return f" Of its own variants these do: {_named(better)}." if better else ""


def _named(rows: Sequence[Row]) -> str:
    named = [
        f"{words_of(row, 'title')} ({percent(value_of(row, 'worst_class_coverage'))}, {cost_words(row)})"
        for row in rows[:_NAMED]
    ]
    if len(rows) > _NAMED:
        named.append(f"{len(rows) - _NAMED} more")
    return listed(named)


def _full_sets(output: StudyOutput) -> str:
    found = []
    for setting in output.settings:
        row = output.mean_row(scope=setting.name, method=COMPLETE)
        if row is not None and value_of(row, "full_set_rate") >= _MANY_FULL:
            found.append(
                f"{percent(value_of(row, 'full_set_rate'))} on {setting.name} (an informative answer for "
                f"{percent(value_of(row, 'informative_rate'))} of the images)"
            )
    if not found:
        return ""
    return f"Of CALCoDe's sets, {listed(found)} hold every label: they cover the truth and say nothing."


def _outside(output: StudyOutput) -> str:
    rows = output.chosen("out_of_space_detection", score=COMPLETE)
    if not rows:
        return ""
    words = [
        f"{percent(value_of(row, 'out_of_space_deferral'))} of {count(count_of(row, 'n_out_of_space'))} on "
        f"{words_of(row, 'setting')} with {words_of(row, 'backbone')} "
        f"({percent(value_of(row, 'in_space_deferral'))} of the others)"
        for row in rows
    ]
    return f"Of images with a diagnosis that no set can hold, CALCoDe defers {listed(words)}."


def _other_splits(output: StudyOutput) -> str:
    """How far the complete method's coverage moves when the same images are dealt into other roles."""
    rows = output.chosen("resplit_spread", method=COMPLETE, metric="coverage")
    known = [row for row in rows if count_of(row, "n_splits") > 1]
    if not known:
        return ""
    widest = max(known, key=lambda row: value_of(row, "highest") - value_of(row, "lowest"))
    own = output.chosen(
        "resplit_spread", setting=widest["setting"], backbone=widest["backbone"], method=COMPLETE
    )
    means = {words_of(row, "metric"): row["mean"] for row in own}
    return (
        f"Over {count_of(widest, 'n_splits')} other deals of the same images into the roles, "
        f"CALCoDe's coverage on {words_of(widest, 'setting')} with {words_of(widest, 'backbone')} goes from "
        f"{percent(value_of(widest, 'lowest'))} to {percent(value_of(widest, 'highest'))}; the given split has "
        f"{percent(value_of(widest, 'given'))} (on average {cost_words(means)})."
    )


def _failures(output: StudyOutput) -> str:
    failures = output.manifest["failures"]
    if not failures:
        return ""
    return f"Failed, so missing here, with the reasons at the end: {listed([entry['what'] for entry in failures])}."


def _table(output: StudyOutput) -> TableView | None:
    """Rows are figures, columns are settings; a cell leads from the ordinary predictor to the complete method."""
    compared = [name for name in (output.ordinary, COMPLETE) if name is not None]
    settings = [
        setting.name
        for setting in output.settings
        if all(output.mean_row(scope=setting.name, method=name) is not None for name in compared)
    ]
    if not settings:
        return None
    shown: tuple[tuple[str, str, Callable[[float], str]], ...] = (
        ("coverage", "coverage", percent),
        ("coverage of the least covered disease", "worst_class_coverage", percent),
        ("labels per set", "set_size", number),
        ("full sets", "full_set_rate", percent),
        ("informative answers", "informative_rate", percent),
        ("deferred", "deferral", percent),
    )
    rows = [
        entries(label, *(_change(output, scope, compared, name, write) for scope in settings))
        for label, name, write in shown
    ]
    titles = " → ".join(output.method_title(name) for name in compared)
    return TableView(
        name="summary",
        caption=f"{titles}. Averages over {counted(len(output.backbones), 'backbone')}.",
        headings=(Heading("", numeric=False), *(Heading(name) for name in settings)),
        rows=tuple(rows),
        layout="matrix",
    )


def _change(
    output: StudyOutput, scope: str, methods: list[str], name: str, write: Callable[[float], str]
) -> str:
    rows = [output.mean_row(scope=scope, method=method) for method in methods]
    return " → ".join(write(value_of(row, name)) for row in rows if row is not None)
