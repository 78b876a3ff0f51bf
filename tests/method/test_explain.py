from __future__ import annotations

import json

import numpy as np
import pytest

from calcode import Calcode, Evidence
from calcode.cohorts import Cohort
from calcode.errors import CalcodeWarning, EvidenceError
from calcode.method.audit import DIAGNOSTICS
from calcode.method.explain import (
    explain,
    nearest,
    single_answer_record,
    support_words,
    unusual_sentence,
    usual_distances,
)

CLASSES = ("common", "rare", "other")
CENTRES = np.eye(3, 8)
BANK = CENTRES[:, None, :]


def images(n: int, *, seed: int, spread: float = 0.35, bank: np.ndarray = BANK) -> Evidence:
    rng = np.random.default_rng(seed)
    labels = rng.choice(3, size=n, p=[0.6, 0.15, 0.25])
    vectors = CENTRES[labels] + spread * rng.normal(size=(n, 8))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return Evidence.from_text(embeddings=vectors, text=bank, temperature=0.3, labels=labels, classes=CLASSES)


@pytest.fixture(scope="module")
def model() -> Calcode:
    roles = {
        role: images(300, seed=seed) for seed, role in enumerate(("reference", "validation", "gate", "calibration"))
    }
    return Calcode(always_protect=["rare"]).fit(**roles)


@pytest.fixture(scope="module")
def reference() -> Cohort:
    evidence = images(300, seed=0)
    names = np.array(CLASSES)[evidence.require_labels()]
    identified = Evidence(
        embeddings=evidence.embeddings,
        prompt_logits=evidence.prompt_logits,
        classes=CLASSES,
        ids=[f"ref-{row}" for row in range(300)],
    )
    return Cohort(evidence=identified, metadata={"label_name": names})


def test_an_explanation_says_what_decide_says(model: Calcode, reference: Cohort) -> None:
    test = images(60, seed=9)
    decisions = model.decide(test)
    for row, decision in enumerate(decisions):
        found = explain(test[row], model=model, reference=reference)
        assert found.action == decision.action.name.lower()
        assert found.released == decision.released
        assert found.p_audit == pytest.approx(decision.p_audit, abs=1e-12)
        kept = {entry.name for entry in found.verdicts if entry.kept_by}
        assert kept == set(decision.released)
        by_guard = {entry.name for entry in found.verdicts if entry.kept_by == "guard"}
        wider = decisions.sets[row] & ~decisions.localized_sets[row]
        assert found.action == "defer" or by_guard == {CLASSES[y] for y in np.flatnonzero(wider)}
        json.dumps(found.to_dict())
        if len(decision.released) < 3:
            assert all(name in found.answer for name in decision.released)
        size = len(decision.released)
        openings = {
            "defer": "Deferred to a clinician",
            "label": "One diagnosis: ",
            "set": "Cannot narrow it down: all 3 remain possible" if size == 3 else f"{size} of 3 diagnoses",
        }
        assert found.answer.startswith(openings[found.action])


def test_a_deferred_image_shows_no_set(model: Calcode, reference: Cohort) -> None:
    strange = -np.ones((1, 8)) / np.sqrt(8)
    far = Evidence.from_text(embeddings=strange, text=BANK, temperature=0.3, classes=CLASSES)
    found = explain(far, model=model, reference=reference)
    assert found.action == "defer"
    assert found.released == ()
    assert found.verdicts == ()
    assert "goes to a clinician" in found.why[0]
    # No sentence about a set: what it would have been stays unsaid.
    assert len(found.why) == 2
    assert not any(name in " ".join(found.why[:1]) for name in CLASSES)


def test_how_unusual_an_image_is_stands_beside_the_answer(model: Calcode, reference: Cohort) -> None:
    assert model.audit_ is not None
    known = model.audit_.gate_distances
    assert known is not None
    for test in images(40, seed=9):
        found = explain(test, model=model)
        distance = np.median(np.sort(1 - model.audit_.reference @ test.embeddings[0])[:10])
        assert found.farther_than == pytest.approx((known < distance - 1e-9).mean(), abs=1e-12)
        assert found.neighbours == ()
    strange = -np.ones((1, 8)) / np.sqrt(8)
    far = Evidence.from_text(embeddings=strange, text=BANK, temperature=0.3, classes=CLASSES)
    assert explain(far, model=model).farther_than == 1.0
    assert "further from the reference images than every image" in explain(far, model=model).unusual


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (1.0, "than every image"),
        (0.9996, "Very unusual image: it is further from the reference images than 99.9 %"),
        (0.99, "Very unusual image: it is further from the reference images than 99 %"),
        (0.9899, "Less typical image: it is further from the reference images than 98 %"),
        (0.5, "Nothing unusual about the image: 50 % of known images"),
        (0.0, "100 % of known images"),
        (None, "cannot say"),
    ],
)
def test_the_sentence_about_how_unusual_an_image_is(share: float | None, words: str) -> None:
    assert words in unusual_sentence(share)


@pytest.mark.parametrize("diagnostic", DIAGNOSTICS)
def test_only_distance_calls_an_image_unlike_others(diagnostic: str) -> None:
    """A model that is unsure says nothing about how strange the picture is."""
    words = support_words(diagnostic)
    assert words != support_words(None)
    assert ("unlike" in words.deferred) == (diagnostic == "distance")
    bank = CENTRES[:, None, :] + 0.2 * np.random.default_rng(3).normal(size=(3, 4, 8))
    bank /= np.linalg.norm(bank, axis=2, keepdims=True)
    names = ("reference", "validation", "gate", "calibration")
    roles = {role: images(300, seed=seed, bank=bank) for seed, role in enumerate(names)}
    model = Calcode(audit=[diagnostic], deferral_level=0.3).fit(**roles)
    asked = images(60, seed=9, bank=bank)
    row = int(np.flatnonzero(model.decide(asked).deferred)[0])
    found = explain(asked[row], model=model)
    assert found.answer == f"Deferred to a clinician: {words.deferred}."
    assert words.measure in found.why[0]
    assert words.others in found.why[0]


def test_an_accepted_image_may_be_unusual(reference: Cohort) -> None:
    roles = {
        role: images(300, seed=seed) for seed, role in enumerate(("reference", "validation", "gate", "calibration"))
    }
    # Sure of its answer, and far from everything: an audit by confidence does not mind.
    confident = Calcode(audit=["msp"]).fit(**roles)
    vector = np.array([[1.0, 0, 0, 0, 0, 0, 0, 9.0]]) / np.sqrt(82)
    far = Evidence.from_text(embeddings=vector, text=BANK, temperature=0.01, classes=CLASSES)
    found = explain(far, model=confident)
    assert found.action != "defer"
    assert found.unusual.startswith("Very unusual image")
    assert found.unusual.endswith("The check that defers uses another measure ('msp') and accepted it.")
    # Not where it is the same measure, and not where nothing is unusual.
    with pytest.warns(CalcodeWarning, match="no image is ever deferred"):
        by_distance = Calcode(audit=["distance"], deferral_level=0.0001).fit(**roles)
    assert "another measure" not in explain(far, model=by_distance).unusual
    assert "another measure" not in explain(roles["gate"].without_identity()[0], model=confident).unusual
    # The other way round: an image like others, of which the model is less sure than of nearly all.
    gate = roles["gate"].without_identity()
    deferred = [explain(gate[row], model=confident) for row in np.flatnonzero(confident.decide(gate).deferred)[:20]]
    near = [found.unusual for found in deferred if (found.farther_than or 0.0) < 0.9]
    assert near
    assert all(
        words.startswith("Its distance alone is not unusual: ") and words.endswith("('msp') and deferred it.")
        for words in near
    )


def test_a_class_with_too_few_calibration_images_is_marked() -> None:
    parts = {
        role: images(300, seed=seed) for seed, role in enumerate(("reference", "validation", "gate", "calibration"))
    }
    labels = parts["calibration"].require_labels()
    few = np.flatnonzero(labels == 1)[:2]
    parts["calibration"] = parts["calibration"][np.sort(np.concatenate([np.flatnonzero(labels != 1), few]))]
    with pytest.warns(CalcodeWarning, match="in every set"):
        scarce = Calcode(always_protect=["rare"], audit=None).fit(**parts)
    marked = [
        verdict.because
        for test in images(20, seed=9)
        for verdict in explain(test, model=scarce).verdicts
        if verdict.name == "rare" and verdict.kept_by == "guard"
    ]
    assert set(marked) == {"in every set: 2 calibration images, 19 needed to rule it out"}


def test_the_record_counts_single_answers_and_right_ones(model: Calcode) -> None:
    test = images(400, seed=9)
    decisions = model.decide(test)
    single = decisions.action == 0
    right = int((decisions.label[single] == test.require_labels()[single]).sum())
    record = single_answer_record(model, test)
    assert record.startswith(f"On 400 labelled test images the model gave {int(single.sum())} single answers, {right}")


def test_neighbours_are_the_nearest_of_the_reference(reference: Cohort) -> None:
    test = images(1, seed=5)
    found = nearest(test, reference, count=7)
    distances = 1 - reference.evidence.embeddings @ test.embeddings[0]
    order = np.argsort(distances)[:7]
    assert [entry.id for entry in found] == [f"ref-{row}" for row in order]
    np.testing.assert_allclose([entry.distance for entry in found], distances[order], atol=1e-12)
    assert [entry.label_name for entry in found] == reference.column("label_name")[order].tolist()


def test_usual_distances_leave_the_image_itself_out(reference: Cohort) -> None:
    vectors = reference.evidence.embeddings
    distances = 1 - vectors @ vectors.T
    np.fill_diagonal(distances, np.inf)
    expected = np.median(np.sort(distances, axis=1)[:, :4], axis=1)
    np.testing.assert_allclose(usual_distances(vectors, count=4), expected, atol=1e-12)


def test_one_image_at_a_time(model: Calcode, reference: Cohort) -> None:
    with pytest.raises(EvidenceError, match="^evidence: 2 images"):
        explain(images(2, seed=1), model=model, reference=reference)
    with pytest.raises(EvidenceError, match="^n_neighbours: "):
        explain(images(1, seed=1), model=model, reference=reference, n_neighbours=0)
