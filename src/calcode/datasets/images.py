"""Decode files to pixels, in one way for all images of the project."""

from __future__ import annotations

import os
import stat
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calcode.datasets.dicom import TOO_MANY_PIXELS, is_dicom, read_dicom, require_pixels
from calcode.errors import DatasetError, ImageError
from calcode.files import special_kind

#: An RGB image, shape (height, width, 3), uint8.
RgbArray = NDArray[np.uint8]
#: Pillow's names of the formats that are read.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
#: Grey images with 16 bits per sample, in any byte order.
_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """An image that could not be decoded.

    Attributes
    ----------
    path : Path
        For finding the file. The name of a DICOM file can identify a patient: keep it out of outputs.
    reason : str
        What is wrong, without the path and without values from a DICOM header.
    """

    path: Path
    reason: str


def read_image(path: str | os.PathLike[str]) -> RgbArray:
    """Decode one image file, including DICOM, to RGB.

    An EXIF orientation is applied (the model sees what a viewer shows), transparency is dropped, 16-bit grey is divided
    by 257, and an animation gives its first frame. DICOM: see `read_dicom`.

    Parameters
    ----------
    path : path-like
        A JPEG, PNG, TIFF, BMP, WebP or GIF file, or a DICOM file with any suffix or none.

    Returns
    -------
    ndarray of uint8, shape (height, width, 3)

    Raises
    ------
    ImageError
        If the file is missing, empty, broken or not an image; `reason` says which.
    DatasetError
        If Pillow is not installed, so that no image could be read.

    Examples
    --------
    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.new("RGB", (4, 3), (255, 0, 0)).save(f"{folder}/red.png")
    ...     read_image(f"{folder}/red.png").shape
    (3, 4, 3)
    """
    file = Path(path)
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ModuleNotFoundError as error:
        raise DatasetError(
            "images: Pillow is not installed, so no image can be read; pip install 'calcode[images]'"
        ) from error
    # Raise unless it is a regular file that is not empty: reading a pipe or a device could block forever.
    if not file.name:
        raise ImageError("no such file")
    try:
        status = file.stat()
    except FileNotFoundError:
        raise ImageError("no such file") from None
    except (OSError, ValueError) as error:
        raise ImageError(f"cannot be opened ({getattr(error, 'strerror', None) or error})") from None
    if not stat.S_ISREG(status.st_mode):
        raise ImageError(f"{special_kind(status.st_mode)}, not a file")
    if status.st_size == 0:
        raise ImageError("an empty file (0 bytes)")
    if is_dicom(file):
        return read_dicom(file)
    try:
        with warnings.catch_warnings():
            # Our own limit is below the one at which Pillow refuses.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            # Other formats of Pillow start programs (EPS) or are not for photographs.
            with Image.open(file, formats=_FORMATS) as image:
                require_pixels(image.width, image.height)
                image.load()
                if image.mode in _SIXTEEN_BITS:
                    grey = np.asarray(image, dtype=np.uint16) // 257
                    return np.repeat(grey.astype(np.uint8)[:, :, None], 3, axis=2)
                if image.mode in ("I", "F"):
                    raise ImageError("32-bit samples, whose range means nothing by itself; save it with 8 bits")
                ImageOps.exif_transpose(image, in_place=True)
                # A palette with transparency is converted through RGBA, as Pillow recommends.
                transparent = image.mode == "P" and "transparency" in image.info
                plain = image.convert("RGBA") if transparent else image
                return np.array(plain.convert("RGB"), dtype=np.uint8)
    except ImageError:
        raise
    except UnidentifiedImageError:
        raise ImageError("not an image, or of a format that is not read here") from None
    except Image.DecompressionBombError:
        raise ImageError(TOO_MANY_PIXELS) from None
    except PermissionError:
        raise ImageError("may not be read by this user") from None
    # Decoders raise OSError, SyntaxError, ValueError, IndexError, struct.error, ... on broken files; one bad file
    # in ten thousand must not stop the work on the others.
    except Exception as error:
        detail = str(error).replace(str(file), "the file")
        raise ImageError(f"broken or truncated ({detail or type(error).__name__})") from None


def image_or_reason(path: str | os.PathLike[str]) -> RgbArray | Unreadable:
    """The pixels of an image, or why there are none: a broken file gives a result and no exception.

    Examples
    --------
    >>> image_or_reason("nowhere.jpg").reason
    'no such file'
    """
    try:
        return read_image(path)
    except ImageError as error:
        return Unreadable(path=Path(path), reason=error.reason)
