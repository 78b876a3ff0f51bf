"""`kill -9` anywhere in the loop: reading, recalibrating, shadowing, promoting, closing alarms. Nothing is lost."""

from __future__ import annotations

import http.client
import json
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from service.clinic import FAST_PROTOCOL, clinic_site
from service.sites import WORLD, Process, Site, assert_nothing_lost, post, token_for
from service.test_faults import opened, wait_until
from sqlalchemy import select

from calcode.files import canonical_json
from calcode.service import projections
from calcode.service.keys import site_secret
from calcode.service.log import Event
from calcode.service.models import Models
from calcode.service.monitoring import LineMonitors
from calcode.service.operations import derived_rows
from calcode.service.service import Service
from calcode.service.tables import ALARM, DECISION, EVENT, REVIEW

KILLS = int(os.environ.get("CALCODE_LOOP_KILLS", "3"))


class Hospital:
    """A thread that does, over HTTP, whatever the loop asks for next, and keeps every receipt."""

    def __init__(self, site: Site, process: Process, tokens: dict[str, str]) -> None:
        self.process, self.tokens = process, tokens
        self.decided: dict[str, dict[str, Any]] = {}
        self.labelled: dict[str, str] = {}
        self.done: list[str] = []
        self._rng = np.random.default_rng(3)
        self._stop = threading.Event()
        self._n = 0
        self.acknowledged = 0
        self.saw_an_alarm = False

    def start(self) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=60)

    def _post(self, path: str, body: Any, role: str) -> tuple[int, Any]:
        status, answer = post(self.process.port, path, body, token=self.tokens[role], timeout=20)
        self.acknowledged += status == 200
        return status, answer

    def _work(self) -> None:
        while not self._stop.is_set():
            self._decide(8)
            self._label()
            self._advance()

    def _decide(self, n: int) -> None:
        for _ in range(n):
            k = int(self._rng.integers(WORLD.n_classes))
            noise = self._rng.normal(size=WORLD.dimension) * WORLD.spread * (WORLD.dimension / 2) ** 0.5
            row = WORLD.centres()[k] + noise + 1.8
            self._n += 1
            name = f"{self._n}"
            body = {"embedding": row.tolist(), "group": f"patient {name}", "image_id": f"image {name}"}
            while not self._stop.is_set():
                status, answer = self._post("/v1/decisions", body, "program")
                if status == 200:
                    self.decided[answer["id"]] = {**answer, "truth": WORLD.classes[k], "patient": f"patient {name}"}
                    break
                time.sleep(0.05)

    def _label(self) -> None:
        for id, answer in list(self.decided.items()):
            if id not in self.labelled and not self._stop.is_set():
                body = {"decision": id, "label": answer["truth"], "source": "pathology"}
                status, _ = self._post("/v1/labels", body, "program")
                if status == 200:
                    self.labelled[id] = answer["truth"]

    def _advance(self) -> None:
        """One step of the loop; what was done before is refused, which is as good."""
        why = {"why": "the protocol says so"}
        status, report = self._post("/v1/recalibrations", {}, "engineer")
        if status == 200:
            self.done.append(f"recalibrated {report['digest']}")
        for alarm in self._get("/v1/alarms"):
            self.saw_an_alarm = True
            if alarm["closed_by"] is None:
                for role in ("engineer", "clinician"):
                    status, answer = self._post(f"/v1/alarms/{alarm['id']}/close", {**why, "then": "go_on"}, role)
                    if status == 200 and answer["state"] == "closed":
                        self.done.append(f"closed {alarm['id']}")
        for model in self._get("/v1/models"):
            path = f"/v1/models/{model['digest']}/state"
            if model["state"] == "candidate":
                self._post(path, {**why, "state": "shadow"}, "engineer")
            elif model["state"] == "shadow":
                self._post(path, {**why, "state": "champion"}, "engineer")
                status, _ = self._post(path, {**why, "state": "champion"}, "approver")
                if status == 200:
                    self.done.append(f"promoted {model['digest']}")

    def _get(self, path: str) -> list[dict[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.process.port, timeout=10)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {self.tokens['engineer']}"})
            answer = connection.getresponse()
            return list(json.loads(answer.read())) if answer.status == 200 else []
        except (OSError, http.client.HTTPException, ValueError):
            return []
        finally:
            connection.close()


@pytest.mark.timeout(300)
def test_killed_anywhere_in_the_loop_nothing_is_lost(tmp_path: Path) -> None:
    site = clinic_site(tmp_path, sample=0.6, protocol=FAST_PROTOCOL)
    log = opened(site)
    tokens = {role: token_for(log, role) for role in ("program", "engineer", "clinician", "approver")}
    with log.transaction() as transaction:
        tested = Event(kind="backup_verified", actor="operator", body={"records": 1, "good": True, "found": []})
        transaction.append([tested])
    process = Process(site)
    hospital = Hospital(site, process, tokens)
    chance = random.Random(11)
    kills = 0
    while kills < KILLS or not any(step.startswith("promoted") for step in hospital.done):
        process.start()
        hospital.start()
        target = hospital.acknowledged + chance.randint(10, 80)
        wait_until(lambda target=target: hospital.acknowledged >= target, 120)
        time.sleep(chance.random())
        process.kill()
        hospital.stop()
        kills += 1
        assert kills < KILLS + 40, hospital.done
    process.start()
    hospital.start()
    target = hospital.acknowledged + 20
    wait_until(lambda: hospital.acknowledged >= target and hospital.saw_an_alarm, 120)
    hospital.stop()
    assert process.stop() == 0
    # What the last labels imply is raised at the next start, if there was no time for it.
    with Service(site.settings) as service:
        service.watch()

    assert_nothing_lost(log, hospital.decided)
    with log.database.reading() as connection:
        reviews = {row.decision: row.label for row in connection.execute(select(REVIEW))}
        decisions = connection.execute(select(DECISION)).all()
        events = connection.execute(select(EVENT.c.kind, EVENT.c.subject)).all()
        alarms = connection.execute(select(ALARM)).all()
    # Every acknowledged label is there, and every coin is the one that its patient has.
    assert {id: reviews.get(id) for id in hospital.labelled} == hospital.labelled
    secret = site_secret(site.settings).for_line("skin")
    coins = {secret.pseudonym("group", answer["patient"]): answer for answer in hospital.decided.values()}
    for row in decisions:
        if row.group_digest in coins:
            assert row.u == secret.coin(coins[row.group_digest]["patient"])
    # Every alarm that the log implies was raised, once; every step that was acknowledged is in the log.
    raised = [subject for kind, subject in events if kind == "alarm_raised"]
    assert len(raised) == len(set(raised)) == len(alarms) > 0
    models = Models(site.settings.lines[0], log, folder=site.settings.path("models"))
    models.follow()
    replayed = LineMonitors(log, models)
    replayed._loaded = True
    implied = {(bag, alarm.monitor, alarm.name) for bag, _, alarm in replayed.fold()}
    assert {(row.bag, row.monitor, row.name) for row in alarms} == implied
    kept = LineMonitors(log, models)
    kept._load()
    kept.fold()
    assert canonical_json(kept.to_state()) == canonical_json(replayed.to_state())
    said = {f"{'recalibrated' if kind == 'recalibration' else 'closed'} {subject}" for kind, subject in events}
    for step in hospital.done:
        if not step.startswith("promoted"):
            assert step in said
    measured = [
        id
        for page in log.pages()
        for record in page
        if record.kind == "measured"
        for id, _, _ in json.loads(record.body)["rows"]
    ]
    assert len(measured) == len(set(measured))
    with log.transaction() as transaction:
        before = {name: rows for name, rows in derived_rows(log.database).items() if name != "task"}
        projections.rebuild(transaction.connection)
    assert {name: rows for name, rows in derived_rows(log.database).items() if name != "task"} == before
    log.database.close()
