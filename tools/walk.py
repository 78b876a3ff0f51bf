"""The walk of one image: which files and functions `calcode decide` enters, in the order of the first call.

    python tools/walk.py model.safetensors one-image.parquet

prints the files, each with its functions, and the two counts that tests/cli/test_walk.py holds down. Counted are
functions and methods of `calcode` that run after the program was loaded: not what an import executes, not what other
libraries do.
"""

from __future__ import annotations

import inspect
import os
import sys
import tempfile
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import calcode

SOURCE = str(Path(calcode.__file__).parent) + os.sep


def walk(arguments: list[str]) -> dict[str, list[str]]:
    """Run a command and note every function of calcode that it enters, by file.

    Parameters
    ----------
    arguments : list of str
        What would follow `calcode` on the command line.
    """
    from calcode.cli.app import app

    entered: dict[CodeType, None] = {}

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        # Class bodies and modules lack CO_OPTIMIZED; they run when a file is imported.
        function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        if event == "call" and function and code.co_filename.startswith(SOURCE):
            entered.setdefault(code)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        app(arguments, standalone_mode=False)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    files: dict[str, list[str]] = {}
    for code in entered:
        files.setdefault(code.co_filename.removeprefix(SOURCE), []).append(code.co_qualname)
    return files


def main() -> None:
    """Print the walk of `calcode decide MODEL FEATURES`."""
    if len(sys.argv) != 3:
        raise SystemExit("usage: python tools/walk.py MODEL FEATURES")
    with tempfile.TemporaryDirectory() as folder:
        output = str(Path(folder) / "decisions.csv")
        files = walk(["decide", sys.argv[1], sys.argv[2], "--output", output, "--json"])
    for name, functions in files.items():
        print(name)
        for function in functions:
            print(f"    {function}")
    print(f"{len(files)} files, {sum(map(len, files.values()))} functions")


if __name__ == "__main__":
    main()
