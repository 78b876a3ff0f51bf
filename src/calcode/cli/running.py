"""How a command runs: its help, output file, screen output, errors and exit codes; JSON for machines."""

from __future__ import annotations

import errno
import functools
import inspect
import json
import os
import re
import sys
import textwrap
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from calcode import __version__
from calcode.errors import CalcodeError, CalcodeWarning
from calcode.files import json_ready

if TYPE_CHECKING:
    from calcode.report import parts

P = ParamSpec("P")


class ExitCode(IntEnum):
    """Exit codes; 2 is typer's own code for an invalid command line."""

    SUCCESS = 0
    DATA = 1
    USAGE = 2
    ALARM = 3
    UNEXPECTED = 4
    INTERRUPTED = 130
    TERMINATED = 143


def help_page(about: str, examples: Sequence[str]) -> str:
    """A help text followed by its examples, one per line."""
    paragraphs = "\n\n".join(" ".join(paragraph.split()) for paragraph in about.split("\n\n"))
    # The backspace character keeps typer from joining the lines of the paragraph.
    lines = "\n".join(f"  {line}" for line in examples)
    page = f"{paragraphs}\n\n\b\nExample{'s' * (len(examples) > 1)}:\n{lines}"
    return page.replace("[", r"\[")  # because calcode[service] is not markup


def add_command(group: typer.Typer, command: Callable[..., None], *, panel: str | None = None) -> None:
    """Add a command: its name is the function's, its help is the docstring with the lines under Examples.

    Parameters
    ----------
    group : typer.Typer
    command : callable
    panel : str, optional
        Heading under which the group's help lists it.
    """
    about, _, examples = inspect.cleandoc(command.__doc__ or "").partition("\n\nExamples\n--------\n")
    name = command.__name__.strip("_").replace("_", "-")
    page = help_page(about, examples.splitlines())
    group.command(name, help=page, rich_help_panel=panel)(guarded(command))


def command_group(about: str, *commands: Callable[..., None], examples: Sequence[str]) -> typer.Typer:
    """Commands under one name, such as `calcode site`; `calcode.cli.app` sets the name."""
    group = typer.Typer(help=help_page(about, examples), no_args_is_help=True, rich_markup_mode="rich")
    for command in commands:
        add_command(group, command)
    return group


def output_file(
    path: Path, *, suffixes: Sequence[str], inputs: Sequence[Path | None] = (), option: str = "--output"
) -> Path:
    """Return the path to write to, or raise a usage error about its option, before any work is done."""
    if path.suffix not in suffixes:
        raise typer.BadParameter(f"{path} must end in {' or '.join(suffixes)}", param_hint=option)
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a folder; name a file", param_hint=option)
    if path.resolve() in {given.resolve() for given in inputs if given is not None}:
        raise typer.BadParameter(f"{path} is a file that is read here; write to another one", param_hint=option)
    if not path.parent.is_dir():
        raise typer.BadParameter(f"the folder {path.parent} does not exist; make it first", param_hint=option)
    if not os.access(path.parent, os.W_OK):
        raise typer.BadParameter(f"nothing can be written to {path.parent}; name another folder", param_hint=option)
    return path


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """Wrap a command: one sentence for every error, an exit code for its kind, and every warning shown once."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", CalcodeWarning)
            try:
                command(*args, **kwargs)
            except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError) as end:
                # For example, an alarm ends a command that has done its work, so its warnings are still shown.
                if isinstance(end, typer.Exit):
                    show_warnings(caught)
                raise
            except KeyboardInterrupt as stopped:
                _fail("Stopped. No half-written file is left behind.", getattr(stopped, "code", ExitCode.INTERRUPTED))
            except Exception as error:
                show_warnings(caught)
                debugging = os.environ.get("CALCODE_DEBUG") == "1"
                if debugging:
                    traceback.print_exception(error)
                if isinstance(error, CalcodeError):
                    # Messages for Python begin with the name of the argument; here the file name after it is enough.
                    _fail(re.sub(r"^(path|out|folder|csv_file|file): ", "", str(error)), ExitCode.DATA)
                if isinstance(error, OSError):
                    where = error.filename or "standard output or the temporary folder"
                    words = {
                        errno.EACCES: "permission denied; name another place, or have its permissions changed",
                        errno.ENOSPC: "the disk is full; make room",
                        errno.EISDIR: "is a folder; name a file",
                        errno.EEXIST: "is there already; name another place",
                        errno.ENOTDIR: "a part of this name is a file, not a folder; name another place",
                        errno.EROFS: "the disk is read-only; name another place",
                    }
                    _fail(f"{where}: {words.get(error.errno or 0, error.strerror or error)}", ExitCode.DATA)
                if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
                    _fail(f"{error.object!r}: not UTF-8; give it in UTF-8", ExitCode.DATA)
                hint = "" if debugging else "; CALCODE_DEBUG=1 shows where"
                what = f"unexpected {type(error).__name__} ({error})"
                _fail(f"{what}: this is a defect of calcode, not of your files{hint}", ExitCode.UNEXPECTED)
        if caught:
            show_warnings(caught)

    return run


def show_warnings(caught: Sequence[warnings.WarningMessage], *, about: str = "") -> None:
    """Show every warning once, as a yellow line on standard error; `about` is a prefix for all of them."""
    screen = Screen()
    shown: dict[str, Any] = {
        str(entry.message)
        if issubclass(entry.category, CalcodeWarning)
        else f"{entry.category.__name__}: {entry.message}": None
        for entry in caught
    }
    for text in shown:
        screen.warn(f"{about}: {text}" if about else text)


def _fail(sentence: str, code: int) -> NoReturn:
    Screen().fail(sentence)
    raise typer.Exit(int(code))


DEVICE_NOTE = "Research software, not a medical device."


@dataclass(frozen=True)
class Screen:
    """Standard output for results and standard error for everything else, at the width of the terminal.

    Parameters
    ----------
    as_json : bool
        Results are for machines: `emit` prints, and `say` and the like print nothing.
    """

    as_json: bool = False
    _err: Console = field(default_factory=partial(Console, stderr=True, highlight=False))

    @cached_property
    def _out(self) -> Console:
        return Console(highlight=False, quiet=self.as_json)

    @property
    def width(self) -> int:
        """Width of a line of results in characters."""
        return self._out.width

    def say(self, text: str = "", *, style: str = "") -> None:
        """Print a line or paragraph of results, wrapped at words."""
        self._wrap(text, style=style)

    def heading(self, text: str) -> None:
        """Print a line that starts a part of the results."""
        self._out.print()
        self._out.print(Rule(Text(text, style="bold"), align="left", style="dim"))

    def point(self, text: str) -> None:
        """Print one entry of a list."""
        self._wrap(text, first="  - ", later="    ")

    def _wrap(self, text: str, *, first: str = "", later: str = "", style: str = "") -> None:
        # Not rich's own wrapping, which breaks between a number and its unit and leaves spaces at line ends.
        lines = textwrap.fill(
            text,
            self.width,
            initial_indent=first,
            subsequent_indent=later,
            break_long_words=False,
            break_on_hyphens=False,
        )
        self._out.print(Text(lines, style=style), soft_wrap=True)

    def show(self, table: Table) -> None:
        """Print a table."""
        self._out.print(table)

    def warn(self, text: str) -> None:
        """Print a yellow line on standard error."""
        self._complain("Warning", text, style="yellow")

    def fail(self, text: str) -> None:
        """Print the one sentence that says what went wrong."""
        self._complain("Error", text, style="bold red")

    def _complain(self, word: str, text: str, *, style: str) -> None:
        # If standard error is not a terminal, a message stays on one line, for logs and grep.
        body = "yellow" if word == "Warning" else ""
        line = Text.assemble((f"{word}: ", style), (text, body))
        self._err.print(line, soft_wrap=not self._err.is_terminal)

    def emit(self, command: str, facts: Mapping[str, Any]) -> None:
        """Print the results of a command as one JSON object, the only standard output; without --json print nothing."""
        if not self.as_json:
            return
        content = {"calcode": __version__, "command": command, **facts}
        sys.stdout.write(json.dumps(json_ready(content), indent=2, allow_nan=False, ensure_ascii=False) + "\n")

    @contextmanager
    def counting(self, what: str, *, total: int | None) -> Iterator[Callable[..., None]]:
        """A progress bar on standard error, shown only in terminals.

        Call the yielded function with the number of steps made and, optionally, a note.
        """
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=self._err, transient=True, disable=not self._err.is_terminal) as progress:
            task = progress.add_task(what, total=total, note="")
            yield lambda steps, note="": progress.update(task, advance=steps, note=note)

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Show activity on standard error while work runs that cannot be counted."""
        if not self._err.is_terminal:
            yield
            return
        with self._err.status(what):
            yield


def plain_table(
    *columns: str, words: Sequence[str] | None = None, unbroken: Sequence[str] = (), title: str | None = None
) -> Table:
    """An empty table in the style of all tables: a rule under the head, narrow gaps.

    Parameters
    ----------
    columns : str
        Headings. A column holds numbers, set flush right, unless it is one of the following.
    words : sequence of str, optional
        Columns of words that may wrap: the first if not given. A note, which has no heading, is one too.
    unbroken : sequence of str
        Columns of text that stays on its line.
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
    wrapped = columns[:1] if words is None else words
    for heading in columns:
        fixed = heading in unbroken
        right = not (fixed or heading in wrapped or heading == "")
        table.add_column(heading, justify="right" if right else "left", no_wrap=right or fixed, overflow="fold")
    return table


def terminal_table(table: parts.Table, *, title: str = "") -> Table:
    """A table of `calcode.report.parts`: small print goes below its cell, a row with a bold name gets a mark."""
    words = [column.heading for column in table.columns if not column.numeric]
    shown = plain_table(*(column.heading for column in table.columns), words=words, title=title or None)
    for first, *rest in table.cells:
        cells = [f"{cell.text}\n{cell.below}" if cell.below else cell.text for cell in rest]
        name = f"> {first.text}" if first.best else first.text
        shown.add_row(name, *cells, style="bold" if first.best else "")
    return shown
