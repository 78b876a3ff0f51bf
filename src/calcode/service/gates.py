"""Gates that a candidate must pass before two people may promote it (SERVICE.md 10, SITE.md S6).

Coverage is counted on drawn cases that were decided after the candidate's cut-off, and after it was first added under
the protocol in force: adding it again does not begin a second trial. Set size is never a gate: choosing the
preferred candidate would void its promise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any

from sqlalchemy import Connection, func, select

from calcode.metrics.wording import counted, percent, short_percent
from calcode.monitor.coverage import least_coverage
from calcode.service.alarms import open_alarms
from calcode.service.labels import reviewed_cases
from calcode.service.line import LineModel
from calcode.service.protocol import Protocol
from calcode.service.tables import DECISION, EVENT, MODEL, PROTOCOL, SHADOW_DECISION, of_kinds

#: One minus the confidence of the lower bound of coverage.
_ALPHA = 0.05


def shadow_coverage(connection: Connection, line: str, digest: str, *, upto: float = inf) -> dict[str, Any]:
    """Return the coverage of a candidate's shadow answers on the drawn cases after its cut-off.

    Cases without a label tend to be harder, so the bound of the gate counts them as missed. The bound is valid after
    every label (`least_coverage`): repeated looks do not make it easier to pass.

    Parameters
    ----------
    connection : Connection
    line, digest : str
    upto : float
        Only cases that were decided up to this record, for people who read cases.

    Returns
    -------
    dict
        `labels` and `covered` over all classes; `missing`: drawn cases without a label so far; `lower` and
        `lower_missing_as_hits`: lower bounds of coverage with 95 % confidence at every look, with missing labels as
        misses and as hits; `classes`: labels and covered by class. Cases that the candidate's audit rejects are left
        out: it promises nothing about them.
    """
    # A model from elsewhere has no data of this line, and a model made here was added after its last case.
    cut_off = _tried_since(connection, line, digest)
    rows = connection.execute(select(SHADOW_DECISION).where(SHADOW_DECISION.c.model == digest))
    shadows = {row.decision: row for row in rows}
    classes: dict[str, dict[str, int]] = {}
    found: list[bool | None] = []
    for case in reviewed_cases(connection, line, since=cut_off):
        shadow = shadows.get(case.decision)
        counts = case.drawn and case.state != "outside" and not case.known
        if shadow is None or not counts or shadow.reason in ("low_support", "error") or case.seq > upto:
            continue
        if case.label is None:
            found.append(None)
            continue
        own = classes.setdefault(case.label, {"labels": 0, "covered": 0})
        own["labels"] += 1
        # A deferred full set (METHOD.md 9) leaves every label possible; an empty set is a miss.
        found.append(shadow.reason == "full_set" or case.label in json.loads(shadow.released_set))
        own["covered"] += bool(found[-1])
    return {
        "labels": len(found) - found.count(None),
        "covered": found.count(True),
        "missing": found.count(None),
        "lower": least_coverage([covered is True for covered in found], alpha=_ALPHA),
        "lower_missing_as_hits": least_coverage([covered is not False for covered in found], alpha=_ALPHA),
        "classes": dict(sorted(classes.items())),
    }


def failed_gates(
    connection: Connection,
    line: str,
    digest: str,
    *,
    protocol: Protocol,
    protocol_seq: int,
    loaded: LineModel | None,
    names: Mapping[str, str],
    upto: float = inf,
) -> list[str]:
    """A sentence for each gate of the protocol that a model does not pass.

    Parameters
    ----------
    connection : Connection
    line, digest : str
    protocol : Protocol
    protocol_seq : int
        Record that set the protocol.
    loaded : LineModel or None
        The candidate in memory, if its file can be loaded.
    names : mapping of str to str
        Full names of the classes.
    upto : float
        Only cases that were decided up to this record count.
    """
    failed = []
    if protocol_seq > added_at(connection, line, digest):
        failed.append("The protocol is younger than the candidate; add the candidate again under it.")
    seen = connection.execute(
        select(func.count())
        .select_from(SHADOW_DECISION.join(DECISION, DECISION.c.id == SHADOW_DECISION.c.decision))
        .where(
            SHADOW_DECISION.c.model == digest,
            DECISION.c.line == line,
            DECISION.c.seq > _tried_since(connection, line, digest),
        )
    ).scalar_one()
    if seen < protocol.min_shadow_decisions:
        failed.append(f"{seen} shadow decisions, the protocol asks for {protocol.min_shadow_decisions}.")
    shown = shadow_coverage(connection, line, digest, upto=upto)
    # This includes a model from elsewhere, without labels here so far. A model that cannot be loaded fails below.
    for name in [] if loaded is None else _left_out_at_times(loaded):
        n = shown["classes"].get(name, {"labels": 0})["labels"]
        if n < protocol.min_labels_per_class:
            spelled = names.get(name, name)
            failed.append(f"{spelled}: {n} labels after the cut-off, {protocol.min_labels_per_class} needed.")
    if protocol.min_coverage is not None and shown["lower"] < protocol.min_coverage:
        failed.append(
            f"Of {counted(shown['labels'], 'read case')} after the cut-off its answers include the right diagnosis in "
            f"{shown['covered']:,}; drawn cases without a label count as missed ({shown['missing']:,}). This shows a "
            f"coverage of at least {percent(shown['lower'])} with 95 % confidence at every look, and the protocol asks "
            f"for {short_percent(protocol.min_coverage)}."
        )
    n_alarms = len(open_alarms(connection, line))
    if n_alarms:
        failed.append(f"{counted(n_alarms, 'alarm')} must be closed first, by an engineer and a clinician.")
    tested = connection.execute(
        select(EVENT.c.at).where(of_kinds("backup_verified")).order_by(EVENT.c.seq.desc())
    ).scalar()
    limit = datetime.now(UTC) - timedelta(days=protocol.restore_test_days)
    if tested is None or datetime.fromisoformat(tested) < limit:
        failed.append(f"No restore test within {protocol.restore_test_days} days; run calcode service restore-test.")
    golden = connection.execute(
        select(MODEL.c.golden).where(MODEL.c.line == line, MODEL.c.digest == digest)
    ).scalar_one()
    if loaded is None or loaded.golden() != golden:
        failed.append("It does not repeat the answers that were recorded when it was added (golden answers).")
    return failed


def _left_out_at_times(loaded: LineModel) -> list[str]:
    """The classes that a model may leave out of a set; the others cannot be missed."""
    return [name for name in loaded.model.classes_ if name not in loaded.model.in_every_set_]


def added_at(connection: Connection, line: str, digest: str) -> int:
    """Return the newest record that added a model to a line; earlier proposals no longer count."""
    return _additions(connection, line, digest)[-1]


def _tried_since(connection: Connection, line: str, digest: str) -> int:
    """Return the record after which a candidate's shadow answers count: its first addition under the protocol in force.

    Earlier answers do not count: the protocol may have been written with them in view. Adding the candidate again under
    the same protocol discards nothing: otherwise one could try again until a gate is passed.
    """
    in_force = connection.execute(select(func.max(PROTOCOL.c.from_seq)).where(PROTOCOL.c.line.in_((line, ""))))
    protocol_seq = in_force.scalar() or 0
    additions = _additions(connection, line, digest)
    return next((seq for seq in additions if seq > protocol_seq), additions[-1])


def _additions(connection: Connection, line: str, digest: str) -> list[int]:
    """The records that added a model to a line, in order."""
    rows = connection.execute(
        select(EVENT.c.seq, EVENT.c.body)
        .where(of_kinds("model_added"), EVENT.c.subject == digest)
        .order_by(EVENT.c.seq)
    )
    return [int(seq) for seq, body in rows if json.loads(body)["line"] == line]
