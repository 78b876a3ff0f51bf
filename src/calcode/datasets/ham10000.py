"""HAM10000: 10,015 dermoscopy images of 7,470 lesions from four sources in Vienna and Queensland."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from calcode.arrays import TextArray
from calcode.cohorts import split_roles
from calcode.datasets.folder import image_files, needed_csv, numbers_or_missing, read_columns, text_or_missing
from calcode.datasets.listing import EXTERNAL, Dataset, ImageListing, LabelMap, Published
from calcode.errors import DatasetError

NAME = "ham10000"
#: The label space to which all dermatology data sets are mapped.
SKIN_CLASSES = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
PUBLISHED = Published(
    images=10_015,
    labels={"nv": 6705, "mel": 1113, "bkl": 1099, "bcc": 514, "akiec": 327, "vasc": 142, "df": 115},
    groups=7470,
)
#: Images per role in the paper (reference, validation, gate, calibration, test); 10,015 in all.
HAM10000_SIZES = (2040, 1935, 1986, 2050, 2004)
ROSENDAHL = "rosendahl"
#: HAM10000 has consecutive numbers in the ISIC archive, so an id shows whether an image belongs to it.
_FIRST, _LAST = 24_306, 34_320
_LABELS = LabelMap(inside={name: name for name in SKIN_CLASSES})
_CSV_NAMES = ("HAM10000_metadata.csv", "HAM10000_metadata.tab", "HAM10000_metadata")


def read_ham10000(folder: str | Path) -> ImageListing:
    """Read HAM10000 as published: `HAM10000_metadata.csv` and the JPEG files in any folders below.

    Groups are lesions. `site` is the source of the image (column `dataset`); some copies of the file lack the column,
    then `site` is missing.

    Parameters
    ----------
    folder : path-like
        Has the CSV file and the images, in `HAM10000_images_part_1` and `_part_2` or in one folder.

    Returns
    -------
    ImageListing
        In the order of the CSV file; a `CalcodeWarning` names differences from the published counts.
    """
    path = needed_csv(folder, *_CSV_NAMES, dataset="HAM10000")
    columns = read_columns(
        path, needed=("lesion_id", "image_id", "dx", "age", "sex", "localization"), optional=("dataset",)
    )
    files = image_files(Path(folder))
    paths = files.paths_of(columns["image_id"].tolist())
    notes = files.notes(used=paths)
    if "dataset" not in columns:
        notes += ("this copy of the CSV file has no column 'dataset': the site of the images is not known",)
    metadata = {
        "site": text_or_missing(columns.get("dataset", np.full(len(paths), ""))),
        "age": numbers_or_missing(columns["age"], path=path, name="age"),
        "sex": text_or_missing(columns["sex"]),
        "anatomic_site": text_or_missing(columns["localization"]),
    }
    return ImageListing(
        dataset=NAME,
        classes=SKIN_CLASSES,
        ids=columns["image_id"],
        paths=paths,
        label_names=_LABELS.names(columns["dx"]),
        source_labels=columns["dx"],
        groups=columns["lesion_id"],
        metadata=metadata,
        expected=PUBLISHED,
        notes=notes,
    ).announced()


def is_ham10000_id(image_id: str) -> bool:
    """Whether an ISIC id is one of the 10,015 ids of HAM10000.

    Examples
    --------
    >>> is_ham10000_id("ISIC_0024306"), is_ham10000_id("ISIC_0034321")
    (True, False)
    """
    prefix, _, number = image_id.partition("_")
    return prefix == "ISIC" and number.isdecimal() and _FIRST <= int(number) <= _LAST


def ham10000_roles(listing: ImageListing, *, random_state: int = 0) -> TextArray:
    """Five roles by lesion, in the paper's proportions; shape (n,)."""
    shares = [size / sum(HAM10000_SIZES) for size in HAM10000_SIZES]
    return split_roles(listing.label_names, listing.groups, sizes=shares, random_state=random_state)


def ham10000_setting(folder: str | Path, *, random_state: int = 0) -> ImageListing:
    """HAM10000 alone: five roles by lesion near 2040, 1935, 1986, 2050, 2004; all seven classes.

    Parameters
    ----------
    folder : path-like
        As for `read_ham10000`.
    random_state : int
        Seed of the split.

    Returns
    -------
    ImageListing
        With `roles`.
    """
    listing = read_ham10000(folder)
    return replace(listing, roles=ham10000_roles(listing, random_state=random_state))


def rosendahl_setting(folder: str | Path, *, random_state: int = 0) -> ImageListing:
    """Vienna to Queensland within HAM10000: the roles of `ham10000_setting` without Rosendahl's images.

    All images of the Rosendahl site have the role `external`.
    """
    listing = read_ham10000(folder)
    away = listing.metadata["site"] == ROSENDAHL
    if not away.any():
        raise DatasetError(
            "folder: no image has the site 'rosendahl'; this copy of HAM10000_metadata.csv lacks the column "
            "'dataset'. Take the one of the Harvard Dataverse"
        )
    roles = ham10000_roles(listing, random_state=random_state)
    return replace(listing, roles=np.where(away, EXTERNAL, roles))


DATASET = Dataset(
    name=NAME,
    title="HAM10000 (dermoscopy, Vienna and Queensland)",
    needs="HAM10000_metadata.csv and the JPEG files",
    read=read_ham10000,
    images=PUBLISHED.images,
    licence="CC BY-NC 4.0",
    templates="dermatology",
    roles=ham10000_roles,
)
