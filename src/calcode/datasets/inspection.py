"""Every image of a listing decoded once: is it whole, how large is it, what is its content."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calcode.datasets.dicom import has_burned_in_text, is_dicom
from calcode.datasets.images import Unreadable, image_or_reason
from calcode.datasets.listing import ImageListing
from calcode.errors import DatasetError
from calcode.files import file_sha256

_MISSING = "no such file"


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """What decoding an image told.

    Attributes
    ----------
    reason : str or None
        Why it cannot be read; None for a good image.
    width, height : int
        0 if unreadable.
    file_digest, pixel_digest : str
        SHA-256 of the file's bytes and of the decoded RGB pixels with their shape; "" if unreadable.
    is_dicom : bool
    burned_in_text : bool
        Whether a DICOM header says that text is part of the pixels.
    """

    reason: str | None = None
    width: int = 0
    height: int = 0
    file_digest: str = ""
    pixel_digest: str = ""
    is_dicom: bool = False
    burned_in_text: bool = False


def inspect_images(
    listing: ImageListing,
    *,
    workers: int | None = None,
    advance: Callable[[int], None] | None = None,
) -> tuple[ImageFacts, ...]:
    """Decode every image of a listing, several at a time, and keep only facts.

    Parameters
    ----------
    listing : ImageListing
    workers : int, optional
        Threads; one per core if not given. Decoders and hashes run outside Python's lock.
    advance : callable, optional
        Called with 1 for every image done, for a progress bar.

    Returns
    -------
    tuple of ImageFacts
        One per row, in the order of the listing.
    """
    count = os.cpu_count() or 1 if workers is None else workers
    if count < 1:
        raise DatasetError(f"workers: {workers} must be at least 1")
    facts = []
    with ThreadPoolExecutor(max_workers=count) as pool:
        for one in pool.map(_facts, listing.paths.tolist()):
            facts.append(one)
            if advance is not None:
                advance(1)
    return tuple(facts)


def _facts(path: str) -> ImageFacts:
    if not path:
        return ImageFacts(reason=_MISSING)
    file = Path(path)
    dicom = is_dicom(file)
    pixels = image_or_reason(file)
    if isinstance(pixels, Unreadable):
        return ImageFacts(reason=pixels.reason, is_dicom=dicom)
    content = hashlib.sha256(repr(pixels.shape).encode())
    content.update(np.ascontiguousarray(pixels).data)
    return ImageFacts(
        width=int(pixels.shape[1]),
        height=int(pixels.shape[0]),
        file_digest=file_sha256(file),
        pixel_digest=content.hexdigest(),
        is_dicom=dicom,
        burned_in_text=dicom and has_burned_in_text(file),
    )
