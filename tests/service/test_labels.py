"""Labels: which one stands, where they come from, when they are late or missing, how well readers agree."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from service.sites import make_site, running
from service.test_reviews import Ward, all_read
from sqlalchemy import select
from typer.testing import CliRunner

from calcode.cli.app import app
from calcode.service.agreement import agreement, cohens_kappa
from calcode.service.labels import Review, reviewed_cases, standing
from calcode.service.log import utc
from calcode.service.sampling import later
from calcode.service.tables import EVENT, REVIEW, TASK


@pytest.fixture
def ward(tmp_path: Path) -> Iterator[Ward]:
    with running(all_read(tmp_path)) as (service, call):
        yield Ward(service, call)


def cases(ward: Ward, **options: Any) -> list[Any]:
    with ward.service.database.reading() as connection:
        return reviewed_cases(connection, "skin", **options)


def review(seq: int, reviewer: str, label: str, source: str = "read", **more: Any) -> Review:
    facts = {"id": f"r{seq}", "blind": True, "supersedes": None, **more}
    return Review(seq=seq, reviewer=reviewer, label=label, source=source, **facts)


# ---------------------------------------------------------------------- which label stands

A = review(1, "anna", "mel")
B_SAME, B_OTHER = review(2, "ben", "mel"), review(2, "ben", "nv")
UNSURE_A, UNSURE_B = review(1, "anna", "cannot_tell"), review(2, "ben", "cannot_tell")
CHANGED = review(3, "anna", "nv", supersedes="r1", blind=False)
B_LED = review(4, "ben", "nv", blind=False)
CHANGED_AGAIN = review(5, "anna", "nv", supersedes="r3", blind=False)
SETTLED = review(6, "cleo", "mel", "consensus")
SETTLED_LED = review(7, "cleo", "nv", "consensus", supersedes="r6", blind=False)
SETTLED_ANEW = review(8, "dora", "nv", "consensus")
LAB = review(4, "lab", "bcc", "pathology")


@pytest.mark.parametrize(
    ("reviews", "second", "state", "label"),
    [
        ([], False, "pending", None),
        # Who settles is led by the model's answer as anybody is.
        ([A, B_OTHER, SETTLED], False, "labelled", "mel"),
        ([A, B_OTHER, SETTLED, SETTLED_LED], False, "disputed", None),
        ([A, B_OTHER, SETTLED, SETTLED_LED, SETTLED_ANEW], False, "labelled", "nv"),
        # Said twice after the model's answer was shown, it is no more blind than said once.
        ([A, CHANGED, CHANGED_AGAIN], False, "disputed", None),
        ([A], False, "labelled", "mel"),
        ([A], True, "pending", None),
        ([A, B_SAME], True, "labelled", "mel"),
        ([A, B_OTHER], True, "disputed", None),
        ([A, B_OTHER], False, "disputed", None),
        ([A, B_OTHER, review(3, "carla", "nv", "consensus")], True, "labelled", "nv"),
        ([A, B_OTHER, review(3, "carla", "cannot_tell", "consensus")], True, "cannot_tell", None),
        ([UNSURE_A], False, "pending", None),
        ([UNSURE_A, UNSURE_B], False, "cannot_tell", None),
        ([UNSURE_A, B_OTHER], False, "labelled", "nv"),
        ([UNSURE_A, UNSURE_B, LAB], False, "labelled", "bcc"),
        ([review(1, "anna", "outside")], False, "outside", None),
        ([A, CHANGED], False, "disputed", None),
        ([A, CHANGED, B_LED], False, "disputed", None),
        ([A, CHANGED, review(5, "anna", "mel", supersedes="r3", blind=False)], False, "labelled", "mel"),
        ([A, B_OTHER, CHANGED], True, "labelled", "nv"),
        # Two said so before the model's answer was shown; what one of them says after it is kept apart.
        ([A, B_SAME, CHANGED], True, "labelled", "mel"),
        ([A._replace(blind=False), B_SAME, CHANGED], True, "disputed", None),
        ([UNSURE_A, UNSURE_B, CHANGED], False, "cannot_tell", None),
        ([A, LAB], True, "labelled", "bcc"),
        ([A, LAB, review(5, "lab", "mel", "pathology", supersedes="r4")], False, "labelled", "mel"),
        ([A, B_OTHER, LAB, review(6, "carla", "mel", "consensus")], True, "labelled", "bcc"),
    ],
)
def test_the_label_that_stands(reviews: list[Review], second: bool, state: str, label: str | None) -> None:
    found = standing(reviews, second=second)
    assert (found.state, found.label) == (state, label)


def test_a_label_rests_on_a_blind_reading_or_says_that_it_does_not() -> None:
    led = A._replace(blind=False)
    assert not standing([led]).blind
    assert standing([A, review(3, "anna", "mel", supersedes="r1", blind=False)]).blind, "the first answer was the same"
    assert standing([led, B_SAME], second=True).blind


_ENTRIES = st.lists(
    st.tuples(
        st.sampled_from(["anna", "ben", "carla"]),
        st.sampled_from(["mel", "nv", "outside", "cannot_tell"]),
        st.sampled_from(["read", "read", "consensus", "pathology"]),
    ),
    max_size=6,
)


@given(entries=_ENTRIES, second=st.booleans())
def test_pathology_always_stands_and_readers_who_differ_never_do(
    entries: list[tuple[str, str, str]], second: bool
) -> None:
    reviews = [review(seq, who, label, source) for seq, (who, label, source) in enumerate(entries, start=1)]
    found = standing(reviews, second=second)
    results = [entry.label for entry in reviews if entry.source == "pathology"]
    readings = {entry.label for entry in reviews} - {"cannot_tell"}
    if results and results[-1] in ("mel", "nv"):
        assert found.label == results[-1]
    elif all(entry.source == "read" for entry in reviews):
        assert (found.state == "disputed") == (len(readings) > 1)
    assert (found.label is None) == (found.state != "labelled")


# ---------------------------------------------------------------------- results of the laboratory


def test_a_result_stands_over_readings_closes_what_waits_and_is_superseded_never_changed(ward: Ward) -> None:
    (one, two) = ward.decide(2)
    ward.read("anna", one, "c0")
    sent = ward("program", "POST", "/v1/labels", json={"decision": one, "label": "c1"})
    assert sent.status_code == 200, sent.text
    again = ward("program", "POST", "/v1/labels", json={"decision": one, "label": "c1"})
    assert again.json() == sent.json(), "the same result again changes nothing"
    assert [(case.label, case.source) for case in cases(ward)] == [("c1", "pathology"), (None, None)]
    ward("program", "POST", "/v1/labels", json={"decision": one, "label": "outside"})
    assert cases(ward)[0].state == "outside"
    assert [row.label for row in ward.rows(REVIEW)] == ["c0", "c1", "outside"]
    assert [entry["decision"] for entry in ward.queue("ben")] == [two]
    ward("program", "POST", "/v1/labels", json={"decision": two, "label": "c3"})
    assert ward.queue("ben") == []
    late = ward.rows(TASK, decision=two)[0].id
    answer = ward("ben", "POST", f"/v1/tasks/{late}/take")
    assert (answer.status_code, answer.json()["second"]) == (409, False)
    assert ward("anna", "POST", "/v1/labels", json={"decision": two, "label": "c3"}).status_code == 403


def test_a_result_by_study_reaches_all_its_images(ward: Ward) -> None:
    images = ward.decide(3, study="S-1")
    ward.decide(2, seed=1, study="S-2")
    answer = ward("program", "POST", "/v1/labels", json={"study": "S-1", "label": "c2"})
    assert [row["decision"] for row in answer.json()] == images
    assert {case.decision for case in cases(ward) if case.label == "c2"} == set(images)


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        ({"label": "c0"}, "name a decision or a study, one of them"),
        ({"study": "S", "decision": "0" * 32, "label": "c0"}, "name a decision or a study, one of them"),
        ({"study": "S-secret", "label": "c0"}, "no decision has this study"),
        ({"decision": "0" * 32, "label": "c0"}, "no decision has this id"),
        ({"study": "S-1", "label": "c0", "line": "other"}, "no line of this name"),
        ({"study": "S-1", "label": "cannot_tell"}, "label is one of c0, c1, c2, c3, outside"),
    ],
)
def test_a_result_about_nothing_is_refused(ward: Ward, sent: dict[str, str], sentence: str) -> None:
    ward.decide(study="S-1")
    answer = ward("program", "POST", "/v1/labels", json=sent)
    assert answer.status_code == 422
    assert sentence in answer.json()["detail"]
    assert "S-secret" not in answer.text
    assert ward.rows(REVIEW) == []
    assert len(ward.rows(EVENT, kind="refused")) == 1


BAD_FILE = "study,label,source\nS-1,c0,\nS-9,c0,\nS-2,melanoma,\n,c1,\nS-1,c2,\nS-2,c1,gossip\n"


def test_every_mistake_of_a_file_is_named_and_nothing_is_written(ward: Ward) -> None:
    ward.decide(study="S-1")
    ward.decide(seed=1, study="S-2")
    headers = {"Content-Type": "text/csv"}
    answer = ward("program", "POST", "/v1/labels/csv", content=BAD_FILE, headers=headers)
    assert answer.status_code == 422
    mistakes = answer.json()["mistakes"]
    assert [sentence.partition(":")[0] for sentence in mistakes] == ["row 2", "row 3", "row 4", "row 5", "row 6"]
    assert all(sentence in answer.json()["detail"] for sentence in mistakes)
    assert "S-9" not in answer.text
    assert ward.rows(REVIEW) == []
    assert len(ward.rows(EVENT, kind="refused")) == 1
    good = "\ufefflabel; study\nc0;S-1\nc1;S-2\nc0;S-1\n"
    answer = ward("program", "POST", "/v1/labels/csv", content=good.encode(), headers=headers)
    assert answer.status_code == 200, answer.text
    assert [case.label for case in cases(ward)] == ["c0", "c1"]
    for bad in ("", "study\nS-1\n", "study,label\n", "study,label,age\nS-1,c0,7\n", b"\xff\xfe"):
        assert ward("program", "POST", "/v1/labels/csv", content=bad, headers=headers).status_code == 422


def test_the_command_takes_the_same_file(tmp_path: Path) -> None:
    site = all_read(tmp_path)
    with running(site) as (service, call):
        ward = Ward(service, call)
        ward.decide(study="S-1")
        ward.decide(seed=1, study="S-2")
    (tmp_path / "bad.csv").write_text(BAD_FILE)
    (tmp_path / "good.csv").write_text("study,label\nS-1,c0\nS-2,c1\n")
    run = CliRunner().invoke
    bad = run(app, ["service", "labels", str(site.file), str(tmp_path / "bad.csv")])
    assert bad.exit_code == 1
    assert "row 5" in bad.output
    gone = run(app, ["service", "labels", str(site.file), str(tmp_path / "gone.csv")])
    assert "gone.csv: No such file or directory; give a file that can be read" in " ".join(gone.output.split())
    (tmp_path / "latin.csv").write_bytes("label,study\nc0,é\n".encode("latin-1"))
    latin = run(app, ["service", "labels", str(site.file), str(tmp_path / "latin.csv")])
    assert "latin.csv: not a CSV file in UTF-8; save the sheet as CSV UTF-8" in " ".join(latin.output.split())
    done = run(app, ["service", "labels", str(site.file), str(tmp_path / "good.csv"), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["labels"] == 2
    with running(site) as (service, call):
        assert [case.label for case in cases(Ward(service, call))] == ["c0", "c1"]


# ---------------------------------------------------------------------- late and missing


def test_late_and_missing_labels(ward: Ward) -> None:
    one, two, _, four = ward.decide(4)
    ward.read("anna", one, "c0")
    ward.read("anna", two, "cannot_tell")
    ward.read("ben", two, "cannot_tell")
    ward.read("anna", four, "c1")
    assert [case.state for case in cases(ward)] == ["labelled", "cannot_tell", "pending", "labelled"]
    assert [case.waiting for case in cases(ward)] == [False, True, True, False]
    due = later(utc(time.time()), days=29)
    found = cases(ward, now=due)
    assert [case.state for case in found] == ["labelled", "cannot_tell", "missing", "labelled"]
    assert not any(case.waiting for case in found), "after its day nobody waits for a label"
    with ward.service.log.transaction() as transaction:
        transaction.connection.execute(TASK.update().values(due_at="2020-01-01T00:00:00.000000Z"))
    late = [case.state for case in cases(ward)]
    assert late == ["labelled", "cannot_tell", "missing", "labelled"], "a label that came after its day is a label"


def test_what_each_label_may_do(tmp_path: Path) -> None:
    """SITE.md S5: the coin's cases calibrate, deferrals train, what people chose trains the next bag."""
    site = make_site(tmp_path, line_lines="sample = 0.5\nvisit_minutes = 0.0\nsecond_reader = 0.0")
    secret = site.settings.path("secret.key")
    secret.parent.mkdir()
    secret.write_bytes(bytes(range(32)))  # with it some deferred cases are drawn and some are not
    with running(site) as (service, call):
        ward = Ward(service, call)
        ids = ward.decide(60)
        task = {row.decision: row.why for row in ward.rows(TASK)}
        free = [id for id in ids if id not in task]
        ward("anna", "POST", f"/v1/decisions/{free[0]}/wish", json={})
        ward("program", "POST", "/v1/labels", json={"decision": free[1], "label": "c0"})
        found = {case.decision: case for case in cases(ward)}
    assert set(found) == {*task, free[0], free[1]}
    assert (found[free[0]].why, found[free[0]].use) == ("wish", "train_next")
    assert (found[free[1]].why, found[free[1]].use) == ("label", "train_next")
    for decision, why in task.items():
        case = found[decision]
        assert case.use == ("calibrate" if case.u < 0.5 else "train")
        assert case.why == why
    assert {case.use for case in found.values() if case.why == "deferred"} == {"calibrate", "train"}


def test_deferred_images_that_stand_for_nobody_are_read_and_never_used(tmp_path: Path) -> None:
    with running(all_read(tmp_path)) as (service, call):
        ward = Ward(service, call)
        first, *others = ward.decide(30, group="anna-b")
        deferred = {row.decision for row in ward.rows(TASK)} - {first}
        assert deferred
        for decision in deferred:
            assert ward.read("anna", decision, "c0").status_code == 200
        assert [case.decision for case in cases(ward)] == [first]
        assert not deferred - set(others)


# ---------------------------------------------------------------------- readers


def test_agreement_counts_the_pairs_that_chance_made(tmp_path: Path) -> None:
    with running(all_read(tmp_path, second=0.5)) as (service, call):
        ward = Ward(service, call)
        ids = ward.decide(30)
        for i, decision in enumerate(ids):
            ward.read("anna", decision, "cannot_tell" if i < 5 else "c0")
        for i, entry in enumerate(ward.queue("ben")):
            ward.read("ben", entry["decision"], "c1" if i % 3 == 0 else "c0")
        with service.database.reading() as connection:
            found = agreement(connection, "skin")
            query = select(REVIEW).where(REVIEW.c.source == "read").order_by(REVIEW.c.seq)
            rows = connection.execute(query).all()
        from calcode.service.tables import DECISION

        drawn = {row.id for row in ward.rows(DECISION) if row.u_second < row.p_second}
        by_reader = {who: {r.decision: r.label for r in rows if r.reviewer == who} for who in ("anna", "ben")}
        pairs = [(by_reader["anna"][d], by_reader["ben"][d]) for d in ids if d in drawn]
        assert found.n_pairs == len(pairs) > 0
        assert found.n_differ == sum(one != other for one, other in pairs)
        assert found.kappa == pytest.approx(cohens_kappa(pairs))
        assert (found.n_readings, found.n_blind) == (len(rows), len(rows))
        assert found.share_cannot_tell == 5 / len(rows)
        assert found.seconds is not None
        assert found.seconds > 0
        assert found.backlog == len(ward.queue("carla")) == sum(row.state == "open" for row in ward.rows(TASK))
        assert ward("auditor", "GET", "/v1/agreement").json()["n_pairs"] == len(pairs)


def test_kappa_is_that_of_the_book() -> None:
    """A table of 50 cases: 20 and 15 agreed on, 5 and 10 not; kappa 0.4."""
    pairs = [("y", "y")] * 20 + [("y", "n")] * 5 + [("n", "y")] * 10 + [("n", "n")] * 15
    assert cohens_kappa(pairs) == pytest.approx(0.4)
    assert cohens_kappa([("y", "y")] * 3) is None
    assert cohens_kappa([]) is None
