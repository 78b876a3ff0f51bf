"""What a candidate must have shown before two people may promote it (SERVICE.md 10, SITE.md S6).

Coverage is counted on drawn cases that were decided after the candidate's cut-off. Set size is never a gate: to keep
the candidate one likes best would void its promise.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, func, select

from calcode.monitor.binomial import binomial_interval
from calcode.service.alarms import open_alarms
from calcode.service.labels import reviewed_cases
from calcode.service.line import LineModel
from calcode.service.protocol import Protocol
from calcode.service.tables import DECISION, EVENT, MODEL, RECALIBRATION, SHADOW_DECISION

#: Of the lower bound of coverage: one side of an interval of 90 %.
_CONFIDENCE = 0.90


def shadow_coverage(connection: Connection, line: str, digest: str) -> dict[str, Any]:
    """Coverage of a candidate's shadow answers on the labelled drawn cases after its cut-off.

    Returns
    -------
    dict
        `labels`, `covered` and `lower` (95 % confidence) over all classes, and `classes`: name to labels and covered.
        Cases that the candidate's audit rejects are left out: it promises nothing about them.
    """
    cut_off = connection.execute(
        select(RECALIBRATION.c.upto_seq).where(RECALIBRATION.c.line == line, RECALIBRATION.c.model == digest).limit(1)
    ).scalar()
    if cut_off is None:
        # A model from elsewhere knows nothing of this line up to the record that added it.
        cut_off = _added_at(connection, line, digest)
    rows = connection.execute(select(SHADOW_DECISION).where(SHADOW_DECISION.c.model == digest))
    shadows = {row.decision: row for row in rows}
    classes: dict[str, dict[str, int]] = {}
    for case in reviewed_cases(connection, line, since=cut_off):
        shadow = shadows.get(case.decision)
        counts = case.drawn and case.state == "labelled" and not case.known
        if shadow is None or not counts or shadow.reason in ("low_support", "error"):
            continue
        assert case.label is not None
        own = classes.setdefault(case.label, {"labels": 0, "covered": 0})
        own["labels"] += 1
        # A full set that is deferred (METHOD.md 9) leaves every label possible; an empty one is a miss.
        own["covered"] += shadow.reason == "full_set" or case.label in json.loads(shadow.released_set)
    labels, covered = (sum(own[name] for own in classes.values()) for name in ("labels", "covered"))
    lower = binomial_interval(covered, labels, confidence=_CONFIDENCE)[0]
    return {"labels": labels, "covered": covered, "lower": lower, "classes": dict(sorted(classes.items()))}


def failed_gates(
    connection: Connection, line: str, digest: str, *, protocol: Protocol, protocol_seq: int, loaded: LineModel | None
) -> list[str]:
    """A sentence for each gate of the protocol that a model does not pass.

    Parameters
    ----------
    connection : Connection
    line, digest : str
    protocol : Protocol
    protocol_seq : int
        Record that set it.
    loaded : LineModel or None
        The candidate in memory, if it is in the shadow.
    """
    failed = []
    if protocol_seq > _added_at(connection, line, digest):
        failed.append("The protocol is younger than the candidate; add the candidate again under it.")
    seen = connection.execute(
        select(func.count())
        .select_from(SHADOW_DECISION.join(DECISION, DECISION.c.id == SHADOW_DECISION.c.decision))
        .where(SHADOW_DECISION.c.model == digest, DECISION.c.line == line)
    ).scalar_one()
    if seen < protocol.min_shadow_decisions:
        failed.append(f"{seen} shadow decisions, the protocol asks for {protocol.min_shadow_decisions}.")
    shown = shadow_coverage(connection, line, digest)
    report = connection.execute(
        select(RECALIBRATION.c.report).where(RECALIBRATION.c.line == line, RECALIBRATION.c.model == digest).limit(1)
    ).scalar()
    for entry in [] if report is None else json.loads(report)["classes"]:
        n = shown["classes"].get(entry["name"], {"labels": 0})["labels"]
        # Nothing can be missed of a class that is in every set.
        if n < protocol.min_labels_per_class and not entry["in_every_set"]:
            failed.append(f"{entry['name']}: {n} labels after the cut-off, {protocol.min_labels_per_class} needed.")
    if protocol.min_coverage is not None and shown["lower"] < protocol.min_coverage:
        failed.append(
            f"The answers covered {shown['covered']} of {shown['labels']} labels after the cut-off: at least "
            f"{shown['lower']:.3f} with 95 % confidence, the protocol asks for {protocol.min_coverage:g}."
        )
    n_alarms = len(open_alarms(connection, line))
    if n_alarms:
        failed.append(f"{n_alarms} alarm(s) of this line are open; an engineer and a clinician close them first.")
    tested = connection.execute(
        select(EVENT.c.at).where(EVENT.c.kind == "backup_verified").order_by(EVENT.c.seq.desc())
    ).scalar()
    limit = datetime.now(UTC) - timedelta(days=protocol.restore_test_days)
    if tested is None or datetime.fromisoformat(tested) < limit:
        failed.append(f"No restore test within {protocol.restore_test_days} days; run calcode service restore-test.")
    golden = connection.execute(
        select(MODEL.c.golden).where(MODEL.c.line == line, MODEL.c.digest == digest)
    ).scalar_one()
    if loaded is None or loaded.golden() != golden:
        failed.append("The golden answers are not reproduced.")
    return failed


def _added_at(connection: Connection, line: str, digest: str) -> int:
    """The record that added a model to a line."""
    rows = connection.execute(
        select(EVENT.c.seq, EVENT.c.body)
        .where(EVENT.c.kind == "model_added", EVENT.c.subject == digest)
        .order_by(EVENT.c.seq.desc())
    )
    return int(next(seq for seq, body in rows if json.loads(body)["line"] == line))
