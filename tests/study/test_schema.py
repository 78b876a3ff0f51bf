from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calcode.study import StudyError
from calcode.study.schema import TableSchema, flag, integer, number, text
from calcode.study.table_files import read_table, write_table

SCHEMA = TableSchema(
    name="things",
    about="One row per thing.",
    columns=(
        text("name", "Its name."),
        integer("n", "How many."),
        number("share", "How much."),
        flag("good", "Whether it is good."),
    ),
    key=("name",),
)


def row(**changes):
    return {"name": "a", "n": 1, "share": 0.5, "good": True} | changes


@given(
    st.lists(
        st.tuples(
            st.text(min_size=1).filter(lambda s: "\0" not in s and s == s.replace("\r", "")),
            st.integers(),
            st.floats(allow_nan=False),
            st.booleans(),
        ),
        unique_by=lambda entry: entry[0],
    )
)
def test_what_is_written_reads_back(tmp_path_factory, rows) -> None:
    folder = tmp_path_factory.mktemp("tables")
    given_rows = [row(name=a, n=b, share=c, good=d) for a, b, c, d in rows]
    try:
        [name.encode() for name, *_ in rows]
    except UnicodeEncodeError:
        return
    write_table(folder, SCHEMA, given_rows)
    assert read_table(folder, SCHEMA) == given_rows


def test_undefined_values_are_empty_cells(tmp_path) -> None:
    write_table(tmp_path, SCHEMA, [row(share=math.nan, n=None, good=None)])
    assert (tmp_path / "things.csv").read_text() == "name,n,share,good\na,,,\n"


def test_numbers_of_numpy_are_numbers() -> None:
    (cells,) = SCHEMA.checked([row(n=np.int64(3), share=np.float64(0.1), good=np.bool_(True))])
    assert [type(value) for value in cells.values()] == [str, int, float, bool]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([row(n=1.5)], "1.5 in column 'n' is no integer"),
        ([row(good=1)], "1 in column 'good' is no flag"),
        ([row(share="0.5")], "'0.5' in column 'share' is no number"),
        ([row(n=True)], "True in column 'n' is no integer"),
        ([row(), row()], "two rows with {'name': 'a'}"),
        ([{"name": "a"}], r"columns \['good', 'n', 'share'\] are missing"),
        ([row(more=1)], r"columns \['more'\] are missing or not in the schema"),
    ],
)
def test_rows_that_do_not_fit_are_refused(tmp_path, wrong, message) -> None:
    with pytest.raises(StudyError, match=message):
        write_table(tmp_path, SCHEMA, wrong)
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_another_schema_is_refused(tmp_path) -> None:
    (tmp_path / "things.csv").write_text("name,n\na,1\n")
    with pytest.raises(StudyError, match="columns are not those of the schema"):
        read_table(tmp_path, SCHEMA)
