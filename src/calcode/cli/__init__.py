"""The command line: translate input, call the package, translate back. No rule of the method is here.

A new command is a file here with a function of its name, and a word in `app`; its docstring is its help. All heavy
imports are inside the commands, so that `calcode --help` stays fast. This file imports nothing heavy, so that Ctrl-C
works from the start.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

__all__ = ["Stopped", "main"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """Raised by Ctrl-C or a request to terminate; `code` is the exit code that a shell expects (130, 143)."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


def main() -> None:
    """Entry point of the command `calcode`."""
    # A command that was started in the background ignores Ctrl-C and must continue to.
    handled = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in handled:
        # While the program is loading there is nothing to clean up.
        signal.signal(number, lambda number, frame: os._exit(128 + number))
    from calcode.cli.app import app

    for number in handled:
        signal.signal(number, _stop)
    try:
        app()
    except Stopped as stopped:
        sys.exit(stopped.code)


def _stop(number: int, frame: FrameType | None) -> None:
    """Stop only once, so that the clean-up can finish: a second Ctrl-C would interrupt it."""
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise Stopped(number)
