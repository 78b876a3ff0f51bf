"""Tiny images, DICOM files and CSV files for the tests of the data sets."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, ImplicitVRLittleEndian, SecondaryCaptureImageStorage

#: What a DICOM header may say about a patient; none of it may be seen again.
IDENTIFIERS = ("DOE^JANE", "MRN-4711", "19500229", "Dr. Watchful", "St. Elsewhere", "1.2.826.0.1.3680043.9")


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def picture(*, shade: int, size: tuple[int, int] = (80, 70)) -> Image.Image:
    """An image whose pixels differ from those of any other shade, also as JPEG."""
    width, height = size
    rng = np.random.default_rng(shade)
    coarse = rng.integers(0, 256, size=(4, 4, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.NEAREST)


def write_image(path: Path, *, shade: int, size: tuple[int, int] = (80, 70)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(shade=shade, size=size).save(path)
    return path


def write_dicom(
    path: Path,
    pixels: NDArray[np.generic],
    *,
    photometric: str = "MONOCHROME2",
    elements: dict[str, object] | None = None,
    bits: int | None = None,
    frames: int | None = None,
    bare: bool = False,
) -> Path:
    """A DICOM file full of identifiers; `bare` writes it without preamble and file header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = IDENTIFIERS[5] + ".1"
    meta.TransferSyntaxUID = ImplicitVRLittleEndian if bare else ExplicitVRLittleEndian
    header = FileDataset(None, {}, file_meta=meta, preamble=b"\0" * 128)
    header.PatientName, header.PatientID, header.PatientBirthDate = IDENTIFIERS[:3]
    header.ReferringPhysicianName, header.InstitutionName = IDENTIFIERS[3:5]
    header.SOPClassUID = SecondaryCaptureImageStorage
    header.SOPInstanceUID = header.StudyInstanceUID = IDENTIFIERS[5] + ".1"
    colour = pixels.ndim == 3 and frames is None
    header.SamplesPerPixel = 3 if colour else 1
    if colour:
        header.PlanarConfiguration = 0
    if frames is not None:
        header.NumberOfFrames = frames
    header.PhotometricInterpretation = photometric
    header.Rows, header.Columns = pixels.shape[:2] if frames is None else pixels.shape[1:3]
    header.BitsAllocated = pixels.dtype.itemsize * 8
    header.BitsStored = bits or header.BitsAllocated
    header.HighBit = header.BitsStored - 1
    header.PixelRepresentation = int(pixels.dtype.kind == "i")
    header.PixelData = pixels.tobytes()
    for name, value in (elements or {}).items():
        setattr(header, name, value)
    if bare:
        header.file_meta = FileMetaDataset()
        header.preamble = None
        header.save_as(path, implicit_vr=True, little_endian=True)
    else:
        header.save_as(path, enforce_file_format=True)
    return path
