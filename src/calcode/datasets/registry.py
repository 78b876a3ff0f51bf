"""The known data sets. A new one is its file and one entry here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from calcode.arrays import TextArray
from calcode.datasets import camelyon17, ham10000, isic2018, isic2019, pad_ufes_20
from calcode.datasets.csv_files import checked_folder
from calcode.datasets.generic import read_class_folders, read_csv_images
from calcode.datasets.listing import ImageListing
from calcode.datasets.settings import camelyon17_roles, ham10000_roles
from calcode.errors import DatasetError


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A data set that can be read by its name.

    Attributes
    ----------
    name, title : str
    needs : str
        What the folder must hold.
    read : callable
        From a folder to an `ImageListing`.
    images : int or None
        Published number of images.
    licence : str
        Of the images, as their owners state it.
    templates : str or None
        Name of the packaged prompt templates that fit.
    roles : callable or None
        From a listing to the roles of the paper's setting, "" for images it does not use; None where the
        setting has this data set as an external cohort, or there is none.
    """

    name: str
    title: str
    needs: str
    read: Callable[[Path], ImageListing]
    images: int | None = None
    licence: str = ""
    templates: str | None = None
    roles: Callable[[ImageListing], TextArray] | None = None


def _read_single_csv(folder: Path) -> ImageListing:
    found = sorted(checked_folder(folder).glob("*.csv"))
    if len(found) != 1:
        raise DatasetError(
            f"folder: {len(found)} CSV files in {folder}, one is needed; name yours with --csv, or in Python "
            f"with read_csv_images"
        )
    return read_csv_images(found[0])


_IN_ORDER = (
    Dataset(
        name=ham10000.NAME,
        title="HAM10000 (dermoscopy, Vienna and Queensland)",
        needs="HAM10000_metadata.csv and the JPEG files",
        read=ham10000.read_ham10000,
        images=ham10000.PUBLISHED.images,
        licence="CC BY-NC 4.0",
        templates="dermatology",
        roles=ham10000_roles,
    ),
    Dataset(
        name=isic2018.NAME,
        title="ISIC 2018 task 3, test (dermoscopy)",
        needs="ISIC2018_Task3_Test_GroundTruth.csv and the JPEG files",
        read=isic2018.read_isic2018_test,
        images=isic2018.PUBLISHED.images,
        licence="CC BY-NC 4.0",
        templates="dermatology",
    ),
    Dataset(
        name=isic2019.TEST,
        title="ISIC 2019, test (dermoscopy)",
        needs="ISIC_2019_Test_GroundTruth.csv, ISIC_2019_Test_Metadata.csv and the JPEG files",
        read=isic2019.read_isic2019_test,
        images=isic2019.PUBLISHED_TEST.images,
        licence="CC BY-NC 4.0",
        templates="dermatology",
    ),
    Dataset(
        name=isic2019.TRAINING,
        title="ISIC 2019, training (dermoscopy; holds all of HAM10000)",
        needs="ISIC_2019_Training_GroundTruth.csv, ISIC_2019_Training_Metadata.csv and the JPEG files",
        read=isic2019.read_isic2019_training,
        images=isic2019.PUBLISHED_TRAINING.images,
        licence="CC BY-NC 4.0",
        templates="dermatology",
    ),
    Dataset(
        name=pad_ufes_20.NAME,
        title="PAD-UFES-20 (smartphone photographs, Brazil)",
        needs="metadata.csv and the PNG files",
        read=pad_ufes_20.read_pad_ufes_20,
        images=pad_ufes_20.PUBLISHED.images,
        licence="CC BY 4.0",
        templates="dermatology",
    ),
    Dataset(
        name=camelyon17.NAME,
        title="Camelyon17-WILDS (lymph node patches, five hospitals)",
        needs="metadata.csv and the folder patches",
        read=camelyon17.read_camelyon17,
        images=camelyon17.PUBLISHED.images,
        licence="CC0 1.0",
        templates="histopathology",
        roles=camelyon17_roles,
    ),
    Dataset(
        name="csv",
        title="Your own images, listed in a CSV file",
        needs="one CSV file with path or id, and label_name, group, role where known",
        read=_read_single_csv,
    ),
    Dataset(
        name="folders",
        title="Your own images, in folders named after their classes",
        needs="one folder of images per class",
        read=read_class_folders,
    ),
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
