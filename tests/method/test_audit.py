from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from worlds import World

from calcode import CalcodeWarning, Evidence, SupportAudit
from calcode.method.audit import (
    BASE_DIAGNOSTICS,
    auroc,
    fused_rank,
    negative_energy,
    neighbour_distance,
    prompt_disagreement,
    rank_p_values,
)

seeds = st.integers(0, 2**20)


@given(seed=seeds, ties=st.booleans())
def test_auroc_is_scikit_learns(seed: int, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    errors = rng.random(40) < 0.4
    errors[:2] = [True, False]
    values = rng.normal(size=40).round(0 if ties else 8)
    assert auroc(values, errors) == pytest.approx(roc_auc_score(errors, values), abs=1e-12)


def test_auroc_without_both_kinds_is_nan() -> None:
    assert np.isnan(auroc(np.arange(3.0), np.zeros(3, dtype=bool)))


@given(seed=seeds, n_gate=st.integers(1, 40))
def test_p_values_are_multiples_and_count_the_gate(seed: int, n_gate: int) -> None:
    rng = np.random.default_rng(seed)
    gate, values = np.sort(rng.normal(size=n_gate).round(1)), rng.normal(size=20).round(1)
    p_values = rank_p_values(values, sorted_gate=gate)
    expected = [(1 + (gate >= value - 1e-9).sum()) / (n_gate + 1) for value in values]
    np.testing.assert_array_equal(p_values, expected)
    steps = p_values * (n_gate + 1)
    np.testing.assert_allclose(steps, steps.round(), atol=1e-9)
    assert ((p_values >= 1 / (n_gate + 1)) & (p_values <= 1)).all()


def test_a_gate_image_submitted_again_counts_itself_whatever_the_rounding() -> None:
    gate = np.array([0.1, 0.2, 0.3])
    np.testing.assert_array_equal(rank_p_values(gate + 1e-10, sorted_gate=gate), rank_p_values(gate, sorted_gate=gate))


def test_distance_is_the_median_of_the_nearest() -> None:
    angles = np.linspace(0.1, 1.2, 12)
    reference = np.column_stack([np.cos(angles), np.sin(angles)])
    query = np.array([[1.0, 0.0]])
    distances = 1 - np.cos(angles)
    value = neighbour_distance(query, reference=reference, n_neighbors=10)[0]
    assert value == pytest.approx((distances[4] + distances[5]) / 2, abs=1e-12)
    few = neighbour_distance(query, reference=reference[:3], n_neighbors=10)[0]
    assert few == pytest.approx(distances[1], abs=1e-12)


def test_other_diagnostics_by_hand() -> None:
    logits = np.array([[[1.0, 2.0], [3.0, 0.0]]])
    assert negative_energy(logits)[0] == pytest.approx(-np.log(np.exp(2.0) + np.exp(1.0)))
    probabilities, robust = np.array([[[0.5, 0.5], [1.0, 0.0]]]), np.array([[0.75, 0.25]])
    first = 0.5 * np.log(0.5 / 0.75) + 0.5 * np.log(0.5 / 0.25)
    assert prompt_disagreement(probabilities, robust)[0] == pytest.approx((first + np.log(1 / 0.75)) / 2)


def test_disagreement_survives_zero_probabilities() -> None:
    assert np.isfinite(prompt_disagreement(np.array([[[1.0, 0.0]]]), np.array([[0.0, 1.0]]))).all()


def test_fused_takes_the_weakest_support() -> None:
    gate = {name: np.arange(1.0, 10.0) for name in BASE_DIAGNOSTICS}
    values = {name: np.array([5.0]) for name in BASE_DIAGNOSTICS} | {"prompt": np.array([9.5])}
    assert fused_rank(values, sorted_gate=gate)[0] == pytest.approx(1 - 1 / 10)


def fitted(world: World, **changes: object) -> tuple[SupportAudit, dict[str, Evidence]]:
    roles = world.roles()
    audit = SupportAudit.fit(
        reference=roles["reference"],
        validation=roles["validation"],
        gate=roles["gate"],
        **changes,  # type: ignore[arg-type]
    )
    return audit, roles


def test_selection_takes_the_largest_auroc() -> None:
    audit, _ = fitted(World())
    assert audit.auroc == max(audit.aurocs.values())
    assert list(audit.aurocs) == ["distance", "energy", "msp", "prompt", "fused"]


def test_never_wrong_falls_back_to_distance_with_a_warning() -> None:
    roles = World().roles()
    validation = roles["validation"]
    right = validation[validation.prompt_logits.mean(axis=1).argmax(axis=1) == validation.labels]
    with pytest.warns(CalcodeWarning, match="never wrong on validation.*'distance' is used"):
        audit = SupportAudit.fit(reference=roles["reference"], validation=right[:5], gate=roles["gate"])
    assert audit.name == "distance"
    assert np.isnan(audit.auroc)


def test_split_uses_disjoint_halves_of_the_gate() -> None:
    audit, roles = fitted(World(), fused="split", candidates=("fused",), random_state=7)
    n = len(roles["gate"])
    shuffled = np.random.default_rng(7).permutation(n)
    assert len(audit.gate_values) == n - n // 2
    assert audit.independent
    base = audit.gate_base["energy"]
    np.testing.assert_allclose(base, np.sort(negative_energy(roles["gate"].prompt_logits[shuffled[: n // 2]])))


@pytest.mark.parametrize(
    ("candidates", "fused", "independent"),
    [(("distance", "fused"), "paper", False), (("distance",), "paper", True), (("fused",), "split", True)],
)
def test_the_promise_depends_on_who_saw_the_gate(candidates: tuple[str, ...], fused: str, independent: bool) -> None:
    audit, _ = fitted(World(), candidates=candidates, fused=fused)
    assert audit.independent is independent


@pytest.mark.parametrize("fused", ["paper", "split"])
def test_a_gate_of_one_image_works(fused: str) -> None:
    roles = World().roles()
    audit = SupportAudit.fit(
        reference=roles["reference"],
        validation=roles["validation"],
        gate=roles["gate"][:1],
        fused=fused,  # type: ignore[arg-type]
    )
    assert set(audit.p_values(roles["test"])) <= {0.5, 1.0}


@pytest.mark.parametrize("name", [*BASE_DIAGNOSTICS, "fused"])
def test_p_values_alone_equal_p_values_in_company(name: str) -> None:
    audit, roles = fitted(World(dimension=32), candidates=(name,))
    again = roles["gate"]  # re-submitted gate images are where rounding shows
    together = audit.p_values(again)
    alone = np.concatenate([audit.p_values(again[i]) for i in range(40)])
    np.testing.assert_array_equal(together[:40], alone)


@pytest.mark.parametrize("candidates", [("msp",), ("distance",), ("fused", "energy")])
def test_the_gate_distances_hold_one_image_per_group_whatever_the_audit_uses(candidates: tuple[str, ...]) -> None:
    roles = World().roles(named=True)  # two images to a group
    gate = roles["gate"]
    audit = SupportAudit.fit(**{r: roles[r] for r in ("reference", "validation", "gate")}, candidates=candidates)
    assert audit.gate_distances is not None
    assert gate.groups is not None
    everything = neighbour_distance(
        gate.embeddings, reference=roles["reference"].embeddings, n_neighbors=audit.n_neighbors
    )
    rng = np.random.default_rng(0)
    drawn = [np.flatnonzero(gate.groups == group)[rng.integers(2)] for group in np.unique(gate.groups)]
    np.testing.assert_allclose(audit.gate_distances, np.sort(everything[drawn]), atol=1e-15)
    np.testing.assert_allclose(audit.distances(gate), everything, atol=1e-15)


def test_equal_aurocs_go_to_the_earlier_diagnostic() -> None:
    """One place for all images and one prompt: neither distance nor disagreement tells anything apart."""

    def role(labels: list[int]) -> Evidence:
        n = len(labels)
        return Evidence(
            embeddings=np.ones((n, 2)) / np.sqrt(2),
            prompt_logits=np.tile([1.0, 0.0], (n, 1, 1)),
            labels=labels,
            classes=["a", "b"],
        )

    audit = SupportAudit.fit(
        reference=role([0, 0]),
        validation=role([0, 1, 0, 1]),
        gate=role([0, 1]),
        candidates=("prompt", "distance"),
        trim=0,
    )
    assert audit.aurocs == {"distance": 0.5, "prompt": 0.5}
    assert audit.name == "distance"


@pytest.mark.parametrize("copies", [1, 60])
def test_ranks_that_float32_cannot_tell_apart_are_those_of_float64(copies: int) -> None:
    """Gate values a hair beside those of the images; with copies, more neighbours are equally near than are kept."""
    rng = np.random.default_rng(copies)
    centres = np.repeat(rng.normal(size=(900 // copies, 12)), copies, axis=0)
    reference = World(dimension=12).draw(len(centres), seed=1)
    moved = centres + (0.3 if copies == 1 else 2e-7) * rng.normal(size=centres.shape)
    reference = reference._replace(embeddings=moved / np.linalg.norm(moved, axis=1, keepdims=True))
    validation, gate, images = (World(dimension=12).draw(300, seed=seed) for seed in (2, 3, 4))
    audit = SupportAudit.fit(reference=reference, validation=validation, gate=gate, candidates=("distance",))
    values = audit.values(images, "distance")
    beside = np.sort(values + rng.choice([-4e-9, 4e-9], size=len(values)))
    audit = replace(audit, gate_values=beside)
    np.testing.assert_array_equal(audit.p_values(images), rank_p_values(values, sorted_gate=beside))
