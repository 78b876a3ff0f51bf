"""HAM10000: 10,015 dermoscopy images of 7,470 lesions from four sources in Vienna and Queensland."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from calcode.datasets.assembly import LabelMap, announced
from calcode.datasets.csv_files import needed_csv, numbers_or_missing, read_columns, text_or_missing
from calcode.datasets.image_files import image_files
from calcode.datasets.listing import ImageListing, Published
from calcode.datasets.skin_labels import SKIN_CLASSES

NAME = "ham10000"
PUBLISHED = Published(
    images=10_015,
    labels={"nv": 6705, "mel": 1113, "bkl": 1099, "bcc": 514, "akiec": 327, "vasc": 142, "df": 115},
    groups=7470,
)
#: The images have consecutive numbers in the ISIC archive: an id tells whether an image is one of them.
_FIRST, _LAST = 24_306, 34_320
_LABELS = LabelMap(classes=SKIN_CLASSES, inside={name: name for name in SKIN_CLASSES})
_CSV_NAMES = ("HAM10000_metadata.csv", "HAM10000_metadata.tab", "HAM10000_metadata")


def read_ham10000(folder: str | Path) -> ImageListing:
    """HAM10000 as published: `HAM10000_metadata.csv` and the JPEG files in any folders below.

    Groups are lesions, `site` is the source of the image (column `dataset`, which some copies of the file
    lack: then it is missing).

    Parameters
    ----------
    folder : path-like
        Holds the CSV file and the images, in `HAM10000_images_part_1` and `_part_2` or in one folder.

    Returns
    -------
    ImageListing
        In the order of the CSV file; a `CalcodeWarning` says what differs from the published counts.
    """
    path = needed_csv(folder, *_CSV_NAMES, dataset="HAM10000")
    columns = read_columns(
        path,
        needed=("lesion_id", "image_id", "dx", "age", "sex", "localization"),
        optional=("dataset",),
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
    return announced(
        ImageListing(
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
        )
    )


def is_ham10000_id(image_id: str) -> bool:
    """Whether an ISIC id is one of the 10,015 of HAM10000.

    Examples
    --------
    >>> is_ham10000_id("ISIC_0024306"), is_ham10000_id("ISIC_0034321")
    (True, False)
    """
    prefix, _, number = image_id.partition("_")
    return prefix == "ISIC" and number.isdecimal() and _FIRST <= int(number) <= _LAST
