"""The answer as FHIR R4 resources: a DiagnosticReport and its Observation, in one transaction Bundle."""

from __future__ import annotations

import uuid
from typing import Any

from calcode import __version__
from calcode.service.hospital.statement import NOTICE, Statement

_DECISIONS = "urn:calcode:decision"
_ANSWERS = "urn:calcode:answer"
_ABSENT = "http://terminology.hl7.org/CodeSystem/data-absent-reason"


def report_bundle(
    statement: Statement, *, patient: str, patient_system: str | None, study: str | None, image: str | None
) -> dict[str, Any]:
    """Return a transaction that creates Observation and DiagnosticReport, unless the server has them already.

    Sending it again changes nothing, because both are created only if no resource has the same identifier.

    Parameters
    ----------
    statement : Statement
    patient : str
        Identifier of the patient at the site; `patient_system` is the system of this identifier.
    patient_system : str or None
    study, image : str or None
        Study Instance UID and SOP Instance UID, if the image came by DICOM.

    Examples
    --------
    >>> statement = Statement(decision="1", seq=1, at="2026-05-03T10:00:00.000000Z", line="skin", model="0b2c",
    ...                       action="defer", reason="low_support", diagnoses=(), n_classes=7, promises=())
    >>> bundle = report_bundle(statement, patient="17", patient_system=None, study=None, image=None)
    >>> [entry["resource"]["resourceType"] for entry in bundle["entry"]]
    ['Observation', 'DiagnosticReport']
    """
    subject: dict[str, Any] = {"identifier": {"value": patient}}
    if patient_system is not None:
        subject["identifier"]["system"] = patient_system
    imaging = {"system": "http://loinc.org", "code": "18748-4", "display": "Diagnostic imaging study"}
    report: dict[str, Any] = {
        "code": {"coding": [imaging], "text": "calcode answer"},
        "conclusion": f"{statement.conclusion} {NOTICE}",
        "result": [{"reference": _full_url(statement, "Observation")}],
    }
    if study is not None:
        report["imagingStudy"] = [_by_uid("ImagingStudy", study)]
    parts = {"Observation": _observation(statement), "DiagnosticReport": report}
    if image is not None:
        parts["Observation"]["derivedFrom"] = [_by_uid("Media", image)]
    entries = []
    for kind, resource in parts.items():
        identifier = f"{statement.decision}-{kind.lower()}"
        resource |= {
            "resourceType": kind,
            "identifier": [{"system": _DECISIONS, "value": identifier}],
            # No clinician has verified the answer.
            "status": "preliminary",
            "subject": subject,
            "effectiveDateTime": statement.at,
            "issued": statement.at,
        }
        request = {"method": "POST", "url": kind, "ifNoneExist": f"identifier={_DECISIONS}|{identifier}"}
        entries.append({"fullUrl": _full_url(statement, kind), "resource": resource, "request": request})
    return {"resourceType": "Bundle", "type": "transaction", "entry": entries}


def _observation(statement: Statement) -> dict[str, Any]:
    """Return what was observed on the image: the whole set, or that there is no answer and why."""
    diagnoses = [
        {
            "code": {"text": "Possible diagnosis"},
            "valueCodeableConcept": {
                "coding": [{"system": f"urn:calcode:line:{statement.line}", "code": name}],
                "text": statement.spelled(name),
            },
        }
        for name in statement.diagnoses
    ]
    observation: dict[str, Any] = {
        "code": {"text": f"calcode answer of the line {statement.line}"},
        "method": {"text": f"calcode {__version__}, model {statement.model}"},
        "note": [{"text": text} for text in (NOTICE, *statement.promises)],
    }
    if statement.action == "defer":
        observation["dataAbsentReason"] = {
            "coding": [{"system": _ABSENT, "code": "unknown", "display": "Unknown"}],
            "text": statement.conclusion,
        }
    else:
        coding = [{"system": _ANSWERS, "code": statement.action}]
        observation["valueCodeableConcept"] = {"coding": coding, "text": statement.conclusion}
    if diagnoses:
        observation["component"] = diagnoses
    return observation


def _by_uid(kind: str, uid: str) -> dict[str, Any]:
    return {"type": kind, "identifier": {"system": "urn:dicom:uid", "value": f"urn:oid:{uid}"}}


def _full_url(statement: Statement, kind: str) -> str:
    return uuid.uuid5(uuid.NAMESPACE_URL, f"calcode/{statement.decision}/{kind}").urn
