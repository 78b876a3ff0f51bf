"""Which cases are read: one coin per patient, one image for a patient, policies that change while the stream runs."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from service.sites import Site, another_model, embeddings, make_site, running
from service.test_reviews import Ward, all_read
from sqlalchemy import select

from calcode.service import sampling
from calcode.service.blindness import tasks_shown
from calcode.service.labels import reviewed_cases
from calcode.service.log import utc
from calcode.service.sampling import close_visits, later, settled_upto
from calcode.service.service import Service
from calcode.service.tables import DECISION, EVENT, SECRET_PART, TASK
from calcode.site import representatives

Row = tuple[str, str | None, str | None]  # image, patient, study


def send(call: Any, rows: list[Row], *, vectors: Any = None) -> None:
    vectors = embeddings(len(rows)) if vectors is None else vectors
    for (image, group, study), vector in zip(rows, vectors, strict=True):
        body = {"embedding": vector.tolist(), "image_id": image, "group": group, "study": study}
        answer = call("POST", "/v1/decisions", json={name: value for name, value in body.items() if value is not None})
        assert answer.status_code == 200, answer.text


def decided(service: Service) -> dict[str, Any]:
    """Rows of the decision table by the names of their images."""
    query = select(DECISION, SECRET_PART.c.content).join(SECRET_PART, SECRET_PART.c.seq == DECISION.c.seq)
    with service.database.reading() as connection:
        rows = connection.execute(query.where(SECRET_PART.c.name == "identity")).all()
    return {json.loads(row.content)["image_id"]: row for row in rows}


def image_key(image: str) -> str:
    """The key of a request that has no idempotency key of its own."""
    return f"image_id\n{image}"


def close(service: Service, *, minutes: float = 61) -> int:
    return int(service.change(lambda t: close_visits(t, now=later(utc(time.time()), minutes=minutes))))


def visit_rows(n_patients: int = 30, images: int = 3) -> list[Row]:
    """Images of a first visit each, patients mixed."""
    return [(f"p{p}-{i}", f"p{p}", f"s{p}") for i in range(images) for p in range(n_patients)]


def chosen(service: Service) -> set[str]:
    return {name for name, row in decided(service).items() if row.representative}


def test_the_image_for_a_patient_is_that_of_the_library(site: Site) -> None:
    rows = visit_rows()
    with running(site) as (service, call):
        send(call, rows)
        assert chosen(service) == set(), "the visits are open"
        assert close(service) == 30
        key = service.secret.for_line("skin")._key
        names = [row[0] for row in rows]
        wanted = representatives([image_key(name) for name in names], [str(row[1]) for row in rows], secret=key)
        assert chosen(service) == {names[row] for row in wanted}
        assert close(service) == 0, "a visit is closed once"


@pytest.mark.parametrize("named", [True, False], ids=["image_id", "content"])
def test_an_image_has_one_number_whatever_keys_it_is_sent_under(site: Site, named: bool) -> None:
    """Sent eight times it stands for no more patients than once: nobody can try keys until an image is chosen."""
    vectors = embeddings(80)
    with running(site) as (service, call):
        for patient in range(40):
            for image in (0, 1):
                body = {"embedding": vectors[2 * patient + image].tolist(), "group": f"p{patient}"}
                body |= {"image_id": f"{patient}-{image}"} if named else {}
                for again in range(1 if image == 0 else 8):
                    header = {"Idempotency-Key": f"{patient}-{image}-{again}"}
                    assert call("POST", "/v1/decisions", json=body, headers=header).status_code == 200
        close(service)
        query = select(DECISION.c.draw, DECISION.c.u_second, DECISION.c.representative).order_by(DECISION.c.seq)
        with service.database.reading() as connection:
            rows = connection.execute(query).all()
    for patient in range(40):
        first, *second = rows[9 * patient : 9 * patient + 9]
        assert len({(row.draw, row.u_second) for row in second}) == 1
        assert first.draw != second[0].draw
        assert [row.representative for row in second] == [second[0].draw < first.draw] + [False] * 7


def test_the_choice_depends_on_neither_answers_nor_order(tmp_path: Path) -> None:
    """Another model, other pixels, another order of arrival: the same images stand for the same patients."""
    rows = visit_rows()
    found, actions = [], []
    for turn in range(3):
        (tmp_path / str(turn)).mkdir()
        site = make_site(tmp_path / str(turn))
        if turn == 1:
            another_model(site, "other.safetensors", seed=5)
            site.file.write_text(site.file.read_text().replace("model.safetensors", "other.safetensors"))
        secret = site.settings.path("secret.key")
        secret.parent.mkdir()
        secret.write_bytes(bytes(range(32)))
        order = np.random.default_rng(turn).permutation(len(rows))
        vectors = embeddings(len(rows)) * (-1 if turn == 1 else 1)
        with running(site) as (service, call):
            send(call, [rows[i] for i in order], vectors=vectors)
            close(service)
            found.append(chosen(service))
            actions.append({name: row.action for name, row in decided(service).items()})
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 30
    assert actions[0] != actions[1], "the answers did differ"


def test_another_study_or_a_later_hour_is_another_visit(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("a0", "a", "s1"), ("a1", "a", "s2"), ("a2", "a", None), ("b0", "b", None), ("c0", None, None)]
    with running(site) as (service, call):
        send(call, rows)
        real = time.time
        monkeypatch.setattr(sampling.time, "time", lambda: real() + 61 * 60)
        send(call, [("a3", "a", "s1"), ("b1", "b", None)], vectors=embeddings(2, seed=1))
        service.change(close_visits)
        # After its visit was closed a patient's image never stands for anything again.
        send(call, [("b2", "b", None)], vectors=embeddings(1, seed=2))
        close(service, minutes=10_000)
        rows_now = decided(service)
    assert {name for name, row in rows_now.items() if row.representative} == {"a0", "b0", "c0"}


def test_sample_tasks_open_when_the_visit_is_over_and_deferrals_at_once(tmp_path: Path) -> None:
    rows = visit_rows(40, 2)
    with running(make_site(tmp_path, line_lines="sample = 0.5")) as (service, call):
        send(call, rows)
        with service.database.reading() as connection:
            before = {task.decision: task.why for task in connection.execute(select(TASK))}
            # A deferral is known at once, and not shown before the visit is over: that would tell it from a drawn case.
            assert [tasks_shown(connection, id, hidden=True) for id in before] == [[]] * len(before)
            assert all(tasks_shown(connection, id, hidden=False) for id in before)
        by_name = decided(service)
        assert before == {row.id: "deferred" for row in by_name.values() if row.action == "defer"}
        close(service)
        by_name = decided(service)
        with service.database.reading() as connection:
            tasks = [(task.decision, task.why) for task in connection.execute(select(TASK))]
        wanted = {row.id: "deferred" for row in by_name.values() if row.action == "defer"}
        for row in by_name.values():
            if row.representative and row.u < 0.5:
                wanted.setdefault(row.id, "sample")
        assert Counter(tasks) == Counter(wanted.items())
        assert {"deferred", "sample"} == set(wanted.values())
        drawn = {row.group_digest for row in by_name.values() if row.u < 0.5}
        assert all(len({row.u for row in by_name.values() if row.group_digest == group}) == 1 for group in drawn)


def test_a_result_within_the_visit_leaves_nothing_to_read(tmp_path: Path) -> None:
    with running(make_site(tmp_path, line_lines="sample = 1.0")) as (service, call):
        send(call, visit_rows(20, 1))
        known, *others = [row.id for row in decided(service).values() if row.action != "defer"]
        assert call("POST", "/v1/labels", json={"decision": known, "label": "c1"}).status_code == 200
        close(service)
        with service.database.reading() as connection:
            sampled = set(connection.execute(select(TASK.c.decision).where(TASK.c.why == "sample")).scalars())
            (case,) = [case for case in reviewed_cases(connection, "skin") if case.decision == known]
    assert sampled == set(others)
    assert (case.drawn, case.use, case.label) == (True, "calibrate", "c1")


def test_the_housekeeping_closes_visits_by_itself(tmp_path: Path) -> None:
    with running(make_site(tmp_path, line_lines="visit_minutes = 0.005")) as (service, call):
        send(call, [("x0", "x", None)], vectors=embeddings(1))
        end = time.monotonic() + 120
        while chosen(service) != {"x0"}:
            assert time.monotonic() < end
            time.sleep(0.05)


def test_coins_and_choices_are_fair(tmp_path: Path) -> None:
    """400 patients: the shares drawn are the probabilities, and no place in a visit is preferred."""
    rows = visit_rows(400, 2)
    with running(make_site(tmp_path, line_lines="sample = 0.3")) as (service, _):
        admission = service.admission["skin"]
        u = [admission.secret.coin(f"p{p}") for p in range(400)]
        draws = {row[0]: admission.secret.draws(image_key(row[0])) for row in rows}
        first = [draws[f"p{p}-0"][0] < draws[f"p{p}-1"][0] for p in range(400)]
        second = [draws[row[0]][1] for row in rows]
    # Five standard deviations either way.
    assert abs(np.mean(np.array(u) < 0.3) - 0.3) < 0.115
    assert abs(np.mean(first) - 0.5) < 0.125
    assert abs(np.mean(np.array(second) < 0.1) - 0.1) < 0.054
    assert abs(np.corrcoef(u, second[:400])[0, 1]) < 0.25
    assert abs(np.corrcoef(list(draws.values()), rowvar=False)[0, 1]) < 0.18


def test_nobody_can_toss_again(tmp_path: Path) -> None:
    """The same patient has the same number: a repeated request, another image, another policy, after a restart."""
    site = make_site(tmp_path, line_lines="sample = 0.5\nvisit_minutes = 0.0")
    rows = [(f"p{p}-0", f"p{p}", None) for p in range(20)]
    policy = {"sample": 0.9, "visit_minutes": 0.0, "second_reader": 0.0, "due_days": 7, "why": "more labels"}
    with running(site) as (service, call):
        send(call, rows)
        send(call, rows)
        before = {row.group_digest: row.u for row in decided(service).values()}
        tasks = tasks_of(service)
        assert call("PUT", "/v1/policy", as_="engineer", json=policy).status_code == 200
        assert tasks_of(service) == tasks, "a policy opens no task for a patient who was not drawn"
    with running(site) as (service, call):
        assert call("GET", "/v1/policy", as_="auditor").json() == {k: v for k, v in policy.items() if k != "why"}
        send(call, [(f"p{p}-1", f"p{p}", None) for p in range(20)])
        after = decided(service)
        assert {row.group_digest: row.u for row in after.values()} == before
        assert {row.p_sample for name, row in after.items() if name.endswith("-1")} == {0.9}
        assert not any(row.representative for name, row in after.items() if name.endswith("-1"))
        new_deferred = {row.id for name, row in after.items() if name.endswith("-1") and row.action == "defer"}
        assert tasks_of(service) == tasks | new_deferred


def tasks_of(service: Service) -> set[str]:
    with service.database.reading() as connection:
        return set(connection.execute(select(TASK.c.decision)).scalars())


def test_a_policy_is_an_event_and_holds_from_the_next_decision_on(tmp_path: Path) -> None:
    with running(all_read(tmp_path)) as (service, call):
        ward = Ward(service, call)
        (one,) = ward.decide()
        wanted = {"sample": 0.25, "visit_minutes": 5.0, "second_reader": 0.5, "due_days": 3, "why": "fewer"}
        assert ward("anna", "PUT", "/v1/policy", json=wanted).status_code == 403
        assert ward("engineer", "PUT", "/v1/policy", json={**wanted, "sample": 0.0}).status_code == 422
        assert ward("engineer", "PUT", "/v1/policy", json=wanted).status_code == 200
        (two,) = ward.decide()
        rows = {row.id: row for row in ward.rows(DECISION)}
        assert (rows[one].p_sample, rows[two].p_sample) == (1.0, 0.25)
        assert (rows[one].p_second, rows[two].p_second) == (0.0, 0.5)
        said = json.loads(ward.rows(EVENT, kind="policy_set")[-1].body)
        assert {name: said[name] for name in wanted} == wanted


def test_thinning_leaves_one_probability_for_a_period(tmp_path: Path) -> None:
    """Cases that calibrate are those below the smallest probability of their period, by numbers drawn before."""
    site = make_site(tmp_path, line_lines="sample = 0.8\nvisit_minutes = 0.0")
    with running(site) as (service, call):
        ward = Ward(service, call)
        ward.decide(40)
        policy = {"sample": 0.3, "visit_minutes": 0.0, "second_reader": 0.0, "due_days": 28, "why": "enough"}
        assert ward("engineer", "PUT", "/v1/policy", json=policy).status_code == 200
        changed = ward.rows(EVENT, kind="policy_set")[-1].seq
        ward.decide(40, seed=10)
        with service.database.reading() as connection:
            cases = reviewed_cases(connection, "skin")
            young = reviewed_cases(connection, "skin", since=changed)
        rows = {row.id: row for row in ward.rows(DECISION)}
    read = {row.id for row in rows.values() if row.action == "defer" or row.u < row.p_sample}
    assert {case.decision for case in cases} == read
    for case in cases:
        row = rows[case.decision]
        assert case.drawn == (row.u < (0.8 if row.seq < changed else 0.3))
        assert case.calibrates == (row.u < 0.3)
        assert case.use == ("calibrate" if row.u < 0.3 else "train")
    assert any(case.drawn and not case.calibrates for case in cases)
    assert [case.seq for case in young] == sorted(case.seq for case in cases if case.seq > changed)


def test_cases_are_known_up_to_the_first_visit_that_is_open(tmp_path: Path) -> None:
    site = make_site(tmp_path, line_lines="sample = 1.0\nsecond_reader = 0.0")
    with running(site) as (service, call):
        ward = Ward(service, call)
        (one,) = ward.decide()
        (inside,) = ward.decide(group="anna-b", seed=1)
        (three,) = ward.decide(seed=2)
        with service.database.reading() as connection:
            seqs = {row.id: row.seq for row in ward.rows(DECISION)}
            assert settled_upto(connection, "skin") == seqs[inside] - 1
            assert [case.decision for case in reviewed_cases(connection, "skin")] == [one]
        close(service)
        with service.database.reading() as connection:
            assert settled_upto(connection, "skin") == seqs[three]
            cases = reviewed_cases(connection, "skin")
        assert [case.decision for case in cases] == [one, inside, three]
        assert all(case.waiting for case in cases)
        ward.read("anna", one, "c0")
        ward.read("anna", three, "c0")
        with service.database.reading() as connection:
            cases = reviewed_cases(connection, "skin")
        assert [case.waiting for case in cases] == [False, True, False]
