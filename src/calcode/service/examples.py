"""Examples of every request and answer in the API's description; all are about one fictitious patient."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

_ID, _OTHER = "019a8c3d5e70b2f4c6d8e0a1b3c5d7e9", "019a8c3d6f81c3a5d7e9f1b2c4d6e8fa"
_MODEL, _HASH = "8da2a255bfb77328" * 4, "5d0eec7bd67aa473" * 4
_AT, _DUE = "2026-11-16T09:30:12.441559Z", "2026-12-14T09:30:12.441559Z"
_PROMISES = ["Promised: coverage of 'mel' at 0.95 among its accepted exchangeable images."]
_NOTE = "hospital/skin\n1000\nnZHJMOWn...\nhead 5d0e...\n\n\u2014 hospital/skin TJsD...\n"
_RECORD = {"seq": 512, "at": _AT, "kind": "decision", "actor": "pacs", "body": '{"action":"defer","...":0}'}
_POLICY = {"sample": 0.1, "visit_minutes": 60.0, "second_reader": 0.1, "due_days": 28}
_TASK = {"id": _OTHER, "decision": _ID, "line": "skin", "why": "first", "due_at": _DUE}
_DECIDED = {"action": "set", "reason": "none", "p_audit": 0.31, "model": _MODEL, "promises": _PROMISES}

#: Examples by name of the schema.
SCHEMAS: dict[str, dict[str, Any]] = {
    "AccountFacts": {"subject": "a.jones", "roles": ["clinician"], "source": "local", "lines": None},
    "AccountRequest": {"roles": ["clinician"], "password": "correct horse battery", "lines": ["skin"]},
    "Added": {"digest": _MODEL, "state": "candidate"},
    "Agreement": {
        "n_pairs": 40,
        "n_differ": 3,
        "kappa": 0.81,
        "n_readings": 412,
        "n_blind": 398,
        "share_cannot_tell": 0.02,
        "seconds": 21.5,
        "backlog": 7,
        "oldest_at": _AT,
    },
    "AlarmFacts": {
        "id": "0dc8508b826a44fa34571760",
        "line": "skin",
        "bag": "home-8da2a255bfb77328",
        "model": _MODEL,
        "monitor": "M1",
        "name": "",
        "raised_seq": 4711,
        "raised_at": _AT,
        "e_value": 486.9,
        "n": 212,
        "alpha": 0.0033,
        "says": "New images look different from those that the model was checked with.",
        "look_at": "Look at the newest images: is there a new camera, light, crop or kind of patient?",
        "evidence": "After 212 patients the evidence was 487; an alarm is raised at 300.",
        "asked_by": None,
        "asked_as": None,
        "closed_by": None,
        "closed_why": None,
        "then": None,
    },
    "CaseFacts": {**_TASK, "labels": ["mel", "nv"], "image": None, "viewer": None, "readings": []},
    "CheckpointFacts": {"size": 1000, "root": "nZHJMOWn...", "head": _HASH, "note": _NOTE, "at": _AT},
    "ClassFacts": {"name": "mel", "score": 0.95, "threshold": 0.98, "in_set": True, "in_every_set": False},
    "Closed": {"id": "0dc8508b826a44fa34571760", "state": "asked"},
    "DecisionAnswer": {
        **_DECIDED,
        "id": _ID,
        "line": "skin",
        "label": None,
        "set": ["mel", "nv"],
        "at": _AT,
        "seq": 512,
        "hash": _HASH,
        "notice": "Research software, not a medical device.",
    },
    "DeliveredReport": {
        "target": "pacs",
        "kind": "dicom",
        "queued_at": _AT,
        "attempts": 1,
        "next_at": _AT,
        "fault": None,
        "done_at": _AT,
        "receipt": "1.2.826.0.1.3680043.10.1",
    },
    "Deployment": {
        "line": "skin",
        "from_seq": 5,
        "from_at": _AT,
        "champion": _MODEL,
        "previous": None,
        "shadow": None,
        "by": "e.meier",
        "why": "first model of the site file",
    },
    "Explanation": {
        **_DECIDED,
        "sentences": ["2 of 7 diagnoses remain possible: melanoma, nevus."],
        "classes": [{"name": "mel", "score": 0.95, "threshold": 0.98, "in_set": True, "in_every_set": False}],
        "neighbours": [{"id": "reference-12", "label": "nv", "distance": 0.21}],
        "known_patient": False,
    },
    "Health": {"ready": True, "detail": "Ready.", "records": 1042, "exposed_records": 41, "checkpoint_targets_down": 0},
    "LabelAnswer": {"decision": _ID, "id": _OTHER},
    "Login": {"subject": "a.jones", "password": "correct horse battery"},
    "ModelFacts": {
        "line": "skin",
        "digest": _MODEL,
        "kind": "home",
        "state": "champion",
        "added_by": "e.meier",
        "promises": _PROMISES,
        "why": "",
    },
    "MonitorFacts": {
        "bag": "home-8da2a255bfb77328",
        "model": _MODEL,
        "waiting": 4,
        "upto": 1042,
        "facts": {"alarm": False, "alarms": []},
    },
    "NeighbourFacts": {"id": "reference-12", "label": "nv", "distance": 0.21},
    "PolicyFacts": _POLICY,
    "PolicyRequest": {**_POLICY, "why": "more labels before the next look"},
    "Proof": {**_RECORD, "prev": _HASH, "hash": _HASH, "path": ["kZ9d..."], "checkpoint": _NOTE, "body_sha256": None},
    "QueueFacts": {**_TASK, "opened_at": _AT, "site": "north", "device": "cam-2", "lease_by": None, "mine": False},
    "Reading": {"label": "mel", "sureness": 2, "comment": "irregular border"},
    "ReadingFacts": {
        "id": _OTHER,
        "task": _ID,
        "reviewer": "a.jones",
        "label": "mel",
        "sureness": 2,
        "blind": True,
        "source": "read",
        "opened_at": _AT,
        "saved_at": _AT,
        "supersedes": None,
        "comment": "irregular border",
    },
    "RecordFacts": {**_RECORD, "prev": _HASH, "hash": _HASH},
    "SavedAnswer": {"id": _OTHER},
    "SessionAnswer": {"token": "cal_3vKq...", "roles": ["clinician"]},
    "StateAnswer": {"digest": _MODEL, "state": "shadow", "next": "an engineer proposes, an approver approves"},
    "TokenAnswer": {"token": "cal_3vKqp0aZ...", "prefix": "cal_3vKqp0aZ"},
    "TokenFacts": {
        "prefix": "cal_3vKqp0aZ",
        "subject": "pacs",
        "roles": ["program"],
        "made_by": "admin",
        "expires": "2027-11-16T09:30:12Z",
        "revoked": False,
        "lines": ["skin"],
        "last_used": _AT,
    },
    "TokenRequest": {"subject": "pacs", "roles": ["program"], "days": 365, "lines": ["skin"]},
    "WaitingReports": {"target": "pacs", "rows": 3, "held": 1, "since": _AT, "attempts": 2, "fault": "refused"},
    "Wish": {"comment": "please have a second look"},
}
_REPORT = {
    "line": "skin",
    "digest": _MODEL,
    "bag": "site-1",
    "look": 1,
    "due": "100 cases",
    "after": 0,
    "upto": 1893,
    "cases": 100,
    "states": {"labelled": 99, "outside": 1},
    "not_blind": 0,
    "deleted": 0,
    "rejected_by_audit": 4,
    "trainers": 38,
    "gate": 412,
    "audit": "site",
    "home": _HASH,
    "settings": {
        "at_cases": [100, 200, 400],
        "at_dates": [],
        "random_state": 0,
        "miscoverage": 0.05,
        "rare": "keep",
        "slack": "keep",
        "always_protect": [],
        "gate_from": 0.5,
        "most_pending": 0.02,
    },
    "classes": [
        {
            "name": "mel",
            "labels": 24,
            "needed": 19,
            "in_every_set": False,
            "promised": 0.95,
            "promised_with_unlabelled": 0.9405,
        }
    ],
    "unlabelled_share": 0.01,
    "promises": ["Unlabelled: 1.0 % of the reviewed cases."],
    "expected_informative": 0.71,
    "expected_set_size": 2.4,
}
_RATES = {"informative": 0.64, "deferred": 0.12, "set_size": 2.6}
#: Answers without a schema of their own, by path.
ANSWERS: dict[str, Any] = {
    "/health/live": {"live": True},
    "/v1/recalibrations": _REPORT,
    "/v1/recalibrations/{digest}": {
        "report": _REPORT,
        "failed_gates": ["203 shadow decisions, the protocol asks for 300."],
        "shadow": {"decisions": 203, "differ": 31, "champion": _RATES, "candidate": {**_RATES, "informative": 0.7}},
        "coverage": {
            "labels": 40,
            "covered": 39,
            "missing": 1,
            "lower": 0.84,
            "lower_missing_as_hits": 0.87,
            "classes": {"mel": {"labels": 9, "covered": 9}},
        },
    },
}


class DescribedApp(FastAPI):
    """An application whose OpenAPI description has examples."""

    def openapi(self) -> dict[str, Any]:
        """The description, with an example in every schema of a request or an answer."""
        if self.openapi_schema is None:
            described = super().openapi()
            for name, schema in described["components"]["schemas"].items():
                if name in SCHEMAS:
                    schema["examples"] = [SCHEMAS[name]]
            for path, answer in ANSWERS.items():
                for operation in described["paths"][path].values():
                    content = operation["responses"]["200"]["content"]["application/json"]
                    content["example"] = [answer] if content["schema"].get("type") == "array" else answer
        return super().openapi()
