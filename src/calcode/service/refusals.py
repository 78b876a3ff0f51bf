"""Refusals that anybody can provoke, counted by program and minute: a flood is logged but cannot fill the disk."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from calcode.service.log import Event, Transaction, utc
from calcode.service.problems import Problem

#: Statuses of requests refused before anything is read; only these are counted. Other refusals are one event each.
COUNTED = frozenset({401, 403, 429, 503, 507})
_MINUTE = 60.0


class Refusals:
    """Counts of refusals since they were last recorded.

    If the process is killed, the counts of the last minute are lost, but never a decision.

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
        """Count a refusal if its status is one of `COUNTED`.

        Parameters
        ----------
        actor : str
            A known subject, or "unknown", because a name that a stranger sends is not recorded.
        status : int
        """
        if status in COUNTED:
            with self._turn:
                self._counts[actor, status] += 1

    def due(self) -> bool:
        """Whether there are counts to record and a minute has passed."""
        return bool(self._counts) and time.monotonic() - self._began >= _MINUTE

    def events(self) -> list[Event]:
        """Return one event for each program that was refused, and reset the counts."""
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
        """Record the counts by a durable change; keep them if the change fails."""
        since, events = self._since, self.events()
        try:
            change(lambda transaction: transaction.append(events))
        except BaseException:
            with self._turn:
                for event in events:
                    for status, n in event.body["counts"].items():
                        self._counts[event.actor, int(status)] += n
                self._since = since
            raise


def refusal(actor: str, problem: Problem) -> Event:
    """Return the event of a single refusal: actor, status and sentence, never the content."""
    return Event(kind="refused", actor=actor, body={"status": problem.status, "detail": problem.detail})
