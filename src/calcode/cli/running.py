"""How a command runs: its help, the file it may write, its warnings, its errors and its exit codes."""

from __future__ import annotations

import errno
import functools
import os
import re
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, NoReturn, ParamSpec

import typer

from calcode.errors import CalcodeError, CalcodeWarning

P = ParamSpec("P")

START = "Start here"
OWN_IMAGES = "On images of your own"


class ExitCode(IntEnum):
    """Exit codes; 2 is typer's own code for a command that was not understood."""

    SUCCESS = 0
    DATA = 1
    USAGE = 2
    ALARM = 3
    UNEXPECTED = 4
    INTERRUPTED = 130
    TERMINATED = 143


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command and what its help page says.

    Attributes
    ----------
    run : callable
        The typer function; its docstring is the help text.
    examples : sequence of str
        Command lines as a user would type them.
    panel : str
        Heading under which `calcode --help` lists it.
    """

    run: Callable[..., None]
    examples: Sequence[str]
    panel: str = OWN_IMAGES

    @property
    def name(self) -> str:
        """The word that is typed: the function's name."""
        return self.run.__name__.replace("_", "-")

    def help_text(self) -> str:
        """The docstring with the examples below it, each on a line of its own."""
        paragraphs = (self.run.__doc__ or "").strip().split("\n\n")
        text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        # The backspace keeps typer from joining the lines of a paragraph.
        shown = "\n".join(f"  {line}" for line in self.examples)
        whole = f"{text}\n\n\b\nExample{'s' * (len(self.examples) > 1)}:\n{shown}"
        return whole.replace("[", r"\[")  # calcode[service] is not markup


def output_file(path: Path, *, suffixes: Sequence[str], inputs: Sequence[Path | None] = ()) -> Path:
    """The path to write to, or a usage error: checked before any work is done."""
    if path.suffix not in suffixes:
        raise typer.BadParameter(f"{path} must end in {' or '.join(suffixes)}", param_hint="--output")
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a folder; name a file", param_hint="--output")
    if path.resolve() in {given.resolve() for given in inputs if given is not None}:
        raise typer.BadParameter(f"{path} is a file that is read here; write to another one", param_hint="--output")
    if not path.parent.is_dir():
        raise typer.BadParameter(f"the folder {path.parent} does not exist; make it first", param_hint="--output")
    return path


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """The command with one sentence for every error, an exit code for its kind, and every warning shown once."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", CalcodeWarning)
            try:
                command(*args, **kwargs)
            except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
                raise
            except KeyboardInterrupt as stopped:
                _fail("Stopped. No half-written file is left behind.", getattr(stopped, "code", ExitCode.INTERRUPTED))
            except Exception as error:
                show_warnings(caught)
                debugging = os.environ.get("CALCODE_DEBUG") == "1"
                if debugging:
                    traceback.print_exception(error)
                if isinstance(error, CalcodeError):
                    # Messages for Python begin with the wrong argument; here the file that follows says it.
                    _fail(re.sub(r"^(path|out|folder|file): ", "", str(error)), ExitCode.DATA)
                if isinstance(error, OSError):
                    where = error.filename or "standard output or the temporary folder"
                    words = {errno.ENOSPC: "the disk is full; make room", errno.EISDIR: "is a folder; name a file"}
                    _fail(f"{where}: {words.get(error.errno or 0, error.strerror or error)}", ExitCode.DATA)
                hint = "" if debugging else "; CALCODE_DEBUG=1 shows where"
                what = f"unexpected {type(error).__name__} ({error})"
                _fail(f"{what}: this is a defect of calcode, not of your files{hint}", ExitCode.UNEXPECTED)
        if caught:
            show_warnings(caught)

    return run


def show_warnings(caught: Sequence[warnings.WarningMessage], *, about: str = "") -> None:
    """Every warning once, as a yellow line on standard error; `about` says what all of them are about."""
    if not caught:
        return
    from calcode.cli.screen import Screen

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
    from calcode.cli.screen import Screen

    Screen().fail(sentence)
    raise typer.Exit(int(code))
