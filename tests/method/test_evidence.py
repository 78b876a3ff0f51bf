from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import World

from calcode import CalcodeWarning, Evidence
from calcode.errors import EvidenceError
from calcode.method.evidence import prompt_probabilities, robust_probabilities


def make(**changes: object) -> Evidence:
    arguments: dict[str, object] = {
        "embeddings": np.eye(3, 4),
        "prompt_logits": np.arange(3 * 5 * 2, dtype=float).reshape(3, 5, 2),
        "labels": [0, 1, -1],
        "classes": ["a", "b"],
    }
    return Evidence(**(arguments | changes))  # type: ignore[arg-type]


def test_embeddings_become_unit_rows_in_float64_with_a_warning() -> None:
    with pytest.warns(CalcodeWarning, match=r"3 of 3 rows are not of unit length \(first: row 0, norm 2\)"):
        evidence = make(embeddings=(2 * np.eye(3, 4)).astype(np.float32))
    assert evidence.embeddings.dtype == np.float64
    np.testing.assert_allclose(np.linalg.norm(evidence.embeddings, axis=1), 1.0, atol=1e-15)


def test_slightly_rounded_norms_are_renormalised_silently() -> None:
    rows = np.random.default_rng(0).normal(size=(3, 4))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    evidence = make(embeddings=rows.astype(np.float16))
    np.testing.assert_allclose(np.linalg.norm(evidence.embeddings, axis=1), 1.0, atol=1e-15)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embeddings": np.full((3, 4), np.nan)}, "embeddings: NaN or infinity in rows 0, 1, 2"),
        ({"embeddings": np.array([[1.0, 0], [np.inf, 0], [0, 1]])}, "embeddings: NaN or infinity in row 1"),
        ({"embeddings": np.array([[1.0, 0], [0, 0], [0, 1]])}, "embeddings: a vector of length zero"),
        ({"embeddings": np.full((3, 4), 1e200)}, "length zero or beyond float64"),
        ({"embeddings": np.ones(3)}, r"embeddings: shape \(3,\) is not \(images, dimensions\)"),
        ({"embeddings": [["x"]]}, "embeddings: not an array of numbers"),
        ({"prompt_logits": np.zeros((3, 2, 5))}, r"prompts, classes\) = \(3, M, 2\)"),
        ({"prompt_logits": np.zeros((2, 5, 2))}, r"shape \(2, 5, 2\) is not"),
        ({"prompt_logits": np.full((3, 5, 2), np.nan)}, "prompt_logits: NaN or infinity"),
        ({"labels": [0, 1]}, r"labels: shape \(2,\) is not \(3,\)"),
        ({"labels": [0, 1, 2]}, "labels: 2 in row 2 is neither -1 nor a class index 0 to 1"),
        ({"labels": [0, 1, -2]}, "labels: -2 in row 2"),
        ({"labels": [0.0, 1.0, 1.0]}, "labels: float64 given, class indices needed"),
        ({"labels": [True, False, True]}, "labels: bool given"),
        ({"classes": ["a"], "prompt_logits": np.zeros((3, 5, 1))}, "fewer than two classes"),
        ({"classes": ["a", "a"]}, r"classes: \['a'\] named more than once"),
        ({"ids": ["x"]}, "ids: 1 values for 3 images"),
        ({"groups": ["x", "y", "z", "w"]}, "groups: 4 values for 3 images"),
        ({"review_probability": [0.5]}, r"review_probability: shape \(1,\) is not \(3,\)"),
        ({"review_probability": [0.5, 1.5, 0.1]}, "review_probability: 1.5 in row 1 is not between 0 and 1"),
        ({"review_probability": ["x"] * 3}, "review_probability: not an array of numbers"),
    ],
)
def test_bad_arrays_are_refused_by_name(changes: dict[str, object], message: str) -> None:
    with pytest.raises(EvidenceError, match=message):
        make(**changes)


@pytest.mark.parametrize(
    ("text", "temperature", "message"),
    [
        (np.ones((2, 3, 5)), 1.0, r"text: shape \(2, 3, 5\) is not \(classes, prompts, dimensions\) = \(2, M, 4\)"),
        (np.ones((3, 2, 4)), 1.0, r"= \(2, M, 4\)"),
        (np.ones((2, 3, 4)), 0.0, "temperature: 0.0 must be a positive number"),
        (np.ones((2, 3, 4)), np.nan, "temperature"),
        (np.zeros((2, 3, 4)), 1.0, "text: a vector of length zero"),
    ],
)
def test_bad_text_banks_are_refused(text: np.ndarray, temperature: float, message: str) -> None:
    with pytest.raises(EvidenceError, match=message):
        Evidence.from_text(embeddings=np.eye(3, 4), text=text, temperature=temperature, classes=["a", "b"])


def test_text_axes_are_not_swapped_when_prompts_and_classes_are_as_many() -> None:
    """K = M = 5: class k, prompt m points at axis k with strength 1 + m, so every logit is known."""
    cosine = np.array([[1.0 / np.sqrt(1 + m**2) for m in range(5)] for _ in range(5)])
    text = np.zeros((5, 5, 10))
    for k in range(5):
        for m in range(5):
            text[k, m, k] = 1.0
            text[k, m, 5 + k] = m
    text /= np.linalg.norm(text, axis=2, keepdims=True)
    evidence = Evidence.from_text(embeddings=np.eye(5, 10), text=text, temperature=0.5, classes="abcde")
    for image in range(5):
        expected = np.zeros((5, 5))  # prompts x classes
        expected[:, image] = cosine[image] / 0.5
        np.testing.assert_allclose(evidence.prompt_logits[image], expected, atol=1e-15)
    assert "5 prompts x 5 classes" in repr(evidence)


@given(n=st.integers(1, 150), start=st.integers(0, 149))
def test_text_logits_do_not_depend_on_the_batch(n: int, start: int) -> None:
    world = World(dimension=16)
    rows = np.random.default_rng(3).normal(size=(300, 16))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    text = world.draw(1, seed=0).prompt_logits  # any numbers of the right size
    bank = np.random.default_rng(4).normal(size=(4, 5, 16))
    bank /= np.linalg.norm(bank, axis=2, keepdims=True)
    assert text.shape == (1, 5, 4)

    def logits(part: np.ndarray) -> np.ndarray:
        return Evidence.from_text(embeddings=part, text=bank, temperature=0.1, classes=world.classes).prompt_logits

    np.testing.assert_array_equal(logits(rows[start : start + n]), logits(rows)[start : start + n])


def test_trimming_drops_each_classs_own_extremes() -> None:
    per_prompt = np.array([[[0.9, 0.1], [0.5, 0.5], [0.6, 0.4], [0.1, 0.9]]])
    np.testing.assert_allclose(robust_probabilities(np.log(per_prompt), trim=1), [[0.55, 0.45]], atol=1e-11)
    np.testing.assert_allclose(robust_probabilities(np.log(per_prompt), trim=0), [[0.525, 0.475]], atol=1e-11)


def test_trim_must_leave_a_prompt_and_is_ignored_with_one() -> None:
    with pytest.raises(EvidenceError, match="trim: 2 values at each end leave nothing of 4 prompts; use 0 to 1"):
        robust_probabilities(np.full((1, 4, 2), 0.5), trim=2)
    np.testing.assert_allclose(robust_probabilities(np.log([[[0.3, 0.7]]]), trim=1), [[0.3, 0.7]], atol=1e-11)


@given(st.integers(0, 2**32 - 1))
def test_robust_probabilities_are_probabilities(seed: int) -> None:
    logits = np.random.default_rng(seed).normal(scale=30, size=(4, 5, 3))
    robust = robust_probabilities(logits, trim=1)
    assert (robust >= 0).all()
    np.testing.assert_allclose(robust.sum(axis=1), 1.0, atol=1e-6)
    np.testing.assert_allclose(prompt_probabilities(logits).sum(axis=2), 1.0, atol=1e-12)


def test_softmax_survives_large_logits() -> None:
    np.testing.assert_allclose(prompt_probabilities(np.array([[[1e4, 0.0]]])), [[[1.0, 0.0]]])


def test_restrict_moves_logits_and_labels_together() -> None:
    evidence = Evidence(
        embeddings=np.eye(4),
        prompt_logits=np.arange(4 * 1 * 3, dtype=float).reshape(4, 1, 3),
        labels=[0, 1, 2, -1],
        classes=["a", "b", "c"],
    )
    fewer = evidence.restrict(["c", "a"])
    assert fewer.classes == ("c", "a")
    np.testing.assert_array_equal(fewer.labels, [1, -1, 0, -1])
    np.testing.assert_array_equal(fewer.prompt_logits[:, 0], evidence.prompt_logits[:, 0][:, [2, 0]])
    with pytest.raises(EvidenceError, match=r"\['d'\] not among"):
        evidence.restrict(["a", "d"])


def test_rows_are_taken_without_touching_them() -> None:
    evidence = make(ids=["x", "y", "z"])
    one = evidence[1]
    assert len(one) == 1
    assert one.ids is not None
    assert one.ids[0] == "y"
    np.testing.assert_array_equal(evidence[[2, 0]].labels, [-1, 0])
    np.testing.assert_array_equal(evidence[np.array([True, False, True])].embeddings, evidence.embeddings[[0, 2]])
    np.testing.assert_array_equal(evidence.in_space, [True, True, False])


def test_review_probabilities_follow_their_rows() -> None:
    evidence = make(review_probability=[0.25, np.nan, 1.0], classes=["a", "b"])
    np.testing.assert_array_equal(evidence[[2, 0]].restrict(["b", "a"]).review_probability, [1.0, 0.25])
    np.testing.assert_array_equal(evidence[1:].without_identity().review_probability, [np.nan, 1.0])
    assert make().review_probability is None


def test_evidence_cannot_be_changed_from_outside() -> None:
    logits = np.zeros((3, 5, 2))
    evidence = make(prompt_logits=logits)
    logits[:] = 9.0
    assert (evidence.prompt_logits == 0).all()
    with pytest.raises(ValueError, match="read-only"):
        evidence.embeddings[0, 0] = 5.0


def test_missing_labels_are_named() -> None:
    with pytest.raises(EvidenceError, match="labels: this step needs labels"):
        make(labels=None).require_labels()
