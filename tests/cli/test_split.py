"""`calcode split`: the same file with roles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli_cases import CLASSES, write_cohort

from calcode import split_roles
from calcode.cohorts import open_features, role_counts


def test_the_file_is_the_same_but_for_the_role(here: Path) -> None:
    before, after = pq.read_table("skin.parquet"), pq.read_table("split.parquet")
    assert after.drop_columns(["role"]).equals(before)
    assert after.schema.metadata == before.schema.metadata
    assert open_features("split.parquet").prompt_digest == open_features("skin.parquet").prompt_digest


def test_the_roles_are_those_of_the_library_and_groups_stay_whole(here: Path) -> None:
    table = pq.read_table("split.parquet", columns=["label_name", "group", "role"])
    expected = split_roles(table["label_name"].to_pylist(), groups=table["group"].to_pylist())
    assert table["role"].to_pylist() == expected.tolist()
    roles_of = {}
    for group, role in zip(table["group"].to_pylist(), table["role"].to_pylist(), strict=True):
        roles_of.setdefault(group, set()).add(role)
    assert max(len(roles) for roles in roles_of.values()) == 1


def test_json_has_the_counts_of_the_library(
    here: Path, tmp_path: Path, run_json: Callable[..., dict[str, Any]]
) -> None:
    target = tmp_path / "again.parquet"
    facts = run_json("split", "skin.parquet", "-o", str(target), "--sizes", "0.1,0.2,0.2,0.4,0.1", "--seed", "3")
    table = pq.read_table(target, columns=["label_name", "role"])
    counts = role_counts(table["label_name"].to_pylist(), table["role"].to_pylist(), classes=CLASSES)
    assert facts["counts"] == {
        name: dict(zip(counts.roles, row.tolist(), strict=True))
        for name, row in zip(CLASSES, counts.counts, strict=True)
    }
    assert facts["infinite_guard"] == []


def test_numbers_of_images_are_taken_as_such(
    here: Path, tmp_path: Path, run_json: Callable[..., dict[str, Any]]
) -> None:
    target = tmp_path / "again.parquet"
    facts = run_json("split", "skin.parquet", "-o", str(target), "--sizes", "100,300,300,500,300")
    totals = {role: sum(row[role] for row in facts["counts"].values()) for role in facts["roles"]}
    assert totals == {"reference": 100, "validation": 300, "gate": 300, "calibration": 500, "test": 300}


def test_it_says_who_would_get_an_infinite_guard(here: Path, tmp_path: Path, run: Callable[..., Any]) -> None:
    result = run("split", "skin.parquet", "-o", str(tmp_path / "again.parquet"), "--guard", "0.01")
    assert result.exit_code == 0
    found = " ".join(result.stdout.split())
    assert "too few images for a finite guard" in found
    assert "melanoma (n = 4" in found
    assert "needs 99)" in found


def test_out_of_space_and_integer_labels_get_roles_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_json: Callable[..., dict[str, Any]]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_cohort(Path("named.parquet"), n=200)
    table = pq.read_table("named.parquet")
    index = [-1 if i % 10 == 0 else CLASSES.index(name) for i, name in enumerate(table["label_name"].to_pylist())]
    integers = table.drop_columns(["label_name"]).append_column("label", pa.array(index))
    pq.write_table(integers, "named.parquet")
    facts = run_json("split", "named.parquet", "-o", "out.parquet")
    assert facts["classes"] == [*CLASSES, "(outside)"]
    assert sum(facts["counts"]["(outside)"].values()) == 20
    evidence = open_features("out.parquet").read(role="test").evidence
    assert int((evidence.labels < 0).sum()) == facts["counts"]["(outside)"]["test"]


def test_half_precision_stays_half_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_cohort(Path("half.parquet"), n=200, embedding_type="float16")
    assert run("split", "half.parquet", "-o", "out.parquet").exit_code == 0
    kind = pq.read_schema("out.parquet").field("embedding").type
    assert kind.value_type == pa.float16()
    before, after = pq.read_table("half.parquet"), pq.read_table("out.parquet")
    assert after["embedding"].equals(before["embedding"])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"label_names": None}, "no column 'label_name'"),
        ({"label_names": [None, *["nevus"] * 199]}, "column 'label_name' is empty in 1 of 200 rows"),
        ({"roles": ["test"] * 200}, "column 'role' is there already (test); pass --replace-roles to assign new ones"),
        ({"roles": ["reference", "validation", "gate", "calibration"] * 50}, "fit on it as it is, or pass --replace"),
    ],
)
def test_what_cannot_be_split_is_refused(
    columns: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_cohort(Path("bad.parquet"), n=200, **columns)
    result = run("split", "bad.parquet", "-o", "out.parquet")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: bad.parquet: ")
    assert message in result.stderr
    assert not Path("out.parquet").exists()


@pytest.mark.parametrize(("value", "what"), [(np.nan, "NaN, infinity or a null"), (0.0, "a vector of length zero")])
def test_embeddings_that_fit_would_refuse_are_refused_before_any_work(
    value: float, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_cohort(Path("bad.parquet"), n=200)
    table = pq.read_table("bad.parquet")
    rows = table["embedding"].to_pylist()
    rows[7] = [value] * 16
    column = table.schema.get_field_index("embedding")
    pq.write_table(
        table.set_column(column, table.schema.field(column), pa.array(rows, table["embedding"].type)), "bad.parquet"
    )
    monkeypatch.setattr("calcode.cohorts.split_roles", lambda *_, **__: pytest.fail("the split began"))
    result = run("split", "bad.parquet", "-o", "out.parquet")
    assert result.exit_code == 1
    said = " ".join(result.stderr.split())
    assert said.startswith(f"Error: bad.parquet: column 'embedding' has {what} in 1 row (first: the image with id ")
    assert "'image-7'); embed these images again or drop the rows" in said
    assert list(tmp_path.glob("out*")) == []


def test_roles_are_replaced_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_cohort(Path("old.parquet"), n=200, roles=["test"] * 200)
    assert run("split", "old.parquet", "-o", "new.parquet", "--replace-roles").exit_code == 0
    assert len(set(pq.read_table("new.parquet")["role"].to_pylist())) == 5


def test_the_input_is_never_written_over(here: Path, run: Callable[..., Any]) -> None:
    before = Path("skin.parquet").read_bytes()
    result = run("split", "skin.parquet", "-o", "./skin.parquet")
    assert result.exit_code == 2
    assert Path("skin.parquet").read_bytes() == before


def test_without_groups_it_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]) -> None:
    monkeypatch.chdir(tmp_path)
    write_cohort(Path("lone.parquet"), n=200, groups=None)
    result = run("split", "lone.parquet", "-o", "out.parquet")
    assert result.exit_code == 0
    assert "Warning: lone.parquet: no column 'group'" in result.stderr
    assert np.unique(pq.read_table("out.parquet")["role"].to_pylist()).size == 5


def test_rows_without_a_group_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_cohort(Path("some.parquet"), n=200, groups=[f"p{row}" if row % 4 else None for row in range(200)])
    result = run("split", "some.parquet", "-o", "out.parquet")
    assert result.exit_code == 0
    assert (
        "Warning: some.parquet: column 'group' is empty in 50 of 200 rows, so images of one patient may fall into "
        "different roles" in result.stderr
    )


def test_a_file_with_too_few_groups_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_cohort(Path("same.parquet"), n=20, groups=["p"] * 20)
    result = run("split", "same.parquet", "-o", "out.parquet")
    assert result.exit_code == 1
    assert "Error: same.parquet: groups: 1 group cannot fill 5 roles" in result.stderr
