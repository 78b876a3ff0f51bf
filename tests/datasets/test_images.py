from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from dataset_makers import picture, write_dicom, write_image
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from calcode.datasets import Unreadable, image_or_reason
from calcode.datasets.images import read_image
from calcode.errors import DatasetError, ImageError


def test_pixels_come_back_as_they_were_saved(tmp_path: Path) -> None:
    path = write_image(tmp_path / "a.png", shade=1, size=(40, 30))
    image = read_image(path)
    assert image.shape == (30, 40, 3)
    assert image.dtype == np.uint8
    np.testing.assert_array_equal(image, np.asarray(picture(shade=1, size=(40, 30))))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr"])
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("a.jpg" if mode in ("CMYK", "YCbCr") else "a.png")
    picture(shade=2).convert(mode).save(path)
    assert read_image(path).shape == (70, 80, 3)


def test_a_palette_with_transparency_is_read_without_a_warning(tmp_path: Path) -> None:
    image = picture(shade=3).convert("P")
    image.save(tmp_path / "a.png", transparency=bytes(range(256)))
    assert read_image(tmp_path / "a.png").shape == (70, 80, 3)


def test_sixteen_bits_are_scaled_not_clipped(tmp_path: Path) -> None:
    values = np.array([[0, 257, 32_896, 65_535]], dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / "deep.png")
    assert read_image(tmp_path / "deep.png")[0, :, 0].tolist() == [0, 1, 128, 255]


def test_thirty_two_bits_are_refused_with_a_reason(tmp_path: Path) -> None:
    Image.fromarray(np.ones((4, 4), dtype=np.float32)).save(tmp_path / "deep.tiff")
    with pytest.raises(ImageError, match="32-bit"):
        read_image(tmp_path / "deep.tiff")


def test_the_orientation_of_a_photograph_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned by a quarter
    picture(shade=4, size=(80, 40)).save(tmp_path / "turned.png", exif=exif)
    expected = np.asarray(picture(shade=4, size=(80, 40)).transpose(Image.Transpose.ROTATE_270))
    np.testing.assert_array_equal(read_image(tmp_path / "turned.png"), expected)


def _broken(folder: Path, kind: str) -> Path:
    path = folder / f"{kind}.jpg"
    if kind == "folder":
        path.mkdir()
    elif kind == "empty":
        path.touch()
    elif kind == "text":
        path.write_text("<html>404</html>")
    elif kind == "truncated":
        whole = write_image(folder / "whole.jpg", shade=5, size=(400, 400)).read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
    elif kind == "truncated-dicom":
        whole = write_dicom(folder / "whole.dcm", np.zeros((64, 64), dtype=np.uint8)).read_bytes()
        path.write_bytes(whole[:-2000])
    return path


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("missing", "no such file"),
        ("folder", "a folder"),
        ("empty", "empty file"),
        ("text", "not an image"),
        ("truncated", "truncated"),
        ("truncated-dicom", "cannot be decoded"),
    ],
)
def test_a_bad_file_is_a_result_with_a_reason_and_without_its_place(tmp_path: Path, kind: str, reason: str) -> None:
    path = _broken(tmp_path, kind)
    result = image_or_reason(path)
    assert isinstance(result, Unreadable)
    assert reason in result.reason
    assert str(tmp_path) not in result.reason
    assert result.path == path
    with pytest.raises(ImageError, match=reason):
        read_image(path)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_no_damage_to_a_file_escapes_as_another_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    suffix = data.draw(st.sampled_from([".png", ".jpg", ".dcm"]))
    path = folder / f"a{suffix}"
    if suffix == ".dcm":
        write_dicom(path, np.arange(64, dtype=np.uint16).reshape(8, 8))
    else:
        write_image(path, shade=6, size=(24, 24))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = image_or_reason(path)
    assert isinstance(result, Unreadable) or (result.ndim == 3 and result.shape[2] == 3)


def test_without_pillow_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_image(tmp_path / "a.png", shade=7)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DatasetError, match=r"calcode\[images\]"):
        image_or_reason(path)


def test_without_pydicom_a_dicom_file_has_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_dicom(tmp_path / "a.dcm", np.zeros((4, 4), dtype=np.uint8))
    monkeypatch.setitem(sys.modules, "pydicom", None)
    result = image_or_reason(path)
    assert isinstance(result, Unreadable)
    assert "calcode[dicom]" in result.reason
