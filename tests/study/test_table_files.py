from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calcode.errors import StudyError
from calcode.study.tables import TableSchema, averages, defined_mean, flag, integer, numeric, text

SCHEMA = TableSchema(
    name="things",
    about="One row per thing.",
    columns=(
        text("name", "Its name.", key=True),
        integer("n", "How many."),
        numeric("share", "How much."),
        flag("good", "Whether it is good."),
    ),
)


def row(**changes):
    return {"name": "a", "n": 1, "share": 0.5, "good": True} | changes


#: Text that a UTF-8 file can hold and a CSV reader gives back; an empty cell is an undefined value.
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1)


@given(
    st.lists(
        st.tuples(WORDS, st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.booleans()),
        unique_by=lambda entry: entry[0],
    )
)
def test_what_is_written_reads_back(tmp_path_factory, rows) -> None:
    folder = tmp_path_factory.mktemp("tables")
    given_rows = [row(name=a, n=b, share=c, good=d) for a, b, c, d in rows]
    SCHEMA.write(folder, given_rows)
    assert SCHEMA.read(folder).to_dict("records") == given_rows


def test_undefined_values_are_empty_cells(tmp_path) -> None:
    SCHEMA.write(tmp_path, [row(share=math.nan, n=None, good=None)])
    assert (tmp_path / "things.csv").read_text() == "name,n,share,good\na,,,\n"
    (found,) = SCHEMA.read(tmp_path).itertuples(index=False)
    assert found.n is pd.NA
    assert found.good is pd.NA
    assert math.isnan(found.share)


def test_numbers_are_written_in_full_and_flags_in_words(tmp_path) -> None:
    SCHEMA.write(tmp_path, [row(n=np.int64(3), share=np.float64(0.1) + 0.2, good=np.bool_(False))])
    assert (tmp_path / "things.csv").read_text() == "name,n,share,good\na,3,0.30000000000000004,false\n"


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
        SCHEMA.write(tmp_path, wrong)
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_another_schema_is_refused(tmp_path) -> None:
    (tmp_path / "things.csv").write_text("name,n\na,1\n")
    with pytest.raises(StudyError, match="columns are not those of the schema"):
        SCHEMA.read(tmp_path)


def test_an_average_with_an_undefined_cell_is_undefined() -> None:
    frame = pd.DataFrame(
        {
            "setting": ["A", "B", "A", "B"],
            "method": ["x", "x", "y", "y"],
            "coverage": [0.9, 0.7, 0.5, math.nan],
            "hit": [True, False, True, True],
        }
    )
    found = averages(frame, {"A": ["A"], "all": ["A", "B"]}, by=("method",), values=("coverage",), sums={"hits": "hit"})
    cells = {(row.scope, row.method): row for row in found.itertuples(index=False)}
    assert cells["all", "x"].coverage == pytest.approx(0.8)
    assert math.isnan(cells["all", "y"].coverage)
    assert cells["A", "y"].coverage == 0.5
    assert [cells["all", name].n_combinations for name in "xy"] == [2, 2]
    assert [cells["all", name].hits for name in "xy"] == [1, 2]
    assert math.isnan(defined_mean(pd.Series([], dtype=float)))
