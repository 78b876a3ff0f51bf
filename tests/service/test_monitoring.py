"""Monitors live: a function of the log that a replay gives again, alarms once, and what an alarm does to answers."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from service.clinic import Clinic, clinic_site, restore_tested
from service.sites import Site, embeddings, running, token_for
from service.slow_capitals import bags_of, jumper, line_of, misses
from service.visitors import Person
from sqlalchemy import func, select

from calcode.files import canonical_json
from calcode.service import projections
from calcode.service.alarms import all_alarms, close, open_alarms
from calcode.service.labels import receive_label
from calcode.service.log import Event
from calcode.service.models import latest_protocol
from calcode.service.monitoring import LineMonitors
from calcode.service.operations import derived_rows, opened
from calcode.service.problems import Problem
from calcode.service.recalibration import recalibrate
from calcode.service.service import Service
from calcode.service.tables import ALARM, DECISION, EVENT, HEAD, MONITOR, SECRET_PART

FAR = 1.8


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(clinic_site(tmp_path).settings) as started:
        yield started


def replayed(service: Service, line: str = "skin") -> LineMonitors:
    """Monitors that begin with the first record of the log."""
    fresh = LineMonitors(service.log, service.models[line])
    fresh._loaded = True
    fresh.fold()
    return fresh


def state(monitors: LineMonitors) -> str:
    return canonical_json(monitors.to_state())


def promote(service: Service, digest: str, line: str = "skin") -> None:
    models = service.models[line]
    restore_tested(service)
    service.change(lambda t: models.propose(t, digest, actor="engineer", why="looks good"))
    service.change(lambda t: models.approve(t, digest, actor="approver", why="agreed"))
    models.follow()


def into_shadow(service: Service, digest: str, line: str = "skin") -> None:
    models = service.models[line]
    service.change(lambda t: models.set_shadow(t, digest, actor="engineer", why="first comparison"))
    models.follow()


def close_all(service: Service, line: str = "skin", *, then: str = "go_on") -> None:
    with service.database.reading() as connection:
        ids = [alarm["id"] for alarm in open_alarms(connection, line)]
    for id in ids:
        for role in ("engineer", "clinician"):
            choice: Any = then
            service.change(
                lambda t, id=id, role=role, choice=choice: close(
                    t, line, id, actor=f"a.{role}", roles=[role], why="looked at", then=choice
                )
            )
    service.models[line].follow()


def site_model_answers(service: Service, clinic: Clinic) -> str:
    """Sixty drawn cases, a site model, the shadow, and its promotion; the model's digest."""
    while len(clinic.drawn()) < 60:
        clinic.send(40)
    clinic.read()
    service.watch()
    digest = str(recalibrate(service, clinic.line, actor="engineer")["digest"])
    into_shadow(service, digest, clinic.line)
    clinic.send(20)
    clinic.read()
    service.watch()
    close_all(service, clinic.line)
    promote(service, digest, clinic.line)
    return digest


# ---------------------------------------------------------------------- replay


@pytest.mark.parametrize("seed", [1, 2])
def test_a_replay_of_the_log_gives_the_live_monitors(tmp_path: Path, seed: int) -> None:
    """After a random history, with restarts in between and labels that come late, change or never come."""
    choice = random.Random(seed)
    site = clinic_site(tmp_path)
    truth: dict[str, str] = {}
    made: list[str] = []
    for part in range(2):
        with Service(site.settings) as service:
            clinic = Clinic(service, seed=10 * seed + part, shift=choice.choice([0.0, FAR]), truth=truth)
            for _ in range(8):
                clinic.send(choice.randint(1, 40), block=choice.choice([1, 16]))
                clinic.read(lambda _, label: choice.choice([label, label, label, None, "outside"]))
                if choice.random() < 0.5:
                    service.watch()
                if truth and choice.random() < 0.3:
                    # A label that changes after its vote: what was counted stays counted.
                    id = choice.choice(sorted(truth))
                    service.change(
                        lambda t, id=id: receive_label(
                            t, id, label="c0", source="consensus", actor="board", classes=["c0", "c1", "c2", "c3"]
                        )
                    )
            clinic.read()
            service.watch()
            try:
                digest = str(recalibrate(service, "skin", actor="engineer")["digest"])
            except Problem:
                pass  # the protocol's next time has not come
            else:
                made.append(digest)
                close_all(service)
                into_shadow(service, digest)
                clinic.send(12)
                promote(service, digest)
            service.watch()
            live = service.monitors["skin"]
            assert state(live) == state(replayed(service))
            with service.database.reading() as connection:
                recorded = {(a["bag"], a["monitor"], a["name"]) for a in all_alarms(connection, "skin")}
            found = {(s.bag, a.monitor, a.name) for s in live.states() for a in s.watch.alarms}
            assert recorded == found
            before = derived_rows(service.database)
            service.change(lambda transaction: projections.rebuild(transaction.connection))
            assert derived_rows(service.database) == before
    assert made, "the history has a recalibration"


def test_the_kept_state_spares_the_replay_and_changes_nothing(tmp_path: Path) -> None:
    site = clinic_site(tmp_path)
    with Service(site.settings) as service:
        clinic = Clinic(service, shift=FAR)
        clinic.send(80)
        clinic.read(most=10)
        service.watch()
        before = state(service.monitors["skin"])
    with Service(site.settings) as service:
        with service.database.reading() as connection:
            kept = connection.execute(select(MONITOR)).one()
        assert kept.state == before
        clinic.service = service
        clinic.send(30)
        clinic.read()
        service.watch()
        # A replay needs nothing that may have been deleted since.
        service.change(lambda transaction: transaction.connection.execute(SECRET_PART.delete()))
        assert state(service.monitors["skin"]) == state(replayed(service))
        assert service.monitors["skin"].upto > kept.upto_seq


@pytest.mark.parametrize("damage", ['"queue"', '"measured"', '"upto":', "{"])
def test_a_damaged_cache_is_no_cache(tmp_path: Path, damage: str) -> None:
    site = clinic_site(tmp_path)
    with Service(site.settings) as service:
        clinic = Clinic(service, shift=FAR)
        clinic.send(40)
        service.watch()
        before = state(service.monitors["skin"])
    with opened(site.settings) as log, log.transaction() as transaction:
        # Another name, or no JSON at all.
        damaged = before.replace(damage, f'"other{damage[1:]}')
        assert damaged != before
        transaction.connection.execute(MONITOR.update().values(state=damaged))
    with Service(site.settings) as service:
        service.watch()
        assert state(service.monitors["skin"]) == before


def test_the_loop_goes_round_on_both_databases(tmp_path: Path, database_url: str | None) -> None:
    with Service(clinic_site(tmp_path, database=database_url).settings) as service:
        clinic = Clinic(service, shift=FAR)
        digest = site_model_answers(service, clinic)
        clinic.send(30)
        clinic.read()
        service.watch()
        assert service.models["skin"].champion.digest == digest
        assert [s.bag for s in service.monitors["skin"].states()][1:] == ["bag-0"]
        assert state(service.monitors["skin"]) == state(replayed(service))
        before = derived_rows(service.database)
        service.change(lambda transaction: projections.rebuild(transaction.connection))
        assert derived_rows(service.database) == before


def test_two_processes_measure_and_raise_once(service: Service) -> None:
    clinic = Clinic(service, shift=FAR)
    other = LineMonitors(service.log, service.models["skin"])
    for _ in range(4):
        clinic.send(40)
        for monitors in (service.monitors["skin"], other, service.monitors["skin"]):
            monitors.step(service.change)
    with service.database.reading() as connection:
        raised = connection.execute(select(EVENT.c.subject).where(EVENT.c.kind == "alarm_raised")).scalars().all()
        rows = connection.execute(select(EVENT.c.body).where(EVENT.c.kind == "measured")).scalars().all()
    assert raised
    assert len(raised) == len(set(raised))
    measured = [id for body in rows for id, _, _ in json.loads(body)["rows"]]
    assert len(measured) == len(set(measured)) == 160
    assert state(service.monitors["skin"]) == state(other)


def test_the_capitals_are_those_of_a_slow_reading_of_the_log(service: Service) -> None:
    """M2 and M3 of a home model and of two site models of one bag, from the events alone; labels come late."""
    clinic = Clinic(service, shift=0.3, blur=1.8)
    chance = random.Random(4)
    made = [site_model_answers(service, clinic)]
    while len(clinic.drawn()) < 120:
        clinic.send(20)
        clinic.read(most=chance.randint(0, 20))
        service.watch()
    clinic.read()
    service.watch()
    close_all(service)
    made.append(str(recalibrate(service, "skin", actor="engineer")["digest"]))
    into_shadow(service, made[1])
    clinic.send(20)
    promote(service, made[1])
    for _ in range(6):
        clinic.send(20)
        clinic.read(most=chance.randint(0, 12))
        service.watch()
    with service.database.reading() as connection:
        events = connection.execute(select(EVENT.c.kind, EVENT.c.id, EVENT.c.body).order_by(EVENT.c.seq)).all()
        home = service.models["skin"].home(connection)
    models = {digest: service.models["skin"].model(digest) for digest in (home.digest, *made)}
    slow = bags_of(events, levels={digest: loaded.deferral_level for digest, loaded in models.items()})
    states = service.monitors["skin"].states()
    assert [state.bag for state in states] == list(slow) == [f"home-{home.digest[:16]}", "bag-0"]
    compared = 0
    for state in states:
        bag = slow[state.bag]
        assert (state.model, state.waiting) == (bag.model, len(bag.waiting))
        model = models[bag.model].model
        seed = int(bag.first_model[:8], 16)
        for k, (name, watch) in enumerate(state.watch.classes.items()):
            if state.bag == "bag-0":
                line = line_of(model.counts_[name], 0.1, 0.05)
                reference = list(models[bag.first_model].model.bag_scores_[name])
                spent = 2
            else:
                line = line_of(model.n_accepted_per_class_[name], 0.05, model.settings_.discovery_margin)
                reference, spent = [], 0
            scores, missed = bag.scores.get(name, []), bag.missed.get(name, [])
            assert watch.scores.reading.n == len(scores)
            assert watch.coverage.reading.n == len(missed)
            assert watch.coverage.misses == sum(missed)
            assert watch.coverage.line == pytest.approx(line)
            assert watch.coverage.alpha == pytest.approx(0.01 / 3 / 4 / 2**spent)
            first = 0 if reference else 20
            expected = jumper(reference, scores, n_first=first, seed=[seed, 1 + k])
            assert watch.scores.reading.log_capital == pytest.approx(expected, abs=1e-9)
            assert watch.coverage.reading.log_capital == pytest.approx(misses(missed, line), abs=1e-9)
            compared += len(missed) > 0 and len(scores) > first
    assert compared >= 4
    assert any(sum(xs) for bag in slow.values() for xs in bag.missed.values()), "something was missed"


# ---------------------------------------------------------------------- who votes


def test_a_patient_votes_once_and_known_patients_never(tmp_path: Path) -> None:
    with running(clinic_site(tmp_path, sample=1.0)) as (service, call):
        row = embeddings(1)[0].tolist()
        for i, group in enumerate(["new", "new", "reference-patient-1"]):
            call("POST", "/v1/decisions", json={"embedding": row, "image_id": f"image-{i}", "group": group})
        service.watch()
        (monitors,) = call("GET", "/v1/monitors", as_="auditor").json()
        assert monitors["facts"]["answers"]["n"] == 1
        assert monitors["facts"]["support"]["n"] == 1
        assert monitors["waiting"] == 1


@pytest.mark.parametrize("read_first", [False, True])
def test_labels_vote_in_decision_order_and_an_overdue_one_is_missing(
    service: Service, read_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clinic = Clinic(service, shift=0.0)
    clinic.send(60)
    first = clinic.drawn()[0].id
    clinic.read(lambda id, label: None if id == first else label)
    service.watch()
    (waiting,) = service.monitors["skin"].states()
    assert waiting.waiting == len(clinic.drawn())
    assert sum(watch.counts.n for watch in waiting.watch.classes.values()) == 0
    # A record of years later: the first case is overdue, and its label counts as missing.
    accepted = sum(row.reason != "low_support" for row in clinic.drawn())
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + 5 * 365 * 86_400)
    if read_first:
        clinic.read()  # too late, although nothing was recorded between its day and its label
    later = clinic.send(1)
    service.watch()
    (after,) = service.monitors["skin"].states()
    voted = [watch.counts for watch in after.watch.classes.values()]
    assert after.waiting == sum(row.id in later for row in clinic.drawn())
    assert {counts.missing for counts in voted} == {1}
    assert sum(counts.hits + counts.misses for counts in voted) == accepted - 1
    # The label that comes too late changes nothing.
    clinic.read()
    service.watch()
    (still,) = service.monitors["skin"].states()
    assert {watch.counts.missing for watch in still.watch.classes.values()} == {1}
    assert state(service.monitors["skin"]) == state(replayed(service))


@pytest.mark.parametrize("late", ["confirms", "contradicts"])
def test_a_label_that_was_there_in_time_votes_whatever_comes_after_its_day(
    service: Service, late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first case has no label and holds the walk up; the laboratory speaks of the others before it goes on."""
    clinic = Clinic(service, shift=0.0)
    clinic.send(60)
    classes = list(service.models["skin"].prompts.classes)
    missed, named = {}, {}
    for row in clinic.drawn()[1:]:
        given = json.loads(row.released_set)
        if row.action != "defer" and len(given) < len(classes):
            missed[row.id] = next(name for name in classes if name not in given)
            named[row.id] = given[0]

    def labelled(labels: dict[str, str], source: str) -> None:
        facts: dict[str, Any] = {"source": source, "actor": "lab", "classes": classes}
        service.change(lambda t: [receive_label(t, id, label=label, **facts) for id, label in labels.items()])

    labelled(missed, "consensus")
    service.watch()
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + 40 * 86_400)
    labelled(missed if late == "confirms" else named, "pathology")
    clinic.send(1)
    service.watch()
    (after,) = service.monitors["skin"].states()
    counts = [watch.counts for watch in after.watch.classes.values()]
    assert sum(found.misses for found in counts) == len(missed) > 15
    assert sum(found.hits for found in counts) == 0
    assert any(alarm.monitor == "M3" for alarm in after.watch.alarms)
    assert state(service.monitors["skin"]) == state(replayed(service))


def test_the_unchanged_world_of_home_raises_no_alarm_and_another_one_does(service: Service) -> None:
    at_home = Clinic(service, shift=0.0)
    at_home.send(200)
    at_home.read()
    service.watch()
    with service.database.reading() as connection:
        assert all_alarms(connection, "skin") == []
    Clinic(service, shift=FAR, seed=1).send(60)
    service.watch()
    with service.database.reading() as connection:
        (alarm,) = all_alarms(connection, "skin")
    assert (alarm["monitor"], alarm["closed_by"]) == ("M1", None)
    service._measure()
    assert b'calcode_open_alarms{line="skin"} 1.0' in service.metrics.text()
    assert alarm["e_value"] >= 1 / alarm["alpha"]


def test_how_a_model_answers_is_shown_against_its_shadow_report(tmp_path: Path) -> None:
    """One image of a patient, the model's own answers also under an alarm, and a new model begins anew."""
    with running(clinic_site(tmp_path, on_alarm="defer")) as (service, call):
        digest = site_model_answers(service, Clinic(service, shift=0.3))
        (at_home,) = call("GET", "/v1/monitors", as_="auditor").json()
        home = at_home["facts"]["rates"]
        assert home["deferral"]["n"] == at_home["facts"]["answers"]["n"] > 60
        assert [row["expected"] for row in home.values()] == [None, None, None]
        away = Clinic(service, shift=FAR, seed=5)
        away.send(120)
        service.watch()
        away.send(40)
        service.watch()
        rates = call("GET", "/v1/monitors", as_="auditor").json()[-1]["facts"]["rates"]
        told = call("GET", "/v1/monitors", as_="clinician").json()[-1]
        assert (set(told["facts"]), told["waiting"]) == ({"alarm", "alarms"}, None), "no figure of single cases"
        seen = {as_: call("GET", f"/v1/recalibrations/{digest}", as_=as_).json() for as_ in ("clinician", "auditor")}
        assert set(seen["auditor"]) - set(seen["clinician"]) == {"shadow", "coverage"}
        with service.database.reading() as connection:
            bodies = connection.execute(select(EVENT.c.kind, EVENT.c.body).order_by(EVENT.c.seq)).all()
        shadow = [json.loads(body) for kind, body in bodies if kind == "shadow_decision"]
        decided = [json.loads(body) for kind, body in bodies if kind == "decision" and f'"model":"{digest}"' in body]
        own = [body.get("model_answer", body) for body in decided]
        assert any("model_answer" in body for body in decided), "an alarm was open"
        for found, answers in ((rates, own), ({name: row["expected"] for name, row in rates.items()}, shadow)):
            sizes = [len(answer["set"]) for answer in answers if answer["action"] != "defer"]
            assert found["deferral"]["n"] == len(answers)
            assert found["deferral"]["mean"] == pytest.approx(1 - len(sizes) / len(answers))
            assert found["set_size"]["n"] == found["full_sets"]["n"] == len(sizes)
            if sizes:
                assert found["set_size"]["mean"] == pytest.approx(sum(sizes) / len(sizes))
                assert found["full_sets"]["mean"] == pytest.approx(sizes.count(4) / len(sizes))
        assert state(service.monitors["skin"]) == state(replayed(service))


# ---------------------------------------------------------------------- what an alarm does


@pytest.mark.parametrize("on_alarm", ["full_set", "defer"])
def test_an_alarm_of_a_site_model_takes_its_answers_back_until_two_people_chose(tmp_path: Path, on_alarm: str) -> None:
    with running(clinic_site(tmp_path, on_alarm=on_alarm)) as (service, call):
        digest = site_model_answers(service, Clinic(service, shift=0.3))
        away = Clinic(service, shift=FAR, seed=5)
        away.send(120)
        service.watch()
        (alarm,) = [a for a in call("GET", "/v1/alarms", as_="clinician").json() if a["closed_by"] is None]
        assert (alarm["monitor"], alarm["bag"], alarm["model"]) == ("M1", "bag-0", digest)
        # Programs read the words of the pages.
        page = Person(service, "cleo", "clinician").get("/monitor").text
        assert all(alarm[name] in page for name in ("says", "look_at", "evidence"))
        for path in ("/v1/alarms", "/v1/monitors"):
            assert " capital" not in call("GET", path, as_="clinician").text
        (id,) = away.send(1)
        seen = call("GET", f"/v1/decisions/{id}").json()
        if on_alarm == "full_set":
            assert (seen["action"], seen["set"]) == ("set", ["c0", "c1", "c2", "c3"])
        else:
            assert (seen["action"], seen["set"]) == ("defer", [])
        assert seen["reason"] == "alarm"
        with service.database.reading() as connection:
            body = connection.execute(select(EVENT.c.body).where(EVENT.c.id == id)).scalar_one()
        assert f'"alarm":"{alarm["id"]}"' in body
        assert '"model_answer":{' in body
        refused = call("POST", "/v1/recalibrations", as_="engineer")
        assert (refused.status_code, "first choose" in refused.json()["detail"]) == (409, True)
        path, choice = f"/v1/alarms/{alarm['id']}/close", {"why": "lamp replaced", "then": "go_on"}
        assert call("POST", path, as_="auditor", json=choice).status_code == 403
        # One account with both roles is one person.
        both = token_for(service.log, "engineer", "clinician", subject="both")
        service.tokens.reload()
        for status in (200, 403):
            assert call("POST", path, as_=both, json={**choice, "then": "new_bag"}).status_code == status
        assert call("POST", path, as_="engineer", json=choice).json()["state"] == "asked"
        # The same account, the same role, or another choice do not close it.
        assert call("POST", path, as_="engineer", json=choice).status_code == 403
        second = token_for(service.log, "engineer", subject="another.engineer")
        service.tokens.reload()
        assert call("POST", path, as_=second, json=choice).status_code == 403
        assert call("POST", path, as_="clinician", json={**choice, "then": "new_bag"}).json()["state"] == "asked"
        assert call("POST", path, as_="engineer", json={**choice, "then": "new_bag"}).json()["state"] == "closed"
        assert call("POST", path, as_="engineer", json=choice).status_code == 409
        # The bag was given up, and its model answers no better than before: its cases train, and the next bag begins
        # after the alarm.
        assert {call("GET", f"/v1/decisions/{id}").json()["reason"] for id in away.send(5)} <= {"alarm", "low_support"}
        refused = call("POST", "/v1/recalibrations", as_="engineer")
        assert refused.status_code == 409
        while sum(row.seq > alarm["raised_seq"] for row in away.drawn()) < 60:
            away.send(30)
        away.read()
        report = call("POST", "/v1/recalibrations", as_="engineer").json()
        assert report["bag"] == f"bag-{alarm['raised_seq']}"
        assert report["look"] == 1
        assert report["trainers"] >= 60


@pytest.mark.parametrize(("on_alarm", "changed"), [("full_set", False), ("defer", False), ("defer_all", True)])
def test_at_home_nothing_changes_by_itself_unless_the_protocol_says_so(
    tmp_path: Path, on_alarm: str, changed: bool
) -> None:
    with Service(clinic_site(tmp_path, on_alarm=on_alarm).settings) as service:
        clinic = Clinic(service, shift=FAR)
        clinic.send(100)
        service.watch()
        with service.database.reading() as connection:
            assert len(open_alarms(connection, "skin")) == 1
        after = clinic.send(40)
        with service.database.reading() as connection:
            rows = connection.execute(select(DECISION).where(DECISION.c.id.in_(after))).all()
        assert ({row.action for row in rows} == {"defer"}) == changed
        assert any(row.reason == "alarm" for row in rows) == changed


def test_a_new_protocol_holds_from_the_next_decision_on(tmp_path: Path) -> None:
    """What an alarm does to answers is in the protocol: a writer that runs already takes a new one over."""
    with Service(clinic_site(tmp_path, on_alarm="full_set").settings) as service:
        clinic = Clinic(service, shift=FAR)
        clinic.send(60)
        service.watch()

        def reasons() -> set[str]:
            ids = clinic.send(10)
            with service.database.reading() as connection:
                return set(connection.execute(select(DECISION.c.reason).where(DECISION.c.id.in_(ids))).scalars())

        assert "alarm" not in reasons(), "a home model goes on answering"
        with service.database.reading() as connection:
            row = latest_protocol(connection, "skin")
            assert row is not None
            before = connection.execute(select(HEAD.c.deployed)).scalar_one()
        text = row.text.replace('"full_set"', '"defer_all"')
        event = Event(kind="protocol_set", actor="engineer", subject="another", body={"line": "skin", "text": text})
        (record,) = service.change(lambda transaction: transaction.append([event]))
        with service.database.reading() as connection:
            assert connection.execute(select(HEAD.c.deployed)).scalar_one() == record.seq > before
        assert "alarm" in reasons()


def test_a_closed_alarm_is_not_raised_again(service: Service) -> None:
    clinic = Clinic(service, shift=FAR)
    clinic.send(60)
    service.watch()
    close_all(service)
    clinic.send(60)
    service.watch()
    with service.database.reading() as connection:
        assert connection.execute(select(func.count()).select_from(ALARM)).scalar_one() == 1
        assert open_alarms(connection, "skin") == []


def test_monitors_of_a_site_without_decisions_say_nothing(site: Site) -> None:
    with running(site) as (service, call):
        service.watch()
        assert call("GET", "/v1/monitors", as_="engineer").json() == []
        assert call("GET", "/v1/alarms", as_="program").status_code == 403
