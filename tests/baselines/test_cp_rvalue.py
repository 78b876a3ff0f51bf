"""CP_r-value against the published r-values and against its definition, step by step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calcode.baselines.cp_rvalue import greedy_steps, r_value_sets, random_slots
from calcode.baselines.greedy_vote import BLOCK
from calcode.method.quantiles import conformal_rank


@pytest.fixture(scope="module")
def columns(inputs):
    rows = np.arange(len(inputs["y_cal"]))
    return inputs["prompt_probs_cal"][rows, :, inputs["y_cal"]], inputs["prompt_probs_test"]


def test_published_r_values_and_sets(columns, vectors):
    golden = vectors("golden/cp_rvalue/public.npz")
    steps = greedy_steps(*columns)
    r_values = (steps / (200 + steps.shape[1])).astype(np.float32)
    for mode, later in (("demo_k", 0), ("clip_kplus1", 1)):
        np.testing.assert_array_equal(r_values, golden[f"{mode}__rvalues"])
        for miscoverage in (0.05, 0.1):
            rank = conformal_rank(200, miscoverage=miscoverage) + later
            sets = r_value_sets(steps, n_calibration=200, boundary_rank=rank)
            np.testing.assert_array_equal(sets, golden[f"{mode}_a{miscoverage}__sets"])


def by_definition(calibration, candidates, slots):
    """Steps of the labels of one image, from the words of the method."""
    n, n_labels = len(calibration), candidates.shape[1]
    places = [(slot, 0, label) for label, slot in enumerate(slots)] + [(c, 1, c) for c in range(n)]
    names = [(kind, index) for _, kind, index in sorted(places)]
    values = np.array([calibration[index] if kind else candidates[:, index] for kind, index in names], dtype=np.float32)
    rankings = np.argsort(-values, axis=0, kind="stable")
    votes, steps = np.zeros(n + n_labels, dtype=int), {}
    for step in range(n + n_labels):
        for column in rankings[step]:
            votes[column] += 1
        chosen = int(np.argmax(np.where(np.isin(np.arange(n + n_labels), list(steps)), -1, votes)))
        steps[chosen] = step + 1
    return [steps[names.index((0, label))] for label in range(n_labels)]


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 6), st.integers(2, 4), st.sampled_from([2, 5, 10**9]))
def test_equals_the_definition(seed, n, n_prompts, n_labels, grid):
    rng = np.random.default_rng(seed)
    calibration = np.round(rng.random((n, n_prompts)) * grid) / grid
    candidates = np.round(rng.random((4, n_prompts, n_labels)) * grid) / grid
    slots = random_slots(4, n_labels, n_calibration=n, random_state=seed)
    steps = greedy_steps(calibration, candidates, slots)
    published = greedy_steps(calibration, candidates)
    for image in range(4):
        assert steps[image].tolist() == by_definition(calibration, candidates[image], slots[image])
        last = np.full(n_labels, n)
        assert published[image].tolist() == by_definition(calibration, candidates[image], last)


@settings(max_examples=25)
@given(
    st.integers(0, 10_000),
    st.integers(100, 220),
    st.integers(1, 7),
    st.integers(2, 8),
    st.sampled_from([3, 40, 10**9]),
    st.sampled_from([0.0, 0.3, 3.0]),
)
def test_equals_the_definition_over_many_segments(seed, n, n_prompts, n_labels, grid, disagreement):
    """Columns enter and leave play several times here, with prompts that agree, differ or contradict."""
    rng = np.random.default_rng(seed)
    n_columns = n + 2 * n_labels
    logits = rng.normal(size=(n_columns, 1)) + disagreement * rng.normal(size=(n_columns, n_prompts))
    values = np.round(grid / (1 + np.exp(-logits))) / grid
    calibration = values[:n]
    candidates = values[n:].reshape(2, n_labels, n_prompts).transpose(0, 2, 1)
    slots = random_slots(2, n_labels, n_calibration=n, random_state=seed)
    steps, published = greedy_steps(calibration, candidates, slots), greedy_steps(calibration, candidates)
    for image in range(2):
        assert steps[image].tolist() == by_definition(calibration, candidates[image], slots[image])
        last = np.full(n_labels, n)
        assert published[image].tolist() == by_definition(calibration, candidates[image], last)


def test_blocks_do_not_matter(columns):
    calibration, candidates = columns
    many = np.tile(candidates, (4, 1, 1))
    assert len(many) > BLOCK
    steps = greedy_steps(calibration, many).reshape(4, 300, 7)
    np.testing.assert_array_equal(steps, np.broadcast_to(steps[:1], steps.shape))
    np.testing.assert_array_equal(steps[0, :1], greedy_steps(calibration, candidates[:1]))


def test_boundary_counts_calibration_columns_alone():
    steps = np.array([[1, 3], [4, 5]])
    np.testing.assert_array_equal(
        r_value_sets(steps, n_calibration=3, boundary_rank=1), [[True, False], [False, False]]
    )
    np.testing.assert_array_equal(r_value_sets(steps, n_calibration=3, boundary_rank=2), [[True, True], [False, False]])
    assert r_value_sets(steps, n_calibration=3, boundary_rank=4).all()


def test_random_places_restore_coverage():
    """Exchangeable prompts with many count ties: the published order under-covers, the random one does not."""
    rng = np.random.default_rng(5)
    n, runs = 39, 600
    k = conformal_rank(n, miscoverage=0.1)
    covered = np.zeros((2, runs))
    for run in range(runs):
        quality = rng.normal(size=(n + 1, 1))
        own = 1 / (1 + np.exp(-(quality + 0.7 * rng.normal(size=(n + 1, 5)))))
        candidates = np.stack([own[-1], 1 - own[-1]], axis=1)[None]
        slots = random_slots(1, 2, n_calibration=n, random_state=run)
        for mode, steps in enumerate((greedy_steps(own[:-1], candidates), greedy_steps(own[:-1], candidates, slots))):
            covered[mode, run] = r_value_sets(steps, n_calibration=n, boundary_rank=k)[0, 0]
    error = np.sqrt(0.1 * 0.9 / runs)
    published, random = covered.mean(axis=1)
    assert random > 0.9 - 3 * error
    assert published < random
