"""The one-hot tables of the ISIC challenges: one column per diagnosis, one 1 per row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from calcode.arrays import AnyArray, FloatArray, TextArray
from calcode.datasets.csv_files import numbers_or_missing, read_columns, text_or_missing
from calcode.errors import DatasetError

#: Ending of the ids of images that the owners made smaller.
DOWNSAMPLED = "_downsampled"


def read_one_hot(path: Path, *, labels: Sequence[str]) -> tuple[TextArray, TextArray]:
    """Image names and source labels of a ground-truth file, shape (n,) each.

    Raises
    ------
    DatasetError
        If a row has no 1 or several of them.
    """
    columns = read_columns(path, needed=("image", *labels))
    hot: FloatArray = np.stack(
        [numbers_or_missing(columns[name], path=path, name=name) for name in labels], axis=1
    )
    wrong = np.flatnonzero((np.sort(hot, axis=1)[:, -1] != 1) | (hot.sum(axis=1) != 1))
    if len(wrong):
        raise DatasetError(
            f"{path}: {columns['image'][wrong[0]]} has not exactly one 1 among {list(labels)} "
            f"({len(wrong)} such rows); take the owners' file as it is"
        )
    return columns["image"], np.array(labels)[hot.argmax(axis=1)]


def bare_ids(names: TextArray) -> TextArray:
    """Ids without `_downsampled`: the same image has one id in every release; shape (n,)."""
    return np.array([name.removesuffix(DOWNSAMPLED) for name in names.tolist()], dtype=np.str_)


def read_isic_metadata(path: Path, *, names: TextArray) -> tuple[TextArray, dict[str, AnyArray]]:
    """Lesions and subgroup columns for the given images; missing for images that the file does not name.

    The test release has no column `lesion_id`.
    """
    columns = read_columns(
        path, needed=("image", "age_approx", "anatom_site_general", "sex"), optional=("lesion_id",)
    )
    n = len(columns["image"])
    row_of = {name: row for row, name in enumerate(columns["image"].tolist())}
    # One more row, of missing values, for the images that are not in the file.
    rows = np.array([row_of.get(name, n) for name in names.tolist()], dtype=np.int64)
    age = np.append(numbers_or_missing(columns["age_approx"], path=path, name="age_approx"), np.nan)
    lesions = np.append(columns.get("lesion_id", np.full(n, "")), "")
    metadata = {
        "age": age[rows],
        "sex": np.append(text_or_missing(columns["sex"]), "")[rows],
        "anatomic_site": np.append(text_or_missing(columns["anatom_site_general"]), "")[rows],
    }
    return lesions[rows], metadata


def without_metadata(n: int) -> tuple[TextArray, dict[str, AnyArray]]:
    """The same columns where there is no metadata file."""
    empty = np.full(n, "")
    return empty, {"age": np.full(n, np.nan), "sex": empty, "anatomic_site": empty}
