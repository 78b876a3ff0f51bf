"""The known data sets, and the paper's settings that join two of them. A new data set needs a file and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from calcode.datasets import camelyon17, generic, ham10000, isic, pad_ufes_20
from calcode.datasets.listing import EXTERNAL, Dataset, ImageListing, joined
from calcode.errors import DatasetError

_IN_ORDER = (
    ham10000.DATASET,
    isic.TEST_2018_DATASET,
    isic.TEST_DATASET,
    isic.TRAINING_DATASET,
    pad_ufes_20.DATASET,
    camelyon17.DATASET,
    generic.CSV,
    generic.FOLDERS,
)

#: Data set by name, in table order.
DATASETS: Mapping[str, Dataset] = MappingProxyType({one.name: one for one in _IN_ORDER})


def dataset_named(name: str) -> Dataset:
    """A data set by name.

    Examples
    --------
    >>> dataset_named("pad-ufes-20").images
    2298
    """
    if name not in DATASETS:
        raise DatasetError(f"dataset: {name!r} is not known; choose among {', '.join(DATASETS)}")
    return DATASETS[name]


def read_dataset(name: str, folder: str | Path) -> ImageListing:
    """Read a data set by name, with the roles of the paper's setting if it is the source of one.

    Parameters
    ----------
    name : str
        One of `DATASETS`.
    folder : path-like

    Returns
    -------
    ImageListing
        A `CalcodeWarning` names differences from the published counts.
    """
    known = dataset_named(name)
    listing = known.read(Path(folder))
    return listing if known.roles is None else replace(listing, roles=known.roles(listing))


def pad_ufes_20_setting(
    ham10000_folder: str | Path, pad_ufes_20_folder: str | Path, *, random_state: int = 0
) -> ImageListing:
    """HAM10000 to PAD-UFES-20 in the five classes that they share.

    The source rows are those of `ham10000_setting` in the five classes. The 2,106 photographs in the label
    space and the 192 of SCC outside it have the role `external`.
    """
    home = ham10000.ham10000_setting(ham10000_folder, random_state=random_state)
    return external_setting(home, pad_ufes_20.read_pad_ufes_20(pad_ufes_20_folder))


def isic2019_setting(
    ham10000_folder: str | Path, isic2019_folder: str | Path, *, random_state: int = 0
) -> ImageListing:
    """HAM10000 to the ISIC 2019 test release: 6,026 external images in the label space and 2,212 outside."""
    home = ham10000.ham10000_setting(ham10000_folder, random_state=random_state)
    return external_setting(home, isic.read_isic2019_test(isic2019_folder))


def external_setting(source: ImageListing, external: ImageListing) -> ImageListing:
    """A source with roles and an external cohort, in the classes of the external one.

    Parameters
    ----------
    source : ImageListing
        With `roles`. Its images outside the common classes are left out.
    external : ImageListing
        All its images get the role `external`; those outside the label space stay outside.

    Returns
    -------
    ImageListing

    Raises
    ------
    DatasetError
        If the two share images, lesions or patients: figures on images of the fit say nothing about another hospital.
        All of HAM10000 is in the ISIC 2019 training release.
    """
    if source.roles is None:
        raise DatasetError("source: it has no roles; take a setting, or give it some with split_roles")
    for what, ours, theirs in (("ids", source.ids, external.ids), ("groups", source.groups, external.groups)):
        shared = sorted((set(ours.tolist()) & set(theirs.tolist())) - {""})
        if shared:
            raise DatasetError(
                f"external: {len(shared):,} {what} of {external.dataset} are also in {source.dataset} (first: "
                f"{shared[0]}), so it is no external cohort. Leave them out with exclude_ids; for the ISIC "
                f"2019 training release, which holds all of HAM10000, read it with without_ham10000=True"
            )
    classes = [name for name in external.classes if name in source.classes]
    if not classes:
        raise DatasetError(f"external: its classes {list(external.classes)} share none with {list(source.classes)}")
    home = source.restrict(classes)
    away = replace(external, roles=np.full(len(external), EXTERNAL))
    name = f"{source.dataset} to {external.dataset}"
    return joined([home[home.in_space], away], dataset=name, classes=classes)
