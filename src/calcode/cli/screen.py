"""What a person sees: text, tables, progress and errors; and JSON for machines."""

from __future__ import annotations

import json
import math
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from calcode import __version__

if TYPE_CHECKING:
    from calcode.report import parts

DEVICE_NOTE = "Research software, not a medical device."


class Screen:
    """Standard output for results and standard error for everything else, as wide as the terminal is."""

    def __init__(self) -> None:
        self._out = Console(highlight=False)
        self._err = Console(stderr=True, highlight=False)

    def say(self, text: str = "", *, style: str = "") -> None:
        """A line or paragraph of results, wrapped at words."""
        self._print(textwrap.fill(text, **self._wrapping), style=style)

    def heading(self, text: str) -> None:
        """A line that opens a part of the results."""
        self._out.print()
        self._out.print(Rule(Text(text, style="bold"), align="left", style="dim"))

    def point(self, text: str) -> None:
        """One entry of a list."""
        self._print(textwrap.fill(text, initial_indent="  - ", subsequent_indent="    ", **self._wrapping), style="")

    @property
    def _wrapping(self) -> dict[str, Any]:
        # Not rich's own wrapping: it breaks between a number and its unit and leaves spaces at the ends of lines.
        return {"width": self._out.width, "break_long_words": False, "break_on_hyphens": False}

    def _print(self, wrapped: str, *, style: str) -> None:
        self._out.print(Text(wrapped, style=style), soft_wrap=True)

    def show(self, table: Table) -> None:
        """A table."""
        self._out.print(table)

    def warn(self, text: str) -> None:
        """A yellow line on standard error."""
        self._complain("Warning", text, style="yellow")

    def fail(self, text: str) -> None:
        """The one sentence that says what went wrong."""
        self._complain("Error", text, style="bold red")

    def _complain(self, word: str, text: str, *, style: str) -> None:
        # Where nobody looks at a terminal a message stays on one line, for logs and grep.
        body = "yellow" if word == "Warning" else ""
        line = Text.assemble((f"{word}: ", style), (text, body))
        self._err.print(line, soft_wrap=not self._err.is_terminal)

    def emit(self, command: str, facts: Mapping[str, Any]) -> None:
        """The results of a command as one JSON object, the only thing on standard output."""
        content = {"calcode": __version__, "command": command, **facts}
        sys.stdout.write(json.dumps(json_ready(content), indent=2, allow_nan=False, ensure_ascii=False) + "\n")

    @contextmanager
    def counting(self, what: str, *, total: int | None) -> Iterator[Callable[[int], None]]:
        """A progress bar on standard error, shown in terminals only; call what it gives with every step."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self._err, transient=True, disable=not self._err.is_terminal) as progress:
            task = progress.add_task(what, total=total)
            yield lambda steps: progress.update(task, advance=steps)

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """A sign of life on standard error while something runs that cannot be counted."""
        if not self._err.is_terminal:
            yield
            return
        with self._err.status(what):
            yield


def plain_table(*columns: str, title: str | None = None) -> Table:
    """An empty table in the style of all tables: a rule under the head, narrow gaps.

    Parameters
    ----------
    columns : str
        Headings: the first above words that may wrap, the others above numbers; a note has no heading.
    title : str, optional
    """
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    for number, heading in enumerate(columns):
        words = number == 0 or not heading
        table.add_column(heading, justify="left" if words else "right", no_wrap=not words, overflow="fold")
    return table


def terminal_table(table: parts.Table, *, title: str = "") -> Table:
    """A table of `calcode.report.parts`: small print below its cell, a row whose name is bold set off by a mark."""
    shown = plain_table(title=title or None)
    for column in table.columns:
        right = column.numeric
        shown.add_column(column.heading, justify="right" if right else "left", no_wrap=right, overflow="fold")
    for first, *rest in table.cells:
        cells = [f"{cell.text}\n{cell.below}" if cell.below else cell.text for cell in rest]
        name = f"> {first.text}" if first.best else first.text
        shown.add_row(name, *cells, style="bold" if first.best else "")
    return shown


def counted(value: int, noun: str) -> str:
    """A number with its noun.

    Examples
    --------
    >>> counted(1, "image"), counted(2004, "image"), counted(7, "class")
    ('1 image', '2,004 images', '7 classes')
    """
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{value:,} {noun if value == 1 else plural}"


def json_ready(value: Any) -> Any:
    """Plain values for JSON: nan becomes null, infinity the text "inf".

    Examples
    --------
    >>> json_ready({"bandwidth": math.inf, "coverage": (math.nan, 0.5)})
    {'bandwidth': 'inf', 'coverage': [None, 0.5]}
    """
    if isinstance(value, Mapping):
        return {str(key): json_ready(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value
