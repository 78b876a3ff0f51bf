"""The known data sets. A new one is its file and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from calcode.datasets import camelyon17, generic, ham10000, isic2018, isic2019, pad_ufes_20
from calcode.datasets.listing import Dataset, ImageListing
from calcode.errors import DatasetError

_IN_ORDER = (
    ham10000.DATASET,
    isic2018.DATASET,
    isic2019.TEST_DATASET,
    isic2019.TRAINING_DATASET,
    pad_ufes_20.DATASET,
    camelyon17.DATASET,
    generic.CSV,
    generic.FOLDERS,
)

#: Name to data set, in the order of the tables.
DATASETS: Mapping[str, Dataset] = MappingProxyType({one.name: one for one in _IN_ORDER})


def dataset_named(name: str) -> Dataset:
    """A data set by its name.

    Examples
    --------
    >>> dataset_named("pad-ufes-20").images
    2298
    """
    if name not in DATASETS:
        raise DatasetError(f"dataset: {name!r} is not known; choose among {', '.join(DATASETS)}")
    return DATASETS[name]


def read_dataset(name: str, folder: str | Path) -> ImageListing:
    """Read a data set by its name, with the roles of the paper's setting where it is the source of one.

    Parameters
    ----------
    name : str
        One of `DATASETS`.
    folder : path-like

    Returns
    -------
    ImageListing
        A `CalcodeWarning` says what differs from the published counts.
    """
    known = dataset_named(name)
    listing = known.read(Path(folder))
    return listing if known.roles is None else replace(listing, roles=known.roles(listing))
