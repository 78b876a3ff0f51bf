"""Every decision equals the slow, independent reading of METHOD.md in tests/oracle.py."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from oracle import OracleResult, Role, oracle_fit_decide
from worlds import World, fit_quietly

from calcode import Calcode, Decisions, Evidence

VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "the paper's sets": {"keep_top": False},
    "no grid": {"level_grid": None},
    "coarse grid": {"level_grid": 21, "miscoverage": 0.1},
    "exact": {"level": "exact"},
    "upper": {"level": "upper", "protect": "all", "keep_top": False},
    "certified": {"level": "certified", "protect": "all", "guard_miscoverage": 0.2},
    "split": {"fused": "split", "audit": ("fused", "energy"), "random_state": 11},
    "no audit": {"audit": None, "always_protect": ("c1",)},
    "no localization": {"bandwidth": math.inf, "protect": "none"},
    "wide margin": {"keep_top": False, "discovery_margin": 0.3, "min_class_count": 30, "class_local_min": 20},
    "other counts": {"n_neighbors": 3, "trim": 2, "n_folds": 3, "deferral_level": 0.2, "support_budget": 0.6},
}
WORLDS = {
    "balanced": World(),
    "long tail": World(prior=(0.75, 0.15, 0.08, 0.02), spread=0.6, seed=3),
    "five by five": World(n_classes=5, n_prompts=5, dimension=5, seed=4),
}


def compare(roles: dict[str, Evidence], settings: dict[str, Any], *, model: Calcode) -> tuple[Decisions, OracleResult]:
    decisions = model.decide(roles["test"])
    oracle = oracle_fit_decide(
        **{r: Role(e.embeddings, e.prompt_logits, e.labels) for r, e in roles.items()},
        classes=list(roles["test"].classes),
        settings=settings,
    )
    assert model.audit_name_ == oracle.audit_name
    if oracle.audit_name is not None:
        assert model.audit_auroc_ == pytest.approx(oracle.audit_auroc, abs=1e-12)
    assert model.bandwidth_ == pytest.approx(oracle.bandwidth, rel=1e-6)
    assert [model.classes_.index(name) for name in model.tail_classes_] == list(oracle.tail)
    for name, threshold in model.tail_thresholds_.items():
        assert threshold == pytest.approx(oracle.tail_thresholds[model.classes_.index(name)], abs=1e-12)
    np.testing.assert_array_equal(decisions.p_audit, oracle.p_audit)
    np.testing.assert_allclose(decisions.scores, oracle.scores, atol=1e-12)
    assert oracle.level_margin > 1e-9
    # METHOD.md excuses images one of whose cumulative weights lies within 1e-6 of its level.
    clear = oracle.margin > 1e-6
    assert clear.mean() > 0.9
    for name in ("sets", "localized_sets", "action", "reason", "label", "answered"):
        np.testing.assert_array_equal(getattr(decisions, name)[clear], getattr(oracle, name)[clear], err_msg=name)
    finite = np.isfinite(oracle.threshold)
    np.testing.assert_array_equal(np.isfinite(decisions.threshold)[clear], finite[clear])
    np.testing.assert_array_equal(decisions.sets, decisions.scores <= decisions.threshold)
    both = finite & clear[:, None]
    np.testing.assert_allclose(decisions.threshold[both], oracle.threshold[both], atol=1e-12)
    return decisions, oracle


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_decisions_equal_the_oracles(world: str, variant: str) -> None:
    roles = WORLDS[world].roles(n=160, n_test=80)
    settings = VARIANTS[variant]
    model = fit_quietly(Calcode(**settings), roles)
    if settings.get("level") in ("exact", "upper"):
        assert model.local_level_ is None
    compare(roles, settings, model=model)


def test_ties_everywhere() -> None:
    """Logits on a coarse grid: equal probabilities, equal scores, equal diagnostics."""
    rng = np.random.default_rng(0)

    def role(n: int) -> Evidence:
        angles = rng.integers(8, size=n) * np.pi / 4
        return Evidence(
            embeddings=np.column_stack([np.cos(angles), np.sin(angles)]),
            prompt_logits=rng.integers(-1, 2, size=(n, 3, 3)).astype(float),
            labels=rng.integers(3, size=n),
            classes=["a", "b", "c"],
        )

    roles = {name: role(120) for name in ("reference", "validation", "gate", "calibration", "test")}
    settings: dict[str, Any] = {"bandwidth": math.inf, "protect": "all", "level_grid": None}
    model = fit_quietly(Calcode(**settings), roles)
    decisions = model.decide(roles["test"])
    oracle = oracle_fit_decide(
        **{r: Role(e.embeddings, e.prompt_logits, e.labels) for r, e in roles.items()},
        classes=["a", "b", "c"],
        settings=settings,
    )
    np.testing.assert_array_equal(decisions.p_audit, oracle.p_audit)
    np.testing.assert_array_equal(decisions.sets, oracle.sets)
    np.testing.assert_array_equal(decisions.action, oracle.action)
