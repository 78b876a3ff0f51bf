"""Seeded Monte Carlo checks of METHOD.md 10, with binomial tolerances that a broken quantile fails."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from worlds import World

from calcode import Calcode, CalcodeWarning, SupportAudit
from calcode.method.audit import rank_p_values
from calcode.method.localized import LocalizedRule
from calcode.method.tail import ClassGuard

#: Standard errors allowed; a wrong sign has a chance of about 1 in 30,000 to be seen in a seeded run.
STANDARD_ERRORS = 4.0


def tolerance(rate: float, trials: int) -> float:
    return STANDARD_ERRORS * math.sqrt(rate * (1 - rate) / trials)


def draw_points(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Points on a circle whose scores' spread depends on where they lie: localization has work to do."""
    angle = rng.uniform(0, np.pi, size=n)
    scores = np.abs(rng.normal(size=n)) * (0.2 + angle)
    return np.column_stack([np.cos(angle), np.sin(angle)]), scores


# With 20 points at 0.1 the n + 1 rule takes the 19th and covers 19/21; without it the 18th, 18/21 = 0.857.
N_POINTS, MISCOVERAGE = 20, 0.1


def localized_coverage(level: str, bandwidth: float, *, runs: int, seed: int) -> float:
    rng = np.random.default_rng(seed)
    covered = 0
    for _ in range(runs):
        embeddings, scores = draw_points(rng, N_POINTS)
        queries, truth = draw_points(rng, 1)
        rule = LocalizedRule.fit(
            embeddings,
            scores,
            bandwidth=bandwidth,
            miscoverage=MISCOVERAGE,
            level=level,  # type: ignore[arg-type]
        )
        covered += int(truth[0] <= rule.thresholds(queries)[0])
    return covered / runs


@pytest.mark.parametrize("bandwidth", [0.2, 0.6, math.inf])
@pytest.mark.parametrize("level", ["exact", "upper", "certified"])
def test_localized_coverage_where_it_is_promised(level: str, bandwidth: float) -> None:
    runs = 3000
    coverage = localized_coverage(level, bandwidth, runs=runs, seed=2024)
    assert coverage >= 1 - MISCOVERAGE - tolerance(MISCOVERAGE, runs)


@pytest.mark.parametrize("level", ["exact", "loo"])
def test_without_localization_the_rank_is_neither_lower_nor_higher(level: str) -> None:
    runs = 4000
    coverage = localized_coverage(level, math.inf, runs=runs, seed=5)
    assert abs(coverage - 19 / 21) <= tolerance(19 / 21, runs) + (0.05 if level == "loo" else 0.0)


def test_class_quantiles_cover_their_class() -> None:
    """Ten examples at 0.1: the 10th of 10 covers 10/11; one rank lower would cover 9/11 = 0.818."""
    rng = np.random.default_rng(3)
    runs, covered = 3000, 0
    for _ in range(runs):
        embeddings, scores = draw_points(rng, 20)
        rule = LocalizedRule.fit(embeddings, scores, bandwidth=math.inf, miscoverage=0.1)
        labels = rng.permutation(np.repeat([0, 1], 10))
        guard = ClassGuard.fit(
            name="a", index=0, calibration=rule, labels=labels, miscoverage=0.1, class_local_min=50, grid=1001
        )
        covered += int(draw_points(rng, 1)[1][0] <= guard.quantile)
    assert abs(covered / runs - 10 / 11) <= tolerance(10 / 11, runs)


@pytest.mark.parametrize("decimals", [0, 8])
def test_p_values_are_super_uniform_for_a_fixed_diagnostic(decimals: int) -> None:
    """Ten gate images: without the added one a level of 0.1 would be hit with probability 2/11."""
    rng = np.random.default_rng(7)
    runs = 4000
    p_values = np.empty(runs)
    for run in range(runs):
        values = rng.normal(size=11).round(decimals)  # 0 decimals: ties
        p_values[run] = rank_p_values(values[:1], sorted_gate=np.sort(values[1:]))[0]
    for level in (0.05, 0.1, 0.3, 0.7):
        assert (p_values <= level).mean() <= level + tolerance(level, runs)


@pytest.mark.parametrize(
    ("candidates", "fused"), [(("distance", "energy", "msp", "prompt"), "paper"), (("msp", "fused"), "split")]
)
def test_the_whole_audit_is_super_uniform_where_promised(candidates: tuple[str, ...], fused: str) -> None:
    world = World(dimension=4)
    runs, per_run, level = 120, 5, 0.1
    rejected = 0
    for run in range(runs):
        audit = SupportAudit.fit(
            reference=world.draw(30, seed=10 * run),
            validation=world.draw(60, seed=10 * run + 1),
            gate=world.draw(39, seed=10 * run + 2),
            candidates=candidates,
            fused=fused,  # type: ignore[arg-type]
            random_state=run,
        )
        assert audit.independent
        p_values = audit.p_values(world.draw(per_run, seed=10 * run + 3))
        rejected += int((p_values <= level).sum())
    # Images of one run share their gate: count runs, not images, for the tolerance.
    assert rejected / (runs * per_run) <= level + tolerance(level, runs)


@pytest.mark.parametrize("guard_miscoverage", [0.1, 0.25])
def test_protected_class_coverage_among_accepted(guard_miscoverage: float) -> None:
    """A class that validation shows to be missed gets its coverage back, whatever the localized rule does."""
    world = World(n_classes=3, dimension=4, spread=0.8, temperature=0.1, prior=(0.6, 0.25, 0.15))
    covered = accepted = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        for run in range(150):
            roles = {
                role: world.draw(n, seed=100_000 + 10 * run + i)
                for i, (role, n) in enumerate(
                    {"reference": 30, "validation": 60, "gate": 50, "calibration": 150, "test": 40}.items()
                )
            }
            test = roles.pop("test")
            model = Calcode(
                bandwidth=0.3, always_protect=["c2"], guard_miscoverage=guard_miscoverage, class_local_min=10_000
            ).fit(**roles)
            decisions = model.decide(test)
            chosen = decisions.accepted & (test.labels == 2)
            covered += int(decisions.sets[chosen, 2].sum())
            accepted += int(chosen.sum())
    # About six images a run share a calibration set; the tolerance counts runs.
    assert accepted > 500
    assert covered / accepted >= 1 - guard_miscoverage - tolerance(guard_miscoverage, 150)
