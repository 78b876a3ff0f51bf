"""CSV files as data sets come with them: found, opened and checked column by column."""

from __future__ import annotations

import csv
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from calcode.arrays import FloatArray, TextArray
from calcode.errors import DatasetError

#: How a missing value is written, in small letters.
MISSING = frozenset({"", "na", "n/a", "nan", "none", "null", "unknown", "unk"})
_TABLES = frozenset({".csv", ".tab", ".tsv"})
_DELIMITERS = (",", "\t", ";")
_SHOWN = 8


def checked_folder(folder: str | Path) -> Path:
    """The folder as a path; refused if there is none."""
    path = Path(folder)
    if not path.is_dir():
        raise DatasetError(f"folder: {path} is not a folder; give the one that holds the data set")
    return path


def find_csv(folder: Path, *names: str) -> Path | None:
    """The first of the named files in the folder or in a folder directly inside it."""
    inner = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    for place in (folder, *inner):
        for name in names:
            if (place / name).is_file():
                return place / name
    return None


def needed_csv(folder: str | Path, *names: str, dataset: str) -> Path:
    """The same, refused with the names that were looked for and what lies there instead."""
    place = checked_folder(folder)
    found = find_csv(place, *names)
    if found is None:
        # Only tables are named: other files, and folders, may be called after patients.
        there = sorted(entry.name for entry in place.iterdir() if entry.suffix.lower() in _TABLES)
        shown = ", ".join(there[:_SHOWN]) + (", ..." if len(there) > _SHOWN else "")
        raise DatasetError(
            f"folder: no {' or '.join(names)} in {place}; its CSV files: {shown or 'none'}. "
            f"Download the metadata of {dataset} into it, under the name the owners gave"
        )
    return found


def read_columns(
    path: Path, *, needed: Collection[str], optional: Collection[str] = ()
) -> dict[str, TextArray]:
    """Columns of a CSV file as text, shape (n,) each; the others are skipped.

    Commas, tabs and semicolons are told apart by the header; a byte-order mark is skipped.

    Raises
    ------
    DatasetError
        If a needed column is missing, a line has too few or too many values, or there is no line at all.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            delimiter = max(_DELIMITERS, key=first.count)
            file.seek(0)
            rows = csv.reader(file, delimiter=delimiter)
            header = [name.strip() for name in next(rows, [])]
            absent = [name for name in needed if name not in header]
            if absent:
                raise DatasetError(
                    f"{path}: no column {absent}; it has {header}. Take the owners' file as it is, or name "
                    f"your own columns"
                )
            wanted = {name: header.index(name) for name in (*needed, *optional) if name in header}
            values = _values(rows, positions=list(wanted.values()), width=len(header), path=path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DatasetError(f"{path}: cannot be read as a CSV file in UTF-8 ({error})") from error
    return {name: np.array(column, dtype=np.str_) for name, column in zip(wanted, values, strict=True)}


def _values(rows: object, *, positions: Sequence[int], width: int, path: Path) -> list[list[str]]:
    columns: list[list[str]] = [[] for _ in positions]
    for number, row in enumerate(rows, start=2):  # type: ignore[var-annotated, arg-type]
        if not row:  # an empty line, often the last one
            continue
        if len(row) != width:
            raise DatasetError(
                f"{path}: line {number} has {len(row)} values under {width} column names; mend the file"
            )
        for column, position in zip(columns, positions, strict=True):
            column.append(row[position].strip())
    if not columns or not columns[0]:
        raise DatasetError(f"{path}: no lines below the header; the file is empty or was cut off")
    return columns


def text_or_missing(values: TextArray) -> TextArray:
    """Text in small letters, "" where a value is missing or said to be unknown; shape (n,)."""
    small = np.char.lower(values)
    return np.where(np.isin(small, list(MISSING)), "", small)


def numbers_or_missing(values: TextArray, *, path: Path, name: str) -> FloatArray:
    """Numbers, NaN where a value is missing; shape (n,)."""
    numbers = np.full(len(values), np.nan)
    for row, value in enumerate(values.tolist()):
        if value.lower() in MISSING:
            continue
        try:
            numbers[row] = float(value)
        except ValueError:
            raise DatasetError(
                f"{path}: column {name!r} holds {value!r} in line {row + 2}, a number is needed"
            ) from None
    return numbers
