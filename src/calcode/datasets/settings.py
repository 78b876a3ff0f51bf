"""The paper's study settings: which image of which data set plays which role."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from calcode.arrays import BoolArray, IntArray, TextArray
from calcode.cohorts.roles import split_roles
from calcode.datasets.camelyon17 import HELD_OUT_CENTRE, read_camelyon17
from calcode.datasets.ham10000 import read_ham10000
from calcode.datasets.isic2019 import read_isic2019_test
from calcode.datasets.listing import ImageListing, joined
from calcode.datasets.pad_ufes_20 import read_pad_ufes_20
from calcode.errors import CalcodeWarning, DatasetError

#: Role of the images of another hospital or device; they fit nothing.
EXTERNAL = "external"
#: Images per role in the paper (reference, validation, gate, calibration, test); 10,015 in all.
HAM10000_SIZES = (2040, 1935, 1986, 2050, 2004)
#: The paper gives only the reference of Camelyon17, near 1,937 of 10,000; the other roles share the rest.
CAMELYON17_SIZES = (1937, 2016, 2016, 2016, 2015)
CAMELYON17_PER_CLASS = 5000
ROSENDAHL = "rosendahl"


def ham10000_roles(listing: ImageListing, *, random_state: int = 0) -> TextArray:
    """Five roles by lesion, in the paper's proportions; shape (n,)."""
    return split_roles(
        listing.label_names, listing.groups, sizes=_shares(HAM10000_SIZES), random_state=random_state
    )


def camelyon17_roles(
    listing: ImageListing, *, per_class: int = CAMELYON17_PER_CLASS, random_state: int = 0
) -> TextArray:
    """Roles of a sample of Camelyon17, "" for the patches outside the sample; shape (n,).

    `per_class` patches of each class are drawn from the held-out hospital (role `external`), and as many
    from the four others together; the latter are split by patient. Whole patients are large, so the sizes
    come only near the targets. The draw depends on the ids and the seed, not on the order of the rows.
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
            sizes=_shares(CAMELYON17_SIZES),
            random_state=random_state,
        )
    return roles


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


def pad_ufes_20_setting(
    ham10000_folder: str | Path, pad_ufes_20_folder: str | Path, *, random_state: int = 0
) -> ImageListing:
    """HAM10000 to PAD-UFES-20 in the five classes that they share.

    The source rows are those of `ham10000_setting` in the five classes; the 2,106 photographs in the label
    space and the 192 of SCC outside it have the role `external`.
    """
    return external_setting(
        ham10000_setting(ham10000_folder, random_state=random_state), read_pad_ufes_20(pad_ufes_20_folder)
    )


def isic2019_setting(
    ham10000_folder: str | Path, isic2019_folder: str | Path, *, random_state: int = 0
) -> ImageListing:
    """HAM10000 to the ISIC 2019 test release: 6,026 external images in the label space and 2,212 outside."""
    return external_setting(
        ham10000_setting(ham10000_folder, random_state=random_state), read_isic2019_test(isic2019_folder)
    )


def camelyon17_setting(
    folder: str | Path, *, per_class: int = CAMELYON17_PER_CLASS, random_state: int = 0
) -> ImageListing:
    """Camelyon17-WILDS with hospital 2 held out: the sample of `camelyon17_roles`.

    Parameters
    ----------
    folder : path-like
        As for `read_camelyon17`.
    per_class : int
        Patches per class, in the held-out hospital and in the others together.
    random_state : int
        Seed of the draw and of the split.
    """
    listing = read_camelyon17(folder)
    roles = camelyon17_roles(listing, per_class=per_class, random_state=random_state)
    drawn = roles != ""
    return replace(listing[drawn], roles=roles[drawn], expected=None)


def external_setting(source: ImageListing, external: ImageListing) -> ImageListing:
    """A source with roles and an external cohort, in the classes of the external one.

    Parameters
    ----------
    source : ImageListing
        With `roles`. Its images outside the common classes are left out.
    external : ImageListing
        All its images get the role `external`; those outside the label space are kept as such.

    Returns
    -------
    ImageListing

    Raises
    ------
    DatasetError
        If the two share images, lesions or patients: figures on images that fitted the model say nothing
        about another hospital. All of HAM10000 is inside the ISIC 2019 training release.
    """
    if source.roles is None:
        raise DatasetError("source: it has no roles; take a setting, or give it some with split_roles")
    _refuse_shared(source, external)
    classes = [name for name in external.classes if name in source.classes]
    if not classes:
        raise DatasetError(
            f"external: its classes {list(external.classes)} share none with {list(source.classes)}"
        )
    home = source.restrict(classes)
    away = replace(external, roles=np.full(len(external), EXTERNAL))
    name = f"{source.dataset} to {external.dataset}"
    return joined([home[home.in_space], away], dataset=name, classes=classes)


def _refuse_shared(source: ImageListing, external: ImageListing) -> None:
    for what, ours, theirs in (
        ("ids", source.ids, external.ids),
        ("groups", source.groups, external.groups),
    ):
        shared = sorted((set(ours.tolist()) & set(theirs.tolist())) - {""})
        if shared:
            raise DatasetError(
                f"external: {len(shared):,} {what} of {external.dataset} are also in {source.dataset} (first: "
                f"{shared[0]}), so it is no external cohort. Leave them out with exclude_ids; for the ISIC "
                f"2019 training release, which holds all of HAM10000, read it with without_ham10000=True"
            )


def _sampled(
    listing: ImageListing, *, among: BoolArray, per_class: int, rng: np.random.Generator
) -> IntArray:
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


def _shares(sizes: Sequence[int]) -> list[float]:
    return [size / sum(sizes) for size in sizes]
