"""Camelyon17-WILDS: patches of lymph node sections, 96 pixels wide, from five hospitals."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np

from calcode.arrays import BoolArray, IntArray, TextArray
from calcode.cohorts import split_roles
from calcode.datasets.folder import image_files, needed_csv, read_columns
from calcode.datasets.listing import EXTERNAL, Dataset, ImageListing, LabelMap, Published
from calcode.errors import CalcodeWarning, DatasetError

NAME = "camelyon17"
CLASSES = ("non-tumor", "tumor")
PUBLISHED = Published(images=455_954)
#: The held-out hospital, numbered from 0 as in the file.
HELD_OUT_CENTRE = "2"
#: The paper gives only the size of Camelyon17's reference, near 1,937 of 10,000; the other roles share the rest.
CAMELYON17_SIZES = (1937, 2016, 2016, 2016, 2015)
CAMELYON17_PER_CLASS = 5000
_LABELS = LabelMap(inside={"0": "non-tumor", "1": "tumor"})


def read_camelyon17(folder: str | Path) -> ImageListing:
    """Read Camelyon17-WILDS as published: `metadata.csv` and the PNG files under `patches`.

    Groups are patients; `site` is the hospital ("centre 0" to "centre 4"), `slide` the slide.

    Parameters
    ----------
    folder : path-like
        The folder `camelyon17_v1.0`, or its parent folder.
    """
    path = needed_csv(folder, "metadata.csv", dataset="Camelyon17-WILDS")
    columns = read_columns(path, needed=("patient", "node", "x_coord", "y_coord", "tumor", "slide", "center"))
    # A spreadsheet program that saved the file may have dropped leading zeros.
    patients = np.char.zfill(columns["patient"], 3)
    places = zip(patients, columns["node"], columns["x_coord"], columns["y_coord"], strict=True)
    stems = [f"patient_{patient}_node_{node}_x_{x}_y_{y}" for patient, node, x, y in places]
    files = image_files(path.parent)
    paths = files.existing(f"patches/{stem.partition('_x_')[0]}/patch_{stem}.png" for stem in stems)
    return ImageListing(
        dataset=NAME,
        classes=CLASSES,
        ids=np.array(stems, dtype=np.str_),
        paths=paths,
        label_names=_LABELS.names(columns["tumor"]),
        source_labels=columns["tumor"],
        groups=np.char.add("patient_", patients),
        metadata={"site": np.char.add("centre ", columns["center"]), "slide": columns["slide"]},
        expected=PUBLISHED,
        notes=files.notes(used=paths),
    ).announced()


def camelyon17_roles(
    listing: ImageListing, *, per_class: int = CAMELYON17_PER_CLASS, random_state: int = 0
) -> TextArray:
    """Roles of a sample of Camelyon17, "" for patches outside the sample; shape (n,).

    `per_class` patches of each class are drawn from the held-out hospital (role `external`), and as many from the other
    four hospitals together; the latter are split by patient. Whole patients are large, so the sizes are only near the
    targets. The draw depends on the ids and the seed, not on the order of the rows.
    """
    if per_class < 1:
        raise DatasetError(f"per_class: {per_class} must be at least 1")
    away = listing.metadata["site"] == f"centre {HELD_OUT_CENTRE}"
    roles = np.full(len(listing), "", dtype="U16")
    rng = np.random.default_rng(random_state)
    external = _sampled(listing, among=away, per_class=per_class, rng=rng)
    source = _sampled(listing, among=~away, per_class=per_class, rng=rng)
    roles[external] = EXTERNAL
    if len(source):
        roles[source] = split_roles(
            listing.label_names[source],
            listing.groups[source],
            sizes=[size / sum(CAMELYON17_SIZES) for size in CAMELYON17_SIZES],
            random_state=random_state,
        )
    return roles


def camelyon17_setting(
    folder: str | Path, *, per_class: int = CAMELYON17_PER_CLASS, random_state: int = 0
) -> ImageListing:
    """Camelyon17-WILDS with hospital 2 held out: the sample of `camelyon17_roles`.

    Parameters
    ----------
    folder : path-like
        As for `read_camelyon17`.
    per_class : int
        Patches per class, in the held-out hospital and in the other hospitals together.
    random_state : int
        Seed of the draw and of the split.
    """
    listing = read_camelyon17(folder)
    roles = camelyon17_roles(listing, per_class=per_class, random_state=random_state)
    drawn = roles != ""
    return replace(listing[drawn], roles=roles[drawn], expected=None)


def _sampled(listing: ImageListing, *, among: BoolArray, per_class: int, rng: np.random.Generator) -> IntArray:
    """Rows of a draw of `per_class` images of each class, in ascending order."""
    chosen = []
    for name in listing.classes:
        rows = np.flatnonzero(among & (listing.label_names == name))
        rows = rows[np.argsort(listing.ids[rows], kind="stable")]
        if len(rows) < per_class:
            warnings.warn(
                f"per_class: {per_class} of {name!r} asked for, {len(rows)} there; all of them are taken",
                CalcodeWarning,
                stacklevel=3,
            )
        chosen.append(rng.choice(rows, size=min(per_class, len(rows)), replace=False))
    return np.sort(np.concatenate(chosen)).astype(np.int64)


DATASET = Dataset(
    name=NAME,
    title="Camelyon17-WILDS (lymph node patches, five hospitals)",
    needs="metadata.csv and the folder patches",
    read=read_camelyon17,
    images=PUBLISHED.images,
    licence="CC0 1.0",
    templates="histopathology",
    roles=camelyon17_roles,
)
