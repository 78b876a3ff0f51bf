"""A hospital that goes round the whole loop over HTTP while its service is killed, and what must be left of it."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from service.clinic import FAST_PROTOCOL, clinic_site
from service.sites import WORLD, Site, lost_or_broken, post, token_for
from sqlalchemy import select

from calcode.files import canonical_json
from calcode.service import projections
from calcode.service.keys import site_secret
from calcode.service.log import Event, Log
from calcode.service.models import Models
from calcode.service.monitoring import LineMonitors
from calcode.service.operations import derived_rows
from calcode.service.tables import ALARM, DECISION, DEPLOYMENT, EVENT, REVIEW, TASK

#: Patients after which the camera is another one: alarms, and new bags.
_CAMERA = 250


class Listening(Protocol):
    """A service in another process, wherever it listens now."""

    port: int


def hospital_site(folder: Path, *, database: str | None) -> Site:
    """A site that may recalibrate soon and often."""
    return clinic_site(folder, sample=0.6, protocol=FAST_PROTOCOL, database=database)


class Hospital:
    """A thread that does whatever the loop asks for next, and keeps every receipt."""

    def __init__(self, log: Log, process: Listening) -> None:
        self.process = process
        self.tokens = {role: token_for(log, role) for role in ("program", "engineer", "clinician", "approver")}
        with log.transaction() as transaction:
            tested = Event(kind="backup_verified", actor="operator", body={"records": 1, "good": True, "found": []})
            transaction.append([tested])
        self.decided: dict[str, dict[str, Any]] = {}
        #: Labels of the laboratory by decision, and readings by their id.
        self.labelled: dict[str, str] = {}
        self.read: dict[str, tuple[str, str]] = {}
        #: (step, what it was about), each acknowledged.
        self.done: list[tuple[str, str]] = []
        self.alarms: set[str] = set()
        self.acknowledged = 0
        self._rng = np.random.default_rng(3)
        self._stop = threading.Event()
        self._n = 0

    def start(self) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=120)
        assert not self._thread.is_alive()

    def _post(self, path: str, body: Any, role: str) -> tuple[int, Any]:
        status, answer = post(self.process.port, path, body, token=self.tokens[role], timeout=60)
        self.acknowledged += status == 200
        return status, answer

    def _get(self, path: str, role: str = "engineer") -> list[dict[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.process.port, timeout=60)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {self.tokens[role]}"})
            answer = connection.getresponse()
            return list(json.loads(answer.read())) if answer.status == 200 else []
        except (OSError, http.client.HTTPException, ValueError):
            return []
        finally:
            connection.close()

    def _work(self) -> None:
        while not self._stop.is_set():
            self._decide(8)
            self._read(4)
            self._label()
            self._advance()

    def _decide(self, n: int) -> None:
        for _ in range(n):
            k = int(self._rng.integers(WORLD.n_classes))
            noise = self._rng.normal(size=WORLD.dimension) * WORLD.spread * (WORLD.dimension / 2) ** 0.5
            row = WORLD.centres()[k] + noise + (1.8 if self._n // _CAMERA % 2 == 0 else -1.8)
            self._n += 1
            patient = f"patient {self._n}"
            body = {"embedding": row.tolist(), "group": patient, "image_id": f"image {self._n}"}
            while not self._stop.is_set():
                status, answer = self._post("/v1/decisions", body, "program")
                if status == 200:
                    self.decided[answer["id"]] = {**answer, "truth": WORLD.classes[k], "patient": patient}
                    break
                time.sleep(0.05)

    def _read(self, n: int) -> None:
        """A clinician reads what is due first."""
        for entry in self._get("/v1/tasks?count=20", "clinician")[:n]:
            known = self.decided.get(entry["decision"])
            if known is not None and self._post(f"/v1/tasks/{entry['id']}/take", {}, "clinician")[0] == 200:
                status, saved = self._post(f"/v1/tasks/{entry['id']}/review", {"label": known["truth"]}, "clinician")
                if status == 200:
                    self.read[saved["id"]] = entry["decision"], known["truth"]

    def _label(self) -> None:
        """The laboratory knows all of them."""
        for id, answer in list(self.decided.items()):
            if id not in self.labelled and not self._stop.is_set():
                body = {"decision": id, "label": answer["truth"], "source": "pathology"}
                if self._post("/v1/labels", body, "program")[0] == 200:
                    self.labelled[id] = answer["truth"]

    def _advance(self) -> None:
        """One step of the loop; what was done before is refused, which is as good."""
        why = {"why": "the protocol says so"}
        status, report = self._post("/v1/recalibrations", {}, "engineer")
        if status == 200:
            self.done.append(("recalibrated", report["digest"]))
        for alarm in self._get("/v1/alarms"):
            self.alarms.add(alarm["id"])
            if alarm["closed_by"] is None:
                # A site model's bag is given up, so that the loop begins again.
                then = "new_bag" if alarm["bag"].startswith("bag-") else "go_on"
                for role in ("engineer", "clinician"):
                    status, answer = self._post(f"/v1/alarms/{alarm['id']}/close", {**why, "then": then}, role)
                    if status == 200 and answer["state"] == "closed":
                        self.done.append(("closed", alarm["id"]))
        for model in self._get("/v1/models"):
            path = f"/v1/models/{model['digest']}/state"
            if model["state"] == "candidate":
                self._post(path, {**why, "state": "shadow"}, "engineer")
            elif model["state"] == "shadow":
                self._post(path, {**why, "state": "champion"}, "engineer")
                if self._post(path, {**why, "state": "champion"}, "approver")[0] == 200:
                    self.done.append(("promoted", model["digest"]))


def what_is_missing(site: Site, log: Log, hospital: Hospital) -> dict[str, int]:
    """Everything that was acknowledged or follows from it and is not in the log, by kind: zeros if nothing was lost.

    The service has stopped, and its monitors had their turn after the last record.
    """
    found = lost_or_broken(log, hospital.decided)
    found.pop("logged")
    with log.database.reading() as connection:
        decisions = connection.execute(select(DECISION)).all()
        reviews = connection.execute(select(REVIEW)).all()
        tasks = {row.decision: row for row in connection.execute(select(TASK).order_by(TASK.c.opened_at.desc()))}
        events = connection.execute(select(EVENT.c.kind, EVENT.c.subject)).all()
        alarms = connection.execute(select(ALARM)).all()
        champions = set(connection.execute(select(DEPLOYMENT.c.champion)).scalars())
    results = {row.decision: row.label for row in reviews if row.source == "pathology"}
    readings = {row.id: (row.decision, row.label) for row in reviews if row.source == "read"}
    found["labels"] = sum(results.get(id) != label for id, label in hospital.labelled.items())
    found["readings"] = sum(readings.get(id) != said for id, said in hospital.read.items())
    # Every coin is the one that its patient has, and whoever was drawn or deferred waits for a reader or has a label.
    secret = site_secret(site.settings).for_line("skin")
    patients = {secret.pseudonym("group", f"patient {n}"): f"patient {n}" for n in range(1, hospital._n + 1)}
    found["coins"] = sum(row.u != secret.coin(patients[row.group_digest]) for row in decisions)
    read = {row.decision for row in reviews}
    chosen = [row for row in decisions if row.u < row.p_sample or row.action == "defer"]
    found["tasks"] = sum(row.id not in tasks or (tasks[row.id].state == "done") != (row.id in read) for row in chosen)
    # Every alarm that the log implies was raised, once, and so were all that somebody saw.
    raised = Counter(subject for kind, subject in events if kind == "alarm_raised")
    models = Models(site.settings.lines[0], log, folder=site.settings.path("models"))
    models.follow()
    replayed = LineMonitors(log, models)
    replayed._loaded = True
    implied = {(bag, alarm.monitor, alarm.name, alarm.alpha) for bag, _, alarm in replayed.fold()}
    stored = {(row.bag, row.monitor, row.name, json.loads(row.evidence)["alpha"]) for row in alarms}
    found["alarms"] = len(implied ^ stored) + len(hospital.alarms - raised.keys())
    found["alarms_twice"] = sum(n - 1 for n in raised.values())
    kept = LineMonitors(log, models)
    kept._load()
    kept.fold()
    found["monitors"] = int(canonical_json(kept.to_state()) != canonical_json(replayed.to_state()))
    # Every step that was acknowledged.
    kinds = {"recalibrated": "recalibration", "closed": "alarm_closed"}
    found["steps"] = sum(
        subject not in champions if step == "promoted" else (kinds[step], subject) not in set(events)
        for step, subject in hospital.done
    )
    measured = [
        id
        for page in log.pages()
        for record in page
        if record.kind == "measured"
        for id, _, _ in json.loads(record.body)["rows"]
    ]
    found["measured_twice"] = len(measured) - len(set(measured))
    with log.transaction() as transaction:
        before = derived_rows(log.database)
        projections.rebuild(transaction.connection)
    found["rebuilt"] = int(derived_rows(log.database) != before)
    return found
