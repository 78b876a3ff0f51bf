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


def answer_counts(connection: Connection, line: str, *, n_classes: int, after: int = 0) -> dict[str, int]:
    """Decisions by the kind of their answer, in the order and with the keys of `ANSWERS`; no kind without one.

    Parameters
    ----------
    connection : Connection
    line : str
    n_classes : int
        Diagnoses that the line knows.
    after : int
        Record of the log after which decisions count.
    """
    query = (
        select(DECISION.c.action, DECISION.c.released_set, func.count())
        .where(DECISION.c.line == line, DECISION.c.seq > after)
        .group_by(DECISION.c.action, DECISION.c.released_set)
    )
    counts = dict.fromkeys(ANSWERS, 0)
    for action, released, n in connection.execute(query):
        full = action != "defer" and len(json.loads(released)) == n_classes
        counts["all" if full else action] += n
    return {kind: n for kind, n in counts.items() if n}
