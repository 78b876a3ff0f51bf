"""What people read: promises and alarms in plain words, the same truth as the exact sentences."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from service.clinic import Clinic, clinic_site
from service.sites import Site, another_model, embeddings, fitted, make_site, running, sign
from service.visitors import Person

from calcode.method.model import Calcode
from calcode.service.explanation import ClassFacts, Explanation
from calcode.service.pages import environment
from calcode.service.recalibration import recalibrate
from calcode.service.service import Service
from calcode.service.wording import answer_in_words, audit_of, promises_in_words
from calcode.site import SiteModel

#: Words of those who built it, which say nothing to a clinician.
TECHNICAL = re.compile(
    r"exchangeab|guarded|localized|fused|level=|known_group|sqrt|certify_|alpha|delta|\bn_y\b|coin|bag|e-value|capital|"
    r"martingale|zero-shot|label space|'c\d'",
    re.IGNORECASE,
)
NAMES = 'names = { c0 = "eczema", c1 = "psoriasis", c2 = "tinea", c3 = "lupus" }\n'


@pytest.mark.parametrize("settings", [{}, {"level": "certified"}, {"fused": "split"}])
def test_the_promises_of_a_home_model_speak_plainly_and_name_every_protected_class(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    site = make_site(tmp_path, line_lines=NAMES)
    path = tmp_path / "other.safetensors"
    fitted(site.prompts, seed=1, always_protect=["c1"], **settings).save(path)
    sign(path, site.key)
    with Service(site.settings) as service:
        digest, add = service.models["skin"].add(path, actor="e.meier")
        service.change(add)
        said = promises_in_words(service, "skin", digest)
        model = service.models["skin"].model(digest).model
    assert isinstance(model, Calcode)
    assert [sentence for sentence in said if TECHNICAL.search(sentence)] == []
    words = {"c0": "eczema", "c1": "psoriasis", "c2": "tinea", "c3": "lupus"}
    named = [name for name, word in words.items() if any(word in sentence.lower() for sentence in said)]
    assert named == sorted(guard.name for guard in model.guards_)
    assert any("not promised" in sentence for sentence in said) == (
        model.settings_.level == "loo" or (model.audit_ is not None and not model.audit_.independent)
    )


@pytest.mark.parametrize("diagnostic", ["distance", "msp"])
def test_a_deferral_is_told_by_what_the_model_looked_at(tmp_path: Path, diagnostic: str) -> None:
    """Explanation, promises and reports; where the model is gone, none of them guesses."""
    site = make_site(tmp_path)
    path = tmp_path / "model.safetensors"
    path.with_name("model.safetensors.sig").unlink()
    fitted(site.prompts, audit=[diagnostic], deferral_level=0.4).save(path)
    sign(path, site.key)
    with running(site) as (service, call):
        said = [
            call("POST", "/v1/decisions", json={"embedding": row.tolist(), "image_id": str(i)}).json()
            for i, row in enumerate(embeddings(30))
        ]
        deferred = next(answer for answer in said if answer["reason"] == "low_support")
        told = call("GET", f"/v1/decisions/{deferred['id']}/explanation", as_="auditor").json()
        words = {"distance": ("unlike those", "as far away"), "msp": ("unsure about", "at least as unsure")}
        mine, other = words.pop(diagnostic), *words.values()
        text = " ".join(told["sentences"])
        assert all(part in text for part in mine), text
        assert not any(part in text for part in other), text
        assert any(mine[0] in sentence for sentence in told["promises"])
        assert audit_of(service, {"line": "skin", "model": deferred["model"]}) == diagnostic
        assert audit_of(service, {"line": "skin", "model": "0" * 64}) is None
        assert "too little support" in answer_in_words("defer", "low_support", [], n_classes=4)[1]


def test_the_promises_of_a_site_model_have_its_labels_and_levels(tmp_path: Path) -> None:
    with Service(clinic_site(tmp_path).settings) as service:
        clinic = Clinic(service, shift=0.25)
        clinic.send(150)
        clinic.read()
        digest = recalibrate(service, "skin", actor="emil")["digest"]
        said = promises_in_words(service, "skin", digest)
        model = service.models["skin"].model(digest).model
        page = Person(service, "cleo", "clinician").get("/models").text
    assert isinstance(model, SiteModel)
    for name, count in model.counts_.items():
        (sentence,) = [sentence for sentence in said if re.search(rf"\b{name}\b", sentence)]
        if name in model.silenced_classes_:
            assert f"{name} ({count})" in sentence
            assert "Every answer includes" in sentence
        else:
            level = float(re.findall(r"at least ([\d.]+)", sentence)[0]) / 100
            assert level == pytest.approx(1 - model.levels_[name], abs=6e-4)
            assert f"{count} read cases" in sentence
    assert [sentence for sentence in said if TECHNICAL.search(re.sub(r"\bc\d\b", "", sentence))] == []
    assert "the guarded set contains" not in page


def test_a_model_whose_file_is_gone_keeps_the_sentences_of_the_log(site: Site) -> None:
    path = another_model(site, "other.safetensors")
    with Service(site.settings) as service:
        digest, add = service.models["skin"].add(path, actor="e.meier")
        service.change(add)
        exact = service.promises("skin", digest)
    for file in Path(site.settings.path("models")).glob(f"*{digest[:8]}*"):
        file.unlink()
    with Service(site.settings) as service:
        assert promises_in_words(service, "skin", digest) == exact
        assert promises_in_words(service, "elsewhere", "0" * 64) == []


def test_alarms_and_monitor_name_diagnoses_as_people_do(tmp_path: Path) -> None:
    site = clinic_site(tmp_path)
    site.file.write_text(site.file.read_text().replace("[[lines]]\n", f"[[lines]]\n{NAMES}"))
    with Service(site.settings) as service:
        clinic = Clinic(service)
        clinic.send(120)
        # Every label is one that the answer left out.
        clinic.read(label=lambda decision, truth: "c1" if truth == "c0" else "c0")
        service.watch()
        clinician = Person(service, "cleo", "clinician")
        monitor, start = (clinician.get(path).text for path in ("/monitor", "/"))
    shown = re.sub(r"<[^>]+>", " ", monitor[monitor.index("<main") :])
    assert "leaves out eczema" in shown or "leaves out psoriasis" in shown
    assert "leaves out eczema" in start or "leaves out psoriasis" in start
    for code in ("c0", "c1", "c2", "c3", "capital"):
        assert re.search(rf"\b{code}\b", shown) is None, code


def test_a_score_on_its_limit_never_contradicts_what_became_of_the_diagnosis() -> None:
    facts = [("c0", 0.9502, 0.9499, False), ("c1", 0.95, 0.95 - 1e-12, False), ("c2", 0.3, 0.95, True)]
    classes = [
        ClassFacts(name=name, score=score, threshold=limit, in_set=held, in_every_set=False)
        for name, score, limit, held in facts
    ]
    explanation = Explanation(
        action="label",
        reason="none",
        p_audit=None,
        sentences=[],
        classes=classes,
        neighbours=[],
        model="0" * 64,
        promises=[],
        known_patient=False,
    )
    template = environment().from_string('{% from "explained.html" import explained %}{{ explained(explanation, {}) }}')
    page = template.render(explanation=explanation)
    cells = re.findall(r'<td class="number"[^>]*><span class="cell">(.*?)</span>', page)
    assert cells == ["0.9502", "0.9499", "0.950", "just below 0.950", "0.300", "0.950"]
