"""From a study's folder to its report: one page, and every table and figure as a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from calcode.files import replacing
from calcode.study.page.ablations import ablation_section
from calcode.study.page.appendix import record_section, words_section
from calcode.study.page.audit import audit_section
from calcode.study.page.binary import binary_section
from calcode.study.page.classes import classes_section
from calcode.study.page.comparison import comparison_section
from calcode.study.page.costs import costs_section
from calcode.study.page.html import render_page
from calcode.study.page.latex import label_of, latex_table
from calcode.study.page.motivating import motivating_section
from calcode.study.page.neighbours import neighbours_section
from calcode.study.page.output import StudyOutput, read_output
from calcode.study.page.outside import outside_section
from calcode.study.page.paired import paired_section
from calcode.study.page.parts import Section
from calcode.study.page.png_files import matplotlib_is_there, write_png
from calcode.study.page.printed import printed_section
from calcode.study.page.resplits import resplit_section
from calcode.study.page.sensitivity import sensitivity_section
from calcode.study.page.summary import summary_section
from calcode.study.page.svg_files import standalone_svg

PAGE = "report.html"

#: In the order of the page. A new part of the report is its file and one line here.
_SECTIONS: tuple[Callable[[StudyOutput], Section | None], ...] = (
    summary_section,
    motivating_section,
    comparison_section,
    classes_section,
    paired_section,
    ablation_section,
    sensitivity_section,
    audit_section,
    outside_section,
    costs_section,
    resplit_section,
    binary_section,
    neighbours_section,
    printed_section,
)


@dataclass(frozen=True, kw_only=True)
class WrittenReport:
    """What was written.

    Attributes
    ----------
    page : Path
    latex, figures : tuple of Path
    without_png : bool
        Whether PNG files were left out because matplotlib is not installed.
    """

    page: Path
    latex: tuple[Path, ...]
    figures: tuple[Path, ...]
    without_png: bool


def report_sections(output: StudyOutput) -> list[Section]:
    """Every section that the study's tables have something for."""
    found = [section for make in _SECTIONS if (section := make(output)) is not None]
    return [*found, words_section(), record_section(output)]


def write_study_report(folder: Path, *, page: Path | None = None) -> WrittenReport:
    """Write `report.html`, `latex/*.tex`, `figures/*.svg` and `figures/*.png` into a study's folder.

    Parameters
    ----------
    folder : Path
        Output of `calcode study run`.
    page : Path, optional
        Where the page goes; `report.html` in the folder unless given.

    Returns
    -------
    WrittenReport
        PNG files are left out where matplotlib is not installed.
    """
    output = read_output(folder)
    sections = report_sections(output)
    target = folder / PAGE if page is None else page
    _write_text(target, render_page(sections, title=output.title))
    latex, figures = [], []
    (folder / "latex").mkdir(exist_ok=True)
    (folder / "figures").mkdir(exist_ok=True)
    drawing = matplotlib_is_there()
    for section in sections:
        for table in section.tables:
            path = folder / "latex" / f"{label_of(table.name)}.tex"
            _write_text(path, latex_table(table))
            latex.append(path)
        for view in section.figures:
            if not view.panels:
                continue
            picture = folder / "figures" / f"{label_of(view.name)}.svg"
            _write_text(picture, standalone_svg(view))
            figures.append(picture)
            if drawing:
                with replacing(picture.with_suffix(".png")) as temporary:
                    write_png(view, temporary)
                figures.append(picture.with_suffix(".png"))
    return WrittenReport(page=target, latex=tuple(latex), figures=tuple(figures), without_png=not drawing)


def _write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
