"""DICOM images of made-up patients, with an identifier in every place where one can be."""

from __future__ import annotations

import io

import numpy as np
from pydicom import Dataset
from pydicom.dataset import FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian

PHOTOGRAPH = "1.2.840.10008.5.1.4.1.1.77.1.4"
#: Words and numbers that identify the patient; none may appear outside a secret part.
IDENTIFIERS = (
    "Wunderlich",
    "PATIENT-4711",
    "19510304",
    "ACC-0815",
    "Doktor",
    "Klinik am See",
    "SERIAL-99",
    "private words",
    "lut of Wunderlich",
    "1.2.3.4711",
)


def photograph(seed: int, *, patient: str = "PATIENT-4711", size: tuple[int, int] = (30, 40)) -> Dataset:
    """A colour photograph; another seed, another image of the same study."""
    image = Dataset()
    image.file_meta = FileMetaDataset()
    image.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    image.SpecificCharacterSet = "ISO_IR 100"
    image.SOPClassUID, image.SOPInstanceUID = PHOTOGRAPH, f"1.2.3.4711.1.1.{seed}"
    image.file_meta.MediaStorageSOPClassUID = image.SOPClassUID
    image.file_meta.MediaStorageSOPInstanceUID = image.SOPInstanceUID
    image.StudyInstanceUID, image.SeriesInstanceUID = "1.2.3.4711.1", "1.2.3.4711.1.1"
    image.Modality = "XC"
    image.PatientName, image.PatientID, image.PatientBirthDate = "Wunderlich^Jörg", patient, "19510304"
    image.PatientSex, image.IssuerOfPatientID = "M", "Klinik am See"
    image.AccessionNumber, image.StudyID = "ACC-0815", "7"
    image.StudyDate, image.StudyTime = "20261103", "101112"
    image.ReferringPhysicianName, image.InstitutionName = "Doktor^Eva", "Klinik am See"
    image.DeviceSerialNumber, image.ImageComments = "SERIAL-99", "shows Wunderlich"
    image.SeriesNumber, image.InstanceNumber = 1, seed
    image.add_new(0x00091010, "LO", "private words")
    request = Dataset()
    request.RequestedProcedureID, request.RequestingPhysician = "ACC-0815", "Doktor^Eva"
    image.RequestAttributesSequence = [request]
    image.Rows, image.Columns = size
    image.SamplesPerPixel, image.PhotometricInterpretation, image.PlanarConfiguration = 3, "RGB", 0
    image.BitsAllocated, image.BitsStored, image.HighBit, image.PixelRepresentation = 8, 8, 7, 0
    image.PixelData = np.random.default_rng(seed).integers(256, size=(*size, 3), dtype=np.uint8).tobytes()
    return image


def encoded(image: Dataset) -> bytes:
    """The object as a DICOM file."""
    target = io.BytesIO()
    image.save_as(target, enforce_file_format=True)
    return target.getvalue()
