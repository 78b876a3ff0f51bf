"""The paper's own tables, in a section of their own."""

from __future__ import annotations

from calcode.report.wording import counted, listed
from calcode.study.page.cells import words_of
from calcode.study.page.output import StudyOutput
from calcode.study.page.parts import Heading, Passage, Section, TableView, entries
from calcode.study.paper import ReportedTable, paper_backbone, paper_setting, reported_tables

#: Columns that hold words; all others hold numbers.
_WORDS = frozenset(
    {
        "setting",
        "backbone",
        "method",
        "printed_name",
        "metric",
        "selected",
        "regime",
        "selected_audit",
        "class_name",
    }
)


def printed_section(output: StudyOutput) -> Section:
    """Every printed table behind a fold, after a sentence about which cells this study shares with the paper."""
    views = tuple(_view(table) for table in reported_tables().values())
    return Section(
        key="reported",
        title="Reported in the paper",
        parts=(Passage(sentences=(shared_sentence(output),)), *views),
    )


def shared_sentence(output: StudyOutput) -> str:
    """Which settings and backbones of the study the paper has too."""
    settings = [setting.name for setting in output.settings if paper_setting(setting.name) is not None]
    backbones = [name for name in output.backbones if paper_backbone(name) is not None]
    printed = counted(len(reported_tables()), "table")
    shared = sum(
        paper_setting(words_of(row, "setting")) in _main_settings()
        and paper_backbone(words_of(row, "backbone")) is not None
        for row in output.main_rows()
    )
    if not settings or not backbones or not shared:
        known = f"the cohorts {listed(settings)}" if settings else "no cohort"
        return (
            f"The {printed} that the paper prints, as data. This study shares {known} and "
            f"{f'the backbones {listed(backbones)}' if backbones else 'no backbone'} with it, so no cell of the one is "
            "a cell of the other: they are shown for orientation, not for comparison."
        )
    return (
        f"The {printed} that the paper prints, as data. This study shares the cohorts {listed(settings)} and the "
        f"backbones {listed(backbones)} with it; where both have the same cell, the tables above show the paper's "
        'number beside ours in a column marked "reported".'
    )


def _main_settings() -> set[str]:
    return {row["setting"] for row in reported_tables()["main_comparison"].rows} | {"HAM10000", "Camelyon17"}


def _view(table: ReportedTable) -> TableView:
    shown = [column for column in table.columns if column != "method" or "printed_name" not in table.columns]
    return TableView(
        name=f"reported-{table.name.replace('_', '-')}",
        caption=f"({table.place}): {table.title}.{f' {table.note}' if table.note else ''}",
        headings=tuple(Heading(_heading(column), numeric=column not in _WORDS) for column in shown),
        rows=tuple(entries(*(row[column] for column in shown)) for row in table.rows),
        folded=f"{table.place}: {table.title}",
        layout="scroll",
        reported=True,
    )


def _heading(column: str) -> str:
    return "method" if column == "printed_name" else column.replace("_", " ")
