"""LCP-VLM: its kernel and the exact rule under it, the folds of its cross-validation, and the choice it makes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from baselines.conventions.guan_counting import guan_counts
from baselines.conventions.lcp_vlm_rule import published_thresholds
from hypothesis import given
from hypothesis import strategies as st
from worlds import World

from calcode import CalcodeError
from calcode.baselines import lcp_vlm
from calcode.baselines.lcp_vlm import (
    MIDPOINTS,
    STEEPNESSES,
    KernelTrials,
    LcpVlm,
    SigmoidKernel,
    SigmoidRule,
    select_kernel,
)
from calcode.baselines.protocol import Roles
from calcode.baselines.split import robust
from calcode.method.bandwidth import fold_numbers
from calcode.method.quantiles import conformal_quantile, conformal_rank
from calcode.method.scores import aps_scores, label_sets, true_label_scores


def validation(n=130, decimals=12):
    evidence = World(spread=0.8).draw(n, seed=3)
    return evidence.embeddings, aps_scores(robust(evidence)).round(decimals), evidence.labels


def held_out_sets(embeddings, scores, labels, kernel, *, miscoverage):
    """The same trials, one rule per fold."""
    folds = fold_numbers(labels, n_folds=5, random_state=0)
    own = true_label_scores(scores, labels)
    sets = np.zeros(scores.shape, dtype=bool)
    for fold in range(5):
        out = folds == fold
        rule = SigmoidRule.fit(embeddings[~out], own[~out], kernel=kernel, miscoverage=miscoverage)
        sets[out] = label_sets(scores[out], rule.thresholds(embeddings[out])[:, None])
    return sets


@pytest.mark.parametrize("decimals", [1, 12])
@pytest.mark.parametrize(("steepness", "midpoint"), [(1.0, 0.0), (10.0, 0.5), (25.0, 1.0)])
def test_trials_fit_anew_for_every_fold(steepness, midpoint, decimals):
    embeddings, scores, labels = validation(decimals=decimals)
    kernel = SigmoidKernel(steepness=steepness, midpoint=midpoint)
    trials = KernelTrials(embeddings, scores, labels, random_state=0)
    wanted = held_out_sets(embeddings, scores, labels, kernel, miscoverage=0.1)
    covered, given = trials.judge(kernel, miscoverage=0.1)
    assert covered == wanted[np.arange(len(labels)), labels].sum()
    assert given == wanted.sum()


class Table:
    """Trials whose outcome is written down."""

    def __init__(self, rows, n=100):
        self._rows = rows
        self._n = n

    def __len__(self):
        return self._n

    def judge(self, kernel, *, miscoverage):
        return self._rows.get((kernel.steepness, kernel.midpoint), (100, 700))


def chosen(rows):
    kernel = select_kernel(Table(rows), miscoverage=0.1)
    return kernel.steepness, kernel.midpoint


def test_smallest_sets_among_those_that_reach_the_target():
    assert chosen({(5.0, 0.5): (90, 300), (10.0, 0.0): (89, 200), (15.0, 1.0): (95, 310)}) == (5.0, 0.5)


def test_ties_go_to_the_smaller_steepness_and_then_to_the_smaller_midpoint():
    rows = {(10.0, 0.0): (90, 300), (5.0, 0.75): (90, 300), (5.0, 0.25): (91, 300)}
    assert chosen(rows) == (5.0, 0.25)


def test_without_a_kernel_that_reaches_the_target_the_nearest_one(monkeypatch):
    monkeypatch.setattr(lcp_vlm, "STEEPNESSES", (1.0, 5.0))
    monkeypatch.setattr(lcp_vlm, "MIDPOINTS", (0.5,))
    assert chosen({(1.0, 0.5): (80, 200), (5.0, 0.5): (85, 400)}) == (5.0, 0.5)


def test_one_validation_image_is_too_few():
    embeddings, scores, labels = validation(n=1)
    with pytest.raises(CalcodeError, match="validation: cross-validation needs at least 2 images, got 1"):
        KernelTrials(embeddings, scores, labels, random_state=0)


def test_prediction_uses_the_chosen_kernel_on_calibration():
    drawn = World(spread=0.8).roles(n=120, n_test=30)
    test = drawn.pop("test")
    found = LcpVlm().predict(Roles(**drawn), test, miscoverage=0.1, random_state=0)
    kernel = SigmoidKernel(steepness=found.details["steepness"], midpoint=found.details["midpoint"])
    calibration = drawn["calibration"]
    own = true_label_scores(aps_scores(robust(calibration)), calibration.labels)
    rule = SigmoidRule.fit(calibration.embeddings, own, kernel=kernel, miscoverage=0.1)
    thresholds = rule.thresholds(test.embeddings)
    np.testing.assert_array_equal(found.sets, label_sets(aps_scores(robust(test)), thresholds[:, None]))


def unit_rows(rng, n, d=3):
    rows = rng.normal(size=(n, d))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("midpoint", MIDPOINTS)
@pytest.mark.parametrize("steepness", STEEPNESSES)
def test_kernel(steepness, midpoint):
    kernel = SigmoidKernel(steepness=steepness, midpoint=midpoint)
    cosines = np.linspace(-1, 1, 41)
    weights = kernel.of_cosines(cosines)
    wanted = (1 + np.exp(-steepness * (1 - midpoint))) / (1 + np.exp(-steepness * (cosines - midpoint)))
    np.testing.assert_allclose(weights, wanted, rtol=1e-12)
    np.testing.assert_allclose(kernel.of_distances(1 - cosines), wanted, rtol=1e-12)
    assert weights[-1] == pytest.approx(1.0, abs=1e-12)
    assert (np.diff(weights) > 0).all()


def test_kernel_does_not_overflow():
    kernel = SigmoidKernel(steepness=1e6, midpoint=1.0)
    assert np.isfinite(kernel.of_cosines(np.array([-1.0, 1.0]))).all()


@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 40),
    decimals=st.sampled_from([0, 1, 8]),
    steepness=st.sampled_from(STEEPNESSES),
    midpoint=st.sampled_from(MIDPOINTS),
    miscoverage=st.sampled_from([0.05, 0.1, 0.3]),
)
def test_thresholds_are_guans_and_the_published_ones_never_higher(seed, n, decimals, steepness, midpoint, miscoverage):
    rng = np.random.default_rng(seed)
    points, queries = unit_rows(rng, n), unit_rows(rng, 6)
    scores = np.sort(rng.uniform(size=n).round(decimals))
    kernel = SigmoidKernel(steepness=steepness, midpoint=midpoint)
    rule = SigmoidRule.fit(points, scores, kernel=kernel, miscoverage=miscoverage)
    thresholds = rule.thresholds(queries)

    weights, between = kernel.of_cosines(queries @ points.T), kernel.of_cosines(points @ points.T)
    counts = guan_counts(weights, between, scores)
    rank = conformal_rank(n, miscoverage=miscoverage)
    last = [np.flatnonzero(row < rank)[-1] for row in counts]
    np.testing.assert_array_equal(thresholds, np.append(scores, math.inf)[last])
    if n / (n + 1) >= 1 - miscoverage:
        published = published_thresholds(weights, between, scores, miscoverage=miscoverage)
        assert (published <= thresholds).all()


def test_equal_weights_are_split_conformal_prediction():
    rng = np.random.default_rng(0)
    points, scores = unit_rows(rng, 57), rng.uniform(size=57).round(1)
    rule = SigmoidRule.fit(points, scores, kernel=SigmoidKernel(steepness=0.0, midpoint=0.5), miscoverage=0.1)
    assert (rule.thresholds(unit_rows(rng, 9)) == conformal_quantile(scores, miscoverage=0.1)).all()


def test_order_of_the_calibration_images_does_not_matter():
    rng = np.random.default_rng(0)
    points, scores, queries = unit_rows(rng, 80), rng.uniform(size=80).round(1), unit_rows(rng, 20)
    settings = {"kernel": SigmoidKernel(steepness=10.0, midpoint=0.5), "miscoverage": 0.1}
    order = rng.permutation(80)
    np.testing.assert_array_equal(
        SigmoidRule.fit(points, scores, **settings).thresholds(queries),
        SigmoidRule.fit(points[order], scores[order], **settings).thresholds(queries),
    )
