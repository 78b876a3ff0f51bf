"""The same image twice: found by content, whatever the files are called."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from calcode.datasets.inspection import ImageFacts, inspect_images
from calcode.datasets.listing import ImageListing


@dataclass(frozen=True, kw_only=True)
class DuplicateGroup:
    """Two or more rows of a listing with the same decoded pixels.

    Attributes
    ----------
    rows : tuple of int
    ids, label_names, roles, groups : tuple of str
        Of these rows; roles are "" where the listing has none.
    kind : {"file", "pixels"}
        Whether all bytes of the files agree, or only the decoded pixels.
    """

    rows: tuple[int, ...]
    ids: tuple[str, ...]
    label_names: tuple[str, ...]
    roles: tuple[str, ...]
    groups: tuple[str, ...]
    kind: Literal["file", "pixels"]

    @property
    def conflicting(self) -> bool:
        """Whether the same image bears several labels."""
        return len(set(self.label_names)) > 1

    @property
    def across_roles(self) -> bool:
        """Whether the same image is in several roles: what was fitted on is tested on."""
        return len(set(self.roles) - {""}) > 1

    @property
    def across_groups(self) -> bool:
        """Whether the same image is filed under several lesions or patients (or under none, twice)."""
        return len(set(self.groups)) > 1 or self.groups[0] == ""


@dataclass(frozen=True, kw_only=True)
class DuplicateReport:
    """All groups of identical images, in the order of their first row, and the images that could not be read.

    Attributes
    ----------
    groups : tuple of DuplicateGroup
    unreadable : tuple of int
        Rows about which nothing can be said.
    """

    groups: tuple[DuplicateGroup, ...]
    unreadable: tuple[int, ...]

    @property
    def conflicting(self) -> tuple[DuplicateGroup, ...]:
        """The groups with several labels."""
        return tuple(group for group in self.groups if group.conflicting)

    @property
    def across_roles(self) -> tuple[DuplicateGroup, ...]:
        """The groups in several roles."""
        return tuple(group for group in self.groups if group.across_roles)

    def __str__(self) -> str:
        n = len(self.groups)
        text = (
            f"{n} group{'s' * (n != 1)} of identical images, {len(self.conflicting)} with conflicting labels, "
            f"{len(self.across_roles)} across roles"
        )
        if self.unreadable:
            text += f"; {len(self.unreadable)} images could not be read"
        return text


def duplicates(listing: ImageListing, *, workers: int | None = None) -> DuplicateReport:
    """Find the images of a listing that are identical after decoding.

    Parameters
    ----------
    listing : ImageListing
        Its labels and, where it has them, roles and groups tell which duplicates do harm.
    workers : int, optional
        Threads that decode; one per core if not given.

    Returns
    -------
    DuplicateReport

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> from calcode.datasets import read_class_folders
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("mel", "nv"):
    ...         Path(folder, name).mkdir()
    ...         Image.new("RGB", (64, 64), "pink").save(Path(folder, name, f"{name}-1.png"))
    ...     print(duplicates(read_class_folders(folder)))
    1 group of identical images, 1 with conflicting labels, 0 across roles
    """
    return duplicates_among(listing, facts=inspect_images(listing, workers=workers))


def duplicates_among(listing: ImageListing, *, facts: Sequence[ImageFacts]) -> DuplicateReport:
    """The same from facts that are there already, one per row."""
    rows_of: dict[str, list[int]] = defaultdict(list)
    for row, one in enumerate(facts):
        if one.reason is None:
            rows_of[one.pixel_digest].append(row)
    return DuplicateReport(
        groups=tuple(_group(listing, rows, facts) for rows in rows_of.values() if len(rows) > 1),
        unreadable=tuple(row for row, one in enumerate(facts) if one.reason is not None),
    )


def without_duplicates(listing: ImageListing, report: DuplicateReport) -> ImageListing:
    """The listing without duplicates: conflicting labels drop the whole group, others keep one image.

    Which label of two is right cannot be known, so an image that bears both is not evidence for either. Of a
    group that agrees, the image with the first id in alphabetical order stays.
    """
    keep = np.ones(len(listing), dtype=np.bool_)
    for group in report.groups:
        keep[list(group.rows)] = False
        if not group.conflicting:
            keep[min(zip(group.ids, group.rows, strict=True))[1]] = True
    return listing[keep]


def _group(listing: ImageListing, rows: list[int], facts: Sequence[ImageFacts]) -> DuplicateGroup:
    roles = [""] * len(rows) if listing.roles is None else listing.roles[rows].tolist()
    return DuplicateGroup(
        rows=tuple(rows),
        ids=tuple(listing.ids[rows].tolist()),
        label_names=tuple(listing.label_names[rows].tolist()),
        roles=tuple(roles),
        groups=tuple(listing.groups[rows].tolist()),
        kind="file" if len({facts[row].file_digest for row in rows}) == 1 else "pixels",
    )
