"""From a file to pixels: one way of decoding for every image of the project."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from calcode.datasets.dicom import is_dicom, read_dicom
from calcode.errors import DatasetError, ImageError

if TYPE_CHECKING:
    from PIL import Image

#: An RGB image, shape (height, width, 3), uint8.
RgbArray = NDArray[np.uint8]
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
    _require_pillow()
    _require_content(file)
    if is_dicom(file):
        return read_dicom(file)
    return _read_with_pillow(file)


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


def _require_pillow() -> None:
    try:
        import PIL  # noqa: F401
    except ModuleNotFoundError as error:
        raise DatasetError(
            "images: Pillow is not installed, so no image can be read; pip install 'calcode[images]'"
        ) from error


def _require_content(file: Path) -> None:
    try:
        size = file.stat().st_size
    except FileNotFoundError:
        raise ImageError("no such file") from None
    except OSError as error:
        raise ImageError(f"cannot be opened ({error.strerror})") from None
    if not file.is_file():
        raise ImageError("a folder, not a file")
    if size == 0:
        raise ImageError("an empty file (0 bytes)")


def _read_with_pillow(file: Path) -> RgbArray:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            return _as_rgb(image)
    except ImageError:
        raise
    except UnidentifiedImageError:
        raise ImageError("not an image, or of a format that Pillow does not know") from None
    except Image.DecompressionBombError:
        raise ImageError("far more pixels than any image of this kind; Pillow refuses it") from None
    except PermissionError:
        raise ImageError("may not be read by this user") from None
    # Decoders raise OSError, SyntaxError, ValueError, IndexError, struct.error, ... on broken files; one bad
    # file in ten thousand must not end the work on the others.
    except Exception as error:
        detail = str(error).replace(str(file), "the file")
        raise ImageError(f"broken or truncated ({detail or type(error).__name__})") from None


def _as_rgb(image: Image.Image) -> RgbArray:
    from PIL import ImageOps

    image.load()
    if image.mode in _SIXTEEN_BITS:
        grey = np.asarray(image, dtype=np.uint16) // 257
        return np.repeat(grey.astype(np.uint8)[:, :, None], 3, axis=2)
    if image.mode in ("I", "F"):
        raise ImageError("32-bit samples, whose range means nothing by itself; save it with 8 bits")
    ImageOps.exif_transpose(image, in_place=True)
    # A palette with transparency goes through RGBA, as Pillow asks for.
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return np.array(image.convert("RGB"), dtype=np.uint8)
