"""The paper's settings with an external cohort: a source with roles, and the images of another hospital or device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from calcode.datasets.ham10000 import ham10000_setting
from calcode.datasets.isic2019 import read_isic2019_test
from calcode.datasets.listing import EXTERNAL, ImageListing, joined
from calcode.datasets.pad_ufes_20 import read_pad_ufes_20
from calcode.errors import DatasetError


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
