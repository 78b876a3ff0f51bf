"""The command line: translate, call, translate back. No rule of the method lives here.

A new command is a file here with a `COMMAND`, and one line in `app`. Everything heavy is imported inside
the command, so that `calcode --help` stays fast.
"""

from __future__ import annotations

from calcode.cli.app import app, main

__all__ = ["app", "main"]
