"""Refusals that are free to provoke, counted by program and minute: a flood is in the log and cannot fill the disk."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from calcode.service.log import Event, Transaction, utc
from calcode.service.problems import Problem

#: Refused before anything is read. All others are refused by name, one event each.
COUNTED = frozenset({401, 403, 429, 503, 507})
_MINUTE = 60.0


class Refusals:
    """Counts since the last minute was written down.

    A kill loses the minute's counts, never a decision.

    Examples
    --------
    >>> refusals = Refusals()
    >>> refusals.count("pacs-gateway", 429)
    >>> refusals.count("pacs-gateway", 422)
    >>> refusals.due(), len(refusals.events())
    (False, 1)
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._counts: Counter[tuple[str, int]] = Counter()
        self._since = time.time()
        self._began = time.monotonic()

    def count(self, actor: str, status: int) -> None:
        """Note a refusal, if it is of a kind that is counted.

        Parameters
        ----------
        actor : str
            A known subject, or "unknown": what a stranger sends is not repeated.
        status : int
        """
        if status in COUNTED:
            with self._turn:
                self._counts[actor, status] += 1

    def due(self) -> bool:
        """Whether there is something to write down, and a minute has passed."""
        return bool(self._counts) and time.monotonic() - self._began >= _MINUTE

    def events(self) -> list[Event]:
        """One event for each program that was refused; the counts begin anew."""
        with self._turn:
            counts, self._counts = self._counts, Counter()
            since, self._since, self._began = self._since, time.time(), time.monotonic()
        actors = sorted({actor for actor, _ in counts})
        return [
            Event(
                kind="refused",
                actor=actor,
                body={
                    "detail": "Counted, not recorded one by one.",
                    "since": utc(since),
                    "counts": {str(status): n for (own, status), n in sorted(counts.items()) if own == actor},
                },
            )
            for actor in actors
        ]

    def write(self, change: Callable[[Callable[[Transaction], Any]], Any]) -> None:
        """Append what was counted by a durable change; it is counted again if the disk does not take it."""
        events = self.events()
        try:
            change(lambda transaction: transaction.append(events))
        except BaseException:
            with self._turn:
                for event in events:
                    for status, n in event.body["counts"].items():
                        self._counts[event.actor, int(status)] += n
            raise


def refusal(actor: str, problem: Problem) -> Event:
    """The event of a single refusal: who, which status and which sentence, never the content."""
    return Event(kind="refused", actor=actor, body={"status": problem.status, "detail": problem.detail})
