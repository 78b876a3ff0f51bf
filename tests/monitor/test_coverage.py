from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from calcode.errors import ArtifactError, CalcodeError
from calcode.monitor import CoverageProcess, labels_needed, miss_line
from calcode.monitor.binomial import beta_quantile, binomial_interval
from calcode.monitor.coverage import least_coverage


@pytest.mark.parametrize(("a", "b"), [(1, 1), (1, 19), (5, 96), (96, 5), (40, 1), (1000, 52)])
@pytest.mark.parametrize("q", [0.005, 0.5, 0.995])
def test_beta_quantiles_are_scipys(a: int, b: int, q: float) -> None:
    assert beta_quantile(q, a, b) == pytest.approx(stats.beta.ppf(q, a, b), abs=1e-10)


@pytest.mark.parametrize(("hits", "n"), [(0, 12), (12, 12), (19, 20), (150, 311)])
def test_the_binomial_interval_is_clopper_pearsons(hits: int, n: int) -> None:
    expected = stats.binomtest(hits, n).proportion_ci(method="exact")
    np.testing.assert_allclose(binomial_interval(hits, n), [expected.low, expected.high], atol=1e-10)


def test_nothing_counted_says_nothing() -> None:
    assert binomial_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("n", [19, 36, 100, 400, 3000])
@pytest.mark.parametrize("delta", [0.05, 0.1])
def test_the_line_is_the_larger_of_margin_and_bag_quantile(n: int, delta: float) -> None:
    k = math.ceil((n + 1) * (1 - delta) - 1e-9)
    expected = max(delta + 0.05, 1 - stats.beta.ppf(0.005, k, n + 1 - k))
    assert miss_line(n, miscoverage=delta) == pytest.approx(expected, abs=1e-9)


def test_the_line_of_a_class_in_every_set_is_the_margin() -> None:
    assert miss_line(18, miscoverage=0.05, margin=0.03) == pytest.approx(0.08)
    assert miss_line(0, miscoverage=0.05) == pytest.approx(0.10)


def test_the_capital_is_the_mean_of_the_products() -> None:
    misses = np.random.default_rng(0).random(120) < 0.2
    process = CoverageProcess(line=0.12, alpha=0.001)
    lambdas = 0.999 * np.array([0.1, 0.25, 0.5, 0.75, 0.95]) / 0.12
    for t, missed in enumerate(misses, start=1):
        reading = process.update(bool(missed))
        capital = np.prod(1 + lambdas[:, None] * (misses[:t] - 0.12), axis=1).mean()
        assert math.exp(reading.log_capital) == pytest.approx(capital, rel=1e-10)
        assert reading.n == t


def test_a_restart_has_capital_one_and_half_the_alpha() -> None:
    process = CoverageProcess(line=0.1, alpha=0.01)
    for _ in range(5):
        process.update(True)
    again = process.restarted(line=0.2).restarted(line=0.3)
    assert (again.alpha, again.line, again.reading) == (0.0025, 0.3, (0, 0.0, None))


def test_a_resumed_process_is_the_uninterrupted_one() -> None:
    whole, cut = (CoverageProcess(line=0.1, alpha=0.01) for _ in range(2))
    for missed in np.random.default_rng(4).random(200) < 0.3:
        cut = CoverageProcess.from_state(json.loads(json.dumps(cut.to_state())))
        assert cut.update(bool(missed)) == whole.update(bool(missed))
    assert whole.reading.alarm_at is not None


@pytest.mark.parametrize(("key", "value"), [("misses", 4), ("line", 1.0), ("alpha", None), ("n", 2.5), ("alarm_at", 0)])
def test_a_state_that_makes_no_sense_is_refused(key: str, value: object) -> None:
    process = CoverageProcess(line=0.1, alpha=0.01)
    for missed in (True, False, False):
        process.update(missed)
    with pytest.raises(ArtifactError, match=key):
        CoverageProcess.from_state(process.to_state() | {key: value})


@pytest.mark.parametrize("line", [0.0, 1.0, -0.2])
def test_a_line_outside_its_range_is_refused(line: float) -> None:
    with pytest.raises(CalcodeError, match="line"):
        CoverageProcess(line=line, alpha=0.01)


@pytest.mark.parametrize(
    ("line", "alpha", "coverage"), [(0.05, 0.05, 0.90), (0.05, 0.05, 0.85), (0.05, 0.05, 0.80), (0.1, 0.001, 0.7)]
)
def test_labels_needed_is_the_median_of_simulated_alarms(line: float, alpha: float, coverage: float) -> None:
    rng = np.random.default_rng(0)
    n_streams, longest = 4000, 600
    misses = np.cumsum(rng.random((n_streams, longest)) < 1 - coverage, axis=1)
    hits = np.arange(1, longest + 1) - misses
    lambdas = 0.999 * np.array([0.1, 0.25, 0.5, 0.75, 0.95]) / line
    capital = np.mean([(1 + bet * (1 - line)) ** misses * (1 - bet * line) ** hits for bet in lambdas], axis=0)
    share = (np.maximum.accumulate(capital, axis=1) >= 1 / alpha).mean(axis=0)
    needed = labels_needed(line=line, alpha=alpha, miss_rate=1 - coverage)
    assert needed is not None
    # The share of alarms passes one half at this label, up to the simulation's own error.
    assert share[needed - 1] >= 0.5 - 0.025
    assert share[needed - 2] < 0.5 + 0.025


def test_an_alarm_that_never_speaks_needs_no_number_of_labels() -> None:
    assert labels_needed(line=0.1, alpha=0.01, miss_rate=0.05, longest=300) is None


def test_the_least_coverage_holds_at_every_look_whatever_the_order_of_labels() -> None:
    """Hits that wait for their label count as misses; a bound for one time and one without them both fail."""
    rng = np.random.default_rng(6)
    n_streams, n, coverage = 200, 300, 0.85
    above = dict.fromkeys(("every look", "one time", "labelled only"), 0)
    for _ in range(n_streams):
        covered = rng.random(n) < coverage
        # Misses wait much longer for their label than hits.
        known_at = np.arange(n) + rng.geometric(np.where(covered, 0.2, 0.01))
        seen = [(covered[:look] & (known_at[:look] < look), known_at[:look] < look) for look in range(30, n + 1, 30)]
        above["every look"] += any(least_coverage(hits.tolist(), alpha=0.05) > coverage for hits, _ in seen)
        above["labelled only"] += any(
            least_coverage(hits[known].tolist(), alpha=0.05) > coverage for hits, known in seen
        )
        hits = np.cumsum(covered)
        fixed = stats.beta.ppf(0.05, hits, np.arange(1, n + 1) - hits + 1)
        above["one time"] += bool((fixed > coverage).any())
    most = stats.binom.ppf(0.999, n_streams, 0.05)
    assert above["every look"] <= most
    assert above["one time"] > 2 * most
    assert above["labelled only"] > 2 * most


@given(st.lists(st.booleans(), max_size=80), st.data())
def test_a_hit_taken_for_a_miss_never_raises_the_least_coverage(covered: list[bool], data: st.DataObject) -> None:
    lower = [hit and data.draw(st.booleans()) for hit in covered]
    assert least_coverage(lower, alpha=0.05) <= least_coverage(covered, alpha=0.05)
    for after in (True, False):  # what was shown once stays shown
        assert least_coverage(covered, alpha=0.05) <= least_coverage([*covered, after], alpha=0.05)
