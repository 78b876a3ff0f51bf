"""Reading a case on the pages: blind first, then the answer; second readers, a third who settles; nobody is led."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from service.sites import embeddings, make_site
from service.visitors import Person, session
from sqlalchemy import select

from calcode.service import blindness, reviews
from calcode.service.sampling import task_event
from calcode.service.service import Service
from calcode.service.tables import DECISION, EVENT, OUTBOX, REVIEW, TASK

EVIL = '<script>alert("x")</script>'


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Many patients, so that no test uses up a kind of answer; every one drawn, no random second reader; two wards."""
    lines = 'visit_minutes = 0\nsample = 1.0\nsecond_reader = 0.0\nviewer_url = "https://pacs.example/?s={study}"\n'
    lines += 'names = { c3 = "<b>seborrhoeic</b> keratosis" }\n'
    site = make_site(tmp_path_factory.mktemp("site"), line_lines=lines)
    with Service(site.settings) as running:
        admission = running.admission["skin"]
        cases = []
        for i, vector in enumerate(embeddings(160)):
            who = {"group": f"patient-{i}", "image_id": EVIL if i == 0 else f"image-{i}", "study": f"1.2.{i}"}
            where = {"site": "ward-3" if i % 2 else "ward-4", "device": "cam-1"}
            wanted = admission_request(vector.tolist(), who | where)
            cases.append(admission.case(wanted, vector, key=f"k{i}", actor="test"))
        running.writer.submit(cases).result()
        yield running


def admission_request(vector: list[float], fields: dict[str, str]) -> Any:
    from calcode.service.admission import DecisionRequest

    return DecisionRequest(embedding=vector, **fields)


def rows(service: Service, query: Any) -> list[Any]:
    with service.database.reading() as connection:
        return list(connection.execute(query).all())


def opened(person: Person, part: str = "") -> str:
    """The task that the reader gets next."""
    answer = person.get(f"/review/next{part}", follow_redirects=False)
    return re.sub(r"\?.*", "", answer.headers["location"]).removeprefix("/review/")


def decision_of(service: Service, task: str) -> Any:
    return rows(service, select(DECISION).join(TASK, TASK.c.decision == DECISION.c.id).where(TASK.c.id == task))[0]


def read(person: Person, task: str, label: str, **more: str) -> Any:
    return person.send(f"/review/{task}", f"/review/{task}", {"label": label, **more})


def test_the_answer_is_hidden_until_a_diagnosis_is_saved(service: Service) -> None:
    anna = Person(service, "anna", "clinician")
    task = opened(anna)
    row = decision_of(service, task)
    question = anna.get(f"/review/{task}").text
    assert "What do you see?" in question
    assert "&lt;b&gt;seborrhoeic&lt;/b&gt; keratosis" in question
    for leak in ("remain possible", "The model gives", "p_audit", row.model[:12], "Result for each diagnosis"):
        assert leak not in question
    # By no other page either.
    hidden = anna.get(f"/cases/{row.id}").text
    assert "hidden from you" in hidden
    assert "remain possible" not in hidden
    assert "The model gives" not in hidden
    assert row.released_set not in hidden
    assert "Drawn" not in hidden
    assert anna.get(f"/review/{task}/answer", follow_redirects=False).headers["location"].startswith(f"/review/{task}")
    saved = read(anna, task, "c1", sureness="3", comment="clear")
    assert saved.status_code == 303
    answer = anna.get(saved.headers["location"]).text
    assert "You had not seen the model's answer" in answer
    assert "The model said" in answer
    kinds = [
        event.kind for event in rows(service, select(EVENT).where(EVENT.c.subject == row.id).order_by(EVENT.c.seq))
    ]
    assert kinds.index("case_viewed") < kinds.index("review_saved") < kinds.index("answer_revealed")
    assert "The model" in anna.get(f"/cases/{row.id}").text


def test_no_page_tells_a_reader_that_the_model_deferred(service: Service) -> None:
    anna = Person(service, "anna", "clinician")
    waiting = rows(service, select(TASK).where(TASK.c.state == "open", TASK.c.why.in_(("deferred", "sample"))))
    assert {task.why for task in waiting} == {"deferred", "sample"}
    queue = anna.get("/review").text
    assert "First reading" in queue
    for task in (next(task for task in waiting if task.why == why) for why in ("deferred", "sample")):
        pages = [queue, anna.get(f"/cases/{task.decision}").text, anna.get(f"/review/{task.id}").text]
        assert not any("gave no answer" in page or "drawn at random" in page.lower() for page in pages)


def test_a_changed_answer_stands_beside_the_first_and_is_not_blind(service: Service) -> None:
    anna = Person(service, "anna", "clinician")
    task = opened(anna)
    read(anna, task, "c0")
    changed = anna.send(f"/review/{task}/answer", f"/review/{task}/change", {"label": "c2"})
    assert changed.status_code == 303
    assert "Your changed answer is saved" in anna.get(changed.headers["location"]).text
    first, second = rows(service, select(REVIEW).where(REVIEW.c.task == task).order_by(REVIEW.c.seq))
    assert (first.label, first.blind, second.label, second.blind) == ("c0", True, "c2", False)
    assert second.supersedes == first.id
    # It opened a second reading, which is not for the same person.
    waiting = rows(service, select(TASK).where(TASK.c.decision == first.decision, TASK.c.state == "open"))
    assert [entry.why for entry in waiting] == ["second"]
    assert read(Person(service, "ben", "clinician"), waiting[0].id, "c2").status_code == 303


def test_a_second_reader_sees_nothing_of_the_first_and_a_third_settles(service: Service) -> None:
    anna, ben, cleo = (Person(service, name, "clinician") for name in ("anna", "ben", "cleo"))
    task = opened(anna)
    row = decision_of(service, task)
    read(anna, task, "cannot_tell", comment="too dark")
    (second,) = rows(service, select(TASK).where(TASK.c.decision == row.id, TASK.c.why == "second"))
    page = ben.get(f"/review/{second.id}").text
    assert "Second reading" in page
    assert "too dark" not in page
    assert "anna" not in page
    assert "too dark" not in ben.get(f"/cases/{row.id}").text
    read(ben, second.id, "c1")
    other = opened(anna)
    case = decision_of(service, other)
    read(anna, other, "c0", comment="net")
    assert anna.send(f"/review/{other}/answer", f"/review/{other}/change", {"label": "c1"}).status_code == 303
    (again,) = rows(service, select(TASK).where(TASK.c.decision == case.id, TASK.c.why == "second"))
    read(ben, again.id, "c3", comment="dots")
    (settle,) = rows(service, select(TASK).where(TASK.c.decision == case.id, TASK.c.why == "adjudicate"))
    shown = cleo.get(f"/review/{settle.id}").text
    assert "Two readers differ" in shown
    assert "dots" in shown
    assert "remain possible" not in shown
    assert "The model gives" not in shown
    # Neither of the two may settle it.
    assert anna.get(f"/review/{settle.id}", follow_redirects=False).headers["location"].endswith("answer?line=&site=")
    read(cleo, settle.id, "c3")
    assert rows(service, select(REVIEW).where(REVIEW.c.task == settle.id))[0].source == "consensus"


def test_the_heading_says_what_the_answer_is_worth(service: Service) -> None:
    """A set that holds the reader's diagnosis beside others is no agreement, least of all one that holds every one."""
    anna = Person(service, "anna", "clinician")
    free = select(TASK.c.id, DECISION.c.action, DECISION.c.released_set).join(
        DECISION, DECISION.c.id == TASK.c.decision
    )
    cases = {}
    for task in rows(
        service,
        free.where(
            TASK.c.state == "open",
            TASK.c.lease_by.is_(None) | (TASK.c.lease_by == "anna"),
            TASK.c.why.in_(("deferred", "sample")),
        ),
    ):
        named = json.loads(task.released_set)
        words = "does not rule out your" if "c0" in named else "does not include your"
        if task.action == "defer":
            words = "gave no answer"
        elif len(named) == 4:
            words = "rules nothing out"
        elif named == ["c0"]:
            words = "gives your diagnosis"
        cases[words] = task.id
    assert {"gives your diagnosis", "does not include your", "gave no answer"} <= cases.keys()
    for words, task in cases.items():
        read(anna, task, "c0")
        page = anna.get(f"/review/{task}/answer").text
        assert words in re.findall(r"<h1>(.*?)</h1>", page)[0]
        assert ("says of no diagnosis whether it is possible" in page) == (words == "gave no answer")
        possible = re.findall(r'data-heading="Possible"><span class="cell">(.*?)</span>', page)
        assert (set(possible) == {"\u2013"}) == (words == "gave no answer")


def test_somebody_was_faster_and_a_lease_keeps_others_out(service: Service) -> None:
    anna, ben = Person(service, "anna", "clinician"), Person(service, "ben", "clinician")
    task = opened(anna)
    anna.get(f"/review/{task}")
    busy = ben.get(f"/review/{task}")
    assert busy.status_code == 409
    assert "Another reader has this case open" in busy.text
    assert opened(ben) != task
    read(anna, task, "c0")
    late = ben.get(f"/review/{task}")
    assert late.status_code == 409
    assert "Another reader saved this case" in late.text
    offered = ben.send(f"/review/{task}", f"/review/{task}/second", {})
    second = re.sub(r"\?.*", "", offered.headers["location"]).removeprefix("/review/")
    assert read(ben, second, "c0").status_code == 303
    assert len(rows(service, select(REVIEW).where(REVIEW.c.decision == decision_of(service, task).id))) == 2


def test_nonsense_is_refused_and_nothing_is_saved(service: Service) -> None:
    anna = Person(service, "anna", "clinician")
    task = opened(anna)
    before = len(rows(service, select(REVIEW)))
    for fields in ({}, {"label": "elephant"}, {"label": "c0", "sureness": "9"}, {"label": "c0", "sureness": "x"}):
        assert anna.send(f"/review/{task}", f"/review/{task}", fields).status_code == 422, fields
    assert anna.get("/review/nowhere").status_code == 404
    assert len(rows(service, select(REVIEW))) == before


def test_the_queue_is_filtered_and_ends(service: Service) -> None:
    dora = Person(service, "dora", "clinician")
    page = dora.get("/review?site=ward-3").text
    assert "ward-3" in page
    assert not re.search(r"<td[^>]*><span class=\"cell\">ward-4", page)
    task = opened(dora, "?site=ward-3")
    assert decision_of(service, task).site == "ward-3"
    assert "done=read-all" in dora.get("/review/next?site=elsewhere", follow_redirects=False).headers["location"]
    auditor = Person(service, "olga", "auditor")
    watched = auditor.get("/review").text
    assert 'href="/review/' not in watched.replace('href="/review"', "")


def test_cases_of_one_batch_have_different_names_in_the_queue(service: Service) -> None:
    page = Person(service, "eva", "clinician").get("/review").text
    names = re.findall(r'<th scope="row">(?:<a[^>]*>)?([^<]+)<', page)
    assert len(names) > 10
    assert len(set(names)) == len(names)


def test_hostile_text_of_senders_and_readers_never_runs(service: Service) -> None:
    eve, auditor = Person(service, "eve", "clinician"), Person(service, "olga", "auditor")
    task = opened(eve)
    question = eve.get(f"/review/{task}").text
    assert read(eve, task, "c0", comment=EVIL).status_code == 303
    answer = eve.get(f"/review/{task}/answer").text
    history = auditor.get(f"/cases/{decision_of(service, task).id}").text
    for text in (question, answer, history):
        assert "<script>alert" not in text
    for text in (answer, history):
        assert "&lt;script&gt;alert" in text
    # The name that the sender gave the image.
    first = rows(service, select(DECISION).order_by(DECISION.c.seq))[0]
    assert "&lt;script&gt;alert" in auditor.get(f"/cases/{first.id}").text


def test_a_person_limited_to_other_lines_sees_none_of_this(service: Service) -> None:
    from calcode.service import people

    def change(transaction: Any) -> str:
        people.set_roles(transaction, subject="faye", roles=["clinician"], source="local", actor="t", lines=["lung"])
        return people.open_session(transaction, subject="faye", roles=["clinician"], method="test")

    task = rows(service, select(TASK))[0]
    faye = Person(service)
    faye.client.cookies.set("calcode_session", service.change(change))
    service.tokens.reload()
    assert "No case waits" in faye.get("/review").text
    assert faye.get(f"/review/{task.id}").status_code in (403, 404)
    assert faye.get(f"/cases/{task.decision}").status_code == 404
    assert faye.get("/log").status_code == 403
    assert "You have access to no line" in faye.get("/").text
    assert session(service, "gus", "auditor")


def test_a_case_shows_its_place_in_the_log_its_proof_and_who_saw_it(service: Service) -> None:
    event = service.checkpoints.next_event()
    service.change(lambda transaction: transaction.append([event]))
    auditor = Person(service, "olga", "auditor")
    row = rows(service, select(DECISION).order_by(DECISION.c.seq.desc()))[0]
    page = auditor.get(f"/cases/{row.id}").text
    assert f"Record {row.seq:,} of hospital/skin is one of" in page
    proof = auditor.get(f"/cases/{row.id}/proof").json()
    assert proof["seq"] == row.seq
    assert auditor.get(f"/cases/{row.id}/image").status_code == 403
    assert Person(service, "anna", "clinician").get(f"/cases/{row.id}/image").status_code == 404
    with service.database.reading() as connection:
        seen = select(EVENT).where(EVENT.c.kind == "case_viewed", EVENT.c.subject == row.id, EVENT.c.actor == "olga")
        assert connection.execute(seen).first() is not None
        assert not reviews.open_for(connection, row.id, "olga")


def test_the_history_of_a_case_is_in_the_order_of_the_log(service: Service) -> None:
    """A reader opens a case, says what it is, and is then shown the answer; also where one moment holds it all."""
    task = opened(Person(service, "hugo", "clinician"))
    row = decision_of(service, task)

    def change(transaction: Any) -> None:
        reviews.take(transaction, task, reviewer="hugo")
        label: dict[str, Any] = {"label": "c0", "sureness": 3, "comment": "", "classes": ("c0", "c1", "c2", "c3")}
        reviews.save(transaction, task, reviewer="hugo", **label)
        blindness.reveal(transaction, row.id, reviewer="hugo")

    service.change(change)
    page = Person(service, "olga", "auditor").get(f"/cases/{row.id}").text
    happened = re.findall(r"<li><time[^>]*>[^<]*</time>(.*?)</li>", page, re.DOTALL)
    steps = [" ".join(html.unescape(re.sub(r"<[^>]+>", " ", step)).split()) for step in happened]
    assert steps[2:5] == ["Opened by hugo", "Read by hugo", "The model's answer was shown to hugo"]


def test_the_history_does_not_tell_a_second_reader_that_the_first_one_changed_the_answer(service: Service) -> None:
    """Who changes an answer after the model's was shown points at the model's."""
    anna = Person(service, "anna", "clinician")
    task = opened(anna)
    row = decision_of(service, task)
    read(anna, task, "c0")
    anna.send(f"/review/{task}/answer", f"/review/{task}/change", {"label": "c1"})
    page = Person(service, "ben", "clinician").get(f"/cases/{row.id}").text
    for words in ("Read by", "Read again by", "answer was shown to"):
        assert words not in page, words
        assert words in Person(service, "olga", "auditor").get(f"/cases/{row.id}").text, words


def test_the_log_shows_seconds(service: Service) -> None:
    page = Person(service, "olga", "auditor").get("/log").text
    assert re.search(r"<time[^>]*>\d+ \w+ \d{4}, \d\d:\d\d:\d\d UTC</time>", page)


def test_a_case_says_where_its_report_went_and_the_start_page_which_receiver_is_down(service: Service) -> None:
    row = rows(service, select(DECISION).order_by(DECISION.c.seq))[0]
    shared = {"seq": row.seq, "decision": row.id, "queued_at": "2026-05-03T10:00:00.000000Z", "attempts": 3}
    shared |= {"payload_digest": None, "next_at": "2026-05-03T10:00:00.000000Z", "fault": "refused", "receipt": None}
    values = [
        {**shared, "id": "1", "kind": "dicom", "target": "pacs", "done_at": "2026-05-03T10:01:00.000000Z"},
        {**shared, "id": "2", "kind": "fhir", "target": "ehr", "done_at": None},
    ]
    known = OUTBOX.c.keys()
    service.change(
        lambda t: [t.connection.execute(OUTBOX.insert().values(**{k: v[k] for k in known if k in v})) for v in values]
    )
    auditor = Person(service, "olga", "auditor")
    page = auditor.get(f"/cases/{row.id}").text
    assert re.search(r"pacs</th>.*?received.*?3 May 2026, 10:01", page, re.DOTALL)
    assert re.search(r"ehr</th>.*?waits since", page, re.DOTALL)
    assert "1 report waits for ehr" in auditor.get("/").text
    service.change(lambda t: t.connection.execute(OUTBOX.delete()))


def test_who_judges_models_sees_no_patient(service: Service) -> None:
    task = opened(Person(service, "anna", "clinician"))
    read(Person(service, "anna", "clinician"), task, "c0", comment="a scar on the left hand")
    row = decision_of(service, task)
    patient = f"patient-{row.seq - rows(service, select(DECISION).order_by(DECISION.c.seq))[0].seq}"
    seen = {role: Person(service, f"the-{role}", role).get(f"/cases/{row.id}").text for role in ("auditor", "engineer")}
    for words in (patient, "a scar on the left hand", "pacs.example"):
        assert words in seen["auditor"], words
        assert words not in seen["engineer"], words
    assert row.model[:16] in seen["engineer"]


def test_an_approver_who_saw_the_answer_does_not_read_it_blind_as_a_clinician(service: Service) -> None:
    task = opened(Person(service, "ivy", "clinician"))
    row = decision_of(service, task)
    assert "hidden from you" not in Person(service, "kim", "approver").get(f"/cases/{row.id}").text
    kim = Person(service, "kim", "clinician")
    service.change(lambda t: t.connection.execute(TASK.update().where(TASK.c.id == task).values(lease_by=None)))
    read(kim, task, "c0")
    assert [review.blind for review in rows(service, select(REVIEW).where(REVIEW.c.decision == row.id))] == [False]


def test_the_answer_waits_until_the_patients_other_image_is_read(tmp_path: Path) -> None:
    site = make_site(tmp_path, line_lines="visit_minutes = 0\nsample = 1.0\nsecond_reader = 0.0\n")
    with Service(site.settings) as running:
        admission = running.admission["skin"]
        vectors = embeddings(2)
        wanted = [admission_request(vector.tolist(), {"group": "p"}) for vector in vectors]
        cases = [
            admission.case(request, vector, key=f"k{i}", actor="test")
            for i, (request, vector) in enumerate(zip(wanted, vectors, strict=True))
        ]
        running.writer.submit(cases).result()
        first, other = rows(running, select(DECISION).order_by(DECISION.c.seq))
        asked = task_event(other.id, line="skin", why="wish", actor="test", due=None)
        running.change(lambda transaction: transaction.append([asked]))
        anna = Person(running, "anna", "clinician")
        assert read(anna, first.id, "c0").status_code == 303
        page = anna.get(f"/review/{first.id}/answer").text
        assert "comes later" in page
        assert "The model said" not in page
        assert "hidden from you" in anna.get(f"/cases/{first.id}").text
        read(anna, asked.id, "c0")
        assert "The model said" in anna.get(f"/review/{first.id}/answer").text
        assert [row.blind for row in rows(running, select(REVIEW))] == [True, True]


def test_a_clinician_asks_for_a_case_that_nobody_was_to_read(tmp_path: Path) -> None:
    site = make_site(tmp_path, line_lines="visit_minutes = 0\nsample = 0.000001\n")
    with Service(site.settings) as running:
        vector = embeddings(1)[0]
        wanted = admission_request(vector.tolist(), {"group": "p"})
        case = running.admission["skin"].case(wanted, vector, key="k", actor="test")
        running.writer.submit([case]).result()
        (row,) = rows(running, select(DECISION))
        anna = Person(running, "anna", "clinician")
        if row.action != "defer":
            sent = anna.send(f"/cases/{row.id}", f"/cases/{row.id}/wish", {"comment": "odd"})
            assert sent.status_code == 303
            assert [task.why for task in rows(running, select(TASK))] == ["wish"]
