"""Thresholds over whole cohorts: tiles or not, float32 first or not, the answer is that of float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import World, fit_quietly

from calcode import Calcode
from calcode.kernels import (
    CHUNK,
    CutRule,
    CutSearch,
    KeptWeights,
    ScreenedAnchors,
    cosine_distances,
    first_reaching,
    kernel_weights,
)
from calcode.method.localized import LocalizedRule
from calcode.method.tail import ClassGuard, GuardedThresholds

seeds = st.integers(0, 2**20)


def fitted(seed: int, **settings: object) -> tuple[Calcode, dict]:
    roles = World(seed=seed, prior=(0.6, 0.2, 0.15, 0.05)).roles(n=350, n_test=150)
    return fit_quietly(Calcode(protect="all", class_local_min=30, **settings), roles), roles


def in_tiles(monkeypatch: pytest.MonkeyPatch, *, columns: int) -> None:
    """From now on every search goes in tiles of so many columns, which are weighed again where a cut is reached."""
    monkeypatch.setattr("calcode.kernels.KEPT_COLUMNS", 0)
    monkeypatch.setattr("calcode.kernels.screened.KEPT_COLUMNS", 0)
    monkeypatch.setattr("calcode.kernels.masses.TILE", columns)
    monkeypatch.setattr("calcode.kernels.masses._RUN", min(16, columns // CHUNK))
    monkeypatch.setattr("calcode.kernels.screened.TILE", columns)


@pytest.mark.parametrize("level", ["loo", "certified"])
@pytest.mark.parametrize("bandwidth", ["auto", 0.02, math.inf])
@pytest.mark.parametrize("columns", [32, 64, 4096])
def test_tiles_give_the_thresholds_of_whole_rows(
    level: str, bandwidth: float | str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles so narrow that guards have none of their points in some of them, and one that holds everything."""
    model, roles = fitted(1, level=level, bandwidth=bandwidth)
    assert any(guard.searches for guard in model.guards_)
    embeddings = roles["test"].embeddings
    whole = model.thresholds(embeddings)
    in_tiles(monkeypatch, columns=columns)
    tiled = GuardedThresholds(model.rule_, guards=model.guards_, n_classes=4).thresholds(embeddings)
    for one, other in zip(whole, tiled, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(whole[0], model.rule_.thresholds(embeddings))


@given(
    seed=seeds,
    n=st.integers(1, 190),
    columns=st.sampled_from([32, 64, 256]),
    cut=st.sampled_from([0.01, 0.5, 0.9, 0.999, math.inf]),
    few=st.booleans(),
)
def test_rules_searched_together_are_those_searched_alone(
    seed: int, n: int, columns: int, cut: float, few: bool
) -> None:
    rng = np.random.default_rng(seed)
    width = -(-n // CHUNK) * CHUNK
    weights = rng.random((7, width)) ** 6  # fillers weigh something: no rule may count them
    members = np.flatnonzero(rng.random(n) < (0.05 if few else 0.6))
    with pytest.MonkeyPatch.context() as patch:
        in_tiles(patch, columns=columns)
        search = CutSearch([CutRule(members=None, cut=cut), CutRule(members=members, cut=cut)], n_columns=n)
        positions, margins = search.positions(KeptWeights(weights))
    for index, own in enumerate((np.arange(n), members)):
        if math.isinf(cut):
            assert (positions[:, index] == width).all()
            assert (margins[:, index] == math.inf).all()
            continue
        expected, expected_margins = first_reaching(weights[:, own], cuts=np.array([cut]))
        clear = expected_margins * 1e-6 > 1e-12
        columns_of = np.append(own, width)
        np.testing.assert_array_equal(positions[clear, index], columns_of[expected][clear])
        if len(own):
            np.testing.assert_allclose(margins[clear, index], expected_margins[clear], rtol=1e-6, atol=1e-12 / 4e-8)


@pytest.mark.parametrize("tiled", [False, True])
def test_what_float32_gets_wrong_is_settled_in_float64(tiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first look that is far too coarse, which is then allowed for: the answer stays."""
    model, roles = fitted(2)
    embeddings = roles["test"].embeddings
    if tiled:
        in_tiles(monkeypatch, columns=64)
    search = GuardedThresholds(model.rule_, guards=model.guards_, n_classes=4)
    expected = search.thresholds(embeddings)
    np.testing.assert_array_equal(expected[0], model.rule_.thresholds(embeddings))
    rows_of = ScreenedAnchors.query_rows

    def coarse(self: ScreenedAnchors, queries: np.ndarray, *, scale: float = 1.0) -> np.ndarray:
        rows = rows_of(self, queries, scale=scale)
        rows[:, :-2] = (rows[:, :-2] / np.float32(scale)).round(2) * np.float32(scale)
        return rows

    monkeypatch.setattr(ScreenedAnchors, "query_rows", coarse)
    wrong = search.thresholds(embeddings)
    assert any((one != other).any() for one, other in zip(wrong, expected, strict=True))
    assert search._screen is not None
    monkeypatch.setattr(search._screen[0], "widest", 1e6)  # as if the points lay so far apart
    for one, other in zip(search.thresholds(embeddings), expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("bandwidth", [10.0, 1e3, 1e6])
@pytest.mark.parametrize("n", [99, 105, 499])
def test_wide_kernels_weigh_no_filler_and_round_no_threshold_away(
    n: int, bandwidth: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masses close to a level of the grid, where every rounding error shows."""
    rng = np.random.default_rng(n)
    points, images = (rng.normal(size=(size, 16)) + 5.0 for size in (n, 400))
    points, images = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (points, images))
    rule = LocalizedRule.fit(points, rng.random(n), bandwidth=bandwidth, miscoverage=0.05)
    expected = rule.thresholds(images)
    assert np.isfinite(expected).all()
    for _ in ("whole rows", "tiles"):
        search = GuardedThresholds(rule, guards=(), n_classes=2)
        np.testing.assert_array_equal(search.thresholds(images)[0], expected)
        in_tiles(monkeypatch, columns=64)


@pytest.mark.parametrize("level", ["loo", "certified", "upper", "exact"])
@pytest.mark.parametrize("bandwidth", [1e-5, 1e-7, 1e-9])
def test_a_narrow_kernel_reaches_the_copy_of_an_image(level: str, bandwidth: float) -> None:
    """Float32 sees a copy up to 1e-6 away, which is many such bandwidths."""
    roles = World().roles(n=200)
    calibration = roles["calibration"][np.repeat(np.arange(40), 5)]
    model = Calcode(level=level, bandwidth=bandwidth, miscoverage=0.3, protect="all", class_local_min=30)
    fit_quietly(model, roles | {"calibration": calibration})
    localized, guarded = model.thresholds(calibration.embeddings)
    assert np.isfinite(localized).mean() > 0.5
    np.testing.assert_array_equal(localized, model.rule_.thresholds(calibration.embeddings))
    assert (guarded >= localized[:, None]).all()


@pytest.mark.parametrize("level", ["loo", "certified", "upper", "exact"])
def test_without_an_accepted_calibration_image_every_set_is_full(level: str) -> None:
    roles = World().roles(n=60, n_test=5)
    mean = roles["reference"].embeddings.mean(axis=0)
    opposite = np.tile(-mean / np.linalg.norm(mean), (60, 1))
    model = Calcode(level=level, audit=("distance",), bandwidth=0.1, protect="all")
    fit_quietly(model, roles | {"calibration": roles["calibration"]._replace(embeddings=opposite)})
    assert len(model.rule_.scores) == 0
    assert model.decide(roles["test"]).sets.all()


def test_guards_of_any_size_are_those_of_float64() -> None:
    """A class whose count is no multiple of a chunk, among many points."""
    rng = np.random.default_rng(0)
    points, images = (rng.normal(size=(size, 32)) for size in (5000, 1500))
    points, images = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (points, images))
    labels = (rng.random(5000) < 2 / 3).astype(np.int64)
    rule = LocalizedRule.fit(points, rng.random(5000), bandwidth=0.5, miscoverage=0.05)
    guards = [
        ClassGuard.fit(
            name=name, index=index, calibration=rule, labels=labels, miscoverage=0.05, class_local_min=50, grid=1001
        )
        for index, name in enumerate("ab")
    ]
    localized, guarded = GuardedThresholds(rule, guards=guards, n_classes=2).thresholds(images)
    np.testing.assert_array_equal(localized, rule.thresholds(images))
    for guard in guards:
        assert guard.local is not None
        own = np.maximum(guard.quantile, guard.local.thresholds(images))
        np.testing.assert_array_equal(guarded[:, guard.index], np.maximum(localized, own))


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("level", ["loo", "certified", "upper", "exact"])
def test_one_image_and_many_get_the_same_thresholds(level: str, tiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if tiled:
        in_tiles(monkeypatch, columns=64)
    model, roles = fitted(4, level=level)
    embeddings = roles["test"].embeddings[:40]
    localized, guarded = model.thresholds(embeddings)
    for i in range(0, 40, 9):
        alone = model.thresholds(embeddings[i : i + 1])
        assert alone[0][0] == localized[i]
        np.testing.assert_array_equal(alone[1][0], guarded[i])


def test_float64_is_what_the_literal_rule_gives() -> None:
    model, roles = fitted(5)
    rule, embeddings = model.rule_, roles["test"].embeddings
    weights = kernel_weights(cosine_distances(embeddings, rule.embeddings) * (1.0 / rule.bandwidth))
    masses = np.cumsum(weights, axis=1) / (1 + weights.sum(axis=1, keepdims=True))
    expected = [rule.scores[np.argmax(row >= rule.cut)] if (row >= rule.cut).any() else math.inf for row in masses]
    np.testing.assert_array_equal(GuardedThresholds(rule, guards=(), n_classes=4).thresholds(embeddings)[0], expected)
