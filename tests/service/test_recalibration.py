"""Recalibration: the bag that the protocol names, its report, the gates, three lines, and the command."""

from __future__ import annotations

import json
import re
import textwrap
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from service.clinic import LINE, PROTOCOL, Clinic, clinic_site, fixed_coins, restore_tested
from service.sites import ROOT, WORLD, another_model, make_site, running
from service.test_monitoring import FAR, close_all, into_shadow, promote
from sqlalchemy import select

from calcode.cli.app import app
from calcode.method.signatures import write_private_key
from calcode.monitor.coverage import least_coverage
from calcode.service import examples, reviews
from calcode.service.admission import DecisionRequest
from calcode.service.alarms import open_alarms
from calcode.service.bags import plan_bag
from calcode.service.gates import shadow_coverage
from calcode.service.keys import site_secret
from calcode.service.labels import receive_label
from calcode.service.log import Event
from calcode.service.models import latest_protocol
from calcode.service.monitoring import embeddings_of
from calcode.service.problems import Problem
from calcode.service.protocol import Protocol, RecalibrationPlan, parse_protocol
from calcode.service.recalibration import recalibrate, report_of
from calcode.service.sampling import Policy, close_visits, policy_event
from calcode.service.service import Service
from calcode.service.tables import DECISION, EVENT, SHADOW_DECISION, TASK
from calcode.site import SiteModel

PLAN = RecalibrationPlan(at_cases=[60, 120], random_state=7, miscoverage=0.1)
#: The same, and a time that the next drawn case brings.
PLAN_61 = RecalibrationPlan(at_cases=[60, 61], random_state=7, miscoverage=0.1, most_pending=0.02)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(clinic_site(tmp_path).settings) as started:
        yield started


def sent(clinic: Clinic, n: int) -> None:
    """Patients until n of them were drawn."""
    while len(clinic.drawn()) < n:
        clinic.send(20)


def refusal(service: Service) -> str:
    with pytest.raises(Problem) as found:
        recalibrate(service, "skin", actor="engineer")
    assert found.value.status == 409
    return found.value.detail


def raised(service: Service, id: str, bag: str) -> int:
    """An alarm about a bag; its record."""
    names = ("model", "monitor", "name", "finding", "advice")
    facts = {"line": "skin", "bag": bag, "log_capital": 9.0, "n": 9, "alpha": 0.01, **dict.fromkeys(names, "")}
    event = Event(kind="alarm_raised", actor="service", subject=id * 24, body=facts)
    (record,) = service.change(lambda transaction: transaction.append([event]))
    return int(record.seq)


# ---------------------------------------------------------------------- which cases


def test_the_bag_is_the_prefix_that_the_protocol_names_whenever_the_button_is_pressed(service: Service) -> None:
    clinic = Clinic(service)
    sent(clinic, 60)
    clinic.read()
    with service.database.reading() as connection:
        early = plan_bag(connection, "skin", PLAN)
    clinic.send(60)
    clinic.read()
    with service.database.reading() as connection:
        late = plan_bag(connection, "skin", PLAN)
    assert late == early
    assert [case.decision for case in early.cases] == [row.id for row in clinic.drawn()[:60]]
    assert all(case.u < 0.5 for case in early.cases)
    with service.database.reading() as connection:
        gate = connection.execute(select(DECISION).where(DECISION.c.seq.in_(early.gate))).all()
    # The coin chose the gate as it chose the bag: deferred patients are in both, and no patient is in both.
    assert all(row.u >= 0.5 and row.seq <= early.upto for row in gate)
    assert not {row.group_digest for row in gate} & {case.group_digest for case in early.cases}


def test_outside_the_protocol_nothing_is_made(tmp_path: Path) -> None:
    with Service(clinic_site(tmp_path).settings) as service:
        clinic = Clinic(service)
        clinic.send(60)
        clinic.read()
        assert "the next time is 60 drawn cases" in refusal(service)
        sent(clinic, 60)
        # Cases that wait are harder than others: 2 % of a bag, no more.
        first = [row.id for row in clinic.drawn()[50:52]]
        clinic.read(lambda id, label: None if id in first else label)
        assert "2 of the 60 drawn cases wait" in refusal(service)
        clinic.read(lambda id, label: None if id == first[0] else label)
        report = recalibrate(service, "skin", actor="engineer")
        assert report["states"] == {"labelled": 59, "pending": 1}
        share = 1 / (60 - report["rejected_by_audit"])
        assert report["unlabelled_share"] == pytest.approx(share)
        promised = report["classes"][0]
        assert promised["promised_with_unlabelled"] == pytest.approx(promised["promised"] * (1 - share))
        # The same bag gives nothing new; the next one of the protocol does.
        assert "the next time is 120 drawn cases" in refusal(service)
        sent(clinic, 120)
        clinic.read()
        second = recalibrate(service, "skin", actor="engineer")
        assert (second["bag"], second["look"], second["cases"]) == ("bag-0", 2, 120)


def test_times_that_were_named_after_the_cases_are_refused(tmp_path: Path) -> None:
    """SITE.md S6: with the scores in view, ten protocols would find the smallest sets of ten."""
    site, file = clinic_site(tmp_path), tmp_path / "protocol.toml"
    with Service(site.settings) as service:
        clinic = Clinic(service)
        sent(clinic, 61)
        clinic.read()
    # Other words change no time and no seed.
    file.write_text(file.read_text().replace("a site model", "one site model"))
    with Service(site.settings) as service:
        assert recalibrate(service, "skin", actor="engineer")["cases"] == 60
    text = file.read_text()
    file.write_text(text.replace("[60, 120]", "[60, 61]").replace("random_state = 7", "random_state = 8"))
    with Service(site.settings) as service:
        n = len(Clinic(service).drawn())
        assert f"named its times and seed with {n - 60} new drawn case" in refusal(service)
    # What was written before is as good as before.
    file.write_text(text)
    with Service(site.settings) as service:
        clinic = Clinic(service, seed=1)
        sent(clinic, 120)
        clinic.read()
        report = recalibrate(service, "skin", actor="engineer")
        assert (report["bag"], report["look"], report["cases"]) == ("bag-0", 2, 120)


@pytest.mark.parametrize("changed", ["random_state = 8", "random_state = 7\nslack = 'thin'"])
def test_a_plan_that_was_written_with_some_of_the_labels_in_view_begins_a_new_bag(tmp_path: Path, changed: str) -> None:
    """SITE.md S6: with 59 of 60 labels known, ten seeds would find the smallest sets of ten."""
    site, file = clinic_site(tmp_path), tmp_path / "protocol.toml"
    with Service(site.settings) as service:
        clinic = Clinic(service)
        while len(clinic.drawn()) < 59:
            clinic.send(1)
        clinic.read()
    file.write_text(file.read_text().replace("random_state = 7", changed))
    with Service(site.settings) as service:
        with service.database.reading() as connection:
            written = latest_protocol(connection, "skin")
        assert written is not None
        later = Clinic(service, seed=1)
        sent(later, 60)
        later.read()
        said = refusal(service)
        assert "59 new drawn cases in view, so a new sample begins with the protocol" in said
        assert "the next time is 60 drawn cases" in said
        sent(later, 119)
        later.read()
        report = recalibrate(service, "skin", actor="engineer")
        assert (report["bag"], report["cases"]) == (f"bag-{written.from_seq}", 60)
        assert report["after"] == written.from_seq
        assert report["trainers"] >= 59, "what was read before is not lost"


def test_a_plan_that_comes_between_two_looks_goes_on_with_the_bag(tmp_path: Path) -> None:
    site, file = clinic_site(tmp_path), tmp_path / "protocol.toml"
    with Service(site.settings) as service:
        clinic = Clinic(service)
        while len(clinic.drawn()) < 60:
            clinic.send(1)
        clinic.read()
        recalibrate(service, "skin", actor="engineer")
    file.write_text(file.read_text().replace("[60, 120]", "[60, 90]"))
    with Service(site.settings) as service:
        later = Clinic(service, seed=1)
        sent(later, 90)
        later.read()
        report = recalibrate(service, "skin", actor="engineer")
        assert (report["bag"], report["look"], report["cases"]) == ("bag-0", 2, 90)


def test_a_late_alarm_about_a_bag_that_was_given_up_leaves_the_present_bag_alone(service: Service) -> None:
    clinic = Clinic(service)

    def present() -> str:
        with service.database.reading() as connection:
            return plan_bag(connection, "skin", PLAN).bag

    clinic.send(20)
    first = raised(service, "a", "bag-0")
    same = raised(service, "b", "bag-0")
    close_all(service, then="new_bag")
    sent(clinic, len(clinic.drawn()) + 80)
    clinic.read()
    assert present() == f"bag-{first}", f"{same} says nothing new about the bag of before"
    # A late label of a case that the old bag's model decided.
    raised(service, "c", "bag-0")
    assert present() == f"bag-{first}"
    close_all(service, then="new_bag")
    assert present() == f"bag-{first}"
    # One about the present bag, or about the images themselves, does give it up.
    for id, bag in (("d", f"bag-{first}"), ("e", "home-0123456789abcdef"), ("f", "home-0123456789abcdef")):
        newest = raised(service, id, bag)
        close_all(service, then="new_bag")
        sent(clinic, len(clinic.drawn()) + 80)
        clinic.read()
        assert present() == f"bag-{newest}"


def test_an_alarm_about_the_bag_before_a_new_plan_still_asks_for_a_choice(tmp_path: Path) -> None:
    """The model of that bag answers on: what its monitors see has changed, has changed for the new bag as well."""
    site, file = clinic_site(tmp_path), tmp_path / "protocol.toml"
    with Service(site.settings) as service:
        clinic = Clinic(service)
        clinic.send(40)
        clinic.read()
    file.write_text(file.read_text().replace("random_state = 7", "random_state = 8"))
    with Service(site.settings) as service:
        clinic = Clinic(service, seed=1)
        clinic.send(20)
        record = raised(service, "a", "bag-0")
        while sum(row.seq > record for row in clinic.drawn()) < 60:
            clinic.send(20)
        clinic.read()
        assert "first choose" in refusal(service)
        close_all(service, then="new_bag")
        assert recalibrate(service, "skin", actor="engineer")["bag"] == f"bag-{record}"


def test_what_was_chosen_with_the_bag_in_view_does_not_train_it(tmp_path: Path) -> None:
    """SITE.md S5: a wish for an old case, made while the bag fills, and what an alarm of the bag's labels deferred."""
    with Service(clinic_site(tmp_path, sample=0.3, on_alarm="defer_all").settings) as service:
        clinic = Clinic(service)
        ids = clinic.send(120)
        with service.database.reading() as connection:
            asked = set(connection.execute(select(TASK.c.decision)).scalars())
        early, late = [id for id in ids if id not in asked][:2]

        def wished(id: str) -> None:
            service.change(lambda t: reviews.wish(t, id, actor="anna", comment=""))
            clinic.read(lambda read, label: label if read == id else None)

        wished(early)
        names = ("bag", "model", "monitor", "name", "finding", "advice")
        facts = {"line": "skin", "log_capital": 9.0, "n": 9, "alpha": 0.01, **dict.fromkeys(names, "")}
        choice = {"line": "skin", "why": "new camera", "then": "new_bag", "asked_by": "anna"}
        given_up = [
            Event(kind="alarm_raised", actor="service", subject="0" * 24, body=facts),
            Event(kind="alarm_closed", actor="ben", subject="0" * 24, body=choice),
        ]
        service.change(lambda transaction: transaction.append(given_up))
        wished(late)
        away = Clinic(service, seed=1, shift=FAR)
        away.send(60)
        service.watch()  # M1 of the home model has alarmed, and the protocol defers everything
        while sum(row.id not in ids for row in away.drawn()) < 60:
            away.send(40)
        away.truth |= clinic.truth
        away.read()
        with service.database.reading() as connection:
            plan = plan_bag(connection, "skin", PLAN)
            reasons = set(connection.execute(select(DECISION.c.reason).where(DECISION.c.u >= 0.3)).scalars())
    trainers = {case.decision: case for case in plan.trainers}
    assert early in trainers
    assert late not in trainers
    within = {case.reason for case in plan.trainers if case.seq > plan.after}
    assert "alarm" in reasons
    assert within == {"low_support"}


def test_a_protocol_without_times_recalibrates_nothing(tmp_path: Path) -> None:
    with Service(clinic_site(tmp_path, protocol='description = "fixed"\n').settings) as service:
        assert "no [recalibration]" in refusal(service)
    with pytest.raises(ValueError, match="at_cases or at_dates"):
        RecalibrationPlan()
    with pytest.raises(Exception, match="times of recalibration"):
        parse_protocol('description = "d"\n[recalibration]\nrandom_state = 1\n', source="protocol.toml")


def test_the_protocols_of_the_docs_and_of_the_example_are_protocols() -> None:
    page = (ROOT / "docs" / "loop.md").read_text()
    block = re.search(r"    # protocol.toml\n(?:(?:    .*)?\n)+", page)
    assert block is not None
    for text in (textwrap.dedent(block[0]), (ROOT / "deploy" / "protocol.example.toml").read_text()):
        plan = parse_protocol(text, source="page").recalibration
        assert plan is not None
        assert plan.at_cases == [100, 200, 400]


def test_the_calendar_is_another_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    protocol = PROTOCOL.format(on_alarm="defer").replace("at_cases = [60, 120]", "at_dates = [2031-01-01, 2032-01-01]")
    with Service(clinic_site(tmp_path, protocol=protocol).settings) as service:
        clinic = Clinic(service)
        sent(clinic, 70)
        clinic.read()
        n = len(clinic.drawn())
        assert "the next time is 2031-01-01" in refusal(service)
        # The day comes; what is decided on it is for the next bag.
        monkeypatch.setattr(time, "time", lambda: datetime(2031, 1, 1, 8, tzinfo=UTC).timestamp())
        clinic.send(30)
        clinic.read()
        report = recalibrate(service, "skin", actor="engineer")
        assert (report["due"], report["cases"]) == ("2031-01-01", n)


def test_a_date_gives_one_bag_and_waits_for_the_visits_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    protocol = PROTOCOL.format(on_alarm="defer").replace("at_cases = [60, 120]", "at_dates = [2031-01-01]")
    (tmp_path / "protocol.toml").write_text(protocol)
    fixed_coins(tmp_path)
    lines = LINE.replace("visit_minutes = 0", "visit_minutes = 60") + "sample = 0.5\n"
    midnight = datetime(2031, 1, 1, tzinfo=UTC)
    moved = [0.0]
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + moved[0])

    def at(minutes: float) -> None:
        moved[0] = midnight.timestamp() + 60 * minutes - wall()

    at(-600)
    with Service(make_site(tmp_path, line_lines=lines).settings) as service:
        clinic = Clinic(service)

        def after_the_visits() -> None:
            service.change(close_visits)
            clinic.read()

        early = clinic.send(150)
        at(-20)
        early += clinic.send(60)
        at(6)
        clinic.send(1)
        after_the_visits()
        assert "visits that began before it are still open" in refusal(service)
        at(61)
        after_the_visits()
        report = recalibrate(service, "skin", actor="engineer")
        before = [row for row in clinic.drawn() if row.id in early]
        assert (report["due"], report["cases"]) == ("2031-01-01", len(before))
        at(-30)  # the clock is set back: more was decided before the day, and the day is used all the same
        clinic.send(60)
        at(400)
        after_the_visits()
        assert "allows no recalibration now" in refusal(service)


def test_triggers_of_an_untouched_model_train_and_wishes_do_not(service: Service) -> None:
    clinic = Clinic(service, shift=FAR)
    sent(clinic, 60)
    clinic.read()
    with service.database.reading() as connection:
        rows = connection.execute(select(DECISION).order_by(DECISION.c.seq)).all()
    wished = next(row for row in rows if row.u >= 0.5 and row.action != "defer")
    service.change(lambda t: reviews.wish(t, wished.id, actor="dr.no", comment="odd"))
    clinic.read()
    # The gate begins at 0.5, where the coin ends, so nothing that was deferred is left to train.
    with service.database.reading() as connection:
        assert plan_bag(connection, "skin", PLAN).trainers == []
        higher = PLAN.model_copy(update={"gate_from": 0.9})
        chosen = plan_bag(connection, "skin", higher)
    deferred = {row.id for row in rows if 0.5 <= row.u < 0.9 and row.action == "defer" and row.seq <= chosen.upto}
    assert {case.decision for case in chosen.trainers} == deferred
    assert wished.id not in deferred


def test_what_the_champion_fitted_on_the_bag_defers_does_not_train_the_bag(service: Service) -> None:
    clinic = Clinic(service)
    sent(clinic, 60)
    clinic.read()
    digest = recalibrate(service, "skin", actor="engineer")["digest"]
    into_shadow(service, digest)
    clinic.send(20)
    service.watch()
    close_all(service)
    promote(service, digest)
    sent(clinic, 120)
    clinic.read()
    with service.database.reading() as connection:
        chosen = plan_bag(connection, "skin", PLAN.model_copy(update={"gate_from": 0.95}))
        decided = connection.execute(select(DECISION).where(DECISION.c.model == digest)).all()
    assert any(row.action == "defer" and row.u >= 0.5 for row in decided), "the new champion has deferred"
    assert chosen.trainers
    assert all(case.model != digest for case in chosen.trainers)


# ---------------------------------------------------------------------- the model and its report


def test_the_candidate_is_the_site_model_of_these_cases(service: Service) -> None:
    clinic = Clinic(service)
    sent(clinic, 60)
    clinic.read(lambda id, label: "outside" if label == "c3" else label)
    report = recalibrate(service, "skin", actor="engineer")
    loaded = service.models["skin"].model(report["digest"])
    site = loaded.model
    assert isinstance(site, SiteModel)
    with service.database.reading() as connection:
        plan = parse_protocol(latest_protocol(connection, "skin").text, source="").recalibration  # type: ignore[union-attr]
    assert plan == PLAN
    assert {entry["name"]: entry["labels"] for entry in report["classes"]} == site.counts_
    assert report["promises"] == list(site.promises_)
    assert site.settings_.random_state == 7
    assert report["gate"] >= 19
    assert site.gate_distances_ is not None
    assert site.counts_["c3"] == 0
    # The patients of the bag are recognised by the pseudonyms that later requests bring.
    bag = clinic.drawn()[:60]
    with service.database.reading() as connection:
        vectors = embeddings_of(connection, [row.seq for row in bag])
    answers = loaded.answers(
        np.stack([vectors[row.seq] for row in bag]), groups=[None] * 60, group_digests=[row.group_digest for row in bag]
    )
    assert sum(answer["known_group"] for answer in answers) == sum(site.counts_.values()) > 30


def test_without_a_trusted_key_nothing_is_made(tmp_path: Path) -> None:
    site = clinic_site(tmp_path)
    text = site.file.read_text()
    write_private_key(tmp_path / "other.key")
    for changed, message in (
        (text.replace('signing_key = "signer.key"\n', ""), "name a signing_key"),
        (text.replace('signing_key = "signer.key"', 'signing_key = "other.key"'), "does not trust"),
    ):
        site.file.write_text(changed)
        with Service(site.settings) as service:
            clinic = Clinic(service, seed=len(message))
            sent(clinic, 60)
            clinic.read()
            assert message in refusal(service)


def test_a_policy_that_comes_after_the_bag_changes_nothing_about_it(service: Service) -> None:
    """Thinned to the smallest probability up to its own last case: nobody can choose a bag by changing the policy."""

    def sampled(p: float) -> None:
        policy = Policy(sample=p, visit_minutes=0.0, second_reader=0.0, due_days=30)
        event = policy_event("skin", policy, actor="engineer", why="fewer readings")
        service.change(lambda transaction: transaction.append([event]))
        service.models["skin"].follow()

    clinic = Clinic(service)
    clinic.send(30)
    sampled(0.4)
    while sum(row.u < 0.4 for row in clinic.drawn()) < 60:
        clinic.send(1)
    clinic.read()
    with service.database.reading() as connection:
        before = plan_bag(connection, "skin", PLAN)
    assert len(before.cases) == 60
    assert all(case.u < 0.4 for case in before.cases)
    assert any(0.4 <= row.u < 0.5 for row in clinic.drawn()), "some were drawn with 0.5, and are thinned out"
    sampled(0.2)
    clinic.send(60)
    clinic.read()
    with service.database.reading() as connection:
        after = plan_bag(connection, "skin", PLAN)
    assert [case.decision for case in after.cases] == [case.decision for case in before.cases]
    assert (after.upto, after.gate) == (before.upto, before.gate)


# ---------------------------------------------------------------------- gates


def names(answer: Any, where: str = "") -> set[str]:
    """The names in a JSON answer with where they are; every class of the coverage and every state is `*`."""
    if isinstance(answer, list):
        return {where}.union(*(names(entry, where) for entry in answer))
    if not isinstance(answer, dict):
        return {where}
    many = where.endswith((".states", ".coverage.classes"))
    return set().union(*(names(value, f"{where}.{'*' if many else name}") for name, value in answer.items()))


def test_gates_count_labels_after_the_cut_off_and_never_set_size(tmp_path: Path) -> None:
    protocol = PROTOCOL.format(on_alarm="defer").replace(
        "on_alarm", "min_labels_per_class = 5\nmin_coverage = 0.6\non_alarm"
    )
    with running(clinic_site(tmp_path, protocol=protocol)) as (service, call):
        clinic = Clinic(service)
        sent(clinic, 60)
        clinic.read()
        report = call("POST", "/v1/recalibrations", as_="engineer").json()
        digest, path = report["digest"], f"/v1/recalibrations/{report['digest']}"
        into_shadow(service, digest)
        restore_tested(service)
        clinic.send(30)
        failed = call("GET", path, as_="auditor").json()["failed_gates"]
        assert len([text for text in failed if "labels after the cut-off, 5 needed" in text]) == 4
        assert any(text.startswith("Of 0 read cases after the cut-off") for text in failed)
        clinic.send(90)
        clinic.read()
        service.change(lambda transaction: None)
        shown = call("GET", path, as_="approver").json()
        assert shown["failed_gates"] == []
        # The description of the API shows these answers as they are.
        assert names(examples.ANSWERS["/v1/recalibrations/{digest}"]) == names(shown)
        assert names(examples.ANSWERS["/v1/recalibrations"]) == names(report)
        truth = {row.id: clinic.truth[row.id] for row in clinic.drawn() if row.seq > report["upto"]}
        with service.database.reading() as connection:
            bodies = connection.execute(select(EVENT.c.subject, EVENT.c.body).where(EVENT.c.kind == "shadow_decision"))
            shadows = {subject: json.loads(body) for subject, body in bodies}
            coverage = shadow_coverage(connection, "skin", digest)
        judged = [(id, shadows[id]) for id in truth if id in shadows and shadows[id]["reason"] != "low_support"]
        assert coverage["labels"] == len(judged)
        assert coverage["covered"] == sum(truth[id] in body["set"] for id, body in judged)
        assert shown["shadow"]["decisions"] == len(shadows) == 120
        assert 0 <= shown["shadow"]["differ"] <= 120
        # Cases of the bag were decided before the cut-off: the candidate may not be judged by them.
        assert not set(truth) & {row.id for row in clinic.drawn()[:60]}
        # Nor by patients of the model's own data, nor by cases that chance did not draw, whoever labels them.
        rows, labels, _ = clinic.draw(40)
        requests = [
            DecisionRequest(embedding_f32=b"", group=f"calibration-patient-{i}", image_id=f"known {i}")
            for i in range(40)
        ]
        case = service.admission["skin"].case
        cases = [case(sent, row, key=None, actor="clinic") for sent, row in zip(requests, rows, strict=True)]
        for answer, label in zip(service.writer.submit(cases).result(), labels, strict=True):
            clinic.truth[answer.id] = WORLD.classes[label]
        classes = service.models["skin"].prompts.classes
        laboratory = {"source": "pathology", "actor": "lab", "classes": classes}
        service.change(lambda t: [receive_label(t, id, label=said, **laboratory) for id, said in clinic.truth.items()])
        assert sum(row.in_model for row in clinic.drawn()) > 5
        with service.database.reading() as connection:
            assert shadow_coverage(connection, "skin", digest) == coverage
    assert not [name for name in Protocol.model_fields if "size" in name or "informative" in name]


def test_a_model_from_elsewhere_needs_labels_here_as_well(tmp_path: Path) -> None:
    protocol = 'description = "as shown here"\nmin_shadow_decisions = 5\nmin_labels_per_class = 5\n'
    site = clinic_site(tmp_path, protocol=protocol)
    with Service(site.settings) as service:
        clinic = Clinic(service, shift=0.0)
        clinic.send(40)
        clinic.read()
        models = service.models["skin"]
        digest, add = models.add(another_model(site, "elsewhere.safetensors"), actor="engineer")
        service.change(add)
        into_shadow(service, digest)
        clinic.send(20)
        with pytest.raises(Problem) as found:
            promote(service, digest)
        assert found.value.status == 409
        assert found.value.detail.count("0 labels after the cut-off, 5 needed.") == 4
        clinic.send(80)
        clinic.read()
        promote(service, digest)
        assert models.champion.digest == digest


def test_cases_without_a_label_count_as_missed_in_the_gate(tmp_path: Path) -> None:
    """Whatever the candidate misses stays unread: among the labelled ones nothing is wrong, and the gate stays shut."""
    protocol = PROTOCOL.format(on_alarm="defer").replace("on_alarm", "min_coverage = 0.9\non_alarm")
    with Service(clinic_site(tmp_path, protocol=protocol).settings) as service:
        clinic = Clinic(service)
        sent(clinic, 60)
        clinic.read()
        digest = recalibrate(service, "skin", actor="engineer")["digest"]
        into_shadow(service, digest)
        restore_tested(service)
        clinic.send(400)
        service.change(lambda transaction: None)
        with service.database.reading() as connection:
            rows = connection.execute(select(SHADOW_DECISION)).all()
            missed = {row.decision for row in rows if clinic.truth[row.decision] not in json.loads(row.released_set)}
        clinic.read(lambda id, label: None if id in missed else label)
        with service.database.reading() as connection:
            shown = shadow_coverage(connection, "skin", digest)
            failed = service.models["skin"].gates(connection, digest)
        assert shown["covered"] == shown["labels"] > 100
        assert shown["missing"] > 5
        assert least_coverage([True] * shown["labels"], alpha=0.05) > 0.95, "the twin that leaves them out is content"
        assert shown["lower"] < 0.9 < shown["lower_missing_as_hits"]
        assert any("drawn cases without a label count as missed" in text for text in failed)


def test_one_case_more_changes_no_gate_that_a_reader_sees(tmp_path: Path) -> None:
    """That drawn cases without a label count as missed would tell a drawn case from a deferral."""
    protocol = PROTOCOL.format(on_alarm="defer").replace("on_alarm", "min_coverage = 0.9\non_alarm")
    with running(clinic_site(tmp_path, protocol=protocol)) as (service, call):
        clinic = Clinic(service)
        sent(clinic, 60)
        clinic.read()
        digest = recalibrate(service, "skin", actor="engineer")["digest"]
        into_shadow(service, digest)
        seen: dict[str, set[str]] = {"clinician": set(), "auditor": set()}
        for _ in range(20):
            clinic.send(1)
            service.change(lambda transaction: None)
            for role, gates in seen.items():
                failed = call("GET", f"/v1/recalibrations/{digest}", as_=role).json()["failed_gates"]
                gates.update(text for text in failed if text.startswith("Of "))
        assert len(seen["auditor"]) > 5
        # Twenty images hold one end of a step.
        assert 1 <= len(seen["clinician"]) <= 2


def test_an_open_alarm_stops_a_promotion(service: Service) -> None:
    clinic = Clinic(service, shift=FAR)
    sent(clinic, 60)
    clinic.read()
    service.watch()
    digest = recalibrate(service, "skin", actor="engineer")["digest"]
    into_shadow(service, digest)
    clinic.send(20)
    service.change(lambda transaction: None)
    with pytest.raises(Problem, match=r"1 alarm must be closed first"):
        promote(service, digest)
    close_all(service)
    promote(service, digest)
    assert service.models["skin"].champion.digest == digest


# ---------------------------------------------------------------------- three lines


@pytest.mark.timeout(600)
def test_three_sites_each_learn_their_own_way(tmp_path: Path) -> None:
    """Three clinics on one service: own home model, coin, bag, site model, promotion and alarms."""
    site = make_site(tmp_path)
    homes = {"north": "model.safetensors"}
    homes |= {
        name: another_model(site, f"{name}.safetensors", seed=5 + k).name for k, name in enumerate(("south", "west"))
    }
    (tmp_path / "protocol.toml").write_text(PROTOCOL.format(on_alarm="full_set"))
    fixed_coins(tmp_path)
    names = ("north", "south", "west")
    site.file.write_text(
        'name = "hospital/skin"\ndata = "data"\nport = 0\n'
        + "".join(
            f'[[lines]]\nname = "{name}"\nprompts = "skin.prompts.safetensors"\nmodel = "{homes[name]}"\n'
            f'trusted = ["signer.key.pub"]\n{LINE}sample = 0.5\n'
            for name in names
        )
    )
    with Service(site.settings) as service:
        shifts = dict(zip(names, (0.0, 0.7, FAR), strict=True))
        clinics = {name: Clinic(service, name, seed=i, shift=shifts[name]) for i, name in enumerate(names)}
        first = {name: service.models[name].champion.digest for name in names}
        assert len(set(first.values())) == 3
        digests = {}
        for _ in range(4):
            for clinic in clinics.values():
                clinic.send(40)
                clinic.read()
            service.watch()
        for name, clinic in clinics.items():
            sent(clinic, 60)
            clinic.read()
            digests[name] = recalibrate(service, name, actor="engineer")["digest"]
            into_shadow(service, digests[name], name)
        for clinic in clinics.values():
            clinic.send(20)
        service.watch()
        for name in names[1:]:
            close_all(service, name)
            promote(service, digests[name], name)
        assert len(set(digests.values())) == 3
        assert service.models["north"].champion.digest == first["north"]
        with service.database.reading() as connection:
            lines_of = {row.id: row.line for row in connection.execute(select(DECISION))}
            for name in names:
                report = report_of(connection, name, digests[name])
                assert report is not None
                assert report["home"] == first[name], "the prior of each site model is its own line's"
                assert sum(entry["labels"] for entry in report["classes"]) <= report["cases"] == 60
                assert all(lines_of[case.decision] == name for case in plan_bag(connection, name, PLAN_61).cases)
        answered = {name: clinic.send(10) for name, clinic in clinics.items()}
        with service.database.reading() as connection:
            rows = connection.execute(select(DECISION)).all()
        by_id = {row.id: row for row in rows}
        for name, ids in answered.items():
            assert {by_id[id].model for id in ids} == {first[name] if name == "north" else digests[name]}
        # One patient who comes to all three, in one block: three coins, each that of its line.
        vector, _, _ = clinics["north"].draw(1)
        cases = []
        for name in names:
            wanted = DecisionRequest(embedding_f32=b"", group="the same patient", image_id="the same image", line=name)
            cases.append(service.admission[name].case(wanted, vector[0], key=f"same-{name}", actor="clinic"))
        same = [answer.body["u"] for answer in service.writer.submit(cases).result()]
        secret = site_secret(site.settings)
        assert same == [secret.for_line(name).coin("the same patient") for name in names]
        assert len(set(same)) == 3
        service.watch()
        bags = {name: [state.bag for state in service.monitors[name].states()] for name in names}
        home = {name: f"home-{first[name][:16]}" for name in names}
        assert bags == {"north": [home["north"]], "south": [home["south"], "bag-0"], "west": [home["west"], "bag-0"]}
        assert {a.monitor for state in service.monitors["west"].states()[:1] for a in state.watch.alarms} == {"M1"}
        assert service.monitors["north"].states()[0].watch.alarms == []
        # Another camera in the south takes back the answers of the south alone; a step back is one line's too.
        clinics["south"].shift = -FAR
        clinics["south"].send(120)
        service.watch()
        with service.database.reading() as connection:
            assert [alarm["bag"] for alarm in open_alarms(connection, "south")] == ["bag-0"]
            assert open_alarms(connection, "north") == open_alarms(connection, "west") == []
        under = {name: clinic.send(20) for name, clinic in clinics.items()}
        with service.database.reading() as connection:
            reasons = dict(connection.execute(select(DECISION.c.id, DECISION.c.reason)).all())
        assert {name for name, ids in under.items() if any(reasons[id] == "alarm" for id in ids)} == {"south"}
        service.change(lambda t: service.models["west"].roll_back(t, actor="engineer", why="as an exercise"))
        for models in service.models.values():
            models.follow()
        now = {name: service.models[name].champion.digest for name in names}
        assert now == {"north": first["north"], "south": digests["south"], "west": first["west"]}


def test_the_command_recalibrates_while_nothing_serves(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    site = clinic_site(tmp_path)
    run = CliRunner().invoke
    with Service(site.settings) as service:
        clinic = Clinic(service)
        sent(clinic, 60)
        clinic.read()
    done = run(app, ["service", "recalibrate", str(site.file), "--json"])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["cases"] == 60
    again = run(app, ["service", "recalibrate", str(site.file)])
    assert again.exit_code == 1
    assert "the next time is 120 drawn cases" in again.output
