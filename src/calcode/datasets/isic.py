"""The ISIC challenges: 2018 task 3 (test, 1,512 images) and 2019 (25,331 training and 8,238 test images)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from calcode.arrays import AnyArray, FloatArray, TextArray
from calcode.datasets.folder import find_csv, image_files, needed_csv, numbers_or_missing, read_columns, text_or_missing
from calcode.datasets.ham10000 import SKIN_CLASSES, is_ham10000_id
from calcode.datasets.listing import Dataset, ImageListing, LabelMap, Published
from calcode.errors import DatasetError

TRAINING = "isic2019-training"
TEST = "isic2019-test"
#: Suffix of the ids of images that the owners reduced in size.
DOWNSAMPLED = "_downsampled"
_LABELS = LabelMap(
    inside={"MEL": "mel", "NV": "nv", "BCC": "bcc", "AK": "akiec", "BKL": "bkl", "DF": "df", "VASC": "vasc"},
    outside={"SCC": "scc", "UNK": "unk"},
)
PUBLISHED_TRAINING = Published(
    images=25_331,
    labels={"MEL": 4522, "NV": 12_875, "BCC": 3323, "AK": 867, "BKL": 2624, "DF": 239, "VASC": 253, "SCC": 628},
)
PUBLISHED_TEST = Published(
    images=8238,
    labels={"MEL": 1327, "NV": 2495, "BCC": 975, "AK": 374, "BKL": 660, "DF": 91, "VASC": 104},
    outside=2212,  # SCC and UNK together
)
#: Values that the three releases share.
_DERMOSCOPY = partial(Dataset, licence="CC BY-NC 4.0", templates="dermatology")
_OVERLAP_NOTE = (
    "all 10,015 HAM10000 images are among these: to use them together with HAM10000, read with "
    "without_ham10000=True or exclude_ids"
)


def read_isic2019_training(
    folder: str | Path, *, exclude_ids: Collection[str] = (), without_ham10000: bool = False
) -> ImageListing:
    """Read the ISIC 2019 training release, with or without its HAM10000 images.

    `_downsampled` is stripped from the ids, AK becomes akiec, SCC is outside the label space. Groups are lesions if the
    metadata name one; `site` is the collection of a lesion (bcn, ham, msk).

    Parameters
    ----------
    folder : path-like
        Has `ISIC_2019_Training_GroundTruth.csv`, `ISIC_2019_Training_Metadata.csv` if available, and the images in any
        folders below.
    exclude_ids : collection of str
        Ids to leave out, without `_downsampled`.
    without_ham10000 : bool
        Leave out the 10,015 images of HAM10000, all of which are in this release. `external_setting` refuses a listing
        that still shares images with its source.
    """
    listing = _release(folder, "ISIC_2019_Training", dataset=TRAINING, labels=_LABELS)
    unwanted = set(exclude_ids)
    drop = np.array([one in unwanted or (without_ham10000 and is_ham10000_id(one)) for one in listing.ids.tolist()])
    has_ham = any(map(is_ham10000_id, listing.ids[~drop].tolist()))
    notes = (*listing.notes, _OVERLAP_NOTE) if has_ham else listing.notes
    # The published counts minus the images left out on purpose.
    dropped = Counter(listing.source_labels[drop].tolist())
    expected = replace(
        PUBLISHED_TRAINING,
        images=PUBLISHED_TRAINING.images - int(drop.sum()),
        labels={label: count - dropped[label] for label, count in PUBLISHED_TRAINING.labels.items()},
    )
    return replace(listing[~drop], expected=expected, notes=notes).announced()


def read_isic2019_test(folder: str | Path) -> ImageListing:
    """Read the ISIC 2019 test release: 8,238 images, 6,026 in the label space of HAM10000 and 2,212 outside.

    Parameters
    ----------
    folder : path-like
        Has `ISIC_2019_Test_GroundTruth.csv`, `ISIC_2019_Test_Metadata.csv` if available, and the images.
    """
    listing = _release(folder, "ISIC_2019_Test", dataset=TEST, labels=_LABELS)
    return replace(listing, expected=PUBLISHED_TEST).announced()


def _release(
    folder: str | Path, release: str, *, dataset: str, labels: LabelMap, without: Collection[str] = ()
) -> ImageListing:
    """The images of a ground-truth file, with their metadata if the release has a metadata file."""
    place, title = Path(folder), " ".join(release.split("_")[:2]).replace("ISIC2018 Task3", "ISIC 2018 task 3")
    truth = needed_csv(folder, f"{release}_GroundTruth.csv", dataset=title)
    names, source = read_one_hot(truth, labels=(*labels.inside, *labels.outside))
    kept = ~np.isin(names, list(without))
    names, source = names[kept], source[kept]
    # An image has the same id in every release.
    ids = np.array([name.removesuffix(DOWNSAMPLED) for name in names.tolist()], dtype=np.str_)
    files = image_files(place)
    # Files have the names in the table; in some copies they were renamed to the bare id.
    paths = np.where((as_named := files.paths_of(names.tolist())) != "", as_named, files.paths_of(ids.tolist()))
    notes = tuple(f"the synthetic image {name} was left out" for name in without if not kept.all())
    notes += files.notes(used=paths)
    empty = np.full(len(ids), "")
    lesions, metadata = empty, {"age": np.full(len(ids), np.nan), "sex": empty, "anatomic_site": empty}
    path = find_csv(place, f"{release}_Metadata.csv")
    if path is not None:
        lesions, metadata = read_isic_metadata(path, names=names)
    elif release not in _WITHOUT_METADATA:
        notes += (f"no {release}_Metadata.csv: age, sex, anatomic site and lesions are not known",)
    collection = [one.partition("_")[0].lower().rstrip("0123456789") for one in lesions.tolist()]
    return ImageListing(
        dataset=dataset,
        classes=SKIN_CLASSES,
        ids=ids,
        paths=paths,
        label_names=labels.names(source),
        source_labels=source,
        groups=lesions,
        metadata={"site": np.array(collection, dtype=np.str_), **metadata},
        outside=tuple(labels.outside.values()),
        notes=notes,
    )


def read_one_hot(path: Path, *, labels: Sequence[str]) -> tuple[TextArray, TextArray]:
    """Image names and source labels of a ground-truth file, shape (n,) each.

    Raises
    ------
    DatasetError
        If a row has no 1 or more than one.
    """
    columns = read_columns(path, needed=("image", *labels))
    hot: FloatArray = np.stack([numbers_or_missing(columns[name], path=path, name=name) for name in labels], axis=1)
    wrong = np.flatnonzero((np.sort(hot, axis=1)[:, -1] != 1) | (hot.sum(axis=1) != 1))
    if len(wrong):
        raise DatasetError(
            f"{path}: {columns['image'][wrong[0]]} has not exactly one 1 among {list(labels)} "
            f"({len(wrong)} such rows); take the owners' file as it is"
        )
    return columns["image"], np.array(labels)[hot.argmax(axis=1)]


def read_isic_metadata(path: Path, *, names: TextArray) -> tuple[TextArray, dict[str, AnyArray]]:
    """Lesions and subgroup columns for the given images; values are missing for images that are not in the file.

    The test release has no column `lesion_id`.
    """
    columns = read_columns(path, needed=("image", "age_approx", "anatom_site_general", "sex"), optional=("lesion_id",))
    n = len(columns["image"])
    row_of = {name: row for row, name in enumerate(columns["image"].tolist())}
    # An extra row of missing values, for images that are not in the file.
    rows = np.array([row_of.get(name, n) for name in names.tolist()], dtype=np.int64)
    age = np.append(numbers_or_missing(columns["age_approx"], path=path, name="age_approx"), np.nan)
    lesions = np.append(columns.get("lesion_id", np.full(n, "")), "")
    metadata = {
        "age": age[rows],
        "sex": np.append(text_or_missing(columns["sex"]), "")[rows],
        "anatomic_site": np.append(text_or_missing(columns["anatom_site_general"]), "")[rows],
    }
    return lesions[rows], metadata


TEST_DATASET = _DERMOSCOPY(
    name=TEST,
    title="ISIC 2019, test (dermoscopy)",
    needs="ISIC_2019_Test_GroundTruth.csv, ISIC_2019_Test_Metadata.csv and the JPEG files",
    read=read_isic2019_test,
    images=PUBLISHED_TEST.images,
)
TRAINING_DATASET = _DERMOSCOPY(
    name=TRAINING,
    title="ISIC 2019, training (dermoscopy; holds all of HAM10000)",
    needs="ISIC_2019_Training_GroundTruth.csv, ISIC_2019_Training_Metadata.csv and the JPEG files",
    read=read_isic2019_training,
    images=PUBLISHED_TRAINING.images,
)


TEST_2018 = "isic2018-test"
#: A synthetic image that the organisers added to detect cheating; no patient has this lesion.
SYNTHETIC = "ISIC_0035068"
PUBLISHED_2018 = Published(
    images=1511, labels={"MEL": 171, "NV": 908, "BCC": 93, "AKIEC": 43, "BKL": 217, "DF": 44, "VASC": 35}
)
_LABELS_2018 = LabelMap(inside={name.upper(): name for name in SKIN_CLASSES})


#: Releases whose owners published no metadata.
_WITHOUT_METADATA = ("ISIC2018_Task3_Test",)


def read_isic2018_test(folder: str | Path) -> ImageListing:
    """Read the test images of ISIC 2018 task 3, without the one synthetic image among them.

    Parameters
    ----------
    folder : path-like
        Has `ISIC2018_Task3_Test_GroundTruth.csv` and the images. The release names neither lesions nor
        patients.
    """
    listing = _release(folder, "ISIC2018_Task3_Test", dataset=TEST_2018, labels=_LABELS_2018, without=(SYNTHETIC,))
    return replace(listing, expected=PUBLISHED_2018).announced()


TEST_2018_DATASET = _DERMOSCOPY(
    name=TEST_2018,
    title="ISIC 2018 task 3, test (dermoscopy)",
    needs="ISIC2018_Task3_Test_GroundTruth.csv and the JPEG files",
    read=read_isic2018_test,
    images=PUBLISHED_2018.images,
)
