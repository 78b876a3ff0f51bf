"""What a page is made of: text, tables and figures as data, which templates, LaTeX and figure files read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from calcode.report.charts import Chart, PlaneChart

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class Text:
    """Sentences under an optional heading.

    Attributes
    ----------
    heading : str
    level : {3, 4}
        Of the heading.
    badge : str
        A short label under the heading, such as "shifted".
    calm : bool
        Whether the badge is good news; otherwise it is drawn as a warning.
    sentences : tuple of str
    style : {"paragraphs", "list", "lead", "note"}
        One paragraph each, a list, large print, or a box.
    """

    heading: str = ""
    level: Literal[3, 4] = 3
    badge: str = ""
    calm: bool = False
    sentences: tuple[str, ...] = ()
    style: Literal["paragraphs", "list", "lead", "note"] = "paragraphs"


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    Attributes
    ----------
    text : str
    below : str
        Small print under it, such as an interval.
    tag : str
        A mark next to it, such as "protected".
    best : bool
        Bold, on the page and in LaTeX.
    alarm : bool
        Underlined in the colour of a warning.
    """

    text: str
    below: str = ""
    tag: str = ""
    best: bool = False
    alarm: bool = False


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes
    ----------
    heading : str
    cell : callable or None
        A row in, its text or `Cell` out; None where the rows are sequences and the column shows its own entry.
    numeric : bool
        Numbers are set flush right.
    rank : callable or None
        A row in, a number out: the row with the largest one has the best cell.
    """

    heading: str
    cell: Callable[[Any], str | Cell] | None = None
    numeric: bool = True
    rank: Callable[[Any], float] | None = None


def columns(*headings: str, words: int = 1) -> list[Column]:
    """Columns of rows that are sequences: the first `words` of them hold words, the others numbers.

    Examples
    --------
    >>> [(column.heading, column.numeric) for column in columns("class", "n")]
    [('class', False), ('n', True)]
    """
    return [Column(heading, numeric=i >= words) for i, heading in enumerate(headings)]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows and how each column shows them; the first column names the rows.

    Attributes
    ----------
    caption : str
        Says what the table shows, for readers who come to it alone.
    columns : sequence of Column
    rows : DataFrame or sequence
        Frames are shown row by row; other rows are whatever the columns expect.
    layout : {"stack", "matrix", "scroll"}
        On a phone every row becomes a card, or print becomes small, or the table scrolls and says so.
    name : str
        Of its LaTeX file; empty where there is none.
    reported : bool
        Whether the numbers are those of a publication.
    within : callable or None
        A row in, its group out: the best cell is looked for within each run of equal groups.

    Examples
    --------
    >>> table = Table(caption="Images", columns=columns("class", "n"), rows=[["mel", "7"]])
    >>> table.cells[0][1]
    Cell(text='7', below='', tag='', best=False, alarm=False)
    """

    caption: str
    columns: Sequence[Column]
    rows: pd.DataFrame | Sequence[Any]
    layout: Literal["stack", "matrix", "scroll"] = "stack"
    name: str = ""
    reported: bool = False
    within: Callable[[Any], Any] | None = None

    @property
    def cells(self) -> list[list[Cell]]:
        """The rows as they are shown; the best cell of a ranked column is bold where there is something to choose."""
        rows: Any = self.rows.itertuples(index=False) if hasattr(self.rows, "itertuples") else self.rows
        lines: list[list[Cell]] = []
        for _, members in groupby(rows, key=self.within or (lambda row: None)):
            group = list(members)
            shown = [[col.cell(row) if col.cell else row[j] for j, col in enumerate(self.columns)] for row in group]
            cells = [[entry if isinstance(entry, Cell) else Cell(entry) for entry in line] for line in shown]
            for j, column in enumerate(self.columns):
                if column.rank is not None and len(group) > 1:
                    ranks = [column.rank(row) for row in group]
                    best = max((rank for rank in ranks if not math.isnan(rank)), default=math.nan)
                    for line, rank in zip(cells, ranks, strict=True):
                        line[j] = replace(line[j], best=rank == best)
            lines += cells
        return lines


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Charts with one legend, a sentence computed from the data, and the table behind them.

    Attributes
    ----------
    heading, sentence : str
    charts : tuple of Chart
        From `calcode.report.charts`.
    legend : tuple of (series, name)
        A stacked chart has a legend of its own.
    numbers : Table or None
        Folded below the charts.
    numbers_title : str
        Words on the fold.
    name : str
        Of its files; empty where there are none.
    """

    heading: str
    sentence: str = ""
    charts: tuple[Chart, ...] = ()
    legend: tuple[tuple[int, str], ...] = ()
    numbers: Table | None = None
    numbers_title: str = "The numbers"
    name: str = ""

    @property
    def cloud(self) -> bool:
        """Whether all points are too small to have a form of their own."""
        planes = [chart for chart in self.charts if isinstance(chart, PlaneChart)]
        return bool(planes) and all(marks.cloud for chart in planes for marks in chart.marks)


@dataclass(frozen=True, kw_only=True)
class Cards:
    """Short texts side by side, each in a box."""

    cards: tuple[Text, ...]


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Words and what they mean, or facts and their values."""

    entries: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Fold:
    """Parts that open on a click, without a script; `keep` prints them on paper too."""

    title: str
    parts: tuple[Part, ...]
    keep: bool = False


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Parts side by side where the screen is wide enough."""

    columns: tuple[tuple[Part, ...], ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        """All of them, column by column."""
        return tuple(part for column in self.columns for part in column)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """An image file next to the page.

    Attributes
    ----------
    file : str
        Its name, relative to the page.
    sentence : str
        What it shows; stands above it.
    """

    file: str
    sentence: str


Part = Text | Table | Figure | Cards | Terms | Fold | Columns | Picture


@dataclass(frozen=True, kw_only=True)
class Section:
    """One part of a page with a heading that can be linked to.

    Attributes
    ----------
    key : str
        Its identifier within the page.
    title : str
    parts : tuple of Part
    short : str
        Its name in the navigation, where the title is too long for it.
    new_page : bool
        Whether it begins a new page on paper.
    """

    key: str
    title: str
    parts: tuple[Part, ...]
    short: str = ""
    new_page: bool = False

    @property
    def tables(self) -> tuple[Table, ...]:
        """Its tables, folded ones and those behind figures included."""
        every = [part.numbers if isinstance(part, Figure) else part for part in leaves(self.parts)]
        return tuple(part for part in every if isinstance(part, Table))

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Its figures, folded ones included."""
        return tuple(part for part in leaves(self.parts) if isinstance(part, Figure))


def leaves(parts: Sequence[Part]) -> Iterator[Part]:
    """Every part, those inside folds and columns included."""
    for part in parts:
        if isinstance(part, Fold | Columns):
            yield from leaves(part.parts)
        else:
            yield part
