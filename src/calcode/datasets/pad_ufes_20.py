"""PAD-UFES-20: 2,298 smartphone photographs of 1,373 patients in Espirito Santo, Brazil."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from calcode.datasets.folder import image_files, needed_csv, numbers_or_missing, read_columns, text_or_missing
from calcode.datasets.listing import Dataset, ImageListing, LabelMap, Published

NAME = "pad-ufes-20"
#: The five diagnoses shared with HAM10000.
CLASSES = ("akiec", "bcc", "bkl", "mel", "nv")
PUBLISHED = Published(
    images=2298, labels={"BCC": 845, "ACK": 730, "NEV": 244, "SEK": 235, "SCC": 192, "MEL": 52}, groups=1373
)
_LABELS = LabelMap(
    inside={"ACK": "akiec", "BCC": "bcc", "SEK": "bkl", "MEL": "mel", "NEV": "nv"}, outside={"SCC": "scc"}
)


def read_pad_ufes_20(folder: str | Path) -> ImageListing:
    """Read PAD-UFES-20 as published: `metadata.csv` and the PNG files in any folders below.

    Groups are patients, because numbers in `lesion_id` are reused for other patients. SCC is outside the label space;
    the other 2,106 images are in it. Sex and Fitzpatrick type are missing for 804 images.

    Parameters
    ----------
    folder : path-like
        Has the CSV file and the images (`imgs_part_1` to `_3`, or one folder).
    """
    path = needed_csv(folder, "metadata.csv", "PAD-UFES-20_metadata.csv", dataset="PAD-UFES-20")
    columns = read_columns(
        path, needed=("patient_id", "img_id", "diagnostic", "age", "gender", "fitspatrick", "region")
    )
    ids = np.array([Path(name).stem for name in columns["img_id"].tolist()], dtype=np.str_)
    files = image_files(Path(folder))
    paths = files.paths_of(ids.tolist())
    metadata = {
        "site": np.full(len(ids), NAME),
        "age": numbers_or_missing(columns["age"], path=path, name="age"),
        "sex": text_or_missing(columns["gender"]),
        "fitzpatrick": numbers_or_missing(columns["fitspatrick"], path=path, name="fitspatrick"),
        "anatomic_site": text_or_missing(columns["region"]),
    }
    return ImageListing(
        dataset=NAME,
        classes=CLASSES,
        ids=ids,
        paths=paths,
        label_names=_LABELS.names(columns["diagnostic"]),
        source_labels=columns["diagnostic"],
        groups=columns["patient_id"],
        metadata=metadata,
        outside=tuple(_LABELS.outside.values()),
        expected=PUBLISHED,
        notes=files.notes(used=paths),
    ).announced()


DATASET = Dataset(
    name=NAME,
    title="PAD-UFES-20 (smartphone photographs, Brazil)",
    needs="metadata.csv and the PNG files",
    read=read_pad_ufes_20,
    images=PUBLISHED.images,
    licence="CC BY 4.0",
    templates="dermatology",
)
