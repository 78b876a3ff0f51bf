"""Decode every image of a listing once: is it intact, how large is it, and does it occur twice."""

from __future__ import annotations

import hashlib
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np

from calcode.datasets.dicom import has_burned_in_text, is_dicom
from calcode.datasets.images import Unreadable, image_or_reason
from calcode.datasets.listing import ImageListing
from calcode.datasets.workers import CRASHED, WorkerPool
from calcode.errors import DatasetError
from calcode.files import file_sha256
from calcode.kernels.threads import available_cores

#: Number of images given to a worker at a time.
_TASK_IMAGES = 16


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """Facts about an image from decoding it.

    Attributes
    ----------
    reason : str or None
        Why it cannot be read; None for a readable image.
    width, height : int
        0 if unreadable.
    file_digest, pixel_digest : str
        SHA-256 of the file's bytes and of the decoded RGB pixels with their shape; "" if unreadable.
    burned_in_text : bool
        Whether a DICOM header says that text is in the pixels.
    """

    reason: str | None = None
    width: int = 0
    height: int = 0
    file_digest: str = ""
    pixel_digest: str = ""
    burned_in_text: bool = False


def inspect_images(
    listing: ImageListing, *, workers: int | None = None, advance: Callable[[int], None] | None = None
) -> tuple[ImageFacts, ...]:
    """Decode every image of a listing in worker processes, and keep only the facts.

    Parameters
    ----------
    listing : ImageListing
    workers : int, optional
        Number of processes; default: one per core, fewer for few images. 0 decodes in this process.
    advance : callable, optional
        Called with 1 after every image, for a progress bar.

    Returns
    -------
    tuple of ImageFacts
        One per row, in the order of the listing.
    """
    if workers is not None and workers < 0:
        raise DatasetError(f"workers: {workers} must be at least 0")
    paths = listing.paths.tolist()
    count = min(available_cores() if workers is None else workers, -(-len(paths) // _TASK_IMAGES))
    facts: list[ImageFacts] = []
    with WorkerPool(_facts, workers=count, crashed=lambda path: ImageFacts(reason=CRASHED)) as pool:
        # Only a few more tasks than workers at a time, so that a hundred thousand paths do not wait in a queue.
        tasks = (pool.submit(paths[start : start + _TASK_IMAGES]) for start in range(0, len(paths), _TASK_IMAGES))
        waiting = deque(islice(tasks, count + 2))
        while waiting:
            found = pool.results(waiting.popleft())
            waiting.extend(islice(tasks, 1))
            facts += found
            if advance is not None:
                for _ in found:
                    advance(1)
    return tuple(facts)


def _facts(path: str) -> ImageFacts:
    file = Path(path)
    pixels = image_or_reason(file)
    if isinstance(pixels, Unreadable):
        return ImageFacts(reason=pixels.reason)
    content = hashlib.sha256(repr(pixels.shape).encode())
    content.update(np.ascontiguousarray(pixels).data)
    return ImageFacts(
        width=int(pixels.shape[1]),
        height=int(pixels.shape[0]),
        file_digest=file_sha256(file),
        pixel_digest=content.hexdigest(),
        burned_in_text=is_dicom(file) and has_burned_in_text(file),
    )


@dataclass(frozen=True, kw_only=True)
class DuplicateGroup:
    """Two or more rows of a listing with the same decoded pixels.

    Attributes
    ----------
    rows : tuple of int
    ids, label_names, roles, groups : tuple of str
        Of these rows; roles are "" if the listing has none.
    kind : {"file", "pixels"}
        Whether the files agree in all bytes, or only in the decoded pixels.
    """

    rows: tuple[int, ...]
    ids: tuple[str, ...]
    label_names: tuple[str, ...]
    roles: tuple[str, ...]
    groups: tuple[str, ...]
    kind: Literal["file", "pixels"]

    @property
    def conflicting(self) -> bool:
        """Whether the same image has several labels."""
        return len(set(self.label_names)) > 1

    @property
    def across_roles(self) -> bool:
        """Whether the same image is in several roles, so that the test includes images of the fit."""
        return len(set(self.roles) - {""}) > 1

    @property
    def across_groups(self) -> bool:
        """Whether the same image belongs to several lesions or patients (or to none, twice)."""
        return len(set(self.groups)) > 1 or self.groups[0] == ""


@dataclass(frozen=True, kw_only=True)
class DuplicateReport:
    """All groups of identical images, in the order of their first row, and the images that could not be read.

    Attributes
    ----------
    groups : tuple of DuplicateGroup
    unreadable : tuple of int
        Rows that could not be compared.
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
        Its labels and, if it has them, roles and groups determine which duplicates do harm.
    workers : int, optional
        Number of decoding processes; default: one per core.

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
    """Do the same from existing facts, one per row."""
    rows_of: dict[str, list[int]] = defaultdict(list)
    for row, one in enumerate(facts):
        if one.reason is None:
            rows_of[one.pixel_digest].append(row)
    roles = np.full(len(listing), "") if listing.roles is None else listing.roles
    columns = {"ids": listing.ids, "label_names": listing.label_names, "roles": roles, "groups": listing.groups}
    groups = tuple(
        DuplicateGroup(
            rows=tuple(rows),
            **{name: tuple(column[rows].tolist()) for name, column in columns.items()},
            kind="file" if len({facts[row].file_digest for row in rows}) == 1 else "pixels",
        )
        for rows in rows_of.values()
        if len(rows) > 1
    )
    unreadable = tuple(row for row, one in enumerate(facts) if one.reason is not None)
    return DuplicateReport(groups=groups, unreadable=unreadable)


def without_duplicates(listing: ImageListing, report: DuplicateReport) -> ImageListing:
    """Remove duplicates: a group with conflicting labels is dropped, of other groups one image is kept.

    If two labels conflict, the right one cannot be known, so the image is evidence for neither. Of a group with equal
    labels, the image with the alphabetically first id is kept.
    """
    keep = np.ones(len(listing), dtype=np.bool_)
    for group in report.groups:
        keep[list(group.rows)] = False
        if not group.conflicting:
            keep[min(zip(group.ids, group.rows, strict=True))[1]] = True
    return listing[keep]
