from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as arrays
from worlds import World, fit_quietly

from calcode import COST_REGIMES, Action, Calcode, Costs, Decisions, Reason
from calcode.method.decisions import choose_actions, selective_risk

ROLES = World().roles(named=True)
MODEL = fit_quietly(Calcode(), ROLES)
DECISIONS = MODEL.decide(ROLES["test"])


def test_enumerations_have_their_fixed_values() -> None:
    assert [int(a) for a in (Action.LABEL, Action.SET, Action.DEFER)] == [0, 1, 2]
    assert [int(r) for r in (Reason.NONE, Reason.LOW_SUPPORT, Reason.EMPTY_SET, Reason.FULL_SET)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("row", "supported", "utility", "expected"),
    [
        ([True, False], True, False, (Action.LABEL, Reason.NONE, 0)),
        ([False, True], True, True, (Action.LABEL, Reason.NONE, 1)),
        ([True, True], True, False, (Action.SET, Reason.NONE, -1)),
        ([True, True], True, True, (Action.DEFER, Reason.FULL_SET, -1)),
        ([False, False], True, False, (Action.DEFER, Reason.EMPTY_SET, -1)),
        ([True, False], False, False, (Action.DEFER, Reason.LOW_SUPPORT, -1)),
        ([False, False], False, True, (Action.DEFER, Reason.LOW_SUPPORT, -1)),
        ([True, True], False, True, (Action.DEFER, Reason.LOW_SUPPORT, -1)),
    ],
)
def test_the_rule_word_by_word(row: list[bool], supported: bool, utility: bool, expected: tuple) -> None:
    action, reason, label = choose_actions(np.array([row]), supported=np.array([supported]), binary_utility=utility)
    assert (action[0], reason[0], label[0]) == expected
    assert action.dtype == reason.dtype == np.int8


@given(arrays.arrays(bool, (12, 3)), arrays.arrays(bool, 12))
def test_every_image_gets_exactly_one_action(sets: np.ndarray, supported: np.ndarray) -> None:
    action, reason, label = choose_actions(sets, supported=supported)
    assert ((action == Action.DEFER) == (reason != Reason.NONE)).all()
    assert ((label >= 0) == (action == Action.LABEL)).all()
    assert (sets[action == Action.LABEL].sum(axis=1) == 1).all()
    assert (sets[action == Action.SET].sum(axis=1) > 1).all()


def test_slices_keep_rows_together() -> None:
    some = DECISIONS[[3, 1]]
    assert len(some) == 2
    np.testing.assert_array_equal(some.sets, DECISIONS.sets[[3, 1]])
    assert some.ids is not None
    assert some.ids.tolist() == ["test-3", "test-1"]
    assert some.model_digest == DECISIONS.model_digest
    joined = Decisions.concatenate([DECISIONS[:20], DECISIONS[20:]])
    np.testing.assert_array_equal(joined.threshold, DECISIONS.threshold)


def test_iterating_speaks_in_words_and_shows_only_what_is_released() -> None:
    for i, decision in enumerate(DECISIONS):
        assert decision.id == f"test-{i}"
        assert decision.action == DECISIONS.action[i]
        if decision.action is Action.DEFER:
            assert decision.released == ()
            assert decision.reason is not Reason.NONE
        else:
            expected = tuple(np.array(DECISIONS.classes)[DECISIONS.sets[i]])
            assert decision.released == expected


def test_decisions_are_frozen() -> None:
    with pytest.raises(ValueError, match="read-only"):
        DECISIONS.sets[0, 0] = True
    with pytest.raises(AttributeError):
        DECISIONS.action = DECISIONS.reason  # type: ignore[misc]


def test_arrow_and_pandas_carry_the_released_set() -> None:
    table = DECISIONS.to_arrow()
    assert table.num_rows == len(DECISIONS)
    frame = DECISIONS.to_pandas()
    assert list(frame["id"]) == list(DECISIONS.ids)  # type: ignore[arg-type]


def test_summary_never_gives_coverage_alone() -> None:
    text = str(DECISIONS.summary(ROLES["test"].require_labels())).lower()
    for word in ("coverage", "set size", "full", "informative", "deferral", "promised", "observed"):
        assert word in text


def test_risk_by_hand_and_when_everything_is_deferred() -> None:
    costs = Costs(error=10.0, set_size=2.0, deferral=3.0)
    risk = selective_risk(coverage=0.9, worst_coverage=0.8, set_size=3.0, deferral=0.25, n_classes=5, costs=costs)
    assert risk == pytest.approx(0.75 * (10 * 0.1 + 5 * 0.2 + 2 * 2 / 4) + 3 * 0.25)
    nothing = selective_risk(
        coverage=float("nan"),
        worst_coverage=float("nan"),
        set_size=float("nan"),
        deferral=1.0,
        n_classes=5,
        costs=costs,
    )
    assert nothing == 3.0


def test_the_four_regimes() -> None:
    vectors = {name: (c.error, c.set_size, c.deferral) for name, c in COST_REGIMES.items()}
    assert vectors == {
        "balanced": (10, 1, 1),
        "safety-heavy": (25, 1, 0.5),
        "deferral-expensive": (10, 1, 5),
        "efficiency-heavy": (10, 3, 1),
    }
