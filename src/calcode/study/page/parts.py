"""What the report is made of, before it becomes HTML, LaTeX, Markdown or a picture: sentences, tables, figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from calcode.report.old_charts import DotRow, ReferenceLine
from calcode.report.plane import Axis, BarRow, Marks

Unit = Literal["share", "points", "number"]


@dataclass(frozen=True)
class Entry:
    """One cell of a table: what it says, and what stands below it in small print."""

    text: str
    below: str = ""


@dataclass(frozen=True)
class Heading:
    """Head of a column; numbers are set flush right."""

    text: str
    numeric: bool = True


@dataclass(frozen=True, kw_only=True)
class TableView:
    """A table as readers see it.

    Attributes
    ----------
    name : str
        Of its LaTeX file.
    caption : str
        Says what the table shows, for readers who come to it alone.
    headings : tuple of Heading
    rows : tuple of tuples of Entry
    folded : str
        Words on the fold that hides it on the screen; empty where it is open.
    layout : {"stack", "scroll", "matrix"}
        What a narrow screen makes of it.
    reported : bool
        Whether its numbers are the paper's.
    """

    name: str
    caption: str
    headings: tuple[Heading, ...]
    rows: tuple[tuple[Entry, ...], ...]
    folded: str = ""
    layout: Literal["stack", "scroll", "matrix"] = "stack"
    reported: bool = False


@dataclass(frozen=True, kw_only=True)
class DotPanel:
    """Dots with intervals, one row per name."""

    heading: str
    rows: tuple[DotRow, ...]
    references: tuple[ReferenceLine, ...]
    low: float
    high: float
    unit: Unit = "share"


@dataclass(frozen=True, kw_only=True)
class BarPanel:
    """Bars from zero, one row per name."""

    heading: str
    rows: tuple[BarRow, ...]
    references: tuple[ReferenceLine, ...]
    high: float
    unit: Unit = "share"


@dataclass(frozen=True, kw_only=True)
class PlanePanel:
    """Points or lines in a plane."""

    heading: str
    marks: tuple[Marks, ...]
    across: Axis
    up: Axis
    references: tuple[ReferenceLine, ...] = ()


Panel = DotPanel | BarPanel | PlanePanel


@dataclass(frozen=True, kw_only=True)
class FigureView:
    """One figure: panels with one legend, a sentence computed from the data, and the numbers behind it.

    Attributes
    ----------
    name : str
        Of its files.
    heading : str
    sentence : str
    legend : tuple of (series, name)
    panels : tuple of Panel
    numbers : TableView or None
    """

    name: str
    heading: str
    sentence: str
    legend: tuple[tuple[int, str], ...]
    panels: tuple[Panel, ...]
    numbers: TableView | None = None

    @property
    def cloud(self) -> bool:
        """Whether all its points are too small to have a form of their own."""
        planes = [panel for panel in self.panels if isinstance(panel, PlanePanel)]
        return bool(planes) and all(marks.cloud for panel in planes for marks in panel.marks)


@dataclass(frozen=True, kw_only=True)
class Passage:
    """A heading with sentences below it, and a badge that says what kind of images follow.

    Attributes
    ----------
    heading, badge : str
    level : {3, 4}
        Of the heading: 4 for a part of what a heading of level 3 opened.
    sentences : tuple of str
    """

    heading: str = ""
    level: Literal[3, 4] = 3
    badge: str = ""
    sentences: tuple[str, ...] = ()


Part = Passage | TableView | FigureView


@dataclass(frozen=True, kw_only=True)
class Section:
    """One part of the report, under a heading of its own."""

    key: str
    title: str
    parts: tuple[Part, ...]

    @property
    def tables(self) -> tuple[TableView, ...]:
        """Its tables, those behind figures included."""
        found = []
        for part in self.parts:
            if isinstance(part, TableView):
                found.append(part)
            elif isinstance(part, FigureView) and part.numbers is not None:
                found.append(part.numbers)
        return tuple(found)

    @property
    def figures(self) -> tuple[FigureView, ...]:
        """Its figures."""
        return tuple(part for part in self.parts if isinstance(part, FigureView))


def entries(*texts: str | Entry) -> tuple[Entry, ...]:
    """A row of a table."""
    return tuple(text if isinstance(text, Entry) else Entry(text) for text in texts)
