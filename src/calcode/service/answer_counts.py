"""How many answers of a line gave one diagnosis, several or all of them, and how many cases went to a clinician."""

from __future__ import annotations

import json

from sqlalchemy import Connection, func, select

from calcode.service.tables import DECISION

#: Kinds of answers in the order in which pages show them. An answer that holds every diagnosis is a kind of its own.
ANSWERS = {
    "label": "one diagnosis",
    "set": "several diagnoses",
    "all": "all diagnoses (rules nothing out)",
    "defer": "left to a clinician",
}


#: Readers see counts of answers in steps of so many images: one image more would tell what the model said about it.
STEP = 20


def last_full_step(connection: Connection, line: str, *, after: int) -> int:
    """The record of the decision that ended the last full step of a line after a record; that record before the first.

    Parameters
    ----------
    connection : Connection
    line : str
    after : int
        Record of the log after which decisions count.
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
    """Decisions by the kind of their answer, in the order and with the keys of `ANSWERS`; no kind without one.

    Parameters
    ----------
    connection : Connection
    line : str
    n_classes : int
        Diagnoses that the line knows.
    after : int
        Record of the log after which decisions count.
    upto : int, optional
        Record up to which they do; the newest otherwise.
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
