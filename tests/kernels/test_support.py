"""The neighbour graph: close to the exact search, the same for gate and test, and safe to read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from worlds import World, fit_quietly

from calcode import Calcode, SupportAudit
from calcode.errors import ArtifactError, EngineError
from calcode.kernels import nearest_distances, restore_graph, search_graph
from calcode.kernels import neighbours as room
from calcode.method.audit import neighbour_distance

pytest.importorskip("faiss")


def unit(rng: np.random.Generator, n: int, d: int = 16) -> np.ndarray:
    rows = rng.normal(size=(n, d)) + rng.normal(size=d)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def points() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    both = unit(rng, 3300)
    return both[:3000], both[3000:]


@pytest.fixture(scope="module")
def graph(points: tuple[np.ndarray, np.ndarray]) -> room.NeighbourGraph:
    reference, queries = points
    built = room.build_graph(reference, sample=queries[:200], n_neighbors=10)
    assert built is not None
    return built


@pytest.fixture
def small_break_even(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "SEARCH_BREAK_EVEN", 100)


def test_found_distances_are_real_ones_and_rarely_too_far(graph: room.NeighbourGraph, points) -> None:
    reference, queries = points
    exact = nearest_distances(queries, reference, n_neighbors=10)
    found = graph.nearest_distances(queries, n_neighbors=10)
    assert (found >= exact - 1e-12).all()
    assert (np.diff(found, axis=1) >= 0).all()
    assert np.mean(found <= exact[:, -1:] + 1e-9) > 0.97
    # Every value is the float64 distance to some reference image.
    everything = 1 - queries @ reference.T
    for row, values in zip(everything, found, strict=True):
        assert np.abs(row[:, None] - values).min(axis=0).max() < 1e-14


def test_its_error_is_the_one_measured_on_the_sample(graph: room.NeighbourGraph, points) -> None:
    reference, queries = points
    sample = queries[:200]
    exact = nearest_distances(sample, reference, n_neighbors=10)
    found = graph.nearest_distances(sample, n_neighbors=10)
    assert graph.n_sample == 200
    assert graph.recall == pytest.approx(np.mean(found <= exact[:, -1:] + 1e-9))
    assert graph.recall >= 0.99
    added = np.median(found, axis=1) - np.median(exact, axis=1)
    assert graph.error == pytest.approx(np.quantile(added, 0.95), abs=1e-15)


def test_an_image_alone_and_in_a_batch_finds_the_same(graph: room.NeighbourGraph, points) -> None:
    _, queries = points
    together = graph.nearest_distances(queries[:40], n_neighbors=10)
    alone = np.concatenate([graph.nearest_distances(row[None], n_neighbors=10) for row in queries[:40]])
    np.testing.assert_allclose(alone, together, atol=1e-15)


def test_the_same_reference_gives_the_same_graph(graph: room.NeighbourGraph, points) -> None:
    reference, queries = points
    again = room.build_graph(reference, sample=queries[:200], n_neighbors=10)
    assert again is not None
    assert again.facts == graph.facts
    for name, values in graph.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], values)


def test_fewer_reference_images_than_neighbours() -> None:
    reference = unit(np.random.default_rng(1), 6)
    graph = room.build_graph(reference, sample=reference, n_neighbors=10)
    assert graph is not None
    found = graph.nearest_distances(reference, n_neighbors=10)
    np.testing.assert_allclose(found, nearest_distances(reference, reference, n_neighbors=10), atol=1e-15)


def test_the_exact_search_below_the_break_even_without_the_library_or_without_recall(
    points, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, queries = points
    arguments = {"sample": queries, "n_neighbors": 10}
    assert search_graph(reference, **arguments) is None
    monkeypatch.setattr(room, "SEARCH_BREAK_EVEN", 3000)
    assert search_graph(reference, **arguments) is not None
    monkeypatch.setattr(room, "_WANTED_RECALL", 1.01)
    assert search_graph(reference, **arguments) is None
    monkeypatch.setattr(room, "_WANTED_RECALL", 0.99)
    monkeypatch.setattr(room, "library_installed", lambda: False)
    assert search_graph(reference, **arguments) is None


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("links", lambda links: np.where(np.arange(len(links)) == 7, 3000, links).astype(np.int32)),
        ("links", lambda links: links[:-1]),
        ("links", lambda links: links.astype(np.int64)),
        ("levels", lambda levels: levels[:-1]),
        ("levels", lambda levels: levels * 0),
        ("offsets", lambda offsets: offsets + np.uint64(16)),
        ("offsets", lambda offsets: offsets[::-1].copy()),
    ],
)
def test_arrays_that_would_lead_a_search_astray_are_refused(graph, points, name: str, spoil) -> None:
    arrays = graph.arrays | {name: spoil(graph.arrays[name])}
    with pytest.raises(ArtifactError, match="^reference: the stored neighbour graph"):
        restore_graph(graph.facts, arrays, reference=points[0])


def test_an_entry_outside_is_refused(graph: room.NeighbourGraph, points) -> None:
    lowest = int(np.argmin(graph.levels))
    for entry in (-1, 3000, lowest):
        with pytest.raises(ArtifactError, match="neighbour graph"):
            restore_graph(graph.facts | {"entry": entry}, graph.arrays, reference=points[0])


@pytest.mark.usefixtures("small_break_even")
def test_gate_and_test_statistics_come_from_the_same_search() -> None:
    roles = World(dimension=12).roles(n=300, n_test=80)
    audit = SupportAudit.fit(
        reference=roles["reference"], validation=roles["validation"], gate=roles["gate"], candidates=["distance"]
    )
    assert audit.graph is not None
    gate = audit.graph.nearest_distances(roles["gate"].embeddings, n_neighbors=10)
    np.testing.assert_allclose(audit.gate_values, np.sort(np.median(gate, axis=1)), atol=1e-15)
    expected = [(1 + (audit.gate_values >= value - 1e-9).sum()) / 301 for value in audit.statistic(roles["test"])]
    np.testing.assert_array_equal(audit.p_values(roles["test"]), expected)
    exact = neighbour_distance(roles["test"].embeddings, reference=roles["reference"].embeddings, n_neighbors=10)
    assert (audit.statistic(roles["test"]) >= exact - 1e-12).all()


@pytest.mark.usefixtures("small_break_even")
def test_a_model_with_a_graph_reads_back_and_decides_the_same(tmp_path: Path) -> None:
    roles = World(dimension=12).roles(n=300, n_test=80)
    model = fit_quietly(Calcode(audit=["distance"]), roles)
    model.save(tmp_path / "model.safetensors")
    read = Calcode.load(tmp_path / "model.safetensors")
    assert model.audit_ is not None
    assert read.audit_ is not None
    assert read.audit_.facts["search"] == model.audit_.facts["search"]
    assert read.audit_.facts["search"]["kind"] == "hnsw"
    assert read.digest_ == model.digest_
    np.testing.assert_array_equal(read.decide(roles["test"]).p_audit, model.decide(roles["test"]).p_audit)


@pytest.mark.usefixtures("small_break_even")
def test_without_the_library_such_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = fit_quietly(Calcode(audit=["distance"]), World().roles(n=150, n_test=2))
    model.save(tmp_path / "model.safetensors")
    monkeypatch.setattr("calcode.method.model_file.library_installed", lambda: False)
    with pytest.raises(EngineError, match=r"calcode\[ann\]"):
        Calcode.load(tmp_path / "model.safetensors")


def test_a_small_model_says_that_its_search_is_exact() -> None:
    model = fit_quietly(Calcode(), World().roles(n=150, n_test=2))
    assert model.audit_ is not None
    assert model.audit_.facts["search"] == {"kind": "exact"}
