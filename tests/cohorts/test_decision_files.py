from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calcode.cohorts import DecisionWriter, decisions_table, read_decisions, write_decisions
from calcode.cohorts.decision_reader import decision_facts
from calcode.errors import FeatureFileError, MismatchError
from calcode.method.decisions import Action, Decisions, Reason

Make = Callable[..., Decisions]


def test_the_table_says_in_words_what_the_arrays_say(make_decisions: Make) -> None:
    decisions = make_decisions(200)
    table = decisions_table(decisions)
    assert {action.name for action in Action} == {Action(value).name for value in decisions.action}
    assert set(decisions.reason) == {Reason.NONE, Reason.LOW_SUPPORT, Reason.EMPTY_SET}
    for row, decision in zip(table.to_pylist(), decisions, strict=True):
        assert row["id"] == decision.id
        assert row["action"] == decision.action.name.lower()
        assert row["reason"] == decision.reason.name.lower()
        assert tuple(row["released_set"]) == decision.released
        assert row["p_audit"] == decision.p_audit
        assert row["label"] == (decision.released[0] if decision.action is Action.LABEL else None)
        assert row["model_digest"] == decisions.model_digest
    for name, column in zip(decisions.classes, decisions.threshold.T, strict=True):
        assert np.array_equal(table[f"threshold_{name}"].to_numpy(), column)


def test_a_deferred_image_shows_no_set(make_decisions: Make) -> None:
    decisions = make_decisions(200)
    hidden = ~decisions.accepted & decisions.sets.any(axis=1)
    assert hidden.sum() > 10
    sizes = [len(names) for names in decisions_table(decisions)["released_set"].to_pylist()]
    assert set(np.array(sizes)[hidden]) == {0}


def test_repeated_words_are_dictionary_encoded_and_the_model_is_named(make_decisions: Make) -> None:
    decisions = make_decisions()
    table = decisions_table(decisions)
    for name in ("action", "reason", "model_digest"):
        assert pa.types.is_dictionary(table.schema.field(name).type), name
    assert list(table.schema.metadata) == [b"calcode"]
    text = table.schema.metadata[b"calcode"].decode()
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    assert decision_facts(table) == {
        "format": "calcode-decisions",
        "version": 1,
        "model_digest": decisions.model_digest,
        "classes": list(decisions.classes),
        "promises": list(decisions.promises),
    }
    assert decisions.to_arrow().equals(table, check_metadata=True)


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_what_is_written_is_read_back(tmp_path: Path, make_decisions: Make, suffix: str, ids: bool) -> None:
    decisions = make_decisions() if ids else make_decisions(ids=None)
    path = tmp_path / f"decisions{suffix}"
    write_decisions(path, decisions)
    back = read_decisions(path)
    expected = decisions_table(decisions)
    assert back.column_names[0] == ("id" if ids else "row")
    assert back.equals(expected, check_metadata=suffix == ".parquet")
    facts = decision_facts(expected) if suffix == ".parquet" else decision_facts(expected) | {"promises": []}
    assert decision_facts(back) == facts
    again = tmp_path / f"again{suffix}"
    write_decisions(again, decisions)
    assert again.read_bytes() == path.read_bytes()


def test_csv_is_plain(tmp_path: Path, make_decisions: Make) -> None:
    decisions = make_decisions()
    write_decisions(tmp_path / "d.csv", decisions)
    with (tmp_path / "d.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["released_set"] for row in rows] == [";".join(decision.released) for decision in decisions]
    assert [row["id"] for row in rows] == decisions.ids.tolist()
    assert {row["label"] for row in rows if row["action"] != "label"} == {""}
    assert [float(row["threshold_mel"]) for row in rows] == decisions.threshold[:, 1].tolist()
    assert "inf" in {row["threshold_mel"] for row in rows}


def test_no_decisions_are_a_file_too(tmp_path: Path, make_decisions: Make) -> None:
    for name in ("d.parquet", "d.csv"):
        write_decisions(tmp_path / name, make_decisions()[:0])
        assert read_decisions(tmp_path / name).num_rows == 0


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_blocks_make_the_same_table_as_one_piece(tmp_path: Path, make_decisions: Make, suffix: str) -> None:
    for decisions in (make_decisions(100), make_decisions(100, ids=None)):
        path = tmp_path / f"d{suffix}"
        with DecisionWriter(path) as writer:
            for start in range(0, 100, 33):
                writer.append(decisions[start : start + 33])
                assert not path.exists()
            assert writer.n_rows == 100
        assert read_decisions(path).equals(decisions_table(decisions))
        path.unlink()


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_an_exception_midway_leaves_no_file(tmp_path: Path, make_decisions: Make, suffix: str) -> None:
    def fail() -> None:
        with DecisionWriter(tmp_path / f"d{suffix}") as writer:
            writer.append(make_decisions())
            raise RuntimeError("the scanner caught fire")

    with pytest.raises(RuntimeError, match="scanner"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_an_exception_midway_keeps_the_old_file(tmp_path: Path, make_decisions: Make) -> None:
    path = tmp_path / "d.parquet"
    write_decisions(path, make_decisions(seed=1))
    before = path.read_bytes()

    def fail() -> None:
        with DecisionWriter(path) as writer:
            writer.append(make_decisions(seed=2))
            writer.append(make_decisions(seed=2, model_digest="cd" * 32))

    with pytest.raises(MismatchError, match="another model"):
        fail()
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_blocks_of_another_kind_are_refused(tmp_path: Path, make_decisions: Make) -> None:
    for change in ({"classes": ("bcc", "mel", "df")}, {"ids": None}, {"model_digest": "x"}):
        with DecisionWriter(tmp_path / "d.parquet") as writer:
            writer.append(make_decisions())
            with pytest.raises(MismatchError, match="write it to a file of its own"):
                writer.append(make_decisions(**change))


def test_misuse_of_the_writer_is_named(tmp_path: Path, make_decisions: Make) -> None:
    with pytest.raises(FeatureFileError, match=r"must end in \.parquet or \.csv"):
        DecisionWriter(tmp_path / "d.xlsx")
    with pytest.raises(FeatureFileError, match="not open"):
        DecisionWriter(tmp_path / "d.csv").append(make_decisions())
    with pytest.raises(FeatureFileError, match="no decisions were appended"), DecisionWriter(tmp_path / "d.csv"):
        pass
    with pytest.raises(FeatureFileError, match=r"\['b;c'\] contain ';'.* write \.parquet"):
        write_decisions(tmp_path / "d.csv", make_decisions(classes=("a", "b;c", "d")))
    assert list(tmp_path.iterdir()) == []
    write_decisions(tmp_path / "d.parquet", make_decisions(classes=("a", "b;c", "d")))
    assert read_decisions(tmp_path / "d.parquet").num_rows == 40


def with_facts(table: pa.Table, **changes: Any) -> pa.Table:
    return table.replace_schema_metadata({"calcode": json.dumps(decision_facts(table) | changes)})


def with_sets(table: pa.Table, sets: list[list[str]]) -> pa.Table:
    index = table.schema.get_field_index("released_set")
    return table.set_column(index, table.schema.field(index), pa.array(sets, pa.list_(pa.string())))


def with_column(table: pa.Table, name: str, value: Any) -> pa.Table:
    index = table.schema.get_field_index(name)
    field = table.schema.field(index)
    return table.set_column(index, field, pa.array([value] * table.num_rows).cast(field.type))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.replace_schema_metadata(None), "no 'calcode' in its schema metadata"),
        (lambda t: with_facts(t, format="other"), "holds 'other', not decisions"),
        (lambda t: with_facts(t, version=2), "version 2 of the decision format and this is version 1"),
        (lambda t: with_facts(t, classes=["a", "b", "c"]), "columns .* are not those of decisions"),
        (lambda t: t.drop(["p_audit"]), "columns .* are not those of decisions"),
        (lambda t: with_sets(t, [["bcc", "mel"]] * 40), "the action and the size of its released set contradict"),
        (lambda t: with_sets(t, [[]] * 40), "the action and the size of its released set contradict"),
        (lambda t: with_sets(t, [["scc"]] * 40), "'released_set' has .* not among the classes"),
        (lambda t: with_column(t, "label", "mel"), "the label is not that of the released set"),
        (lambda t: with_column(t, "p_audit", 7.0), "p_audit is no share"),
        (lambda t: with_column(t, "p_audit", math.nan), "p_audit is no share"),
        (lambda t: with_column(t, "p_audit", None), "'p_audit' has missing values"),
        (lambda t: with_column(t, "threshold_mel", math.nan), "a threshold is NaN"),
        (lambda t: with_column(t, "threshold_mel", -0.5), "a threshold is NaN or negative"),
        (lambda t: with_column(t, "reason", "low_support"), "the action and its reason contradict"),
        (lambda t: with_column(t, "model_digest", "x"), "column 'model_digest' holds"),
        (lambda t: pa.concat_tables([t, t.slice(5, 1)]), "column 'id' names an image twice"),
        (lambda t: with_facts(t, classes=["bcc", "bcc", "mel"]), "not different names"),
        (lambda t: with_facts(t, version="1"), r"\['version'\] are missing or of another type"),
        (lambda t: with_facts(t, promises={}), r"\['promises'\] are missing or of another type"),
    ],
)
def test_a_file_that_is_not_of_decisions_is_refused(
    tmp_path: Path, make_decisions: Make, change: Any, message: str
) -> None:
    path = tmp_path / "d.parquet"
    pq.write_table(change(decisions_table(make_decisions())), path)
    with pytest.raises(FeatureFileError, match=message) as caught:
        read_decisions(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["d.parquet", "d.csv"])
def test_an_image_decided_on_twice_is_not_written(tmp_path: Path, make_decisions: Make, name: str) -> None:
    decisions = make_decisions()

    def write_both() -> None:
        with DecisionWriter(tmp_path / name) as writer:
            writer.append(decisions)
            writer.append(decisions)

    with pytest.raises(FeatureFileError, match="column 'id' names an image twice"):
        write_both()
    assert list(tmp_path.iterdir()) == []


def test_a_truncated_or_absent_file_is_refused(tmp_path: Path, make_decisions: Make) -> None:
    path = tmp_path / "d.parquet"
    write_decisions(path, make_decisions())
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(FeatureFileError, match="truncated"):
        read_decisions(path)
    with pytest.raises(FeatureFileError, match="no such file"):
        read_decisions(tmp_path / "absent.csv")
    other = tmp_path / "d.json"
    other.write_text("[]")
    with pytest.raises(FeatureFileError, match="not from '.json'"):
        read_decisions(other)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"model_digest"', '"digest"', r"lacks the columns \['model_digest'\]"),
        ('"id"', '"who"', r"lacks the columns \['id or row'\]"),
        ('"threshold_mel"', '"limit_mel"', "are not those of decisions"),
        ('"defer"', '"postpone"', r"'action' holds \['postpone'\], not one of \['label', 'set', 'defer'\]"),
        ('"low_support"', '"tired"', r"'reason' holds \['tired'\]"),
        ('"' + "ab" * 32 + '"\n"image,1"', '"cd"\n"image,1"', "decisions of 2 models in one file"),
        ('"image,1",', "", "truncated, or not a CSV file of decisions"),
    ],
)
def test_a_changed_csv_is_refused(tmp_path: Path, make_decisions: Make, old: str, new: str, message: str) -> None:
    path = tmp_path / "d.csv"
    write_decisions(path, make_decisions())
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(FeatureFileError, match=message):
        read_decisions(path)


@pytest.mark.parametrize("cut", [5, 66, 67])
def test_a_csv_that_ends_within_its_last_line_is_truncated(tmp_path: Path, make_decisions: Make, cut: int) -> None:
    path = tmp_path / "d.csv"
    write_decisions(path, make_decisions())
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(FeatureFileError, match="truncated"):
        read_decisions(path)


def test_no_cell_of_a_csv_file_is_run_by_a_spreadsheet(tmp_path: Path, make_decisions: Make) -> None:
    """Texts that a spreadsheet would run are written as text and read back as they were."""
    begins = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "'quoted", "''", "'", "plain", "it's", "a=b"]
    ids = np.array([*begins, *(f"x{i}" for i in range(40 - len(begins)))])
    decisions = make_decisions(ids=ids, classes=("=cmd|' /C calc'!A0", "-nv", "'mel"))
    path = tmp_path / "d.csv"
    write_decisions(path, decisions)
    with path.open(newline="") as stream:
        cells = [cell for row in csv.reader(stream) for cell in row]
    # Numbers may begin with a minus; thresholds here do not.
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
    table = read_decisions(path)
    assert table["id"].to_pylist() == ids.tolist()
    expected = decisions_table(decisions)
    assert table["released_set"].to_pylist() == expected["released_set"].to_pylist()
    assert table["label"].to_pylist() == expected["label"].to_pylist()
