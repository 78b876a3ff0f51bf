"""Take a received DICOM object apart: pixels to keep and to decide on, identifiers for the secret parts.

A list names the attributes that may stay, not those that must go, so that an attribute that nobody thought of is gone.
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

#: Attributes kept in clear text in a stored object, besides those that the pixels need.
KEPT_TAGS = ("Modality",)
#: Attributes kept inside the tables of grey values; the explanations of these tables are free text and are not kept.
_TABLE_TAGS = ("LUTDescriptor", "LUTData", "ModalityLUTType")
#: Attributes kept only in a deletable secret part, for the report that goes back to the same PACS.
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
        PatientID; None if it is empty.
    stored : bytes
        DICOM file to decode and to keep.
    pixels : str
        SHA-256 of the pixel data as received, which is the same for the same object.
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
        False keeps the object unchanged.

    Raises
    ------
    Problem
        422 if the object is not an image, names no study, or says that text is part of its pixels.
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
    # pydicom may raise any exception on a damaged element, and the message may quote the header.
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
    """Return a DICOM file with only the pixels of another one and what is needed to decode them.

    Parameters
    ----------
    content : bytes
        A DICOM file (PS3.10).
    pseudonym : str
        Hexadecimal digest from which the new UID is made.

    Raises
    ------
    Problem
        422 if the file cannot be read, or says that text is part of its pixels.
    """
    names = (*PIXEL_TAGS, *KEPT_TAGS)
    try:
        stream = io.BytesIO(content)
        read_preamble(stream, force=False)
        # A deflated data set would be unpacked as a whole, to any size.
        if _read_file_meta_info(stream).get("TransferSyntaxUID") == DeflatedExplicitVRLittleEndian:
            raise Problem(422, "object: a deflated data set is not taken.")
        found: Any = dcmread(io.BytesIO(content), specific_tags=[*names, "BurnedInAnnotation"])
        burned_in = str(found.get("BurnedInAnnotation", "")).strip().upper() == "YES"
        kept = _only(found, names)
        # The camera's own class would require elements that identify people; a secondary capture needs none of them.
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
    """Return only the named elements of a data set, without private elements and nested identifiers."""
    kept = Dataset()
    for name in names:
        if name in found:
            element = found[name]
            if element.VR == "SQ":
                setattr(kept, name, [_only(item, _TABLE_TAGS) for item in element.value])
            else:
                kept[name] = element
    return kept
