"""Camelyon17-WILDS: patches of lymph node sections, 96 pixels wide, from five hospitals."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from calcode.datasets.assembly import LabelMap, announced
from calcode.datasets.csv_files import needed_csv, read_columns
from calcode.datasets.image_files import image_files
from calcode.datasets.listing import ImageListing, Published

NAME = "camelyon17"
CLASSES = ("non-tumor", "tumor")
PUBLISHED = Published(images=455_954)
#: The hospital that is held out, numbered from 0 as in the file.
HELD_OUT_CENTRE = "2"
_LABELS = LabelMap(classes=CLASSES, inside={"0": "non-tumor", "1": "tumor"})


def read_camelyon17(folder: str | Path) -> ImageListing:
    """Camelyon17-WILDS as published: `metadata.csv` and the PNG files under `patches`.

    Groups are patients; `site` is the hospital ("centre 0" to "centre 4"), `slide` the slide.

    Parameters
    ----------
    folder : path-like
        The folder `camelyon17_v1.0`, or the one that holds it.
    """
    path = needed_csv(folder, "metadata.csv", dataset="Camelyon17-WILDS")
    columns = read_columns(path, needed=("patient", "node", "x_coord", "y_coord", "tumor", "slide", "center"))
    # A spreadsheet that saved the file again has dropped leading zeros.
    patients = np.char.zfill(columns["patient"], 3)
    places = zip(
        patients.tolist(),
        columns["node"].tolist(),
        columns["x_coord"].tolist(),
        columns["y_coord"].tolist(),
        strict=True,
    )
    stems = [f"patient_{patient}_node_{node}_x_{x}_y_{y}" for patient, node, x, y in places]
    files = image_files(path.parent)
    paths = files.existing(f"patches/{stem.partition('_x_')[0]}/patch_{stem}.png" for stem in stems)
    return announced(
        ImageListing(
            dataset=NAME,
            classes=CLASSES,
            ids=np.array(stems, dtype=np.str_),
            paths=paths,
            label_names=_LABELS.names(columns["tumor"]),
            source_labels=columns["tumor"],
            groups=np.char.add("patient_", patients),
            metadata={
                "site": np.char.add("centre ", columns["center"]),
                "slide": columns["slide"],
            },
            expected=PUBLISHED,
            notes=files.notes(used=paths),
        )
    )
