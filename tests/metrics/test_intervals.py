"""Wilson and bootstrap intervals against scipy, theory, and resampling by indices."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from metric_cases import assert_quantile

from calcode.errors import EvidenceError, SettingsError
from calcode.metrics.intervals import (
    Cells,
    Estimate,
    bootstrap_interval,
    percentile_interval,
    proportion,
    wilson_interval,
)


@given(st.integers(1, 5000), st.floats(0, 1), st.sampled_from([0.5, 0.8, 0.95, 0.999]))
def test_wilson_is_scipys(trials: int, share: float, confidence: float) -> None:
    from scipy.stats import binomtest

    successes = round(share * trials)
    expected = binomtest(successes, trials).proportion_ci(confidence_level=confidence, method="wilson")
    low, high = wilson_interval(successes, trials, confidence=confidence)
    assert float(low) == pytest.approx(expected.low, abs=1e-12)
    assert float(high) == pytest.approx(expected.high, abs=1e-12)


@given(st.integers(1, 10**6), st.data())
def test_wilson_holds_the_share_and_stays_within_zero_and_one(trials: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, trials))
    low, high = wilson_interval(successes, trials)
    assert 0 <= low <= successes / trials <= high <= 1


def test_wilson_is_vectorised_and_undefined_without_trials() -> None:
    low, high = wilson_interval([[0, 5], [10, 0]], [[10, 10], [10, 0]])
    assert low.shape == high.shape == (2, 2)
    assert low[0, 0] == 0.0
    assert high[1, 0] == 1.0
    assert math.isnan(low[1, 1])
    assert math.isnan(high[1, 1])
    assert (low[0, 1], high[0, 1]) == tuple(map(float, wilson_interval(5, 10)))


@pytest.mark.parametrize("confidence", [0.8, 0.95])
@pytest.mark.parametrize("trials", [40, 400])
def test_wilson_covers_as_often_as_it_says(trials: int, confidence: float) -> None:
    rng = np.random.default_rng(trials)
    truth = rng.uniform(0.05, 0.95, size=40_000)
    low, high = wilson_interval(rng.binomial(trials, truth), trials, confidence=confidence)
    observed = np.mean((low <= truth) & (truth <= high))
    # Five standard errors of the simulation, and 0.5 % because the interval itself is approximate.
    assert observed == pytest.approx(confidence, abs=5 * math.sqrt(confidence * (1 - confidence) / 40_000) + 0.005)


@pytest.mark.parametrize(("successes", "trials"), [(-1, 5), (6, 5), (math.nan, 5)])
def test_impossible_counts_are_refused(successes: float, trials: float) -> None:
    with pytest.raises(EvidenceError, match=r"^successes: must lie between 0 and trials"):
        wilson_interval(successes, trials)


@pytest.mark.parametrize("confidence", [0.0, 1.0, -0.1, math.nan])
def test_confidence_must_be_a_share(confidence: float) -> None:
    with pytest.raises(SettingsError, match=r"^confidence:"):
        wilson_interval(1, 2, confidence=confidence)
    with pytest.raises(SettingsError, match=r"^confidence:"):
        percentile_interval(np.arange(5.0), confidence=confidence)


def test_a_proportion_of_nothing_is_undefined() -> None:
    nothing = proportion(0, 0)
    assert math.isnan(nothing.value)
    assert math.isnan(nothing.low)
    assert nothing.n == 0
    assert str(nothing) == "undefined (n = 0)"
    assert str(Estimate(0.5, 0.25, 0.75, 4)) == "0.500 [0.250, 0.750] (n = 4)"


def test_undefined_replicates_are_left_out() -> None:
    replicates = np.array([math.nan, 0.0, 1.0, 2.0, 3.0, 4.0, math.nan])
    assert percentile_interval(replicates, confidence=0.5) == (1.0, 3.0)
    assert all(map(math.isnan, percentile_interval(np.array([math.nan]))))


def test_cells_collect_equal_rows_within_a_stratum() -> None:
    columns = np.array([[1, 0], [1, 0], [0, 2], [1, 0]])
    cells = Cells.collect(columns, strata=np.array([0, 0, 2, 2]), n_strata=4)
    assert cells.stratum.tolist() == [0, 2, 2]
    assert cells.values.tolist() == [[1, 0], [0, 2], [1, 0]]
    assert cells.count.tolist() == [2, 1, 1]
    assert cells.sums(cells.count[None, :])[0].tolist() == [[2, 0], [0, 0], [1, 2], [0, 0]]


def test_cells_refuse_strata_that_do_not_fit() -> None:
    with pytest.raises(EvidenceError, match=r"^strata: must lie between 0 and 1"):
        Cells.collect(np.zeros((2, 1)), strata=np.array([0, 2]), n_strata=2)
    with pytest.raises(EvidenceError, match=r"^columns: shape \(2, 1\)"):
        Cells.collect(np.zeros((2, 1)), strata=np.array([0]), n_strata=2)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40), st.integers(0, 9))
def test_draws_keep_the_number_of_rows(rows: list[tuple[int, int]], seed: int) -> None:
    table = np.array(rows)
    cells = Cells.collect(table[:, 1:], strata=table[:, 0], n_strata=4)
    rng = np.random.default_rng(seed)
    simple = cells.simple_draws(n_resamples=7, generator=rng)
    assert (simple.sum(axis=1) == len(rows)).all()
    stratified = cells.stratified_draws(n_resamples=7, generator=rng)
    for stratum in range(4):
        drawn = stratified[:, cells.stratum == stratum].sum(axis=1)
        assert (drawn == (table[:, 0] == stratum).sum()).all()


def test_counts_are_distributed_like_resampled_indices() -> None:
    rng = np.random.default_rng(5)
    columns = rng.integers(0, 4, size=(60, 1))
    strata = rng.integers(0, 3, size=60)
    n_resamples = 5000
    cells = Cells.collect(columns, strata=strata, n_strata=3)
    indices = rng.integers(0, 60, size=(n_resamples, 60))
    by_index = np.stack([(columns[indices, 0] * (strata[indices] == s)).sum(axis=1) for s in range(3)], axis=1)
    by_count = cells.sums(cells.simple_draws(n_resamples=n_resamples, generator=rng))[:, :, 0]
    spread = by_index.std(axis=0)
    assert np.all(np.abs(by_index.mean(axis=0) - by_count.mean(axis=0)) < 5 * spread * math.sqrt(2 / n_resamples))
    # Sum of three strata and each one: the joint distribution has to fit, not the margins alone.
    for literal, drawn in [*zip(by_index.T, by_count.T, strict=True), (by_index.sum(1), by_count.sum(1))]:
        for share in (0.025, 0.5, 0.975):
            assert_quantile(float(np.quantile(drawn, share)), literal.astype(float), share=share, n_drawn=n_resamples)


def test_stratified_counts_are_distributed_like_indices_drawn_within_strata() -> None:
    rng = np.random.default_rng(6)
    columns = rng.integers(0, 4, size=(60, 1))
    strata = np.repeat([0, 1, 2], [40, 15, 5])
    columns[strata == 2] += 20  # so that drawing across strata would be far too wide
    n_resamples = 5000
    cells = Cells.collect(columns, strata=strata, n_strata=3)
    literal = np.zeros(n_resamples)
    for stratum in range(3):
        members = columns[strata == stratum, 0]
        literal += members[rng.integers(0, len(members), size=(n_resamples, len(members)))].sum(axis=1)
    drawn = cells.sums(cells.stratified_draws(n_resamples=n_resamples, generator=rng)).sum(axis=(1, 2))
    for share in (0.025, 0.25, 0.975):
        assert_quantile(float(np.quantile(drawn, share)), literal, share=share, n_drawn=n_resamples)
    simple = cells.sums(cells.simple_draws(n_resamples=n_resamples, generator=rng)).sum(axis=(1, 2))
    with pytest.raises(AssertionError):
        assert_quantile(float(np.quantile(simple, 0.025)), literal, share=0.025, n_drawn=n_resamples)


def test_bootstrap_interval_of_a_mean_is_the_textbook_one() -> None:
    rng = np.random.default_rng(7)
    values = rng.normal(3.0, 2.0, size=(400, 1))  # every row distinct: exact all the same
    low, high = bootstrap_interval(values, statistic=lambda sums: sums[:, 0, 0] / 400, n_resamples=4000)
    standard_error = values.std() / math.sqrt(400)
    # A percentile of 4000 draws has a standard error of about 0.042 standard deviations.
    assert low == pytest.approx(values.mean() - 1.96 * standard_error, abs=0.25 * standard_error)
    assert high == pytest.approx(values.mean() + 1.96 * standard_error, abs=0.25 * standard_error)


def test_bootstrap_depends_on_the_seed_and_not_on_the_order_of_rows() -> None:
    rng = np.random.default_rng(8)
    sizes = rng.integers(1, 8, size=(300, 1))

    def interval(rows: np.ndarray, seed: int) -> tuple[float, float]:
        return bootstrap_interval(rows, statistic=lambda sums: sums[:, 0, 0] / 300, random_state=seed)

    assert interval(sizes, 1) == interval(sizes, 1) == interval(rng.permutation(sizes), 1)
    assert interval(sizes, 1) != interval(sizes, 2)


def test_bootstrap_of_nothing_is_undefined_and_needs_a_resample() -> None:
    empty = np.zeros((0, 1))
    assert all(map(math.isnan, bootstrap_interval(empty, statistic=lambda sums: sums[:, 0, 0])))
    with pytest.raises(SettingsError, match=r"^n_resamples: 0 must be at least 1"):
        bootstrap_interval(empty, statistic=lambda sums: sums[:, 0, 0], n_resamples=0)
