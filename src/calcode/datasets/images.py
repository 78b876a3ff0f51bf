"""From a file to pixels: one way of decoding for every image of the project."""

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
#: What Pillow calls the formats that are read.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
#: Grey images with 16 bits per sample, whatever the byte order.
_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """An image that could not be decoded.

    Attributes
    ----------
    path : Path
        For whoever must find the file. A DICOM file's name can identify a patient: keep it out of outputs.
    reason : str
        What is wrong, without the path and without anything from a DICOM header.
    """

    path: Path
    reason: str


def read_image(path: str | os.PathLike[str]) -> RgbArray:
    """Decode one image file, DICOM included, to RGB.

    An EXIF orientation is applied (the model sees what a viewer shows), transparency is dropped, 16-bit grey
    is divided by 257, and of an animation the first frame is taken. DICOM: see `read_dicom`.

    Parameters
    ----------
    path : path-like
        A JPEG, PNG, TIFF, BMP, WebP or GIF file, or a DICOM file with any ending or none.

    Returns
    -------
    ndarray of uint8, shape (height, width, 3)

    Raises
    ------
    ImageError
        If the file is missing, empty, broken or no image; `reason` says which.
    DatasetError
        If Pillow is not installed: no image at all could be read.

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
    # Raise unless there is a regular file with something in it: a pipe or a device could keep a reader for ever.
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
            # Others among Pillow's formats start programs (EPS) or are no photographs.
            with Image.open(file, formats=_FORMATS) as image:
                require_pixels(image.width, image.height)
                image.load()
                if image.mode in _SIXTEEN_BITS:
                    grey = np.asarray(image, dtype=np.uint16) // 257
                    return np.repeat(grey.astype(np.uint8)[:, :, None], 3, axis=2)
                if image.mode in ("I", "F"):
                    raise ImageError("32-bit samples, whose range means nothing by itself; save it with 8 bits")
                ImageOps.exif_transpose(image, in_place=True)
                # A palette with transparency goes through RGBA, as Pillow asks for.
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
    # Decoders raise OSError, SyntaxError, ValueError, IndexError, struct.error, ... on broken files; one bad
    # file in ten thousand must not end the work on the others.
    except Exception as error:
        detail = str(error).replace(str(file), "the file")
        raise ImageError(f"broken or truncated ({detail or type(error).__name__})") from None


def image_or_reason(path: str | os.PathLike[str]) -> RgbArray | Unreadable:
    """The pixels of an image, or why there are none: a broken file is a result, not a crash.

    Examples
    --------
    >>> image_or_reason("nowhere.jpg").reason
    'no such file'
    """
    try:
        return read_image(path)
    except ImageError as error:
        return Unreadable(path=Path(path), reason=error.reason)
