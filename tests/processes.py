"""Processes that a test has started: who comes from whom, who is at work, and whether they end."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def descendants(process: int) -> dict[int, str]:
    """Processes that come from this one, with their command lines; zombies left out."""
    found: dict[int, str] = {}
    waiting = [process]
    while waiting:
        parent = waiting.pop()
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            with suppress(OSError):
                for child in map(int, task.read_text().split()):
                    with suppress(OSError):
                        if words := Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode():
                            found[child] = words
                        waiting.append(child)
    return found


def all_end(processes: Iterable[int]) -> bool:
    """Whether these processes end, within two minutes."""
    alive = list(processes)
    for _ in range(1200):
        for process in tuple(alive):
            try:
                ended = not Path(f"/proc/{process}/cmdline").read_bytes()
            except OSError:
                ended = True
            if ended:
                alive.remove(process)
        if not alive:
            return True
        time.sleep(0.1)
    return False


def at_work(folder: Path) -> int | None:
    """A process that has begun a shard in an unfinished job and not ended it; None if there is none now."""
    for attempts in folder.glob("*.attempts"):
        # The file goes when the shard is finished.
        with suppress(OSError, IndexError):
            return int(attempts.read_text().splitlines()[-1].split()[0])
    return None
