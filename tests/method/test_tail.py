from __future__ import annotations

import math

import numpy as np

from calcode.method.bandwidth import HeldOut
from calcode.method.localized import LocalizedRule
from calcode.method.quantiles import conformal_quantile
from calcode.method.tail import (
    ClassEvidence,
    ClassGuard,
    GuardedThresholds,
    class_evidence,
    discover_tail,
    in_every_set_sentence,
)


def rows(*triples: tuple[str, int, float]) -> list[ClassEvidence]:
    return [ClassEvidence(name=name, n=n, coverage=coverage, bound=0.9) for name, n, coverage in triples]


def test_held_out_coverage_per_class() -> None:
    covered = np.array([True, False, True, True])
    outcome = HeldOut(sets=np.ones((4, 3), dtype=bool), covered=covered, infinite=np.zeros(4, dtype=bool))
    first, second, third = class_evidence(outcome, np.array([0, 0, 1, 1]), classes=["a", "b", "c"], bound=0.9)
    assert (first.n, first.coverage) == (2, 0.5)
    assert (second.n, second.coverage) == (2, 1.0)
    assert third.n == 0
    assert math.isnan(third.coverage)


def test_low_coverage_and_few_examples_are_protected_with_the_reason() -> None:
    reasons = discover_tail(
        rows(("low", 40, 0.85), ("few", 9, 1.0), ("fine", 40, 0.95), ("none", 0, math.nan)), min_class_count=10
    )
    assert {name: reason.kind for name, reason in reasons.items()} == {
        "low": "undercovered",
        "few": "too few",
        "none": "too few",
    }
    assert str(reasons["low"]) == "held-out coverage 0.850 on 40 accepted validation examples, below 0.900"


def test_exactly_at_the_bound_is_not_protected() -> None:
    # 1 - 0.05 - 0.05 is 0.8999999999999999 and 9/10 is 0.9: rounding must not protect or expose a class.
    at_bound = [ClassEvidence(name="a", n=10, coverage=0.9, bound=0.9 + 1e-16)]
    assert discover_tail(at_bound, min_class_count=10) == {}


def test_requested_and_all_and_none() -> None:
    fine = rows(("a", 40, 0.95), ("b", 40, 0.95))
    assert {n: r.kind for n, r in discover_tail(fine, min_class_count=10, always_protect=["b"]).items()} == {
        "b": "requested"
    }
    assert [r.kind for r in discover_tail(fine, min_class_count=10, protect="all").values()] == ["all classes"] * 2
    assert discover_tail(rows(("a", 1, 0.0)), min_class_count=10, protect="none") == {}


def calibrated(n: int, *, level: str = "loo") -> tuple[LocalizedRule, np.ndarray]:
    rng = np.random.default_rng(0)
    embeddings = rng.normal(size=(2 * n, 4)) + 1
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    rule = LocalizedRule.fit(embeddings, rng.uniform(size=2 * n), bandwidth=0.4, miscoverage=0.05, level=level)  # type: ignore[arg-type]
    return rule, np.arange(2 * n) % 2


def guard_of(rule: LocalizedRule, labels: np.ndarray) -> ClassGuard:
    return ClassGuard.fit(
        name="mel", index=1, calibration=rule, labels=labels, miscoverage=0.05, class_local_min=50, grid=1001
    )


def test_18_examples_give_infinity_and_say_so_19_a_finite_value() -> None:
    guard = guard_of(*calibrated(18))
    assert guard.quantile == math.inf
    assert "'mel' (18 of 19 needed at 0.95)" in in_every_set_sentence([guard])
    finite = guard_of(*calibrated(19))
    assert math.isfinite(finite.quantile)
    assert in_every_set_sentence([finite]) == ""


def test_class_global_below_50_and_the_larger_of_both_from_50_on() -> None:
    rule, labels = calibrated(49)
    guard = guard_of(rule, labels)
    assert guard.local is None
    assert guard.quantile == conformal_quantile(rule.scores[labels == 1], miscoverage=0.05)
    rule, labels = calibrated(50, level="upper")
    guard = guard_of(rule, labels)
    assert guard.local is not None
    assert guard.local.level == "upper"
    queries = rule.embeddings[:20]
    alone = LocalizedRule.fit(
        rule.embeddings[labels == 1], rule.scores[labels == 1], bandwidth=0.4, miscoverage=0.05, level="upper"
    )
    expected = np.maximum(guard.quantile, alone.thresholds(queries))
    assert guard.searches
    localized = rule.thresholds(queries)
    found = GuardedThresholds(rule, guards=[guard], n_classes=3).thresholds(queries)
    np.testing.assert_array_equal(found[0], localized)
    np.testing.assert_array_equal(found[1][:, 1], np.maximum(localized, expected))
    np.testing.assert_array_equal(found[1][:, [0, 2]], np.stack([localized] * 2, axis=1))
