"""Contents of a data set's folder: CSV files, read by column, and image files, found in one pass."""

from __future__ import annotations

import csv
import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calcode.arrays import FloatArray, TextArray
from calcode.datasets.dicom import DICOM_SUFFIXES, is_dicom
from calcode.errors import DatasetError
from calcode.files import csv_delimiter

IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}) | DICOM_SUFFIXES
#: Spellings of a missing value, in lower case.
MISSING = frozenset({"", "na", "n/a", "nan", "none", "null", "unknown", "unk"})
_TABLES = frozenset({".csv", ".tab", ".tsv"})
_SHOWN = 8


def checked_folder(folder: str | Path) -> Path:
    """The folder as a path; raise if it does not exist."""
    path = Path(folder)
    if not path.exists():
        raise DatasetError(f"folder: {path}: no such file or folder; check the name")
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
    """The same, but raise if there is none; the error names the expected files and the tables that were found."""
    place = checked_folder(folder)
    found = find_csv(place, *names)
    if found is None:
        # Only tables are named: names of other files and folders may contain patients' names.
        there = sorted(entry.name for entry in place.iterdir() if entry.suffix.lower() in _TABLES)
        shown = ", ".join(there[:_SHOWN]) + (", ..." if len(there) > _SHOWN else "")
        raise DatasetError(
            f"folder: no {' or '.join(names)} in {place}; its CSV files: {shown or 'none'}. "
            f"Download the metadata of {dataset} into it, under the name the owners gave"
        )
    return found


def read_columns(path: Path, *, needed: Collection[str], optional: Collection[str] = ()) -> dict[str, TextArray]:
    """Columns of a CSV file as text, each of shape (n,); other columns are skipped.

    The header shows whether commas, tabs or semicolons separate; a byte-order mark is skipped.

    Raises
    ------
    DatasetError
        If a needed column is missing, a line has too few or too many values, or there are no lines.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            delimiter = csv_delimiter(file.readline())
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
            columns: dict[str, list[str]] = {name: [] for name in wanted}
            for row in rows:
                if not row:  # an empty line, often the last one
                    continue
                if len(row) != len(header):
                    raise DatasetError(
                        f"{path}: line {rows.line_num} has {len(row)} values under {len(header)} column names; mend "
                        "the file"
                    )
                for name, position in wanted.items():
                    columns[name].append(row[position].strip())
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DatasetError(f"{path}: cannot be read as a CSV file in UTF-8 ({error})") from error
    if wanted and not any(columns.values()):
        raise DatasetError(f"{path}: no lines below the header; the file is empty or was cut off")
    return {name: np.array(column, dtype=np.str_) for name, column in columns.items()}


def text_or_missing(values: TextArray) -> TextArray:
    """Text in lower case, "" if a value is missing or marked as unknown; shape (n,)."""
    small = np.char.lower(values)
    return np.where(np.isin(small, list(MISSING)), "", small)


def numbers_or_missing(values: TextArray, *, path: Path, name: str) -> FloatArray:
    """Numbers, NaN if a value is missing; shape (n,)."""
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


@dataclass(frozen=True, kw_only=True)
class ImageFiles:
    """The image files below a folder.

    Attributes
    ----------
    root : Path
    relative : tuple of str
        Paths relative to `root` with forward slashes, sorted.
    by_stem : dict of str to str
        Relative path by file name without its suffix; if several files share the name, the first.
    repeated : tuple of str
        Stems that several files share: an archive unpacked twice, or two formats side by side.
    odd : tuple of str
        Sentences about entries with an image suffix that are left out.
    """

    root: Path
    relative: tuple[str, ...]
    by_stem: dict[str, str]
    repeated: tuple[str, ...]
    odd: tuple[str, ...] = ()

    def paths_of(self, names: Iterable[str]) -> TextArray:
        """Full path for every file stem, "" if there is none; shape (n,)."""
        found = [self.by_stem.get(name) for name in names]
        return np.array(["" if one is None else str(self.root / one) for one in found], dtype=np.str_)

    def existing(self, relative: Iterable[str]) -> TextArray:
        """Full path for every relative path, "" if there is no such file; shape (n,)."""
        known = set(self.relative)
        return np.array([str(self.root / one) if one in known else "" for one in relative], dtype=np.str_)

    def notes(self, *, used: TextArray) -> tuple[str, ...]:
        """Notes on irregularities of the files, given the paths that a listing uses."""
        notes = list(self.odd)
        if self.repeated:
            # The name of a DICOM file may be a patient's name.
            first = self.repeated[0]
            shown = "" if is_dicom(self.root / self.by_stem[first]) else f" (first: {first})"
            notes.append(
                f"image names that occur in several places: {len(self.repeated)}{shown}; the first file in "
                f"alphabetical order is used"
            )
        surplus = len(self.relative) - len(set(used[used != ""].tolist()))
        if surplus > 0:
            notes.append(f"image files without a row in the table, left out: {surplus}")
        return tuple(notes)


def image_files(root: Path) -> ImageFiles:
    """Walk a folder once; skip hidden files and leftovers of archive programs (`__MACOSX`).

    Links are followed, each folder only once. Only regular files count: reading a pipe or a device with an image suffix
    could block forever.
    """
    relative: list[str] = []
    special = unreadable = 0
    visited: set[tuple[int, int]] = set()
    for place, folders, names in os.walk(root, followlinks=True):
        here = os.stat(place)
        if (here.st_dev, here.st_ino) in visited:
            folders.clear()
            continue
        visited.add((here.st_dev, here.st_ino))
        folders[:] = [name for name in folders if not name.startswith((".", "__MACOSX"))]
        for name in names:
            file = Path(place, name)
            if name.startswith("."):
                continue
            known = file.suffix.lower() in IMAGE_SUFFIXES
            if not file.is_file():
                special += known and file.exists()
            # DICOM exports often have no suffix at all: their first bytes decide.
            elif known or (not file.suffix and is_dicom(file)):
                found = file.relative_to(root).as_posix()
                try:
                    found.encode("utf-8")
                    relative.append(found)
                except UnicodeEncodeError:
                    unreadable += 1
    by_stem: dict[str, str] = {}
    repeated: dict[str, None] = {}
    for one in sorted(relative):
        if by_stem.setdefault(Path(one).stem, one) != one:
            repeated[Path(one).stem] = None
    return ImageFiles(
        root=root,
        relative=tuple(sorted(relative)),
        by_stem=by_stem,
        repeated=tuple(repeated),
        odd=tuple(
            f"{what}, left out: {count}"
            for what, count in (
                ("pipes, devices or sockets with the ending of an image", special),
                ("images whose names are not UTF-8 text", unreadable),
            )
            if count
        ),
    )
