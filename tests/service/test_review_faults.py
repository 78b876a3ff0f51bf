"""`kill -9` while cases are read: no saved reading, no coin and no task is lost, on both databases."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from service.conftest import Server
from service.sites import Process, Traffic, assert_nothing_lost, embeddings, make_site, post, running, token_for
from service.test_faults import KILLS, opened, wait_until
from service.test_log import contents
from sqlalchemy import select

from calcode.service import projections
from calcode.service.keys import site_secret
from calcode.service.labels import reviews_of, standing
from calcode.service.log import utc
from calcode.service.problems import Problem
from calcode.service.reviews import take
from calcode.service.sampling import close_visits, later
from calcode.service.service import Service
from calcode.service.tables import DECISION, REVIEW, TASK

LABELS = ("c0", "c1", "c2", "cannot_tell")


class Readers:
    """People who take what waits and save it; every receipt is kept."""

    def __init__(self, process: Process, tokens: dict[str, str]) -> None:
        self.process, self.tokens = process, tokens
        self.saved: dict[str, tuple[str, str]] = {}
        self._stop = threading.Event()

    def work(self) -> list[threading.Thread]:
        threads = [threading.Thread(target=self._read, args=(who,), daemon=True) for who in self.tokens]
        for thread in threads:
            thread.start()
        return threads

    def stop(self, threads: list[threading.Thread]) -> None:
        self._stop.set()
        for thread in threads:
            thread.join(timeout=120)

    def _read(self, who: str) -> None:
        rng = random.Random(who)
        while not self._stop.is_set():
            waiting = self._queue(who)
            if not waiting:
                time.sleep(0.05)
                continue
            task = rng.choice(waiting)["id"]
            label = rng.choice(LABELS)
            for step, body in (("take", {}), ("review", {"label": label})):
                path = f"/v1/tasks/{task}/{step}"
                status, answer = post(self.process.port, path, body, token=self.tokens[who], timeout=60)
                if status != 200:
                    break
                if step == "review":
                    self.saved[answer["id"]] = (who, label)

    def _queue(self, who: str) -> list[dict[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.process.port, timeout=60)
        try:
            connection.request("GET", "/v1/tasks", headers={"Authorization": f"Bearer {self.tokens[who]}"})
            answer = connection.getresponse()
            content = answer.read()
            return list(json.loads(content)) if answer.status == 200 else []
        except (OSError, http.client.HTTPException, ValueError):
            return []
        finally:
            connection.close()


@pytest.mark.timeout(900)
def test_killed_while_cases_are_read_nothing_saved_is_lost(tmp_path: Path, database_url: str | None) -> None:
    lines = "sample = 0.5\nvisit_minutes = 0.01\nsecond_reader = 0.3"
    site = make_site(tmp_path, line_lines=lines, database=database_url)
    log = opened(site)
    program = token_for(log, "program")
    people = {who: token_for(log, "clinician", subject=who) for who in ("anna", "ben", "carla", "dora")}
    process = Process(site)
    traffic = Traffic(token=program, port=lambda: process.port)
    readers = Readers(process, people)
    process.start()
    threads = readers.work()
    for _ in range(max(2, KILLS // 2)):
        with traffic.flowing(2):
            target = len(readers.saved) + 10
            wait_until(lambda target=target: len(readers.saved) >= target, seconds=180)
            time.sleep(random.random() * 0.3)
            process.kill()
        process.start()
    readers.stop(threads)
    assert process.stop() == 0
    with log.transaction() as transaction:
        close_visits(transaction, now=later("2099-01-01T00:00:00.000000Z"))

    assert_nothing_lost(log, traffic.receipts)
    with log.database.reading() as connection:
        decisions = connection.execute(select(DECISION)).all()
        reviews = connection.execute(select(REVIEW)).all()
        tasks = connection.execute(select(TASK)).all()
        stored = {row.id: (row.reviewer, row.label) for row in reviews}
        assert {id: stored.get(id) for id in readers.saved} == readers.saved
        assert max(Counter((row.decision, row.reviewer) for row in reviews).values()) == 1, "nobody read a case twice"
        for decision in {row.decision for row in reviews}:
            found = standing(reviews_of(connection, decision))
            whys = {task.why for task in tasks if task.decision == decision}
            assert (found.state == "disputed") <= ("adjudicate" in whys)

    # Coins are those of the secret, one per patient; one image stands for each, and each drawn one has its task.
    secret = site_secret(site.settings).for_line("skin")
    coins = {secret.pseudonym("group", f"patient-{n}"): secret.coin(f"patient-{n}") for n in range(200)}
    by_group: dict[str, list[Any]] = defaultdict(list)
    for row in decisions:
        assert row.u == coins[row.group_digest]
        by_group[row.group_digest].append(row)
    first_tasks = Counter(task.decision for task in tasks if task.why in ("deferred", "sample"))
    for rows in by_group.values():
        (standing_for,) = [row for row in rows if row.representative]
        if standing_for.u < standing_for.p_sample:
            assert first_tasks[standing_for.id] == 1
        assert all(first_tasks[row.id] == 1 for row in rows if row.action == "defer")

    live = contents(log.database)
    with log.database.writing() as connection:
        projections.rebuild(connection)
    assert contents(log.database) == live
    log.database.close()


def test_two_services_on_one_database_settle_a_visit_once_and_lend_a_case_once(
    tmp_path: Path, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site(tmp_path, line_lines="sample = 1.0", database=postgres.new_database())
    with running(site) as (one, call), Service(site.settings) as two:
        for i, row in enumerate(embeddings(40).tolist()):
            body = {"embedding": row, "group": f"p{i // 4}", "image_id": f"i{i}"}
            assert call("POST", "/v1/decisions", json=body).status_code == 200
        end = later(utc(time.time()), minutes=61)

        def at_once(*changes: Any) -> list[Any]:
            futures = [service.writer.change(change) for service, change in zip((one, two), changes, strict=True)]
            return [future.exception(120) or future.result() for future in futures]

        settled = at_once(*[lambda t: close_visits(t, now=end)] * 2)
        assert sorted(settled) == [0, 10]
        with one.database.reading() as connection:
            tasks = connection.execute(select(TASK)).all()
        assert max(Counter(task.decision for task in tasks).values()) == 1
        task, now = tasks[0].id, time.time
        monkeypatch.setattr(time, "time", lambda: now() + 61 * 60)
        first, second = at_once(lambda t: take(t, task, reviewer="anna"), lambda t: take(t, task, reviewer="ben"))
        assert sum(isinstance(answer, Problem) and answer.status == 409 for answer in (first, second)) == 1
