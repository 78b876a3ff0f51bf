"""Reader statistics: agreement on drawn second readings, time per case, backlog (SERVICE.md 8 and 9)."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, func, select

from calcode.service.blindness import SHOWN_SINCE, TASKS, is_shown
from calcode.service.labels import CANNOT_TELL, second_drawn
from calcode.service.tables import DECISION, REVIEW, TASK


@dataclass(frozen=True, slots=True)
class Agreement:
    """Reader statistics of a line: agreement, time per case and backlog.

    Attributes
    ----------
    n_pairs, n_differ : int
        Cases drawn for a second reader that both have read, and those with different labels.
    kappa : float or None
        Cohen's kappa; None without pairs, or if both always give the same single label.
    n_readings, n_blind : int
        Readings saved, without later changes, and the blind ones among them.
    share_cannot_tell : float or None
    seconds : float or None
        Median time from opening a case to saving it.
    backlog : int
        Cases in the queue now.
    oldest_at : str or None
        When the oldest of them began to wait.
    """

    n_pairs: int
    n_differ: int
    kappa: float | None
    n_readings: int
    n_blind: int
    share_cannot_tell: float | None
    seconds: float | None
    backlog: int
    oldest_at: str | None


def agreement(connection: Connection, line: str) -> Agreement:
    """Agreement on random second readings, time per case and backlog of a line.

    Only randomly drawn pairs count: a second reading requested because the first reader could not tell says nothing
    about how often readers differ.
    """
    rows = connection.execute(
        select(REVIEW, DECISION.c.u_second, DECISION.c.p_second)
        .join(DECISION, DECISION.c.id == REVIEW.c.decision)
        .where(REVIEW.c.line == line, REVIEW.c.source == "read", REVIEW.c.supersedes.is_(None))
        .order_by(REVIEW.c.seq)
    ).all()
    labels: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if second_drawn(row):
            labels[row.decision].append(row.label)
    pairs = [(found[0], found[1]) for found in labels.values() if len(found) > 1]
    took = [
        (datetime.fromisoformat(row.saved_at) - datetime.fromisoformat(row.opened_at)).total_seconds() for row in rows
    ]
    waits, oldest_at = backlog(connection, line)
    return Agreement(
        n_pairs=len(pairs),
        n_differ=sum(one != other for one, other in pairs),
        kappa=cohens_kappa(pairs),
        n_readings=len(rows),
        n_blind=sum(row.blind for row in rows),
        share_cannot_tell=sum(row.label == CANNOT_TELL for row in rows) / len(rows) if rows else None,
        seconds=statistics.median(took) if took else None,
        backlog=waits,
        oldest_at=oldest_at,
    )


def backlog(connection: Connection, line: str) -> tuple[int, str | None]:
    """Return the number of cases that the queue shows now, and since when the oldest waits.

    Cases of open visits are left out and the opening times of tasks are not used: both would reveal deferrals.
    """
    query = (
        select(func.count(), func.min(SHOWN_SINCE))
        .select_from(TASKS)
        .where(TASK.c.line == line, TASK.c.state == "open", is_shown(connection))
    )
    n, oldest = connection.execute(query).one()
    return int(n), oldest


def cohens_kappa(pairs: Sequence[tuple[str, str]]) -> float | None:
    """Cohen's kappa: the agreement of two readers beyond chance; None if chance agreement is 1.

    Examples
    --------
    >>> cohens_kappa([("mel", "mel"), ("nv", "nv"), ("nv", "mel"), ("mel", "mel")])
    0.5
    """
    if not pairs:
        return None
    n = len(pairs)
    firsts, seconds = Counter(one for one, _ in pairs), Counter(other for _, other in pairs)
    by_chance = sum(firsts[name] * seconds[name] for name in firsts) / n**2
    observed = sum(one == other for one, other in pairs) / n
    return None if by_chance == 1 else (observed - by_chance) / (1 - by_chance)
