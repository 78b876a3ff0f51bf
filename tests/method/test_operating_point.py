from __future__ import annotations

import warnings

import numpy as np
import pytest
from oracle import Role, oracle_operating_point
from worlds import World

from calcode import Calcode, CalcodeWarning, Costs, select_operating_point
from calcode.errors import SettingsError
from calcode.method.decisions import COST_REGIMES
from calcode.method.operating_point import DEFERRAL_LEVELS, TARGET_COVERAGES, GridPoint, least_risk

ROLES = World(spread=0.6).roles(n=260)


def select(costs: object = "balanced", **settings: object):  # type: ignore[no-untyped-def]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        return select_operating_point(
            **{role: ROLES[role] for role in ("reference", "validation", "gate")},
            costs=costs,  # type: ignore[arg-type]
            model=Calcode(**settings),  # type: ignore[arg-type]
        )


def point(target: float, level: float, risk: float, **changes: float) -> GridPoint:
    values = {"n_accepted": 100, "coverage": 0.96, "worst_coverage": 0.9, "set_size": 2.0, "deferral": 0.1}
    return GridPoint(
        target_coverage=target,
        deferral_level=level,
        risk=risk,
        **(values | {"informative": 0.5} | changes),  # type: ignore[arg-type]
    )


def test_every_point_of_the_grid_is_scored() -> None:
    chosen = select()
    assert [(p.deferral_level, p.target_coverage) for p in chosen.points] == [
        (level, target) for level in DEFERRAL_LEVELS for target in TARGET_COVERAGES
    ]
    assert chosen.chosen in chosen.points
    assert chosen.miscoverage == pytest.approx(1 - chosen.target_coverage)


def test_constraints_are_given_up_in_their_order() -> None:
    cheap_but_uncovered = point(0.9, 0.01, 1.0, coverage=0.94)
    fine = point(0.95, 0.05, 2.0)
    assert least_risk([cheap_but_uncovered, fine]) == (fine, ())
    full_sets = point(0.95, 0.05, 3.0, informative=0.0)
    assert least_risk([cheap_but_uncovered, full_sets]) == (full_sets, ("informative",))
    few = point(0.95, 0.05, 3.0, informative=0.0, n_accepted=10)
    assert least_risk([cheap_but_uncovered, few]) == (few, ("informative", "count"))
    assert least_risk([cheap_but_uncovered]) == (cheap_but_uncovered, ("informative", "count", "coverage"))


def test_a_point_exactly_at_the_constraints_meets_them() -> None:
    exact = point(0.95, 0.05, 1.0, coverage=0.95, n_accepted=50, informative=0.02)
    for change in ({"coverage": 0.949}, {"n_accepted": 49}, {"informative": 0.019}):
        cheaper = point(0.95, 0.05, 0.5, **({"coverage": 0.95, "n_accepted": 50, "informative": 0.02} | change))
        assert least_risk([cheaper, exact]) == (exact, ())


def test_ties_go_to_higher_coverage_then_lower_deferral() -> None:
    points = [point(0.9, 0.01, 1.0), point(0.95, 0.05, 1.0), point(0.95, 0.02, 1.0)]
    assert least_risk(points)[0] is points[2]


@pytest.mark.parametrize("settings", [{}, {"bandwidth": 0.6, "level_grid": None}])
def test_numbers_equal_the_oracles(settings: dict[str, object]) -> None:
    ours = select(**settings)
    theirs = oracle_operating_point(
        **{
            role: Role(ROLES[role].embeddings, ROLES[role].prompt_logits, ROLES[role].labels)
            for role in ("reference", "validation", "gate")
        },
        costs="balanced",
        settings=settings,
    )
    expected = {(point.target_coverage, point.deferral_level): point for point in theirs.points}
    for mine in ours.points:
        other = expected[mine.target_coverage, mine.deferral_level]
        assert mine.n_accepted == other.accepted
        assert mine.risk == pytest.approx(other.risk, abs=1e-9)
        assert mine.coverage == pytest.approx(other.coverage, abs=1e-12)
        assert mine.worst_coverage == pytest.approx(other.worst_class_coverage, abs=1e-12)
        assert mine.set_size == pytest.approx(other.mean_set_size, abs=1e-12)
        assert mine.informative == pytest.approx(other.informative_rate, abs=1e-12)
    assert (ours.target_coverage, ours.deferral_level, ours.relaxed) == (
        theirs.target_coverage,
        theirs.deferral_level,
        theirs.relaxed,
    )


def test_a_p_value_at_the_deferral_level_counts_as_accepted() -> None:
    """With 19 gate images the smallest p-value is 1/20, one of the levels."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        chosen = select_operating_point(
            reference=ROLES["reference"],
            validation=ROLES["validation"],
            gate=ROLES["gate"][:19],
            model=Calcode(audit=("distance",), bandwidth=0.6),
        )
    accepted = {point.deferral_level: point.n_accepted for point in chosen.points}
    assert accepted[0.05] == len(ROLES["validation"]) > accepted[0.10]


def test_costs_by_name_by_vector_and_wrong() -> None:
    assert select("safety-heavy").costs == COST_REGIMES["safety-heavy"]
    assert select((10, 3, 1)).costs == COST_REGIMES["efficiency-heavy"]
    with pytest.raises(SettingsError, match="costs: 'cheap' is none of 'balanced'"):
        select("cheap")
    with pytest.raises(SettingsError, match="costs: .* is not"):
        select((1, 2))
    with pytest.raises(SettingsError, match="must be finite and not negative"):
        select(Costs(error=-1.0, set_size=1.0, deferral=1.0))


def test_a_level_nobody_reaches_costs_a_deferral_each() -> None:
    roles = ROLES | {"validation": World(seed=9).draw(30, seed=3, shift=-40.0)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        chosen = select_operating_point(
            **{role: roles[role] for role in ("reference", "validation", "gate")}, model=Calcode(audit=("distance",))
        )
    assert chosen.relaxed == ("informative", "count", "coverage")
    assert np.isnan(chosen.chosen.coverage)
    assert chosen.risk == COST_REGIMES["balanced"].deferral
