"""Which image files lie in a folder, found in one walk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calcode.arrays import TextArray
from calcode.datasets.dicom import DICOM_SUFFIXES, is_dicom

IMAGE_SUFFIXES = (
    frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}) | DICOM_SUFFIXES
)


@dataclass(frozen=True, kw_only=True)
class ImageFiles:
    """The image files below a folder.

    Attributes
    ----------
    root : Path
    relative : tuple of str
        Paths relative to `root` with forward slashes, sorted.
    by_stem : dict of str to str
        Relative path by file name without its ending; where several files share it, the first.
    repeated : tuple of str
        Stems that several files share: the same archive unpacked twice, or two formats side by side.
    """

    root: Path
    relative: tuple[str, ...]
    by_stem: dict[str, str]
    repeated: tuple[str, ...]

    def paths_of(self, names: Iterable[str]) -> TextArray:
        """Full path for every file stem, "" where there is none; shape (n,)."""
        found = [self.by_stem.get(name) for name in names]
        return np.array(["" if one is None else str(self.root / one) for one in found], dtype=np.str_)

    def existing(self, relative: Iterable[str]) -> TextArray:
        """Full path for every relative path, "" where there is no such file; shape (n,)."""
        known = set(self.relative)
        return np.array([str(self.root / one) if one in known else "" for one in relative], dtype=np.str_)

    def notes(self, *, used: TextArray) -> tuple[str, ...]:
        """What is odd about the files, given the paths that a listing uses."""
        notes = []
        if self.repeated:
            # The name of a DICOM file may be that of a patient.
            first = self.repeated[0]
            shown = "" if is_dicom(self.root / self.by_stem[first]) else f" (first: {first})"
            notes.append(
                f"image names that occur in several places: {len(self.repeated)}{shown}; the first file in "
                f"alphabetical order is used"
            )
        surplus = len(self.relative) - len(set(used[used != ""].tolist()))
        if surplus > 0:
            notes.append(f"image files without a row in the table, left out: {surplus}")
        return tuple(notes)


def image_files(root: Path) -> ImageFiles:
    """Walk a folder once; hidden files and what archivers leave behind (`__MACOSX`) are skipped."""
    relative = tuple(sorted(_walk(root)))
    by_stem: dict[str, str] = {}
    repeated: dict[str, None] = {}
    for one in relative:
        stem = Path(one).stem
        if stem in by_stem:
            repeated[stem] = None
        else:
            by_stem[stem] = one
    return ImageFiles(root=root, relative=relative, by_stem=by_stem, repeated=tuple(repeated))


def _walk(root: Path) -> Iterator[str]:
    for place, folders, names in os.walk(root, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith((".", "__MACOSX"))]
        for name in names:
            if name.startswith("."):
                continue
            file = Path(place, name)
            # DICOM exports often have no ending at all: their first bytes tell.
            if file.suffix.lower() in IMAGE_SUFFIXES or (not file.suffix and is_dicom(file)):
                yield file.relative_to(root).as_posix()
