"""DICOM files as plain images: only pixels leave this module, never anything from the header."""

from __future__ import annotations

import hashlib
import stat
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calcode.arrays import AnyArray, FloatArray
from calcode.errors import ImageError

#: Suffixes of DICOM files; many files have none, so the first bytes decide.
DICOM_SUFFIXES = frozenset({".dcm", ".dicom"})
_MARK_AT, _MARK = 128, b"DICM"
#: Most pixels of an image: 134 million, more than any camera here gives, and 400 MB as RGB.
MAX_PIXELS = 1 << 27
TOO_MANY_PIXELS = f"more than {MAX_PIXELS:,} pixels; save a smaller copy"
#: Most bytes to which a compressed file may unpack: every pixel with three samples of 16 bits, and its header.
_MAX_UNPACKED = 6 * MAX_PIXELS + (1 << 24)
#: Rows of an image that are scaled at a time.
_STRIP = 1024
#: Far beyond every stored value: a linear window has reached its flat ends here.
_FAR = 2.0**40
#: The only header fields that are read; they describe the pixels. Names, numbers and dates are never loaded, so that
#: no warning of pydicom can quote them.
PIXEL_TAGS = (
    *("SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration", "NumberOfFrames", "Rows", "Columns"),
    *("BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation"),
    *("RescaleIntercept", "RescaleSlope", "ModalityLUTSequence"),
    *("WindowCenter", "WindowWidth", "VOILUTFunction", "VOILUTSequence"),
    *(
        f"{kind}PaletteColorLookupTable{part}"
        for colour in ("Red", "Green", "Blue")
        for kind, part in ((colour, "Descriptor"), (colour, "Data"), (f"Segmented{colour}", "Data"))
    ),
    *("ExtendedOffsetTable", "ExtendedOffsetTableLengths", "PixelData"),
)


def is_dicom(path: Path) -> bool:
    """Whether a file is DICOM, by its suffix or its mark at byte 128."""
    if path.suffix.lower() in DICOM_SUFFIXES:
        return True
    try:
        # Reading a pipe or a device could block forever.
        if not stat.S_ISREG(path.stat().st_mode):
            return False
        with path.open("rb") as file:
            return file.read(_MARK_AT + len(_MARK))[_MARK_AT:] == _MARK
    except (OSError, ValueError):
        return False


def require_pixels(width: int, height: int) -> None:
    """Raise if an image is too large, before it is decoded: a small file can hold billions of pixels."""
    if width * height > MAX_PIXELS:
        raise ImageError(TOO_MANY_PIXELS)


def content_id(path: Path, *, key: bytes = b"") -> str:
    """An id for a DICOM file that reveals nothing about the patient: a hash of the file's bytes.

    Neither the file's name nor a header field is used for the id. Both may identify a patient, and a hash of either
    alone could be reversed by trying all names. Anyone with the same file can compute the same id; with a secret `key`,
    only someone who also knows the key.

    Parameters
    ----------
    path : Path
    key : bytes
        At most 64 bytes; the same key gives the same ids for the same files.

    Returns
    -------
    str
        "dicom-" and 16 hexadecimal digits; "dicom-unreadable" for a file that cannot be opened.
    """
    digest = hashlib.blake2b(digest_size=8, key=key)
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError:
        return "dicom-unreadable"
    return f"dicom-{digest.hexdigest()}"


def read_dicom(path: Path) -> NDArray[np.uint8]:
    """Read the single frame of a DICOM file as RGB, shape (height, width, 3).

    Grey values go through the modality transform and the file's own VOI table or first window; without either, the
    range of the image becomes 0 to 255. MONOCHROME1 (small values are bright) is inverted.

    Raises
    ------
    ImageError
        With a reason in our own words: pydicom's messages may quote the header.
    """
    try:
        import pydicom
        from pydicom.pixels.utils import pixel_array
    except ModuleNotFoundError as error:
        raise ImageError("a DICOM file; install what reads it: pip install 'calcode[dicom]'") from error
    try:
        _require_small_unpacked(path)
        header: Any = pydicom.dcmread(path, force=True, specific_tags=list(PIXEL_TAGS))
        if "PixelData" not in header:
            raise ImageError("not a DICOM image: no pixel data in it")
        if not getattr(header.file_meta, "TransferSyntaxUID", ""):
            # By the standard's default, files without a preamble are little endian with implicit types.
            header.file_meta.TransferSyntaxUID = pydicom.uid.ImplicitVRLittleEndian
        frames = int(header.get("NumberOfFrames", 1) or 1)
        if frames > 1:
            raise ImageError(f"{frames} frames in one file; save the one that is meant as a file of its own")
        require_pixels(int(header.get("Columns", 0) or 0), int(header.get("Rows", 0) or 0))
        if int(header.get("SamplesPerPixel", 1) or 1) not in (1, 3):
            raise ImageError("a DICOM file with neither one nor three samples per pixel")
        stored = pixel_array(header)
        from pydicom.pixels.processing import apply_color_lut

        kind = str(header.PhotometricInterpretation)
        if kind == "PALETTE COLOR":
            stored = apply_color_lut(stored, header)
            return _eight_bits(stored, low=0.0, high=float(np.iinfo(stored.dtype).max))
        if stored.ndim == 3 and stored.shape[2] == 3:
            return _eight_bits(stored, low=0.0, high=float(2 ** int(header.BitsStored) - 1))
        if stored.ndim != 2:
            raise ImageError(f"a DICOM file with pixels of shape {stored.shape}; one grey or RGB frame is needed")
        grey = _windowed(stored, header)
        if kind == "MONOCHROME1":
            grey = np.uint8(255) - grey
        return np.repeat(grey[:, :, None], 3, axis=2)
    except ImageError:
        raise
    except Exception as error:
        raise ImageError(f"a DICOM file whose pixels cannot be decoded ({type(error).__name__})") from None


def _require_small_unpacked(path: Path) -> None:
    """Raise if a deflated file unpacks to more than any image here needs; pydicom would unpack all of it."""
    from pydicom.filereader import _read_file_meta_info, read_preamble
    from pydicom.uid import DeflatedExplicitVRLittleEndian

    with path.open("rb") as file:
        # The same first steps as pydicom's: unpacking would start after them.
        read_preamble(file, force=True)
        if _read_file_meta_info(file).get("TransferSyntaxUID") != DeflatedExplicitVRLittleEndian:
            return
        unpacked = 0
        inflating = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
        while (block := inflating.unconsumed_tail or file.read(1 << 16)) and not inflating.eof:
            unpacked += len(inflating.decompress(block, 1 << 20))
            if unpacked > _MAX_UNPACKED:
                raise ImageError("a compressed DICOM file that unpacks to far more than an image")


def has_burned_in_text(path: Path) -> bool:
    """Whether the header says that text, perhaps a name, is in the pixels (BurnedInAnnotation)."""
    try:
        import pydicom

        _require_small_unpacked(path)
        header = pydicom.dcmread(path, force=True, stop_before_pixels=True, specific_tags=["BurnedInAnnotation"])
        return str(header.get("BurnedInAnnotation", "")).strip().upper() == "YES"
    except Exception:  # an unreadable header is reported when the image is decoded
        return False


def _windowed(stored: AnyArray, header: Any) -> NDArray[np.uint8]:
    """Map grey values through the modality and VOI transforms to 0..255, shape (height, width)."""
    from pydicom.pixels.processing import apply_modality_lut, apply_voi_lut

    values = apply_modality_lut(stored, header)
    if header.get("VOILUTSequence"):
        if values.dtype.kind == "f":  # a rescaled image; table lookup needs integers
            values = np.rint(values).astype(np.int64)
        table: Any = header.VOILUTSequence[0]
        top = float(2 ** int(table.LUTDescriptor[2]) - 1)
        return _eight_bits(apply_voi_lut(values, header), low=0.0, high=top)
    # An element may be present but empty.
    if header.get("WindowCenter") is not None and header.get("WindowWidth") is not None:
        # The flat ends of the window show which output is black and which is white; the image itself may not
        # reach them.
        ends: FloatArray = apply_voi_lut(np.array([-_FAR, _FAR]), header)
        return _eight_bits(apply_voi_lut(values, header), low=float(ends[0]), high=float(ends[1]))
    return _eight_bits(values, low=float(values.min()), high=float(values.max()))


def _eight_bits(values: AnyArray, *, low: float, high: float) -> NDArray[np.uint8]:
    """Map `low` to 0 and `high` to 255 and clip everything beyond; an image with a single value becomes black."""
    span = high - low if high > low else 1.0
    scaled = np.empty(values.shape, dtype=np.uint8)
    # In strips: eight bytes per value for the whole image would be several times its size.
    for start in range(0, len(values), _STRIP):
        strip = (values[start : start + _STRIP].astype(np.float64) - low) * (255.0 / span)
        scaled[start : start + _STRIP] = np.clip(np.rint(strip), 0, 255)
    return scaled
