"""What the gateway accepts and answers: the tables of its DICOM conformance statement (docs/dicom.md)."""

from __future__ import annotations

from pydicom.pixels.decoders.base import get_decoder
from pydicom.uid import (
    JPEG2000,
    UID,
    ComputedRadiographyImageStorage,
    CTImageStorage,
    DigitalIntraOralXRayImageStorageForPresentation,
    DigitalMammographyXRayImageStorageForPresentation,
    DigitalXRayImageStorageForPresentation,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGExtended12Bit,
    JPEGLossless,
    JPEGLosslessSV1,
    JPEGLSLossless,
    MRImageStorage,
    OphthalmicPhotography8BitImageStorage,
    OphthalmicPhotography16BitImageStorage,
    RLELossless,
    SecondaryCaptureImageStorage,
    UltrasoundImageStorage,
    VLEndoscopicImageStorage,
    VLMicroscopicImageStorage,
    VLPhotographicImageStorage,
    VLSlideCoordinatesMicroscopicImageStorage,
)

VERIFICATION = UID("1.2.840.10008.1.1")
#: Classes of single images; an object with several frames is refused when it is decoded.
SOP_CLASSES = (
    SecondaryCaptureImageStorage,
    VLPhotographicImageStorage,
    # Dermoscopic Photography Storage, which pydicom's dictionary does not name.
    UID("1.2.840.10008.5.1.4.1.1.77.1.7"),
    VLEndoscopicImageStorage,
    VLMicroscopicImageStorage,
    VLSlideCoordinatesMicroscopicImageStorage,
    OphthalmicPhotography8BitImageStorage,
    OphthalmicPhotography16BitImageStorage,
    ComputedRadiographyImageStorage,
    DigitalXRayImageStorageForPresentation,
    DigitalMammographyXRayImageStorageForPresentation,
    DigitalIntraOralXRayImageStorageForPresentation,
    CTImageStorage,
    MRImageStorage,
    UltrasoundImageStorage,
)
#: In the order of preference. Deflated data sets are left out, because a few bytes of them unpack to gigabytes.
TRANSFER_SYNTAXES = (
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    RLELossless,
    JPEGBaseline8Bit,
    JPEGExtended12Bit,
    JPEGLossless,
    JPEGLosslessSV1,
    JPEGLSLossless,
    JPEG2000Lossless,
    JPEG2000,
)
#: Answers to C-STORE (PS3.4 B.2.3): decided and durable; try again later; cannot be decided; the same SOP Instance
#: UID was decided with another content; a defect.
SUCCESS, OUT_OF_RESOURCES, CANNOT_UNDERSTAND, OTHER_CONTENT, FAILURE = 0x0000, 0xA700, 0xC000, 0xC001, 0x0110
#: PS3.8 9.3.4: rejected for good by the service user; calling, then called AE title not recognised.
UNKNOWN_CALLING, UNKNOWN_CALLED = (0x01, 0x01, 0x03), (0x01, 0x01, 0x07)


def offered_syntaxes() -> list[str]:
    """Return the transfer syntaxes that this installation can decode; only these are accepted.

    Examples
    --------
    >>> offered_syntaxes()[:2]
    ['1.2.840.10008.1.2.1', '1.2.840.10008.1.2']
    """
    return [uid for uid in TRANSFER_SYNTAXES if get_decoder(uid).is_available]
