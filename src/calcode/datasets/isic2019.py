"""ISIC 2019: 25,331 training and 8,238 test images in eight diagnoses and 'unknown'."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np

from calcode.arrays import TextArray
from calcode.datasets.assembly import LabelMap, announced
from calcode.datasets.csv_files import find_csv, needed_csv
from calcode.datasets.ham10000 import is_ham10000_id
from calcode.datasets.image_files import image_files
from calcode.datasets.isic_tables import bare_ids, read_isic_metadata, read_one_hot, without_metadata
from calcode.datasets.listing import ImageListing, Published
from calcode.datasets.skin_labels import SKIN_CLASSES

TRAINING = "isic2019-training"
TEST = "isic2019-test"
_LABELS = LabelMap(
    classes=SKIN_CLASSES,
    inside={
        "MEL": "mel",
        "NV": "nv",
        "BCC": "bcc",
        "AK": "akiec",
        "BKL": "bkl",
        "DF": "df",
        "VASC": "vasc",
    },
    outside={"SCC": "scc", "UNK": "unk"},
)
_COLUMNS = (*_LABELS.inside, *_LABELS.outside)
PUBLISHED_TRAINING = Published(
    images=25_331,
    labels={
        "MEL": 4522,
        "NV": 12_875,
        "BCC": 3323,
        "AK": 867,
        "BKL": 2624,
        "DF": 239,
        "VASC": 253,
        "SCC": 628,
    },
)
PUBLISHED_TEST = Published(
    images=8238,
    labels={"MEL": 1327, "NV": 2495, "BCC": 975, "AK": 374, "BKL": 660, "DF": 91, "VASC": 104},
    outside=2212,  # SCC and UNK together
)
_OVERLAP_NOTE = (
    "all 10,015 HAM10000 images are among these: to use them beside HAM10000, read with "
    "without_ham10000=True or exclude_ids"
)


def read_isic2019_training(
    folder: str | Path, *, exclude_ids: Collection[str] = (), without_ham10000: bool = False
) -> ImageListing:
    """The ISIC 2019 training release, with the HAM10000 images in it or without.

    `_downsampled` is stripped from the ids, AK becomes akiec, SCC lies outside the label space. Groups are
    lesions where the metadata name one, `site` is the collection a lesion comes from (bcn, ham, msk).

    Parameters
    ----------
    folder : path-like
        Holds `ISIC_2019_Training_GroundTruth.csv`, `ISIC_2019_Training_Metadata.csv` if there is one, and the
        images in any folders below.
    exclude_ids : collection of str
        Ids to leave out, without `_downsampled`.
    without_ham10000 : bool
        Leave out the 10,015 images of HAM10000, all of which are in this release. `external_setting` refuses
        a listing that still shares images with its source.
    """
    names, source = read_one_hot(
        needed_csv(folder, "ISIC_2019_Training_GroundTruth.csv", dataset="ISIC 2019"), labels=_COLUMNS
    )
    listing = _listing(
        folder, names=names, source=source, dataset=TRAINING, metadata_name="ISIC_2019_Training_Metadata.csv"
    )
    unwanted = set(exclude_ids)
    drop = np.array(
        [one in unwanted or (without_ham10000 and is_ham10000_id(one)) for one in listing.ids.tolist()]
    )
    has_ham = any(map(is_ham10000_id, listing.ids[~drop].tolist()))
    notes = (*listing.notes, _OVERLAP_NOTE) if has_ham else listing.notes
    expected = _less(PUBLISHED_TRAINING, dropped=listing.source_labels[drop])
    return announced(replace(listing[~drop], expected=expected, notes=notes))


def read_isic2019_test(folder: str | Path) -> ImageListing:
    """The ISIC 2019 test release: 8,238 images, 6,026 in the label space of HAM10000 and 2,212 outside.

    Parameters
    ----------
    folder : path-like
        Holds `ISIC_2019_Test_GroundTruth.csv`, `ISIC_2019_Test_Metadata.csv` if there is one, and the images.
    """
    names, source = read_one_hot(
        needed_csv(folder, "ISIC_2019_Test_GroundTruth.csv", dataset="ISIC 2019"), labels=_COLUMNS
    )
    listing = _listing(
        folder, names=names, source=source, dataset=TEST, metadata_name="ISIC_2019_Test_Metadata.csv"
    )
    return announced(replace(listing, expected=PUBLISHED_TEST))


def _listing(
    folder: str | Path, *, names: TextArray, source: TextArray, dataset: str, metadata_name: str
) -> ImageListing:
    place = Path(folder)
    ids = bare_ids(names)
    files = image_files(place)
    # Files bear the name of the table; some copies were renamed to the bare id.
    paths = np.where(
        (as_named := files.paths_of(names.tolist())) != "", as_named, files.paths_of(ids.tolist())
    )
    notes = files.notes(used=paths)
    path = find_csv(place, metadata_name)
    if path is None:
        lesions, metadata = without_metadata(len(ids))
        notes += (f"no {metadata_name}: age, sex, anatomic site and lesions are not known",)
    else:
        lesions, metadata = read_isic_metadata(path, names=names)
    collection = [one.partition("_")[0].lower().rstrip("0123456789") for one in lesions.tolist()]
    return ImageListing(
        dataset=dataset,
        classes=SKIN_CLASSES,
        ids=ids,
        paths=paths,
        label_names=_LABELS.names(source),
        source_labels=source,
        groups=lesions,
        metadata={"site": np.array(collection, dtype=np.str_), **metadata},
        outside=tuple(_LABELS.outside.values()),
        notes=notes,
    )


def _less(published: Published, *, dropped: TextArray) -> Published:
    """The published counts without images that were left out on purpose."""
    counts = Counter(dropped.tolist())
    return replace(
        published,
        images=published.images - len(dropped),
        labels={label: count - counts[label] for label, count in published.labels.items()},
    )
