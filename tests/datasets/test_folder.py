from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calcode.datasets.folder import needed_csv, numbers_or_missing, read_columns, text_or_missing
from calcode.errors import DatasetError


def write(folder: Path, text: str, *, encoding: str = "utf-8") -> Path:
    path = folder / "a.csv"
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
def test_the_header_tells_the_delimiter_and_a_mark_is_skipped(tmp_path: Path, delimiter: str) -> None:
    text = "id,label\n1, mel \n2,nv\n\n".replace(",", delimiter)
    columns = read_columns(write(tmp_path, text, encoding="utf-8-sig"), needed=["id", "label"])
    assert columns["id"].tolist() == ["1", "2"]
    assert columns["label"].tolist() == ["mel", "nv"]


def test_quoted_commas_and_windows_lines(tmp_path: Path) -> None:
    columns = read_columns(write(tmp_path, 'id,site\r\n1,"head, neck"\r\n'), needed=["site"])
    assert columns["site"].tolist() == ["head, neck"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column"),
        ("id,dx\n1,mel\n", r"no column \['label'\]; it has \['id', 'dx'\]"),
        ("id,label\n", "no lines below the header"),
        ("id,label\n1,mel\n2\n", "line 3 has 1 values under 2"),
        ("id,label\n1,mel,extra\n", "line 2 has 3 values"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        read_columns(write(tmp_path, text), needed=["id", "label"])


def test_another_encoding_is_an_error_with_a_name(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="UTF-8"):
        read_columns(write(tmp_path, "id\nnævus\n", encoding="latin-1"), needed=["id"])


def test_missing_values_in_text_and_numbers(tmp_path: Path) -> None:
    values = np.array(["Male", "unknown", "", "NaN"])
    assert text_or_missing(values).tolist() == ["male", "", "", ""]
    numbers = numbers_or_missing(np.array(["45.0", "", "NA"]), path=tmp_path, name="age")
    np.testing.assert_array_equal(numbers, [45.0, np.nan, np.nan])
    with pytest.raises(DatasetError, match="column 'age' holds 'old' in line 2"):
        numbers_or_missing(np.array(["old"]), path=tmp_path, name="age")


def test_a_folder_without_the_file_says_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "z.csv").touch()
    (tmp_path / "DOE_JANE.dcm").touch()
    with pytest.raises(DatasetError, match=r"no x.csv or y.csv in .*; its CSV files: z.csv\.") as caught:
        needed_csv(tmp_path, "x.csv", "y.csv", dataset="X")
    assert "DOE" not in str(caught.value)
    with pytest.raises(DatasetError, match="z.csv is not a folder"):
        needed_csv(tmp_path / "z.csv", "x.csv", dataset="X")
    with pytest.raises(DatasetError, match="absent: no such file or folder"):
        needed_csv(tmp_path / "absent", "x.csv", dataset="X")
