"""A diagnosis that no answer can leave out is never shown as what the model found in an image."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from service.clinic import Clinic, clinic_site, restore_tested
from service.sites import embeddings, fitted, make_site, sign
from service.visitors import Person
from sqlalchemy import select

from calcode.errors import ServiceError
from calcode.method.model import Calcode
from calcode.service.admission import DecisionRequest
from calcode.service.decision_routes import record_of
from calcode.service.explanation import Explanation, explanation_of
from calcode.service.in_every_answer import in_every_answer
from calcode.service.people import Principal
from calcode.service.recalibration import recalibrate
from calcode.service.service import Service
from calcode.service.tables import DECISION, TASK

NAMES = 'names = { c0 = "eczema", c1 = "psoriasis", c2 = "tinea", c3 = "lupus" }\n'


def read_and_promote(clinic: Clinic) -> None:
    """Read what waits, nearly nothing of it as lupus (c3); then a site model is made, shadowed and promoted."""
    service, seen = clinic.service, iter(range(1000))
    clinic.read(label=lambda decision, truth: "c0" if truth == "c3" and next(seen) > 3 else truth)
    digest = recalibrate(service, "skin", actor="emil")["digest"]
    models = service.models["skin"]
    service.change(lambda t: models.set_shadow(t, digest, actor="emil", why="to be seen"))
    models.follow()
    clinic.send(30)
    restore_tested(service)
    service.change(lambda t: models.propose(t, digest, actor="emil", why="to be seen"))
    service.change(lambda t: models.approve(t, digest, actor="anke", why="to be seen"))
    models.follow()


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clinic]:
    """A promoted site model that has read too few cases of lupus (c3), and patients whom it answered."""
    site = clinic_site(tmp_path_factory.mktemp("clinic"))
    site.file.write_text(site.file.read_text().replace("[[lines]]\n", f"[[lines]]\n{NAMES}"))
    with Service(site.settings) as running:
        made = Clinic(running, shift=0.25)
        made.send(150)
        read_and_promote(made)
        assert running.models["skin"].champion.model.in_every_set_.keys() == {"c3"}
        made.send(120)
        yield made


@pytest.fixture
def service(clinic: Clinic) -> Service:
    return clinic.service


def answered(service: Service) -> list[Any]:
    """Decisions of the site model."""
    digest = service.models["skin"].champion.digest
    with service.database.reading() as connection:
        return list(connection.execute(select(DECISION).where(DECISION.c.model == digest)).all())


def explained(service: Service, id: str) -> Explanation:
    auditor = Principal(subject="olga", roles=frozenset({"auditor"}), lines=None, prefix="")
    return explanation_of(record_of(service, auditor, id), service)


def text_of(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page[page.index("<main") :]).split())


def test_it_comes_last_without_a_score_and_is_marked(service: Service) -> None:
    for row in answered(service):
        facts = explained(service, row.id)
        last = facts.classes[-1]
        assert (last.name, last.score, last.threshold, last.in_every_set) == ("c3", None, None, True)
        scores = [entry.score for entry in facts.classes[:-1]]
        assert scores == sorted(scores)
        assert not any(entry.in_every_set for entry in facts.classes[:-1])
    partial = next(row for row in answered(service) if row.action == "set" and row.released_set.count("c") < 4)
    page = Person(service, "ida", "auditor").get(f"/cases/{partial.id}").text
    assert "(and lupus, which is in every answer)" in page
    assert re.search(r"diagnoses remain possible: (?!lupus)", page)
    assert re.search(r"lupus</th>.*?\u2013.*?\u2013.*?yes.*?in every answer: too few cases read", page, re.DOTALL)


def test_an_answer_that_holds_nothing_else_is_no_diagnosis(service: Service) -> None:
    for row in answered(service):
        (first, *_) = explained(service, row.id).sentences
        if row.released_set == '["c3"]':
            assert first == "The model rules out every diagnosis but lupus, which is in every answer."
        assert first != "The model gives one diagnosis: lupus."


def test_a_reader_who_gives_it_is_told_that_the_model_never_rules_it_out(service: Service) -> None:
    anna = Person(service, "anna", "clinician")
    with service.database.reading() as connection:
        query = select(TASK.c.id, DECISION.c.released_set).join(DECISION, DECISION.c.id == TASK.c.decision)
        digest = service.models["skin"].champion.digest
        waiting = connection.execute(
            query.where(TASK.c.state == "open", DECISION.c.model == digest, DECISION.c.action == "set")
        ).all()
    partial = [task for task in waiting if task.released_set.count("c") < 4]
    held = next(name for name in ("c0", "c1", "c2") if name in partial[1].released_set)
    for task, label, heading in (
        (partial[0], "c3", "The model cannot rule out your diagnosis (it never does)"),
        (partial[1], held, "The model does not rule out your diagnosis"),
    ):
        assert anna.send(f"/review/{task.id}", f"/review/{task.id}", {"label": label}).status_code == 303
        page = anna.get(f"/review/{task.id}/answer").text
        assert f"<h1>{heading}</h1>" in page
        verdict = re.findall(r'<h2>The model said</h2><p class="verdict">(.*?)</p>', page)[0]
        assert verdict.endswith(" (and lupus, which is in every answer)")
        assert not verdict.startswith("lupus")


def test_a_model_whose_file_is_gone_is_known_by_the_report_of_its_calibration(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = service.models["skin"].champion.digest

    def gone(digest: str) -> None:
        raise ServiceError(f"{digest}: no such file")

    monkeypatch.setattr(service.models["skin"], "model", gone)
    body = {"line": "skin", "model": digest, "scores": [0.1, 0.2, 0.3, 0.0]}
    assert in_every_answer(service, body) == (frozenset({"c3"}), False)


def home_service(folder: Path, **settings: Any) -> Service:
    """A service with a home model of these settings."""
    site = make_site(folder, line_lines="visit_minutes = 0\n")
    path = folder / "model.safetensors"
    fitted(site.prompts, **settings).save(path)
    path.with_name("model.safetensors.sig").unlink()
    sign(path, site.key)
    return Service(site.settings)


def decided(service: Service, n: int) -> list[str]:
    """Decisions on n new patients."""
    admission = service.admission["skin"]
    cases = [
        admission.case(DecisionRequest(embedding_f32=b"", group=f"p{i}"), row, key=f"k{i}", actor="t")
        for i, row in enumerate(embeddings(n))
    ]
    return [answer.id for answer in service.writer.submit(cases).result()]


def test_a_full_set_is_called_empty_of_information(tmp_path: Path) -> None:
    with home_service(tmp_path, miscoverage=0.001, audit=None) as running:
        id, *_ = decided(running, 8)
        ida = Person(running, "ida", "auditor")
        case, start = (text_of(ida.get(path).text) for path in (f"/cases/{id}", "/"))
    assert "All 4 diagnoses remain possible: the answer rules nothing out." in case
    assert "It has decided 8 images: 100 % all diagnoses (rules nothing out)." in start


def test_a_home_model_marks_a_class_without_a_guard_but_not_where_it_fits_best(tmp_path: Path) -> None:
    with home_service(tmp_path, always_protect=["c1"], guard_miscoverage={"c1": 0.001}) as running:
        model = running.models["skin"].champion.model
        assert isinstance(model, Calcode)
        assert model.in_every_set_.keys() == {"c1"}
        seen = set()
        for id in decided(running, 60):
            facts = explained(running, id)
            scores = [entry.score for entry in facts.classes]
            assert None not in scores
            assert scores == sorted(scores)
            (own,) = (entry for entry in facts.classes if entry.name == "c1")
            assert own.in_every_set == (facts.classes[0].name != "c1")
            seen.add(own.in_every_set)
        assert seen == {True, False}


def test_the_monitor_says_how_many_models_its_figures_span_and_what_cannot_be_missed(clinic: Clinic) -> None:
    service = clinic.service
    service.watch()
    page = text_of(Person(service, "ida", "auditor").get("/monitor").text)
    assert re.search(r"Since monitoring of this sample began \(\d+ cases\), ", page)
    assert "lupus in every answer" in page
    assert "eczema in every answer" not in page
    read_and_promote(clinic)
    clinic.send(10)
    service.watch()
    page = text_of(Person(service, "ida", "auditor").get("/monitor").text)
    assert re.search(r"Since monitoring of this sample began \(\d+ cases, 2 models\), ", page)
