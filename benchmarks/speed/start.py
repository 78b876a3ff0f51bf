"""How long it takes until something happens: the import, the command line's help, the demonstration."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from speed.measuring import seconds_of

PYTHON = Path(sys.executable)


def _run(*command: str) -> float:
    return seconds_of(lambda: subprocess.run(command, check=True, capture_output=True))


def _demo() -> dict[str, float]:
    """Seconds of the demonstration as the command itself counts them."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(PYTHON.with_name("calcode")), "demo", "-o", str(Path(folder) / "page.html"), "--json"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    facts = json.loads(done.stdout)
    seconds: dict[str, float] = facts.get("demo", facts)["seconds"]
    return seconds


def measure(*, repeats: int) -> dict[str, Any]:
    """Bare Python is the floor of every start; it is taken in turns with the rest."""
    commands = {
        "python": (str(PYTHON), "-c", "pass"),
        "numpy": (str(PYTHON), "-c", "import numpy"),
        "import_calcode": (str(PYTHON), "-c", "import calcode"),
        "help": (str(PYTHON.with_name("calcode")), "--help"),
    }
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(repeats + 1):
        for name, command in commands.items():
            seconds = _run(*command)
            if turn:  # the first turn fills the file cache
                taken[name].append(seconds)
    result: dict[str, Any] = {"seconds": {name: statistics.median(times) for name, times in taken.items()}}
    try:
        result["demo_seconds"] = _demo()
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        result["demo_skipped"] = str(error)
    return result
