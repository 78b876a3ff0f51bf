"""A received DICOM object taken apart: pixels to keep and to decide on, identifiers for the secret parts.

What is kept of an object is a list of what may stay, not of what must go: an attribute that nobody thought of is gone.
"""

from __future__ import annotations

import hashlib
import io
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydicom import Dataset, dcmread
from pydicom.dataset import FileMetaDataset
from pydicom.filereader import _read_file_meta_info, read_preamble
from pydicom.uid import UID, DeflatedExplicitVRLittleEndian, SecondaryCaptureImageStorage

from calcode.datasets.dicom import PIXEL_TAGS
from calcode.files import canonical_json
from calcode.service.problems import Problem

#: Kept in clear in a stored object besides what the pixels need.
KEPT_TAGS = ("Modality",)
#: The same inside the tables of grey values; their explanations are free text.
_TABLE_TAGS = ("LUTDescriptor", "LUTData", "ModalityLUTType")
#: Kept in a deletable secret part, for the report that goes back to the same PACS; nowhere else.
REPORT_TAGS = (
    "SOPClassUID",
    "SOPInstanceUID",
    "SeriesInstanceUID",
    "StudyInstanceUID",
    "StudyDate",
    "StudyTime",
    "StudyID",
    "AccessionNumber",
    "ReferringPhysicianName",
    "PatientID",
    "IssuerOfPatientID",
    "PatientName",
    "PatientBirthDate",
    "PatientSex",
)
METHOD = "calcode: only pixels and what decodes them"


@dataclass(frozen=True, kw_only=True)
class ReceivedImage:
    """One image object.

    Attributes
    ----------
    instance, study : str
        SOP Instance UID and Study Instance UID.
    patient : str or None
        PatientID; None where it is empty.
    stored : bytes
        DICOM file to decode and to keep.
    pixels : str
        SHA-256 of the pixel data as received: the same object gives the same.
    report_header : str
        The attributes of `REPORT_TAGS` as DICOM JSON.
    """

    instance: str
    study: str
    patient: str | None
    stored: bytes
    pixels: str
    report_header: str


def take_apart(content: bytes, *, pseudonym: str, deidentify: bool) -> ReceivedImage:
    """Read an object and make the file that is kept.

    Parameters
    ----------
    content : bytes
        A DICOM file (PS3.10).
    pseudonym : str
        Hexadecimal digest that stands for the object in the kept file.
    deidentify : bool
        False keeps the object as it came.

    Raises
    ------
    Problem
        422 for an object that is no image, names no study, or says that text is part of its pixels.
    """
    try:
        found = dcmread(io.BytesIO(content), specific_tags=["PixelData", *REPORT_TAGS])
        header = _only(found, REPORT_TAGS)
        instance, study = str(header.get("SOPInstanceUID", "")), str(header.get("StudyInstanceUID", ""))
        patient = str(header.get("PatientID") or "").strip() or None
        pixels = bytes(found.get("PixelData") or b"")
        said: dict[str, Any] = {}
        for name in REPORT_TAGS:
            # An element that cannot be written is left out of the report.
            if name in header:
                with suppress(Exception):
                    said[f"{header[name].tag:08X}"] = header[name].to_json_dict(None, 0)
        report_header = canonical_json(said)
    # pydicom raises whatever a damaged element makes it raise, and its words may quote the header.
    except Exception as error:
        raise Problem(422, f"object: cannot be read as DICOM ({type(error).__name__}).") from None
    if not pixels:
        raise Problem(422, "object: no pixel data in it.")
    if not instance or not study:
        raise Problem(422, "object: it has no SOP Instance UID or no Study Instance UID.")
    return ReceivedImage(
        instance=instance,
        study=study,
        patient=patient,
        stored=without_identifiers(content, pseudonym=pseudonym) if deidentify else content,
        pixels=hashlib.sha256(pixels).hexdigest(),
        report_header=report_header,
    )


def without_identifiers(content: bytes, *, pseudonym: str) -> bytes:
    """A DICOM file with the pixels of another one, what decodes them, and nothing else.

    Parameters
    ----------
    content : bytes
        A DICOM file (PS3.10).
    pseudonym : str
        Hexadecimal digest that its new UID is made of.

    Raises
    ------
    Problem
        422 for a file that cannot be read, or that says that text is part of its pixels.
    """
    names = (*PIXEL_TAGS, *KEPT_TAGS)
    try:
        stream = io.BytesIO(content)
        read_preamble(stream, force=False)
        # It would be unpacked whole, to whatever size.
        if _read_file_meta_info(stream).get("TransferSyntaxUID") == DeflatedExplicitVRLittleEndian:
            raise Problem(422, "object: a deflated data set is not taken.")
        found: Any = dcmread(io.BytesIO(content), specific_tags=[*names, "BurnedInAnnotation"])
        burned_in = str(found.get("BurnedInAnnotation", "")).strip().upper() == "YES"
        kept = _only(found, names)
        # The camera's own class would make elements mandatory that identify; a secondary capture needs none of them.
        kept.SOPClassUID, kept.SOPInstanceUID = SecondaryCaptureImageStorage, UID(f"2.25.{int(pseudonym[:32], 16)}")
        kept.PatientIdentityRemoved, kept.DeidentificationMethod = "YES", METHOD
        kept.file_meta = FileMetaDataset()
        kept.file_meta.TransferSyntaxUID = found.file_meta.TransferSyntaxUID
        target = io.BytesIO()
        kept.save_as(target, enforce_file_format=True)
    except Problem:
        raise
    except Exception as error:
        raise Problem(422, f"object: cannot be read as DICOM ({type(error).__name__}).") from None
    if burned_in:
        raise Problem(422, "object: text is part of its pixels (Burned In Annotation), which cannot be removed here.")
    return target.getvalue()


def _only(found: Dataset, names: tuple[str, ...]) -> Dataset:
    """The named elements of a data set; private ones and nested identifiers are never among them."""
    kept = Dataset()
    for name in names:
        if name in found:
            element = found[name]
            if element.VR == "SQ":
                setattr(kept, name, [_only(item, _TABLE_TAGS) for item in element.value])
            else:
                kept[name] = element
    return kept
