"""Monitor and models as pages: an alarm in plain words that two people close, a candidate that two people promote."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from service.clinic import Clinic, clinic_site, restore_tested
from service.visitors import Person

from calcode.service.alarms import open_alarms
from calcode.service.log import Event
from calcode.service.models import latest_deployment
from calcode.service.people import make_token
from calcode.service.recalibration import recalibrate
from calcode.service.service import Service


@pytest.fixture
def clinic(tmp_path: Path) -> Iterator[Clinic]:
    """Patients who were decided and read."""
    with Service(clinic_site(tmp_path).settings) as service:
        made = Clinic(service, shift=0.25)
        made.send(150)
        made.read()
        service.watch()
        yield made


def test_a_candidate_is_made_shown_and_promoted_by_two_people(clinic: Clinic) -> None:
    service = clinic.service
    engineer, approver = Person(service, "emil", "engineer"), Person(service, "anke", "approver")
    assert "Calibrate on the cases" not in approver.get("/models").text
    made = engineer.send("/models", "/models/recalibrate", {"line": "skin"})
    assert made.status_code == 303
    # The protocol names the times; one press more is refused in words.
    again = engineer.send("/models", "/models/recalibrate", {"line": "skin"})
    assert again.status_code == 409
    assert "The protocol allows no recalibration now" in again.text
    assert "<h1>Not possible now</h1>" in again.text
    assert '<a href="/models">Back to models</a>' in again.text
    page = engineer.get("/models").text
    assert "Report of the calibration" in page
    assert re.search(r"Made from 60 patients drawn at random", page)
    digest = re.findall(r'name="digest" value="(\w{64})"', page)[0]

    def step(person: Person, name: str) -> int:
        fields = {"step": name, "line": "skin", "digest": digest, "why": "seen on the ward"}
        status: int = person.send("/models", "/models/step", fields).status_code
        return status

    assert step(approver, "shadow") == 403
    assert step(engineer, "elsewhere") == 422
    assert (
        engineer.send("/models", "/models/step", {"step": "shadow", "line": "skin", "digest": digest}).status_code
        == 422
    )
    assert step(engineer, "shadow") == 303
    clinic.send(30)
    restore_tested(service)
    page = engineer.get("/models").text
    assert "On 30 images in the shadow" in page
    reader = Person(service, "rita", "clinician").get("/models").text
    assert "What it would change is not shown to you" in reader
    assert "images in the shadow, " not in reader
    assert step(approver, "promoted") == 409
    assert step(engineer, "proposed") == 303
    assert step(engineer, "promoted") == 403
    assert step(approver, "promoted") == 303
    assert service.models["skin"].champion.digest == digest
    assert re.search(r"Proposed by emil \(“seen on the ward”\) and approved by anke", engineer.get("/models").text)
    assert "A model calibrated on cases of this site has answered" in Person(service, "ida", "auditor").get("/").text
    assert "It has decided no image so far" in Person(service, "ida", "auditor").get("/").text
    clinic.send(3)
    assert "It has decided 3 images" in Person(service, "ida", "auditor").get("/").text
    cleo = Person(service, "cleo", "clinician")
    assert f'name="digest" value="{digest}"' in cleo.get("/models").text
    assert step(cleo, "rolled-back") == 303
    # Pressed a second time on the page from before, it goes back no further.
    assert step(cleo, "rolled-back") == 409
    with service.database.reading() as connection:
        row = latest_deployment(connection, "skin")
    assert row is not None
    assert row.champion != digest


def test_a_change_has_a_page_with_its_modification_its_protocol_and_its_impact(clinic: Clinic) -> None:
    service = clinic.service
    models = service.models["skin"]
    engineer, reader = Person(service, "emil", "engineer"), Person(service, "rita", "clinician")
    home = models.champion.digest
    digest = recalibrate(service, "skin", actor="emil")["digest"]
    address = f"/models/{digest}"
    assert f'href="{address}?line=skin"' in engineer.get("/models").text
    assert "It is a candidate and answers nobody." in shown(engineer, address)
    assert "nothing is known about what it changes here" in shown(engineer, address)
    service.change(lambda t: models.set_shadow(t, digest, actor="emil", why="after 60 cases"))
    models.follow()
    clinic.send(30)
    # The shadow decides after the answers; a change waits for it.
    service.change(lambda _: None)
    page = shown(engineer, address)
    assert f"would take the place of the model {home[:12]}" in page
    assert re.search(r"calibrated on cases of this site emil, record \d", page)
    assert re.search(r"decides in the shadow: “after 60 cases” emil, record \d", page)
    assert "The protocol that was in force when the model was added, in the log since record" in page
    assert re.search(r"It may not answer yet: .*No restore test within", page)
    assert "On 30 images in the shadow" in page
    assert "Made from 60 patients drawn at random" in page
    assert "What it promises: " in page
    withheld = shown(reader, address)
    assert "is not shown to you, because you read cases" in withheld
    assert "images in the shadow, " not in withheld
    restore_tested(service)
    service.change(lambda t: models.propose(t, digest, actor="emil", why="it knows the site"))
    service.change(lambda t: models.approve(t, digest, actor="anke", why="the bound holds"))
    models.follow()
    page = shown(engineer, address)
    assert "It answers now." in page
    assert f"takes the place of the model {home[:12]}" in page
    assert re.search(r"proposed: “it knows the site” emil, .* approved: “the bound holds” anke, ", page)
    assert "It met every condition when it was approved" in page
    assert "On 30 images in the shadow" in page
    # A later text of the protocol is not the one under which this model was made.
    later = "description = 'Another plan.'\n"
    event = Event(kind="protocol_set", actor="emil", subject="0" * 64, body={"line": "skin", "text": later})
    service.change(lambda t: t.append([event]))
    assert "Another plan." not in shown(engineer, address)
    first = shown(engineer, f"/models/{home}")
    assert "It answered before, and does not answer now." in first
    assert "is the first one of this line" in first
    assert re.search(r"answers no more: “the bound holds” anke, record \d", first)
    assert engineer.get(f"/models/{'0' * 64}").status_code == 404


def test_one_patient_is_no_all_clear(tmp_path: Path) -> None:
    with Service(clinic_site(tmp_path, sample=1.0).settings) as service:
        Clinic(service).send(1)
        service.watch()
        page = Person(service, "ida", "auditor").get("/monitor").text
    shown = " ".join(re.sub(r"<[^>]+>", " ", page[page.index("<main") :]).split())
    assert "No sign of a change so far, after 1 patient and 0 labels." in shown
    assert "1 patient was drawn at random" in shown
    assert "1 waits for a reader" in shown
    assert "1 of them has no vote so far" in shown
    assert "After 1 patient the evidence" in shown


def shown(person: Person, page: str) -> str:
    """The words of a page."""
    text = person.get(page).text
    return " ".join(re.sub(r"<[^>]+>", " ", text[text.index("<main") :]).split())


def test_no_figure_tells_a_reader_what_the_model_said_about_one_case_more(tmp_path: Path) -> None:
    with Service(clinic_site(tmp_path, sample=0.000001).settings) as service:
        clinic = Clinic(service, shift=0.25)
        cleo, ida = Person(service, "cleo", "clinician"), Person(service, "ida", "auditor")

        def counts() -> str:
            return re.findall(r"(?:Of the first|How it answers|It has decided).*?\.(?= )", shown(cleo, "/"))[0]

        clinic.send(19)
        clinic.read()
        service.watch()
        assert "in steps of 20 images, and not before the first 20" in counts()
        assert "It has decided 19 images" in shown(ida, "/")
        clinic.send(1)
        assert counts().startswith("Of the first 20 images that it decided: ")
        before = counts(), shown(cleo, "/monitor").partition("Readings")[0]
        assert "hidden from people who read cases" in before[1]
        clinic.send(19)
        service.watch()
        assert (counts(), shown(cleo, "/monitor").partition("Readings")[0]) == before
        assert "after 39 patients" in shown(ida, "/monitor")
        for words in ("drawn at random", "mean set size", "were deferred", "has no vote", "have no vote"):
            assert words not in shown(cleo, "/monitor")
        # An engineer who also reads cases reads them with what they know.
        make = {"subject": "emil", "days": 1, "actor": "test"}
        service.change(lambda t: make_token(t, roles=["clinician"], **make))
        assert "hidden from people who read cases" in shown(Person(service, "emil", "engineer"), "/monitor")
        clinic.send(1)
        assert counts().startswith("Of the first 40 images")


def test_the_newest_model_comes_first(clinic: Clinic) -> None:
    digest = recalibrate(clinic.service, "skin", actor="emil")["digest"]
    page = Person(clinic.service, "emil", "engineer").get("/models").text
    shown = re.findall(r'<h3>[^<]*<span class="hash">(\w+)</span>', page)
    assert shown == [digest[:12], clinic.service.models["skin"].champion.digest[:12]]


def test_an_alarm_speaks_plainly_and_two_people_close_it(clinic: Clinic) -> None:
    service = clinic.service
    engineer, clinician = Person(service, "emil", "engineer"), Person(service, "cleo", "clinician")
    assert "No alarm on skin" in engineer.get("/monitor").text
    clinic.send(120)
    # Every label is one that the answer left out.
    clinic.read(label=lambda decision, truth: "c1" if truth == "c0" else "c0")
    service.watch()
    with service.database.reading() as connection:
        alarms = open_alarms(connection, "skin")
    assert alarms
    page = engineer.get("/monitor").text
    first = re.search(r"<main.*?<details", page, re.DOTALL)
    assert first is not None
    assert "more often than it may" in first[0] or "look different" in first[0]
    for technical in ("e-value", "capital", "martingale", "M3"):
        assert technical not in first[0]
    # A model fitted elsewhere answered; it changes nothing by itself.
    assert "The answers stay as they are" in first[0]
    assert "open alarm" in re.findall(r"<h1>(.*?)</h1>", page)[0]
    assert "more often than it may" in clinician.get("/").text or "look different" in clinician.get("/").text
    assert "Close this alarm" not in Person(service, "ida", "auditor").get("/monitor").text
    fields = {"line": "skin", "alarm": alarms[0]["id"], "then": "go_on", "why": "labels were mixed up"}
    assert engineer.send("/monitor", "/monitor/close", {**fields, "then": ""}).status_code == 422
    asked = engineer.send("/monitor", "/monitor/close", fields)
    assert asked.headers["location"].endswith("done=alarm-asked")
    assert engineer.send("/monitor", "/monitor/close", fields).status_code == 403
    closed = clinician.send("/monitor", "/monitor/close", fields)
    assert closed.headers["location"].endswith("done=alarm-closed")
    with service.database.reading() as connection:
        assert [alarm["id"] for alarm in open_alarms(connection, "skin")] == [alarm["id"] for alarm in alarms[1:]]
    assert "Alarms of the past" in clinician.get("/monitor").text


def test_the_monitor_shows_labels_coverage_with_what_belongs_to_it_and_the_wait(clinic: Clinic) -> None:
    page = Person(clinic.service, "ida", "auditor").get("/monitor").text
    for words in (
        "patients were drawn at random",
        "missing as hits",
        "missing as misses",
        "mean set size",
        "full sets",
        "were deferred",
        "needs before its alarm can be raised",
    ):
        assert words in page, words
    assert Person(clinic.service, "ida", "auditor").get("/monitor?line=lung").status_code == 422
