"""Exports: decisions as Parquet, events as FHIR AuditEvent (R4, IHE BALP patterns), and an SBOM."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from math import inf
from pathlib import Path
from typing import Any

from sqlalchemy import select

from calcode import __version__
from calcode.files import canonical_json, replacing
from calcode.service.audit.chain import Record
from calcode.service.log import Event, Log
from calcode.service.tables import DECISION

#: The extras of calcode that a service can use.
_EXTRAS = {"service", "hospital", "postgres", "onnx", "torch", "openclip"}
_DCM = "http://dicom.nema.org/resources/ontology/DCM"
_APPLICATION_SERVER = {
    "system": "http://terminology.hl7.org/CodeSystem/security-source-type",
    "code": "4",
    "display": "Application Server",
}
_RECORD, _CONFIGURATION = ("110110", "Patient Record"), ("110131", "Software Configuration")
_ACCOUNTS = ("110137", "User Security Attributes Changed")
#: DICOM audit code, its display name and the FHIR action; all other kinds are application activities.
_AUDIT_TYPES = {
    "login": ("110114", "User Authentication", "E"),
    "export": ("110106", "Export", "R"),
    "delivery": ("110106", "Export", "R"),
    "decision": (*_RECORD, "C"),
    "case_viewed": (*_RECORD, "R"),
    "answer_revealed": (*_RECORD, "R"),
    "review_saved": (*_RECORD, "C"),
    "review_superseded": (*_RECORD, "U"),
    "label_received": (*_RECORD, "C"),
    "erasure": (*_RECORD, "D"),
    **dict.fromkeys(("model_added", "recalibration"), (*_CONFIGURATION, "C")),
    **dict.fromkeys(("model_state", "approval", "protocol_set", "policy_set"), (*_CONFIGURATION, "U")),
    **dict.fromkeys(("role_changed", "password_changed"), (*_ACCOUNTS, "U")),
    "token_made": (*_ACCOUNTS, "C"),
    "token_revoked": (*_ACCOUNTS, "D"),
}


def export_decisions(log: Log, target: Path, *, line: str, classes: tuple[str, ...]) -> int:
    """Write a line's decisions to a Parquet file: the columns of a decision file plus seq, hash, time, u and p_sample.

    Parameters
    ----------
    log : Log
    target : Path
    line : str
    classes : tuple of str
        Classes of the line, for the threshold columns.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = [f"threshold_{name}" for name in classes]
    schema = pa.schema(
        [
            *((name, pa.string()) for name in ("id", "action", "reason", "label")),
            ("released_set", pa.list_(pa.string())),
            ("p_audit", pa.float64()),
            *((name, pa.float64()) for name in names),
            *((name, pa.string()) for name in ("model_digest", "at", "hash", "group_digest", "site", "device")),
            ("seq", pa.int64()),
            ("u", pa.float64()),
            ("p_sample", pa.float64()),
            *((name, pa.bool_()) for name in ("representative", "in_model", "known_group")),
        ]
    )
    with log.database.reading() as connection:
        # Known only after a patient's first visit, so not in the record of the decision.
        query = select(DECISION.c.id).where(DECISION.c.line == line, DECISION.c.representative)
        standing = set(connection.execute(query).scalars())
    copied = ("action", "reason", "label", "p_audit", "site", "device", "u", "p_sample", "in_model", "known_group")
    n = 0
    with replacing(target) as temporary, pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        for page in log.pages():
            bodies = [(record, json.loads(record.body)) for record in page if record.kind == "decision"]
            rows = [
                {name: body[name] for name in copied}
                # A missing threshold means no limit.
                | dict(zip(names, (inf if value is None else value for value in body["thresholds"]), strict=False))
                | {"id": body["id"], "released_set": body["set"], "model_digest": body["model"]}
                | {"group_digest": body["group"], "at": record.at, "seq": record.seq, "hash": record.hash}
                | {"representative": body["id"] in standing}
                for record, body in bodies
                if body["line"] == line
            ]
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))
            n += len(rows)
        # Before the file gets its name: nobody has an export that the log does not know.
        writer.close()
        _record_export(log, {"what": "decisions", "line": line, "rows": n})
    return n


def export_audit_events(log: Log, target: Path, *, source: str) -> int:
    """Write all records as FHIR AuditEvent resources, one JSON object per line.

    Parameters
    ----------
    log : Log
    target : Path
    source : str
        Name of this system at the site.
    """
    n = 0
    with replacing(target) as temporary, temporary.open("w") as stream:
        for page in log.pages():
            for record in page:
                stream.write(canonical_json(audit_event(record, source=source)) + "\n")
                n += 1
        stream.close()
        _record_export(log, {"what": "audit events", "rows": n})
    return n


def audit_event(record: Record, *, source: str) -> dict[str, Any]:
    """Convert a record to a FHIR AuditEvent: who, what, when, and the patient by the log's pseudonym."""
    code, display, action = _AUDIT_TYPES.get(record.kind, ("110100", "Application Activity", "E"))
    body = json.loads(record.body)
    failed = record.kind == "refused" or body.get("failed", False) or body.get("reason") == "error"
    about: dict[str, Any] = {
        "what": {"identifier": {"value": body["subject"] or body["id"]}},
        "detail": [{"type": "seq", "valueString": str(record.seq)}, {"type": "hash", "valueString": record.hash}],
    }
    entities = [about]
    if body.get("group") is not None:
        role = {"system": "http://terminology.hl7.org/CodeSystem/object-role", "code": "1", "display": "Patient"}
        pseudonym = {"system": "urn:calcode:pseudonym", "value": body["group"]}
        entities.append({"role": role, "what": {"type": "Patient", "identifier": pseudonym}})
    return {
        "resourceType": "AuditEvent",
        "id": body["id"],
        "type": {"system": _DCM, "code": code, "display": display},
        "subtype": [{"system": "urn:calcode:event", "code": record.kind}],
        "action": action,
        "recorded": record.at,
        "outcome": "4" if failed else "0",
        "agent": [{"who": {"display": record.actor}, "requestor": record.actor != "service"}],
        "source": {"observer": {"display": source}, "type": [_APPLICATION_SERVER]},
        "entity": entities,
    }


def _record_export(log: Log, body: dict[str, Any]) -> None:
    with log.transaction() as transaction:
        transaction.append([Event(kind="export", actor="operator", body=body)])


def software_bill() -> dict[str, Any]:
    """Return the installed dependencies of a service and of the extras that it can use as CycloneDX 1.6 JSON."""
    components = [
        {
            "type": "library",
            "name": name,
            "version": version,
            "purl": f"pkg:pypi/{name}@{version}",
            "bom-ref": f"pkg:pypi/{name}@{version}",
        }
        for name, version in sorted(_requirements("calcode", _EXTRAS, set()))
    ]
    root = {"type": "application", "name": "calcode", "version": __version__, "bom-ref": f"calcode@{__version__}"}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": root},
        "components": components,
        "dependencies": [{"ref": root["bom-ref"], "dependsOn": [entry["bom-ref"] for entry in components]}],
    }


def _requirements(name: str, extras: set[str], seen: set[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield name and version of every installed dependency of a distribution and its extras."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return
    for line in found.requires or ():
        target, _, marker = line.partition(";")
        asked = re.findall(r"extra == ['\"]([^'\"]+)['\"]", marker)
        if asked and not extras & set(asked):
            continue
        match = re.match(r"([A-Za-z0-9._-]+)(?:\[([^\]]*)\])?", target.strip())
        if match is None:
            continue
        wanted = re.sub(r"[-_.]+", "-", match[1]).lower()
        inner = {entry.strip() for entry in (match[2] or "").split(",") if entry.strip()}
        if wanted == "calcode":
            yield from _requirements("calcode", inner, seen)
            continue
        try:
            pair = (wanted, distribution(wanted).version)
        except PackageNotFoundError:
            continue
        if pair not in seen:
            seen.add(pair)
            yield pair
            yield from _requirements(wanted, inner, seen)
