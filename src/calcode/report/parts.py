"""The parts of a page: text, tables and figures as data, used by templates, LaTeX and figure files."""

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
        Level of the heading.
    badge : str
        A short label under the heading, such as "shifted".
    calm : bool
        Whether the badge is good news; otherwise it is drawn as a warning.
    sentences : tuple of str
    style : {"paragraphs", "list", "lead", "note"}
        One paragraph each, a list, large text, or a box.
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
        Small print below the text, such as an interval.
    tag : str
        A mark next to the text, such as "protected".
    best : bool
        Shown in bold, on the page and in LaTeX.
    alarm : bool
        Underlined in the warning colour.
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
        Maps a row to its text or `Cell`; None if rows are sequences and the column shows its own entry.
    numeric : bool
        Numbers are right-aligned.
    rank : callable or None
        Maps a row to a number; the row with the largest number has the best cell.
    """

    heading: str
    cell: Callable[[Any], str | Cell] | None = None
    numeric: bool = True
    rank: Callable[[Any], float] | None = None


def columns(*headings: str, words: int = 1) -> list[Column]:
    """Columns for rows that are sequences: the first `words` columns hold text, the others numbers.

    Examples
    --------
    >>> [(column.heading, column.numeric) for column in columns("class", "n")]
    [('class', False), ('n', True)]
    """
    return [Column(heading, numeric=i >= words) for i, heading in enumerate(headings)]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows, and how each column shows them; the first column names the rows.

    Attributes
    ----------
    caption : str
        What the table shows, for readers who see only the table.
    columns : sequence of Column
    rows : DataFrame or sequence
        Data frames are shown row by row; other rows have the type that the columns expect.
    layout : {"stack", "matrix", "scroll"}
        On a phone: every row becomes a card, or the text becomes small, or the table scrolls and says so.
    name : str
        Name of its LaTeX file; empty if it has none.
    reported : bool
        Whether the numbers are from a publication.
    within : callable or None
        Maps a row to its group; each run of equal groups has its own best cell.

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
        """The rows as shown; in a ranked column the best cell is bold if there is more than one to choose from."""
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
        Names of the series; a stacked chart has its own legend.
    numbers : Table or None
        Table in a fold below the charts.
    numbers_title : str
        Title of the fold.
    name : str
        Name of its files; empty if it has none.
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
        """Whether all points are too small to have a shape."""
        planes = [chart for chart in self.charts if isinstance(chart, PlaneChart)]
        return bool(planes) and all(marks.cloud for chart in planes for marks in chart.marks)


@dataclass(frozen=True, kw_only=True)
class Cards:
    """Short texts side by side, each in a box."""

    cards: tuple[Text, ...]


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Terms and their meanings, or facts and their values."""

    entries: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Fold:
    """Parts that open on a click, without a script; with `keep` they are printed on paper too."""

    title: str
    parts: tuple[Part, ...]
    keep: bool = False


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Parts side by side if the screen is wide enough."""

    columns: tuple[tuple[Part, ...], ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts, column by column."""
        return tuple(part for column in self.columns for part in column)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """An image file next to the page.

    Attributes
    ----------
    file : str
        File name, relative to the page.
    sentence : str
        What the image shows; placed above it.
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
        Name in the navigation, if the title is too long for it.
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
        """Its tables, including folded ones and those of figures."""
        every = [part.numbers if isinstance(part, Figure) else part for part in leaves(self.parts)]
        return tuple(part for part in every if isinstance(part, Table))

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Its figures, including folded ones."""
        return tuple(part for part in leaves(self.parts) if isinstance(part, Figure))


def leaves(parts: Sequence[Part]) -> Iterator[Part]:
    """Every part, including those inside folds and columns."""
    for part in parts:
        if isinstance(part, Fold | Columns):
            yield from leaves(part.parts)
        else:
            yield part
