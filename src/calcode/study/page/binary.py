"""Two classes, where a full set says nothing."""

from __future__ import annotations

from collections.abc import Sequence

from calcode.report.wording import (
    count,
    number,
    percent,
)
from calcode.study.page.beside import reported_entry, reported_heading
from calcode.study.page.cells import count_of, value_of, words_of
from calcode.study.page.figure_words import FIGURE_HEADINGS, cost_words, figure_entries
from calcode.study.page.output import StudyOutput
from calcode.study.page.parts import (
    Entry,
    Heading,
    Passage,
    Section,
    TableView,
    entries,
)
from calcode.study.paper import paper_backbone, paper_setting, reported_tables
from calcode.study.schema import Row

_WHERE = (
    Heading("setting", numeric=False),
    Heading("backbone", numeric=False),
    Heading("method", numeric=False),
)
_REPORTED_UTILITY = Heading("reported: informative / deferred / coverage of single answers")
_BINARY = "camelyon_binary_informative_utility_cov0.95_def0.05"


def binary_section(output: StudyOutput) -> Section | None:
    """Figures, then what is left when full and empty sets are deferred."""
    rows = output.rows(_BINARY)
    if not rows:
        return None
    passage = Passage(sentences=(binary_sentence(rows),))
    return Section(
        key="binary", title="Two classes", parts=(passage, _figure_table(rows), _utility_table(rows))
    )


def _head(row: Row) -> tuple[str, str, str]:
    return words_of(row, "setting"), words_of(row, "backbone"), words_of(row, "title")


def _figure_table(rows: Sequence[Row]) -> TableView:
    extra = reported_heading(rows)
    return TableView(
        name="binary-stress-test",
        caption="Two classes: a set of both says nothing.",
        headings=(
            *_WHERE,
            *FIGURE_HEADINGS,
            Heading("selective accuracy"),
            Heading("calibration error"),
            *extra,
        ),
        rows=tuple(
            entries(
                *_head(row),
                *figure_entries(row),
                percent(value_of(row, "selective_accuracy")),
                number(value_of(row, "calibration_error"), digits=3),
                *([reported_entry(row)] if extra else []),
            )
            for row in rows
        ),
        layout="scroll",
    )


def _utility_table(rows: Sequence[Row]) -> TableView:
    printed = any(_printed_utility(row).text for row in rows)
    return TableView(
        name="binary-utility",
        caption="What is left when full and empty sets are deferred too; nothing is promised for the single answers.",
        headings=(
            *_WHERE,
            Heading("informative before"),
            Heading("deferred after"),
            Heading("coverage of single answers"),
            Heading("single answers"),
            *((_REPORTED_UTILITY,) if printed else ()),
        ),
        rows=tuple(
            entries(
                *_head(row),
                percent(value_of(row, "original_informative")),
                percent(value_of(row, "utility_deferral")),
                percent(value_of(row, "singleton_coverage")),
                count(count_of(row, "n_singletons")),
                *([_printed_utility(row)] if printed else []),
            )
            for row in rows
        ),
        layout="scroll",
    )


def _printed_utility(row: Row) -> Entry:
    setting, backbone = paper_setting(words_of(row, "setting")), paper_backbone(words_of(row, "backbone"))
    table = reported_tables()["camelyon_utility"]
    wanted = {"setting": str(setting), "backbone": str(backbone), "method": words_of(row, "method")}
    found = table.find(wanted)
    if found is None:
        return Entry("")
    cells = [found[name] for name in ("original_informative", "utility_deferral", "singleton_coverage")]
    return Entry(" / ".join(cells), table.place)


def binary_sentence(rows: Sequence[Row]) -> str:
    """Which run leaves most single answers, and how often these are right."""
    most = max(rows, key=lambda row: value_of(row, "original_informative"))
    return (
        f"Most single answers are given by {words_of(most, 'title')} on {words_of(most, 'setting')} with "
        f"{words_of(most, 'backbone')}: for {percent(value_of(most, 'original_informative'))} of the images, right "
        f"in {percent(value_of(most, 'singleton_coverage'))} of {count(count_of(most, 'n_singletons'))}; coverage of "
        f"its sets {percent(value_of(most, 'coverage'))} with {cost_words(most, n_classes=2)}."
    )
