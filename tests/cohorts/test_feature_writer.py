from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calcode.cohorts import Prompts, open_features, write_features
from calcode.errors import FeatureFileError


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_what_is_written_is_read_back(tmp_path: Path, prompts: Prompts, columns: dict[str, Any], kind: Any) -> None:
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
    expected = [prompts.classes.index(name) if name in prompts.classes else -1 for name in columns["label_names"]]
    assert evidence.labels.tolist() == expected
    assert evidence.ids.tolist() == columns["ids"]
    assert evidence.groups.tolist() == columns["groups"]
    assert (evidence.prompt_digest, evidence.backbone) == (prompts.digest, "toy")
    assert cohort.roles.tolist() == columns["roles"].tolist()
    assert cohort.column("label_name").tolist() == columns["label_names"].tolist()
    for name in ("age", "visits", "site"):
        np.testing.assert_array_equal(cohort.column(name), columns["metadata"][name])
    assert cohort.column("sex").tolist() == [value or "" for value in columns["metadata"]["sex"]]


def test_the_same_content_gives_the_same_bytes(tmp_path: Path, prompts: Prompts, columns: dict[str, Any]) -> None:
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


def test_only_ids_and_embeddings_are_needed(tmp_path: Path, prompts: Prompts, columns: dict[str, Any]) -> None:
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
        ({"review_probability": [0.5]}, "review_probability: {'review_probability': 1} values for 60"),
        ({"review_probability": np.full(60, 1.01)}, "review_probability: one number from 0 to 1"),
        ({"review_probability": ["often"] * 60}, "review_probability: not an array of numbers"),
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


LIMITED = """
import resource, sys
import numpy as np
from calcode.cohorts import open_features, write_roles
from calcode.errors import OutputError
file = open_features(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
try:
    write_roles(sys.argv[2], features=file, roles=np.full(len(file), "gate"))
except OutputError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits on the size of files")
@pytest.mark.parametrize("limit", [100, 1500])  # stops the prompts, stops the features
def test_a_disk_that_fills_up_leaves_the_old_pair(
    feature_path: Path, prompts: Prompts, columns: dict[str, Any], limit: int
) -> None:
    target = feature_path.with_name("out.parquet")
    bank = Prompts(text=prompts.text[:, :1], temperature=0.5, classes=prompts.classes)
    write_features(target, **(columns | {"prompts": bank}))
    before = {entry.name: entry.read_bytes() for entry in feature_path.parent.iterdir()}
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(feature_path), str(target), str(limit)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "out.parquet: the disk is full; nothing was written" in done.stdout
    assert {entry.name: entry.read_bytes() for entry in feature_path.parent.iterdir()} == before


def test_a_pair_is_never_mixed_whatever_stops_it_between_the_two_renames(
    feature_path: Path, prompts: Prompts, columns: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        write_features(feature_path, **columns, prompts=prompts)
    # The features went first, so that they cannot stand beside prompts of another run.
    assert not feature_path.exists()
    assert not list(feature_path.parent.glob(".*"))


def test_missing_values_are_written_as_missing(tmp_path: Path, prompts: Prompts, columns: dict[str, Any]) -> None:
    path = tmp_path / "c.parquet"
    groups = [None, float("nan"), *columns["groups"][2:]]
    write_features(path, **(columns | {"groups": groups}), prompts=prompts)
    table = pq.read_table(path)
    assert table["group"].null_count == 2
    assert table["age"].null_count == int(np.isnan(columns["metadata"]["age"]).sum())
    assert open_features(path).read().evidence.groups[:3].tolist() == ["", "", "lesion-1"]


def test_review_probabilities_are_read_back(tmp_path: Path, prompts: Prompts, columns: dict[str, Any]) -> None:
    path = tmp_path / "c.parquet"
    e = np.r_[np.nan, np.linspace(0, 1, 59)]
    write_features(path, **columns, review_probability=e, prompts=prompts)
    features = open_features(path)
    assert pq.read_table(path)["review_probability"].null_count == 1
    assert "review_probability" not in features.metadata_columns
    cohort = features.read()
    np.testing.assert_array_equal(cohort.evidence.review_probability, e)
    np.testing.assert_array_equal(cohort[5:9].column("review_probability"), e[5:9])
    np.testing.assert_array_equal(
        np.concatenate([block.evidence.review_probability for block in features.batches(batch_size=7, columns=[])]), e
    )
    # Whole numbers are numbers; what is not between 0 and 1 is refused with the file's name.
    for value in (1, 2):
        table = pq.read_table(path)
        whole = pa.array([value] * 60)
        pq.write_table(
            table.set_column(table.schema.get_field_index("review_probability"), "review_probability", whole), path
        )
        if value == 1:
            np.testing.assert_array_equal(open_features(path).read().evidence.review_probability, np.ones(60))
    with pytest.raises(FeatureFileError, match="c.parquet: review_probability: 2 in row"):
        open_features(path).read()
