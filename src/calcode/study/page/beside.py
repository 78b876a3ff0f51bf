"""The paper's number for the same cell, where it prints one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from calcode.study.page.cells import words_of
from calcode.study.page.output import StudyOutput
from calcode.study.page.parts import Entry, Heading
from calcode.study.paper import paper_backbone, paper_backbones, paper_setting, reported_tables
from calcode.study.schema import Row

#: Head of a column with four printed figures.
REPORTED = Heading("reported: coverage / worst / size / deferral")
#: Printed tables with one row per setting, backbone and method.
_TABLES = ("main_comparison", "camelyon_stress_test", "ham10000")


def reported_entry(row: Row) -> Entry:
    """What the paper prints for a row's setting, backbone and method; an empty cell where it prints nothing.

    Examples
    --------
    >>> reported_entry({"setting": "PAD", "backbone": "biomedclip", "method": "calcode"}).text
    '0.997 / 0.960 / 4.98 / 0.832'
    >>> reported_entry({"setting": "PAD", "backbone": "lite0-derm", "method": "calcode"}).text
    ''
    """
    setting = paper_setting(words_of(row, "setting"))
    backbone = paper_backbone(words_of(row, "backbone"))
    if setting is None or backbone is None:
        return Entry("")
    wanted = {"setting": setting, "backbone": backbone, "method": words_of(row, "method")}
    for name in _TABLES:
        found = reported_tables()[name].find(wanted)
        if found is not None:
            return printed_figures(found, place=reported_tables()[name].place)
    return Entry("")


def has_papers_backbones(output: StudyOutput) -> bool:
    """Whether an average over the study's backbones is one over the paper's: exactly its four."""
    return {paper_backbone(name) for name in output.backbones} == set(paper_backbones())


def has_papers_eight_settings(output: StudyOutput) -> bool:
    """Whether an average over the shifted settings is the paper's: two cohorts with four backbones."""
    shifted = [paper_setting(setting.name) for setting in output.settings if setting.shifted]
    return has_papers_backbones(output) and sorted(map(str, shifted)) == ["ISIC 2019", "PAD-UFES-20"]


def printed_figures(row: Mapping[str, str] | None, *, place: str) -> Entry:
    """Coverage, worst class, set size and deferral as printed; an empty cell without a row."""
    if row is None:
        return Entry("")
    cells = [row[column] for column in ("coverage", "worst_class_coverage", "set_size", "deferral")]
    return Entry(" / ".join(cell or "none" for cell in cells), place)


def reported_heading(rows: Sequence[Row]) -> tuple[Heading, ...]:
    """A column for the paper's numbers, if it prints any for these rows."""
    if not any(reported_entry(row).text for row in rows):
        return ()
    return (REPORTED,)
