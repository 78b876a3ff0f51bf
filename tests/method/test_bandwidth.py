from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from method.test_cross_fit import draw

from calcode import CalcodeWarning
from calcode.method.bandwidth import NEIGHBOUR_SHARES, CrossFit, HeldOut, candidate_bandwidths, choose_bandwidth
from calcode.method.quantiles import coverage_floor


def make_cross_fit(seed: int, *, n: int = 60) -> CrossFit:
    embeddings, scores, labels = draw(seed, n=n)
    return CrossFit(embeddings=embeddings, scores=scores, labels=labels, n_folds=5, random_state=0)


@pytest.mark.parametrize("n", [31, 60])
def test_every_candidate_holds_its_share(n: int) -> None:
    cross_fit = make_cross_fit(0, n=n)
    candidates = list(candidate_bandwidths(cross_fit))
    assert [share for share, _ in candidates] == list(NEIGHBOUR_SHARES)
    for share, bandwidth in candidates:
        assert cross_fit.neighbour_mass(bandwidth) == pytest.approx(share * (n - 1), rel=1e-6)


def test_identical_images_end_at_the_lowest_bandwidth() -> None:
    cross_fit = CrossFit(
        embeddings=np.tile([[1.0, 0.0]], (30, 1)),
        scores=np.full((30, 2), 0.5),
        labels=np.arange(30) % 2,
        n_folds=5,
        random_state=0,
    )
    assert {round(bandwidth, 9) for _, bandwidth in candidate_bandwidths(cross_fit)} == {1e-6}


def test_the_first_supported_candidate_is_taken_and_the_trace_says_why() -> None:
    cross_fit = make_cross_fit(4, n=300)
    bandwidth, trace = choose_bandwidth(cross_fit, miscoverage=0.1, grid=1001, support_budget=0.25)
    floor = coverage_floor(300, miscoverage=0.1)
    assert trace[-1].bandwidth == bandwidth
    assert [trial.accepted for trial in trace] == [False] * (len(trace) - 1) + [True]
    for trial in trace:
        outcome = cross_fit.judge(bandwidth=trial.bandwidth, miscoverage=0.1, grid=1001)
        assert trial.infinite_share == outcome.infinite.mean()
        assert trial.coverage == outcome.covered.mean()
        assert trial.accepted == (trial.infinite_share <= 0.25 and trial.coverage >= floor)


def test_a_budget_nobody_meets_takes_the_widest_with_a_warning() -> None:
    cross_fit = make_cross_fit(1, n=12)  # too few for a finite threshold at 0.95
    with pytest.warns(CalcodeWarning, match="no candidate kept infinite thresholds within support_budget=0.25"):
        bandwidth, trace = choose_bandwidth(cross_fit, miscoverage=0.05, grid=1001, support_budget=0.25)
    assert len(trace) == len(NEIGHBOUR_SHARES)
    assert bandwidth == trace[-1].bandwidth
    assert math.isfinite(bandwidth)


@pytest.mark.parametrize(("n_clusters", "size"), [(10, 11), (21, 5), (5, 21), (40, 3)])
def test_a_plateau_of_the_mass_does_not_fool_the_search(n_clusters: int, size: int) -> None:
    """Tight clusters: over a wide range of bandwidths a neighbourhood holds exactly the rest of its cluster."""
    rng = np.random.default_rng(size)
    centres = np.eye(n_clusters)[np.repeat(np.arange(n_clusters), size)]
    rows = centres + 1e-4 * rng.normal(size=centres.shape)
    n = len(rows)
    cross_fit = CrossFit(
        embeddings=rows / np.linalg.norm(rows, axis=1, keepdims=True),
        scores=rng.random((n, 2)),
        labels=np.arange(n) % 2,
        n_folds=5,
        random_state=0,
    )
    for share, bandwidth in candidate_bandwidths(cross_fit):
        low, high = math.log(1e-6), math.log(1e6)
        while high - low > 1e-9:
            middle = (low + high) / 2
            reached = cross_fit.neighbour_mass(math.exp(middle)) >= share * (n - 1)
            low, high = (low, middle) if reached else (middle, high)
        # Either the same bandwidth, or one at which the mass is the target as well.
        mass = cross_fit.neighbour_mass(bandwidth)
        assert abs(math.log(bandwidth) - high) < 1e-6 or mass == pytest.approx(share * (n - 1), rel=1e-9)


@pytest.mark.parametrize(("covered", "infinite", "tried"), [(1, 1, 1), (0, 1, 10), (1, 2, 10)])
def test_a_candidate_exactly_at_both_bounds_is_taken(
    monkeypatch: pytest.MonkeyPatch, covered: int, infinite: int, tried: int
) -> None:
    """Four examples at miscoverage 0.5: the floor is 0.5 - sqrt(0.25 / 4) = 0.25, the budget 0.25."""
    rank = np.arange(4)
    held_out = HeldOut(sets=np.zeros((4, 3), dtype=bool), covered=rank < covered, infinite=rank < infinite)
    monkeypatch.setattr(CrossFit, "judge", lambda self, **_: held_out)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        _, trace = choose_bandwidth(make_cross_fit(0, n=4), miscoverage=0.5, grid=None, support_budget=0.25)
    assert len(trace) == tried
