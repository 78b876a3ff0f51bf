"""How readers do: agreement of the drawn second readings, time per case, backlog (SERVICE.md 8 and 9)."""

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
    """How readers do on a line.

    Attributes
    ----------
    n_pairs, n_differ : int
        Cases drawn for a second reader that both have read, and those on which they differ.
    kappa : float or None
        Cohen's; None without pairs, or where both always say the same one label.
    n_readings, n_blind : int
        Readings saved, changes left out, and those that were blind.
    share_cannot_tell : float or None
    seconds : float or None
        Median time from opening a case to saving it.
    backlog : int
        Cases that may be read now.
    oldest_at : str or None
        Since when the oldest one waits.
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
    """Agreement of the random second readings, time per case and backlog of a line.

    Only pairs that chance made are counted: a second reading asked for because the first one could not tell says
    nothing about how often readers differ.
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
    """How many cases may be read now, as the queue shows them, and since when the oldest waits.

    What waits in a visit that is open would tell which case the model deferred, and so would when a task opened.
    """
    query = (
        select(func.count(), func.min(SHOWN_SINCE))
        .select_from(TASKS)
        .where(TASK.c.line == line, TASK.c.state == "open", is_shown(connection))
    )
    n, oldest = connection.execute(query).one()
    return int(n), oldest


def cohens_kappa(pairs: Sequence[tuple[str, str]]) -> float | None:
    """Agreement beyond chance of two readers; None where chance alone would agree always.

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
