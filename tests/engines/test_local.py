"""The local engine: blocks do not change a decision, and a file appears whole or not at all."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from clinics import Clinic

from calcode import Calcode
from calcode.cohorts import Prompts, open_features, read_decisions, write_decisions
from calcode.engines.local import decide_file
from calcode.errors import EngineError, FeatureFileError, MismatchError, RoleError


def same_rows(left: pa.Table, right: pa.Table) -> bool:
    return bool(left.combine_chunks().equals(right.combine_chunks()))


def test_decisions_in_blocks_are_those_of_the_whole_file_at_once(clinic: Clinic, tmp_path: Path) -> None:
    seen: list[int] = []
    decided = decide_file(clinic.model, clinic.features, tmp_path / "blocks.parquet", role="test", progress=seen.append)
    model = Calcode.load(clinic.model)
    cohort = open_features(clinic.features).read(role="test")
    write_decisions(tmp_path / "whole.parquet", model.decide(cohort.evidence))
    found = read_decisions(tmp_path / "blocks.parquet")
    assert same_rows(found, read_decisions(tmp_path / "whole.parquet"))
    assert sum(seen) == open_features(clinic.features).n_rows
    assert decided.images == len(cohort) == sum(decided.actions.values()) == sum(decided.reasons.values())
    assert all(decided.actions.values()), "a world in which an action does not occur shows little"
    for column, counts in (("action", decided.actions), ("reason", decided.reasons)):
        words = found[column].cast("string").to_pylist()
        assert counts == {word: words.count(word) for word in counts}
    assert (decided.model.digest_, decided.model.promises_) == (model.digest_, model.promises_)


def test_the_row_groups_of_the_features_leave_no_trace(clinic: Clinic, tmp_path: Path) -> None:
    table = pq.read_table(clinic.features)
    outputs = []
    for size in (500, 1 << 20):
        features = tmp_path / f"{size}.parquet"
        pq.write_table(table, features, row_group_size=size)
        shutil.copy(clinic.features.with_suffix(".prompts.safetensors"), features.with_suffix(".prompts.safetensors"))
        outputs.append(tmp_path / f"{size}.decisions.parquet")
        decide_file(clinic.model, features, outputs[-1], role="test")
    assert outputs[0].read_bytes() == outputs[1].read_bytes()


def test_labels_are_not_looked_at(clinic: Clinic, tmp_path: Path) -> None:
    table = pq.read_table(clinic.features)
    half = pc.if_else(pa.array([i % 2 == 0 for i in range(len(table))]), table["label_name"], None)
    index = table.column_names.index("label_name")
    features = tmp_path / "half.parquet"
    pq.write_table(table.set_column(index, "label_name", half), features)
    shutil.copy(clinic.features.with_suffix(".prompts.safetensors"), features.with_suffix(".prompts.safetensors"))
    decide_file(clinic.model, features, tmp_path / "a.csv", role="test")
    decide_file(clinic.model, clinic.features, tmp_path / "b.csv", role="test")
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


def test_a_choice_of_rows_gives_those_rows_of_all_decisions(clinic: Clinic, tmp_path: Path) -> None:
    decide_file(clinic.model, clinic.features, tmp_path / "all.parquet", role="test")
    decide_file(clinic.model, clinic.features, tmp_path / "west.parquet", role="test", where=pc.field("site") == "west")
    features = pq.read_table(clinic.features, columns=["id", "site", "role"])
    west = features.filter((pc.field("site") == "west") & (pc.field("role") == "test"))["id"]
    every = read_decisions(tmp_path / "all.parquet")
    expected = every.filter(pc.is_in(every["id"], value_set=west.combine_chunks()))
    assert 0 < expected.num_rows < every.num_rows
    assert same_rows(read_decisions(tmp_path / "west.parquet"), expected)


def test_errors_name_the_file_and_leave_nothing_behind(clinic: Clinic, tmp_path: Path) -> None:
    out = tmp_path / "decisions.parquet"
    with pytest.raises(RoleError, match=r"clinic.parquet: evidence: 300 of these images were used to fit "):
        decide_file(clinic.model, clinic.features, out)
    with pytest.raises(FeatureFileError, match=r"clinic.parquet: role 'tset' not in the file"):
        decide_file(clinic.model, clinic.features, out, role="tset")
    with pytest.raises(FeatureFileError, match=r"clinic.parquet: no row was chosen; check role and where"):
        decide_file(clinic.model, clinic.features, out, where=pc.field("site") == "north")
    bank = open_features(clinic.features).prompts
    few = Prompts(
        text=bank.text[:2],
        temperature=bank.temperature,
        classes=bank.classes[:2],
        templates=bank.templates,
        label_texts=bank.label_texts[:2],
    )
    with pytest.raises(MismatchError, match="clinic.parquet: its prompts have no class c2, c3"):
        decide_file(clinic.model, open_features(clinic.features, prompts=few), out, role="test")
    assert list(tmp_path.iterdir()) == []


def test_a_device_without_torch_is_one_sentence(
    clinic: Clinic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(EngineError, match=r"device: 'cuda' needs torch, .*pip install 'calcode\[torch\]'"):
        decide_file(clinic.model, clinic.features, tmp_path / "decisions.parquet", role="test", device="cuda")
    assert list(tmp_path.iterdir()) == []


def test_a_device_gives_the_decisions_of_the_processor(clinic: Clinic, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'calcode[torch]'")
    tables = []
    for device in (None, "cpu"):
        decide_file(clinic.model, clinic.features, tmp_path / "d.parquet", role="test", device=device)
        tables.append(read_decisions(tmp_path / "d.parquet"))
    for column in ("id", "action", "reason", "label", "released_set", "p_audit"):
        assert tables[0][column].equals(tables[1][column]), column
    with pytest.raises(EngineError, match="device: 'mill' cannot be used here"):
        decide_file(clinic.model, clinic.features, tmp_path / "d.parquet", role="test", device="mill")


def test_decisions_never_replace_what_they_are_made_from(clinic: Clinic) -> None:
    before = Path(clinic.features).read_bytes()
    with pytest.raises(FeatureFileError, match="is a file that is read here; write to another one"):
        decide_file(clinic.model, clinic.features, clinic.features, role="test")
    assert Path(clinic.features).read_bytes() == before
