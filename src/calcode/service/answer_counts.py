"""Counts of a line's answers: one diagnosis, several, all of them, or left to a clinician."""

from __future__ import annotations

import json

from sqlalchemy import Connection, func, select

from calcode.service.tables import DECISION

#: Kinds of answers in the order in which pages show them. An answer with every diagnosis is a separate kind.
ANSWERS = {
    "label": "one diagnosis",
    "set": "several diagnoses",
    "all": "all diagnoses (rules nothing out)",
    "defer": "left to a clinician",
}


#: Readers see answer counts in steps of this many images: an update after each image would reveal its answer.
STEP = 20


def last_full_step(connection: Connection, line: str, *, after: int) -> int:
    """Return the record of the decision that completed the last full step after `after`; `after` if there is none.

    Parameters
    ----------
    connection : Connection
    line : str
    after : int
        Only decisions after this record of the log count.
    """
    decided = (DECISION.c.line == line, DECISION.c.seq > after)
    n = connection.execute(select(func.count()).where(*decided)).scalar_one()
    if n < STEP:
        return after
    steps = select(DECISION.c.seq).where(*decided).order_by(DECISION.c.seq).offset(n // STEP * STEP - 1)
    return int(connection.execute(steps.limit(1)).scalar_one())


def answer_counts(
    connection: Connection, line: str, *, n_classes: int, after: int = 0, upto: int | None = None
) -> dict[str, int]:
    """Count decisions by kind of answer, with the keys and order of `ANSWERS`; kinds without a decision are left out.

    Parameters
    ----------
    connection : Connection
    line : str
    n_classes : int
        Number of diagnoses of the line.
    after : int
        Only decisions after this record of the log count.
    upto : int, optional
        Only decisions up to this record count; default: the newest.
    """
    query = (
        select(DECISION.c.action, DECISION.c.released_set, func.count())
        .where(DECISION.c.line == line, DECISION.c.seq > after)
        .group_by(DECISION.c.action, DECISION.c.released_set)
    )
    if upto is not None:
        query = query.where(DECISION.c.seq <= upto)
    counts = dict.fromkeys(ANSWERS, 0)
    for action, released, n in connection.execute(query):
        full = action != "defer" and len(json.loads(released)) == n_classes
        counts["all" if full else action] += n
    return {kind: n for kind, n in counts.items() if n}
