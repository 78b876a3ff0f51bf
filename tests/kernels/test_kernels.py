"""The fast kernels against the plain ones: same neighbours, same thresholds, whatever the input."""

from __future__ import annotations

import math
import threading
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
import threadpoolctl
from hypothesis import given
from hypothesis import strategies as st

from calcode.kernels import (
    PairDistances,
    ScreenedAnchors,
    ScreenedWeights,
    cosine_distances,
    distances_to,
    first_reaching,
    kernel_weights,
    mass_error,
    nearest_distances,
    prefix_masses,
    row_blocks,
    run_blocks,
    shared_blocks,
    slices,
    smallest_columns,
)
from calcode.kernels.threads import core_blocks, scratch

seeds = st.integers(0, 2**20)


def unit(rng: np.random.Generator, n: int, d: int, *, crowding: float = 1.0) -> np.ndarray:
    """Rows whose mutual distances shrink with `crowding`, as those of real encoders do."""
    rows = rng.normal(size=(n, d)) + crowding * rng.normal(size=d)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@given(seed=seeds, n=st.integers(1, 700), count=st.integers(1, 12), single=st.booleans(), ties=st.booleans())
def test_smallest_columns_are_the_sorted_head(seed: int, n: int, count: int, single: bool, ties: bool) -> None:
    values = np.random.default_rng(seed).normal(size=(5, n))
    if ties:
        values = values.round(0)
    if single:
        values = values.astype(np.float32)
    count = min(count, n)
    found = smallest_columns(values, count=count)
    np.testing.assert_array_equal(np.take_along_axis(values, found, axis=1), np.sort(values, axis=1)[:, :count])
    assert all(len(set(row)) == count for row in found.tolist())


def test_nearest_distances_are_one_minus_cosine() -> None:
    rng = np.random.default_rng(0)
    queries, reference = unit(rng, 7, 5), unit(rng, 400, 5)
    expected = np.sort(1 - queries @ reference.T, axis=1)[:, :10]
    np.testing.assert_allclose(nearest_distances(queries, reference, n_neighbors=10), expected, atol=1e-15)


@pytest.mark.parametrize("d", [8, 128, 512, 1152])
@pytest.mark.parametrize("crowding", [0.0, 1.0, 5.0])
def test_screened_distances_stay_far_inside_their_error(d: int, crowding: float) -> None:
    rng = np.random.default_rng(d)
    shift = crowding * rng.normal(size=d)
    anchors, queries = (
        rows / np.linalg.norm(rows, axis=1, keepdims=True)
        for rows in (rng.normal(size=(300, d)) + shift, rng.normal(size=(90, d)) + shift)
    )
    screened = ScreenedAnchors(anchors)
    far = np.concatenate([queries, -queries[:20]])
    distances = screened.query_rows(far) @ screened.columns
    error = np.abs(distances[:, :300] - cosine_distances(far, anchors))
    assert error.max() < 5e-6
    nearest, _, bounds = screened.nearest(far, n_neighbors=10)
    np.testing.assert_allclose(nearest[:, :10], nearest_distances(far, anchors, n_neighbors=10), atol=1e-5)
    assert (error.max(axis=1) < bounds).all()


@pytest.mark.parametrize("d", [384, 512, 1280])
def test_errors_of_quantised_embeddings_stay_inside_their_bounds(d: int) -> None:
    """Coordinates of one size: a product rounds every addition the same way."""
    for share in (0.2, 0.34, 0.46, 0.54, 0.66):
        points = np.where(np.arange(320)[:, None] < 320 * share, 1.0, -1.0) * np.full(d, d**-0.5)
        nearest, columns, bounds = ScreenedAnchors(points).nearest(points, n_neighbors=10)
        exact = 1.0 - np.einsum("id,ijd->ij", points, points[columns])
        assert (np.abs(nearest - exact) < bounds[:, None]).all()


def test_masses_over_copies_stay_inside_their_bounds() -> None:
    """Errors of copies are the same and do not average out; the scores stand in the worst possible order."""
    worst = 0.0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        signs = np.where(rng.random((10, 512)) < 0.03, -1.0, 1.0) * rng.choice([-1.0, 1.0], size=512)
        points, queries = (
            signs[rng.integers(10, size=n)] * np.where(rng.random((n, 1)) < 0.1, -1.0, 1.0) * 512**-0.5
            for n in (400, 10)
        )
        found = ScreenedWeights(ScreenedAnchors(points), queries, bandwidth=0.1)
        single = found.whole()[:, :400].astype(np.float64)
        double = kernel_weights(cosine_distances(queries, points) * 10.0)
        order = np.argsort((single - double) / np.maximum(double, 1e-300), axis=1)
        masses = [
            np.take_along_axis(weights, order, axis=1).cumsum(axis=1) / (1.0 + weights.sum(axis=1, keepdims=True))
            for weights in (single, double)
        ]
        bounds = found.doubt * mass_error(1.0 + double.sum(axis=1))
        worst = max(worst, float((np.abs(masses[0] - masses[1]).max(axis=1) / bounds).max()))
    assert worst < 1.0


def test_copies_of_one_image_are_not_in_doubt() -> None:
    """Their float32 distances are zero; what float64 rounds in them is no error of float32."""
    rng = np.random.default_rng(0)
    for moved in (0.0, 1e-7):
        points = np.repeat(unit(rng, 1, 24), 50, axis=0) + moved * rng.normal(size=(50, 24))
        points /= np.linalg.norm(points, axis=1, keepdims=True)
        assert ScreenedWeights(ScreenedAnchors(points), points, bandwidth=0.1).doubt.max() < 1.1


@pytest.mark.parametrize("n", [5, 64, 65, 300])
def test_the_nearest_of_many_columns_are_found_tile_by_tile(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(n)
    anchors, queries = unit(rng, n, 16), unit(rng, 40, 16)
    whole = ScreenedAnchors(anchors).nearest(queries, n_neighbors=10)
    monkeypatch.setattr("calcode.kernels.screened._SEARCHED_COLUMNS", 64)
    tiled = ScreenedAnchors(anchors).nearest(queries, n_neighbors=10)
    # Float32: blocks of other shapes add the same numbers in another order.
    np.testing.assert_allclose(tiled[0], whole[0], atol=4e-7)
    np.testing.assert_array_equal(tiled[1], whole[1])
    np.testing.assert_array_equal(tiled[2], whole[2])
    exact = nearest_distances(queries, anchors, n_neighbors=16)
    assert (np.abs(tiled[0] - exact) <= tiled[2][:, None]).all()
    np.testing.assert_allclose(distances_to(queries, anchors, tiled[1]), exact, atol=1e-15)


def test_many_neighbours_are_gathered_in_bounded_memory() -> None:
    rng = np.random.default_rng(0)
    reference, queries = unit(rng, 2000, 64), unit(rng, 64, 64)
    columns = np.tile(np.arange(2000), (64, 1))
    tracemalloc.start()
    found = distances_to(queries, reference, columns)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 2**20  # all at once would be 63 MiB
    np.testing.assert_allclose(found, np.sort(cosine_distances(queries, reference), axis=1), atol=1e-14)


def weighed(anchors: np.ndarray, queries: np.ndarray, *, bandwidth: float) -> Iterator[tuple]:
    """Row slices, float32 weights and doubts, as a threshold search gets them."""
    screened = ScreenedAnchors(anchors)
    for rows in slices(len(queries), step=512):
        weights = ScreenedWeights(screened, queries[rows], bandwidth=bandwidth)
        yield rows, weights.whole(), weights.doubt


def largest_share_of_doubt(anchors: np.ndarray, queries: np.ndarray, *, bandwidth: float) -> float:
    """Change of any mass by float32, over the change that is allowed for; scores ascend by row and by distance."""
    n = len(anchors)
    distances = cosine_distances(queries, anchors)
    plain = kernel_weights(distances * (1.0 / bandwidth))
    largest = 0.0
    for rows, weights, doubt in weighed(anchors, queries, bandwidth=bandwidth):
        scale = 1 + plain[rows].sum(axis=1)
        allowed = doubt * mass_error(scale)
        for order in (np.arange(n)[None], np.argsort(distances[rows], axis=1)):
            masses = [
                np.cumsum(np.take_along_axis(w[:, :n].astype(np.float64), order, axis=1), axis=1)
                / (1 + w[:, :n].sum(axis=1, dtype=np.float64, keepdims=True))
                for w in (plain[rows], weights)
            ]
            changed = np.abs(masses[0] - masses[1]).max(axis=1)
            largest = max(largest, float((changed / allowed).max()))
    return largest


@pytest.mark.parametrize("share", [0.0025, 0.02, 0.8])
@pytest.mark.parametrize("crowding", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("n", [900, 9000])
def test_screened_masses_stay_far_inside_their_error(share: float, crowding: float, n: int) -> None:
    """At the bandwidths that the method chooses among, from the most local to the widest."""
    rng = np.random.default_rng(1)
    both = unit(rng, n + 300, 256, crowding=crowding)
    anchors, queries = both[:n], both[n:]
    bandwidth = float(np.quantile(cosine_distances(queries, anchors), share))
    assert largest_share_of_doubt(anchors, queries, bandwidth=bandwidth) < 0.5


@pytest.mark.parametrize("bandwidth", [0.05, 5e-3, 5e-4, 5e-5])
def test_the_error_of_masses_grows_as_the_bandwidth_shrinks(bandwidth: float) -> None:
    """Tight clusters, where a small bandwidth finds neighbours at all."""
    rng = np.random.default_rng(4)
    centres = unit(rng, 20, 64)
    both = centres[rng.integers(20, size=900)] + np.sqrt(bandwidth / 64) * rng.normal(size=(900, 64))
    both /= np.linalg.norm(both, axis=1, keepdims=True)
    assert largest_share_of_doubt(both[:700], both[700:], bandwidth=bandwidth) < 0.75


def test_an_infinite_bandwidth_weighs_every_anchor_one() -> None:
    rng = np.random.default_rng(2)
    anchors, queries = unit(rng, 45, 6), unit(rng, 3, 6)
    ((_, weights, doubt),) = weighed(anchors, queries, bandwidth=math.inf)
    assert (doubt == 0).all()
    assert weights.shape == (3, 64)
    assert (weights[:, :45] == 1).all()


@given(seed=seeds, n=st.sampled_from([1, 5, 31, 32, 64, 96, 100]), cut=st.floats(0.001, 0.999))
def test_first_reaching_is_the_literal_search(seed: int, n: int, cut: float) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.random((6, n)) ** 8
    positions, margins = first_reaching(weights, cuts=np.array([cut]))
    for row in range(6):
        masses = np.cumsum(weights[row]) / (1 + weights[row].sum())
        reached = np.flatnonzero(masses >= cut)
        expected = reached[0] if len(reached) else n
        around = [abs(masses[i] - cut) for i in (expected - 1, expected) if 0 <= i < n]
        assert positions[row] == expected or min(around) < 1e-12
        margin = margins[row] * mass_error(1 + weights[row].sum())
        assert margin == pytest.approx(min(around), abs=1e-12)


@given(seed=seeds)
def test_a_position_survives_changes_smaller_than_its_margin(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.random((20, 64))
    cuts = rng.random(20)
    positions, margins = first_reaching(weights, cuts=cuts)
    allowed = np.minimum(margins * mass_error(1 + weights.sum(axis=1)), 1.0)
    for sign in (-0.99, 0.99):
        moved, _ = first_reaching(weights, cuts=cuts + sign * allowed)
        np.testing.assert_array_equal(moved, positions)


def test_prefix_masses_by_hand_and_without_columns() -> None:
    below, total = prefix_masses(np.array([[1.0, 2.0, 4.0]]), np.array([[0, 1, 3]]))
    np.testing.assert_array_equal(below, [[0, 1, 7]])
    np.testing.assert_array_equal(total, [7])
    below, total = prefix_masses(np.empty((2, 0)), np.zeros((2, 1), dtype=int))
    assert not below.any()
    assert not total.any()


def test_blocks_cover_every_row_once() -> None:
    for n, columns in ((0, 10), (1, 10**9), (1000, 3000), (5, 1)):
        covered = [i for rows in row_blocks(n, n_columns=columns) for i in range(rows.start, rows.stop)]
        assert covered == list(range(n))


def test_pair_distances_are_the_same_on_every_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    rows = unit(rng, 40, 4)
    expected = 1 - rows @ rows.T
    for kept in (1 << 25, 0):
        monkeypatch.setattr("calcode.kernels.distances._KEPT_NUMBERS", kept)
        pairs = PairDistances(rows, rows)
        for _ in range(2):
            found = np.empty((40, 40))

            def keep(part: slice, block: np.ndarray, found: np.ndarray = found) -> None:
                found[part] = block

            pairs.each(keep)
            np.testing.assert_allclose(found, expected, atol=1e-14)
        np.testing.assert_allclose(pairs.head(3), expected[:3], atol=1e-14)


def blas_threads() -> int:
    return min(e["num_threads"] for e in threadpoolctl.threadpool_info() if e["user_api"] == "blas")


def test_blocks_run_from_several_threads_leave_the_matrix_library_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is one for the process: callers must not restore each other's."""
    monkeypatch.setattr("calcode.kernels.threads.available_cores", lambda: 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    inside: list[int] = []

    def call() -> None:
        for _ in range(30):
            run_blocks(lambda rows: inside.append(blas_threads()), [slice(0, 1), slice(1, 2)])

    before = threadpoolctl.threadpool_info()
    try:
        for controller in threadpoolctl.ThreadpoolController().lib_controllers:
            controller.set_num_threads(2)
        getattr(threadpoolctl.OpenBLASController, "clear_controlling_thread", lambda: None)()
        threads = [threading.Thread(target=call) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert inside == [1] * 180
        assert blas_threads() == 2
    finally:
        for controller, fact in zip(threadpoolctl.ThreadpoolController().lib_controllers, before, strict=False):
            controller.set_num_threads(fact["num_threads"])


def test_an_error_in_a_block_is_handed_on_and_lifts_the_limit() -> None:
    def work(rows: slice) -> None:
        raise ValueError("this block")

    before = blas_threads()
    with pytest.raises(ValueError, match="this block"):
        run_blocks(work, [slice(0, 1), slice(1, 2)])
    assert blas_threads() == before


@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize("n", [0, 1, 511, 513, 2000, 40_960])
def test_every_row_is_in_one_block(n: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calcode.kernels.threads.available_cores", lambda: threads)
    monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    for blocks in (list(shared_blocks(n)), list(shared_blocks(n, least=10, most=300)), list(core_blocks(n))):
        assert [block.start for block in blocks] == [0, *(block.stop for block in blocks[:-1])][: len(blocks)]
        assert sum(block.stop - block.start for block in blocks) == n
    sizes = [block.stop - block.start for block in shared_blocks(n)]
    assert max(sizes, default=0) <= 512
    assert threads == 1 or n < 2000 or sizes[-1] <= 128  # nobody waits for a large last one
    assert threads < 16 or n < 8192 or len(list(core_blocks(n))) == threads


def test_a_block_inside_another_keeps_to_its_thread_and_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for threads in (1, 2):
        monkeypatch.setattr("calcode.kernels.threads.available_cores", lambda threads=threads: threads)
        monkeypatch.setenv("OMP_NUM_THREADS", str(threads))

        def outer(rows: slice) -> None:
            here, memory = threading.get_ident(), scratch("test", 8)
            inner: list[int] = []
            run_blocks(lambda rows: inner.append(threading.get_ident()), slices(4, step=1))
            assert inner == [here] * 4
            assert np.shares_memory(memory, scratch("test", 8))

        run_blocks(outer, slices(3, step=1))
