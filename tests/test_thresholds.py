"""Thresholds over whole cohorts: tiles or not, float32 first or not, the answer is that of float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import World, fit_quietly

from calcode import Calcode
from calcode.kernels import CutRule, cosine_distances, first_reaching, kernel_weights, tiled_positions
from calcode.thresholds import GuardedThresholds, TiledThresholds, tiling_pays

seeds = st.integers(0, 2**20)


def fitted(seed: int, **settings: object) -> tuple[Calcode, dict]:
    roles = World(seed=seed, prior=(0.6, 0.2, 0.15, 0.05)).roles(n=350, n_test=150)
    return fit_quietly(Calcode(protect="all", class_local_min=30, **settings), roles), roles


@pytest.mark.parametrize("level", ["loo", "certified"])
@pytest.mark.parametrize("bandwidth", ["auto", 0.02, math.inf])
@pytest.mark.parametrize("columns", [1, 7, 64, 4096])
def test_tiles_give_the_thresholds_of_whole_rows(
    level: str, bandwidth: float | str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles so narrow that guards have none of their points in some of them, and one that holds everything."""
    monkeypatch.setattr("calcode.kernels.tiled._COLUMNS", columns)
    model, roles = fitted(1, level=level, bandwidth=bandwidth)
    assert any(guard.searches for guard in model.guards_)
    arguments = {"guards": model.guards_, "n_classes": 4}
    embeddings = roles["test"].embeddings
    whole = GuardedThresholds(model.rule_, **arguments).of(embeddings)
    tiled = TiledThresholds(model.rule_, **arguments).of(embeddings)
    for one, other in zip(whole, tiled, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(whole[0], model.rule_.thresholds(embeddings))


@given(
    seed=seeds,
    n=st.integers(1, 90),
    columns=st.sampled_from([1, 5, 32]),
    cut=st.sampled_from([0.01, 0.5, 0.9, 0.999, math.inf]),
    few=st.booleans(),
)
def test_tiled_positions_are_those_of_first_reaching(
    seed: int, n: int, columns: int, cut: float, few: bool
) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.random((7, n)) ** 6
    members = np.flatnonzero(rng.random(n) < (0.05 if few else 0.6))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("calcode.kernels.tiled._COLUMNS", columns)
        positions, margins = tiled_positions(
            lambda rows, tile: weights[rows, tile],
            n_rows=7,
            n_columns=n,
            rules=[CutRule(members=None, cut=cut), CutRule(members=members, cut=cut)],
        )
    for index, own in enumerate((weights, weights[:, members])):
        if math.isinf(cut):
            assert (positions[:, index] == own.shape[1]).all()
            assert (margins[:, index] == math.inf).all()
            continue
        expected, expected_margins = first_reaching(own, cuts=np.array([cut]))
        clear = expected_margins * 1e-6 > 1e-12
        np.testing.assert_array_equal(positions[clear, index], expected[clear])
        if own.shape[1]:
            np.testing.assert_allclose(
                margins[clear, index], expected_margins[clear], rtol=1e-6, atol=1e-12 / 4e-8
            )


def test_a_margin_within_the_doubt_is_settled_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an error that reaches everywhere, every image is settled; with none, none is; the answer stays."""
    model, roles = fitted(2)
    embeddings = roles["test"].embeddings
    plain = model.rule_.thresholds(embeddings)
    for factor in (0.0, 1.0, 1e9):
        for module in ("weights", "tiled"):
            monkeypatch.setattr(
                f"calcode.kernels.{module}.mass_error",
                lambda scale, factor=factor: 4e-8 * factor + 0.0 * scale + 1e-30,
            )
        for search in (GuardedThresholds, TiledThresholds):
            localized, _ = search(model.rule_, guards=model.guards_, n_classes=4).of(embeddings)
            if factor:
                np.testing.assert_array_equal(localized, plain)
            else:
                assert (localized == plain).mean() > 0.95


def test_tiles_are_for_many_points_and_one_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    model, roles = fitted(3)
    model.decide(roles["test"])
    assert isinstance(model._search, GuardedThresholds)
    monkeypatch.setattr("calcode.thresholds.TILED_FROM", 10)
    again, _ = fitted(3)
    assert tiling_pays(again.rule_)
    decided = again.decide(roles["test"])
    assert isinstance(again._search, TiledThresholds)
    np.testing.assert_array_equal(decided.threshold, model.decide(roles["test"]).threshold)
    for level in ("exact", "upper"):
        assert not tiling_pays(fitted(3, level=level)[0].rule_)


def test_one_image_and_many_get_the_same_thresholds_from_tiles() -> None:
    model, roles = fitted(4)
    search = TiledThresholds(model.rule_, guards=model.guards_, n_classes=4)
    embeddings = roles["test"].embeddings[:40]
    localized, guarded = search.of(embeddings)
    for i in range(0, 40, 9):
        alone = search.of(embeddings[i : i + 1])
        assert alone[0][0] == localized[i]
        np.testing.assert_array_equal(alone[1][0], guarded[i])


def test_float64_is_what_the_literal_rule_gives() -> None:
    model, roles = fitted(5)
    rule, embeddings = model.rule_, roles["test"].embeddings
    weights = kernel_weights(cosine_distances(embeddings, rule.embeddings), bandwidth=rule.bandwidth)
    masses = np.cumsum(weights, axis=1) / (1 + weights.sum(axis=1, keepdims=True))
    expected = [
        rule.scores[np.argmax(row >= rule.cut)] if (row >= rule.cut).any() else math.inf for row in masses
    ]
    np.testing.assert_array_equal(GuardedThresholds(rule, guards=(), n_classes=4).of(embeddings)[0], expected)
