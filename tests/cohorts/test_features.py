from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from calcode.cohorts import Cohort, Prompts, open_features, write_prompts
from calcode.errors import CalcodeWarning, EvidenceError, FeatureFileError, SettingsError


def rewrite(path: Path, table: pa.Table, **options: Any) -> None:
    """The same file with another table in it, as somebody else's program would write it."""
    pq.write_table(table, path, **options)


def replaced(table: pa.Table, name: str, values: Any) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), name, values)


def assert_equal_cohorts(one: Cohort, other: Cohort) -> None:
    for name in ("embeddings", "prompt_logits", "labels", "ids", "groups"):
        np.testing.assert_array_equal(getattr(one.evidence, name), getattr(other.evidence, name))
    assert one.evidence.classes == other.evidence.classes
    assert list(one.metadata) == list(other.metadata)
    for name in one.metadata:
        np.testing.assert_array_equal(one.column(name), other.column(name))
    np.testing.assert_array_equal(one.roles, other.roles)


def joined(parts: list[Cohort]) -> dict[str, np.ndarray]:
    columns = ["id", "role", *parts[0].metadata]
    values = {name: np.concatenate([part.column(name) for part in parts]) for name in columns}
    values["logits"] = np.concatenate([part.evidence.prompt_logits for part in parts])
    values["labels"] = np.concatenate([part.evidence.labels for part in parts])
    return values


def test_opening_tells_what_is_in_the_file(feature_path: Path, prompts: Prompts) -> None:
    file = open_features(feature_path)
    assert (len(file), file.n_rows, file.dimension, file.classes) == (60, 60, 8, prompts.classes)
    assert file.metadata_columns == ("site", "age", "visits", "sex")
    assert dict(file.role_counts) == {"reference": 20, "gate": 20, "test": 20}
    assert dict(file.contents.labels) == {"bcc": 10, "mel": 20, "nv": 20, "scc": 10}
    assert (file.backbone, file.prompt_digest) == ("toy", prompts.digest)
    assert "60 images x 8 dimensions" in repr(file)


@pytest.mark.parametrize("batch_size", [1, 7, 60, 1000])
def test_streaming_equals_reading_whole(feature_path: Path, batch_size: int) -> None:
    rewrite(feature_path, pq.read_table(feature_path), row_group_size=13)
    file = open_features(feature_path)
    choice: dict[str, Any] = {"role": ("gate", "test"), "where": pc.field("visits") > 20, "classes": ["nv", "mel"]}
    whole = joined([file.read(**choice)])
    parts = list(file.batches(batch_size=batch_size, **choice))
    assert all(0 < len(part) <= batch_size for part in parts)
    streamed = joined(parts)
    assert len(whole["id"]) == 26
    for name, values in whole.items():
        np.testing.assert_array_equal(streamed[name], values)


def test_rows_are_chosen_by_role_and_by_metadata(feature_path: Path) -> None:
    file = open_features(feature_path)
    assert set(file.read(role="gate").roles) == {"gate"}
    east = file.read(where=pc.field("site") != "west")
    whole = file.read()
    assert_equal_cohorts(east, whole[whole.column("site") != "west"])
    both = file.read(role=["gate"], where=(pc.field("site") == "east") & (pc.field("sex") == "female"))
    mask = (whole.roles == "gate") & (whole.column("site") == "east") & (whole.column("sex") == "female")
    assert_equal_cohorts(both, whole[mask])


def test_only_the_wanted_columns_come_back_but_any_can_choose(feature_path: Path) -> None:
    cohort = open_features(feature_path).read(columns=["age"], where=pc.field("site") == "east")
    assert list(cohort.metadata) == ["age", "label_name"]
    assert len(cohort) == 30
    assert list(open_features(feature_path).read(columns=[]).metadata) == ["label_name"]


def test_streaming_reads_only_the_wanted_columns(feature_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = open_features(feature_path)
    asked: list[list[str]] = []
    original = pq.ParquetFile.iter_batches

    def watched(self: Any, *, columns: list[str], **options: Any) -> Any:
        asked.append(columns)
        return original(self, columns=columns, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", watched)
    list(file.batches(columns=["age"]))
    assert asked == [["id", "label_name", "role", "group", "age", "embedding"]]


def test_restriction_follows_the_evidence(feature_path: Path) -> None:
    whole = open_features(feature_path).read()
    few = open_features(feature_path).read(classes=["nv", "bcc"])
    assert_equal_cohorts(few, whole.restrict(["nv", "bcc"]))
    assert len(few.in_space_only()) == 30
    assert few.evidence.prompt_digest == whole.evidence.prompt_digest
    with pytest.raises(EvidenceError, match="'scc'"):
        open_features(feature_path).read(classes=["nv", "scc"])


def test_a_file_of_the_older_layout_is_read(tmp_path: Path, prompts: Prompts, columns: dict[str, Any]) -> None:
    """Integer label beside the name, -1 outside, float32 numbers with nulls, prompts.npz in the folder."""
    names = columns["label_names"].tolist()
    classes = list(prompts.classes)
    table = pa.table(
        {
            "id": columns["ids"],
            "dataset": ["ham10000"] * 60,
            "role": columns["roles"],
            "label": pa.array([classes.index(n) if n in classes else -1 for n in names], pa.int32()),
            "label_name": names,
            "group": columns["groups"],
            "site": columns["metadata"]["site"],
            "age": pa.array(columns["metadata"]["age"], pa.float32(), from_pandas=True),
            "sex": columns["metadata"]["sex"],
            "embedding": pa.FixedSizeListArray.from_arrays(pa.array(columns["embeddings"].ravel(), pa.float32()), 8),
        }
    ).replace_schema_metadata({"classes": json.dumps(classes), "backbone": "lite0"})
    rewrite(tmp_path / "images.parquet", table)
    np.savez(
        tmp_path / "prompts.npz",
        text=prompts.text,
        temperature=np.float32(prompts.temperature),
        classes=np.array(classes),
    )
    file = open_features(tmp_path / "images.parquet")
    cohort = file.read()
    assert file.metadata_columns == ("dataset", "site", "age", "sex")
    assert cohort.evidence.backbone == "lite0"
    assert np.array_equal(cohort.evidence.labels, table["label"].to_numpy())
    assert np.array_equal(np.isnan(cohort.column("age")), np.isnan(columns["metadata"]["age"]))
    assert cohort.evidence.groups.tolist() == columns["groups"]
    rewrite(tmp_path / "images.parquet", replaced(table, "label", pa.array([0] * 60, pa.int32())))
    with pytest.raises(FeatureFileError, match=r"label 0 and label_name 'mel' disagree .* 'image-1' \(50 such rows"):
        open_features(tmp_path / "images.parquet").read()


def test_integer_labels_count_through_the_classes_of_the_file(feature_path: Path, prompts: Prompts) -> None:
    """Not through those of the prompts, whose order may be another one."""
    table = pq.read_table(feature_path)
    names = table["label_name"].to_pylist()
    order = ["scc", "nv", "mel", "bcc"]
    labels = [order.index(name) for name in names]
    labels[0] = -1
    numbered = table.drop(["label_name"]).append_column("label", pa.array(labels, pa.int64()))
    rewrite(feature_path, numbered.replace_schema_metadata({"classes": json.dumps(order)}))
    cohort = open_features(feature_path).read()
    expected = [prompts.classes.index(name) if name in prompts.classes else -1 for name in names]
    assert cohort.evidence.labels.tolist() == [-1, *expected[1:]]
    assert cohort.column("label_name").tolist() == ["", *names[1:]]
    rewrite(feature_path, numbered.replace_schema_metadata({"classes": '["nv", "mel"]'}))
    with pytest.raises(FeatureFileError, match=r"label 2 of .* is neither -1 nor one of the 2 classes"):
        open_features(feature_path)
    rewrite(feature_path, numbered.replace_schema_metadata(None))
    with pytest.raises(FeatureFileError, match="'label' holds indices, but the schema metadata have no 'classes'"):
        open_features(feature_path)
    rewrite(feature_path, numbered.replace_schema_metadata({"classes": "nv, mel"}))
    with pytest.raises(FeatureFileError, match="'classes' in the schema metadata: not valid JSON"):
        open_features(feature_path)
    rewrite(feature_path, numbered.replace_schema_metadata({"classes": '{"nv": 0}'}))
    with pytest.raises(FeatureFileError, match="is not a JSON list of names"):
        open_features(feature_path)


def test_plain_lists_are_read_if_their_lengths_agree(feature_path: Path) -> None:
    whole = open_features(feature_path).read()
    table = pq.read_table(feature_path)
    rows = table["embedding"].to_pylist()
    rewrite(feature_path, replaced(table, "embedding", pa.array(rows, pa.list_(pa.float32()))))
    assert_equal_cohorts(open_features(feature_path).read(), whole)
    rows[41] = rows[41][:5]
    rewrite(feature_path, replaced(table, "embedding", pa.array(rows, pa.list_(pa.float32()))))
    with pytest.raises(FeatureFileError, match=r"another number of dimensions .* 1 row \(first: .* 'image-41'\)"):
        open_features(feature_path).read()


def test_dictionary_columns_and_integer_ids_are_read(feature_path: Path) -> None:
    whole = open_features(feature_path).read()
    table = pq.read_table(feature_path)
    for name in ("label_name", "role", "site"):
        table = replaced(table, name, table[name].dictionary_encode())
    table = replaced(table, "id", pa.array(range(60)))
    rewrite(feature_path, table)
    cohort = open_features(feature_path).read(role="gate")
    assert cohort.evidence.ids.tolist() == [str(i) for i in range(1, 60, 3)]
    assert np.array_equal(cohort.column("site"), whole.with_role("gate").column("site"))
    assert np.array_equal(cohort.evidence.labels, whole.with_role("gate").evidence.labels)


def test_other_kinds_of_metadata_come_back_as_they_are(feature_path: Path) -> None:
    flags = [None if i == 4 else i % 2 == 0 for i in range(60)]
    dates = pa.array(np.arange(60), pa.int32()).cast(pa.date32())
    table = pq.read_table(feature_path)
    for name, values in (("flag", flags), ("seen", dates), ("whole", [True] * 60), ("tags", [["a"]] * 60)):
        table = table.append_column(name, pa.array(values))
    rewrite(feature_path, table)
    cohort = open_features(feature_path).read()
    assert cohort.column("flag").tolist() == flags
    assert cohort.column("seen")[59] == np.datetime64("1970-03-01")
    assert cohort.column("whole").dtype == np.bool_
    assert cohort.column("tags")[3] == ["a"]


def without_labels(table: pa.Table, rows: list[int]) -> pa.Table:
    names = table["label_name"].to_pylist()
    return replaced(table, "label_name", pa.array([None if i in rows else n for i, n in enumerate(names)], pa.string()))


def test_new_images_have_no_labels(feature_path: Path) -> None:
    table = pq.read_table(feature_path)
    for variant in (
        table.drop(["label_name"]),
        without_labels(table, list(range(60))),
        replaced(table, "label_name", pa.nulls(60)),
        replaced(table, "label_name", pa.array([""] * 60)),
    ):
        rewrite(feature_path, variant)
        file = open_features(feature_path)
        assert file.read().evidence.labels is None
        assert [part.evidence.labels for part in file.batches(batch_size=30)] == [None, None]
        assert "label_name" not in file.read().metadata


def test_roles_without_labels_stand_beside_roles_with_them(feature_path: Path) -> None:
    table = pq.read_table(feature_path)
    gate = [i for i, role in enumerate(table["role"].to_pylist()) if role == "gate"]
    rewrite(feature_path, without_labels(table, gate))
    file = open_features(feature_path)
    assert file.contents.n_unlabelled == 20
    assert file.read(role="gate").evidence.labels is None
    assert file.read(role="test").evidence.labels is not None
    assert {part.evidence.labels is None for part in file.batches(role="gate", batch_size=5)} == {True}
    for reading in (file.read, lambda: list(file.batches())):
        with pytest.raises(FeatureFileError, match=r"'label_name' is empty in 20 of 60 chosen rows; fill it in"):
            reading()
    labelled = file.read(where=pc.field("label_name").is_valid())
    assert len(labelled) == 40


@pytest.mark.parametrize(
    ("name", "said"), [("Melanoma", r"'Melanoma' \(60 images\)"), ("NV", "Did you mean 'nv' for 'NV'")]
)
def test_labels_outside_the_label_space_throughout_are_worth_a_warning(
    feature_path: Path, name: str, said: str
) -> None:
    table = pq.read_table(feature_path)
    rewrite(feature_path, replaced(table, "label_name", pa.array([name] * 60)))
    with pytest.warns(CalcodeWarning, match=f"no image has a label of the prompts; .*{said}"):
        file = open_features(feature_path)
    assert (file.read().evidence.labels == -1).all()


def test_prompts_are_found_given_or_missed(feature_path: Path, prompts: Prompts) -> None:
    beside = feature_path.with_name("cohort.prompts.safetensors")
    elsewhere = feature_path.with_name("elsewhere.prompts.safetensors")
    beside.rename(elsewhere)
    with pytest.raises(FeatureFileError, match=r"no prompts next to it .* name the prompt file"):
        open_features(feature_path)
    assert open_features(feature_path, prompts=elsewhere).prompt_digest == prompts.digest
    assert open_features(feature_path, prompts=prompts).prompt_digest == prompts.digest


def test_other_prompts_than_the_recorded_ones_must_be_asked_for(feature_path: Path, prompts: Prompts) -> None:
    other = Prompts(text=prompts.text, temperature=0.5, classes=prompts.classes)
    write_prompts(feature_path.with_name("cohort.prompts.safetensors"), other)
    with pytest.raises(FeatureFileError, match=r"written with other prompts than cohort\.prompts\.safetensors"):
        open_features(feature_path)
    assert open_features(feature_path, prompts=other).prompt_digest == other.digest


def test_the_backbone_is_the_recorded_one_or_the_given_one(feature_path: Path) -> None:
    assert open_features(feature_path, backbone="toy").backbone == "toy"
    with pytest.raises(FeatureFileError, match="made with the backbone 'toy', not 'clip'"):
        open_features(feature_path, backbone="clip")
    rewrite(feature_path, pq.read_table(feature_path).replace_schema_metadata(None))
    assert open_features(feature_path, backbone="clip").read().evidence.backbone == "clip"


@pytest.mark.parametrize(
    ("choice", "error", "message"),
    [
        ({"role": "calibration"}, FeatureFileError, r"role \['calibration'\] not in the file; it has \['reference'"),
        ({"role": []}, FeatureFileError, "not in the file"),
        ({"where": "site = 'east'"}, SettingsError, r"where: str given, a pyarrow\.compute\.Expression needed"),
        ({"where": pc.field("hospital") == "east"}, FeatureFileError, "condition .*hospital.* cannot be applied"),
        ({"where": pc.field("site") == 3}, FeatureFileError, "cannot be applied"),
        ({"where": pc.field("site") == "north"}, FeatureFileError, r"no row meets \(site == .*\); choose others"),
        ({"columns": ["hospital"]}, FeatureFileError, r"no metadata columns \['hospital'\]"),
    ],
)
def test_bad_choices_are_refused(
    feature_path: Path, choice: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        open_features(feature_path).read(**choice)


def test_a_role_cannot_be_chosen_without_the_column(feature_path: Path) -> None:
    rewrite(feature_path, pq.read_table(feature_path).drop(["role"]))
    file = open_features(feature_path)
    assert file.read().roles is None
    with pytest.raises(FeatureFileError, match="no column 'role'"):
        file.read(role="gate")
    with pytest.raises(SettingsError, match="batch_size: 0"):
        list(file.batches(batch_size=0))


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """One row group of 24 MB, read 512 rows (128 kB) at a time."""
    n, d = 48_000, 128
    rng = np.random.default_rng(0)
    path = tmp_path / "large.parquet"
    numbers = pa.array(rng.normal(size=n * d).astype(np.float32))
    table = pa.table({"id": [str(i) for i in range(n)], "embedding": pa.FixedSizeListArray.from_arrays(numbers, d)})
    pq.write_table(table, path, row_group_size=n, compression="none", use_dictionary=False)
    write_prompts(
        tmp_path / "large.prompts.safetensors", Prompts(text=rng.normal(size=(2, 1, d)), temperature=1.0, classes="ab")
    )
    script = (
        "import sys, warnings, pyarrow\n"
        "from calcode.cohorts import open_features\n"
        "warnings.simplefilter('ignore')\n"
        "count = sum(len(part) for part in open_features(sys.argv[1]).batches(batch_size=512))\n"
        "print(count, pyarrow.default_memory_pool().max_memory())\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    count, peak = map(int, done.stdout.split())
    assert count == n
    assert peak < path.stat().st_size / 3


@pytest.mark.parametrize("temperature", [100.0, 5.0])
def test_a_temperature_that_makes_probabilities_flat_is_a_warning(
    feature_path: Path, prompts: Prompts, temperature: float
) -> None:
    flat = Prompts(text=prompts.text, temperature=temperature, classes=prompts.classes)
    with pytest.warns(CalcodeWarning, match=f"temperature {temperature:g} makes all probabilities nearly equal"):
        file = open_features(feature_path, prompts=flat)
    # The bound holds for every image of the file, and a usual temperature is not complained about.
    logits = file.read().evidence.prompt_logits
    assert np.exp(np.ptp(logits, axis=2)).max() <= flat.largest_odds
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_features(feature_path)
