from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calcode.cohorts import Prompts, open_features, write_features
from calcode.errors import FeatureFileError


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_what_is_written_is_read_back(
    tmp_path: Path, prompts: Prompts, columns: dict[str, Any], kind: Any
) -> None:
    path = tmp_path / "c.parquet"
    write_features(path, **columns, prompts=prompts, backbone="toy", embedding_type=kind)
    stored = pq.read_schema(path).field("embedding").type
    assert stored == pa.list_(pa.from_numpy_dtype(kind), columns["embeddings"].shape[1])
    cohort = open_features(path).read()
    evidence = cohort.evidence
    rounded = columns["embeddings"].astype(kind).astype(np.float64)
    unit = rounded / np.linalg.norm(rounded, axis=1, keepdims=True)
    np.testing.assert_allclose(evidence.embeddings, unit, rtol=4e-16)
    cosines = np.einsum("nd,kmd->nmk", unit, prompts.text.astype(np.float64))
    bank_norms = np.linalg.norm(prompts.text.astype(np.float64), axis=2).T
    np.testing.assert_allclose(evidence.prompt_logits, cosines / bank_norms / prompts.temperature, atol=1e-12)
    expected = [
        prompts.classes.index(name) if name in prompts.classes else -1 for name in columns["label_names"]
    ]
    assert evidence.labels.tolist() == expected
    assert evidence.ids.tolist() == columns["ids"]
    assert evidence.groups.tolist() == columns["groups"]
    assert (evidence.prompt_digest, evidence.backbone) == (prompts.digest, "toy")
    assert cohort.roles.tolist() == columns["roles"].tolist()
    assert cohort.column("label_name").tolist() == columns["label_names"].tolist()
    for name in ("age", "visits", "site"):
        np.testing.assert_array_equal(cohort.column(name), columns["metadata"][name])
    assert cohort.column("sex").tolist() == [value or "" for value in columns["metadata"]["sex"]]


def test_the_same_content_gives_the_same_bytes(
    tmp_path: Path, prompts: Prompts, columns: dict[str, Any]
) -> None:
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for path in paths:
        write_features(path, **columns, prompts=prompts, backbone="toy")
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        "a.parquet",
        "a.prompts.safetensors",
        "b.parquet",
        "b.prompts.safetensors",
    ]


def test_only_ids_and_embeddings_are_needed(
    tmp_path: Path, prompts: Prompts, columns: dict[str, Any]
) -> None:
    path = tmp_path / "c.parquet"
    write_features(path, embeddings=columns["embeddings"], ids=range(60), prompts=prompts)
    cohort = open_features(path).read()
    assert cohort.evidence.labels is None
    assert cohort.evidence.groups is None
    assert cohort.roles is None
    assert cohort.evidence.ids[:2].tolist() == ["0", "1"]
    assert dict(cohort.metadata) == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embeddings": np.ones(60)}, "embeddings: shape"),
        ({"embeddings": np.ones((0, 8))}, "embeddings: shape"),
        ({"embeddings": [["a"]]}, "embeddings: not an array of numbers"),
        ({"embeddings": np.full((60, 8), np.nan)}, r"embeddings: row 0 \(60 in all\) holds NaN"),
        ({"embeddings": np.zeros((60, 8))}, "embeddings: row 0"),
        ({"embeddings": np.full((60, 8), 1e5), "embedding_type": "float16"}, "as float16; .* or normalise"),
        ({"embeddings": np.ones((60, 9))}, "prompts: 8 dimensions, the embeddings have 9"),
        ({"embeddings": np.ones((59, 8))}, r"id: .* values for 59 embeddings"),
        ({"embedding_type": "int8"}, "embedding_type: 'int8' must be"),
        ({"ids": ["x"] * 60}, "ids: 'x' occurs more than once"),
        ({"ids": [*range(59), None]}, "ids: row 59 has none"),
        ({"label_names": ["mel"]}, r"label_name: {'label_name': 1} values for 60"),
        ({"roles": ["gate"]}, "role: "),
        ({"metadata": {"site": ["east"]}}, "site: "),
        ({"metadata": {"group": ["east"] * 60}}, r"metadata: \['group'\] have a meaning of their own"),
        ({"metadata": {"site": [*["east"] * 59, 3]}}, "metadata: column 'site' mixes types"),
    ],
)
def test_bad_input_is_named_and_nothing_is_written(
    tmp_path: Path, prompts: Prompts, columns: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(FeatureFileError, match=message):
        write_features(tmp_path / "c.parquet", **(columns | {"prompts": prompts} | changes))
    assert list(tmp_path.iterdir()) == []


def test_the_name_must_say_parquet(tmp_path: Path, columns: dict[str, Any]) -> None:
    with pytest.raises(FeatureFileError, match=r"must end in \.parquet"):
        write_features(tmp_path / "c.feather", **columns)


def test_a_failure_midway_leaves_the_old_file(
    feature_path: Path, columns: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = feature_path.read_bytes()
    names = sorted(entry.name for entry in feature_path.parent.iterdir())

    def half(table: object, where: Path, **_: object) -> None:
        where.write_bytes(b"PAR1 half a file")
        raise OSError("disk full")

    monkeypatch.setattr(pq, "write_table", half)
    with pytest.raises(OSError, match="disk full"):
        write_features(feature_path, **columns)
    assert feature_path.read_bytes() == before
    assert sorted(entry.name for entry in feature_path.parent.iterdir()) == names


def test_missing_values_are_written_as_missing(
    tmp_path: Path, prompts: Prompts, columns: dict[str, Any]
) -> None:
    path = tmp_path / "c.parquet"
    groups = [None, float("nan"), *columns["groups"][2:]]
    write_features(path, **(columns | {"groups": groups}), prompts=prompts)
    table = pq.read_table(path)
    assert table["group"].null_count == 2
    assert table["age"].null_count == int(np.isnan(columns["metadata"]["age"]).sum())
    assert open_features(path).read().evidence.groups[:3].tolist() == ["", "", "lesion-1"]
