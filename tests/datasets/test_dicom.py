from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from dataset_makers import IDENTIFIERS, write_dicom, write_image
from pydicom.dataset import Dataset
from pydicom.pixels.processing import convert_color_space
from pydicom.uid import RLELossless

from calcode.datasets import read_class_folders
from calcode.datasets.dicom import content_id, has_burned_in_text, is_dicom
from calcode.datasets.images import read_image
from calcode.errors import ImageError

RAMP = np.arange(256, dtype=np.uint16).reshape(16, 16) * 16


def grey(path: Path) -> np.ndarray:
    image = read_image(path)
    assert image.dtype == np.uint8
    assert (image == image[:, :, :1]).all()
    return image[:, :, 0].reshape(-1)


def test_without_a_window_the_range_of_the_image_is_used(tmp_path: Path) -> None:
    values = grey(write_dicom(tmp_path / "a.dcm", RAMP, bits=12))
    np.testing.assert_array_equal(values, np.arange(256))


def test_monochrome1_is_inverted(tmp_path: Path) -> None:
    values = grey(write_dicom(tmp_path / "a.dcm", RAMP, photometric="MONOCHROME1", bits=12))
    np.testing.assert_array_equal(values, np.arange(256)[::-1])


def test_the_window_decides_black_and_white_even_if_the_image_reaches_neither(tmp_path: Path) -> None:
    # The standard's linear function: ((x - (c - 0.5)) / (w - 1) + 0.5) between 0 and 1.
    stored = np.array([[900, 1000, 1100]], dtype=np.uint16)
    path = write_dicom(tmp_path / "a.dcm", stored, bits=12, elements={"WindowCenter": 1000, "WindowWidth": 801})
    expected = np.rint(((stored[0] - 999.5) / 800 + 0.5) * 255)
    np.testing.assert_array_equal(grey(path), expected)


def test_values_beyond_the_window_are_black_and_white(tmp_path: Path) -> None:
    stored = np.array([[0, 1000, 4095]], dtype=np.uint16)
    path = write_dicom(tmp_path / "a.dcm", stored, bits=12, elements={"WindowCenter": 1000, "WindowWidth": 11})
    assert grey(path)[[0, 2]].tolist() == [0, 255]


def test_hounsfield_units_come_before_the_window(tmp_path: Path) -> None:
    stored = np.array([[984, 1024, 1064]], dtype=np.int16)
    elements = {"RescaleIntercept": -1024, "RescaleSlope": 1, "WindowCenter": 40, "WindowWidth": 81}
    path = write_dicom(tmp_path / "a.dcm", stored, bits=16, elements=elements)
    expected = np.clip(np.rint(((stored[0] - 1024 - 39.5) / 80 + 0.5) * 255), 0, 255)
    np.testing.assert_array_equal(grey(path), expected)


def test_the_first_of_several_windows_is_taken(tmp_path: Path) -> None:
    stored = np.array([[900, 1000, 1100]], dtype=np.uint16)
    one = {"WindowCenter": 1000, "WindowWidth": 801}
    two = {"WindowCenter": [1000, 50], "WindowWidth": [801, 10]}
    first = write_dicom(tmp_path / "a.dcm", stored, bits=12, elements=one)
    both = write_dicom(tmp_path / "b.dcm", stored, bits=12, elements=two)
    np.testing.assert_array_equal(grey(first), grey(both))


def test_a_voi_table_is_applied(tmp_path: Path) -> None:
    table = Dataset()
    table.add_new("LUTDescriptor", "US", [4, 0, 8])
    table.add_new("LUTData", "US", [0, 200, 100, 255])
    stored = np.array([[0, 1, 2, 3]], dtype=np.uint16)
    path = write_dicom(tmp_path / "a.dcm", stored, bits=12, elements={"VOILUTSequence": [table]})
    assert grey(path).tolist() == [0, 200, 100, 255]


def test_colour_keeps_its_colours(tmp_path: Path) -> None:
    colours = np.array([[[255, 0, 0], [0, 128, 0]], [[0, 0, 255], [7, 8, 9]]], dtype=np.uint8)
    path = write_dicom(tmp_path / "a.dcm", colours, photometric="RGB")
    np.testing.assert_array_equal(read_image(path), colours)


def test_luminance_and_chrominance_become_rgb(tmp_path: Path) -> None:
    colours = np.array([[[250, 10, 10], [10, 120, 10]], [[10, 10, 250], [90, 90, 90]]], dtype=np.uint8)
    stored = convert_color_space(colours, "RGB", "YBR_FULL")
    path = write_dicom(tmp_path / "a.dcm", stored, photometric="YBR_FULL")
    np.testing.assert_allclose(read_image(path).astype(int), colours, atol=2)


def test_compressed_pixels_are_decompressed(tmp_path: Path) -> None:
    path = write_dicom(tmp_path / "a.dcm", RAMP, bits=12)
    header = pydicom.dcmread(path)
    header.compress(RLELossless)
    header.save_as(tmp_path / "b.dcm")
    np.testing.assert_array_equal(grey(tmp_path / "b.dcm"), np.arange(256))


def test_a_palette_becomes_rgb(tmp_path: Path) -> None:
    elements: dict[str, object] = {}
    for name, values in (("Red", [0, 255]), ("Green", [10, 20]), ("Blue", [255, 0])):
        elements[f"{name}PaletteColorLookupTableDescriptor"] = [2, 0, 16]
        words = np.array(values, dtype=np.uint16) * 257
        elements[f"{name}PaletteColorLookupTableData"] = words.tobytes()
    stored = np.array([[0, 1]], dtype=np.uint8)
    path = write_dicom(tmp_path / "a.dcm", stored, photometric="PALETTE COLOR", elements=elements)
    assert read_image(path).tolist() == [[[0, 10, 255], [255, 20, 0]]]


def test_elements_without_a_value_are_as_good_as_absent(tmp_path: Path) -> None:
    elements = {"WindowCenter": None, "WindowWidth": None, "VOILUTSequence": []}
    path = write_dicom(tmp_path / "a.dcm", RAMP, bits=12, elements=elements)
    np.testing.assert_array_equal(grey(path), np.arange(256))


def test_a_table_after_a_rescaling(tmp_path: Path) -> None:
    table = Dataset()
    table.add_new("LUTDescriptor", "US", [4, 0, 8])
    table.add_new("LUTData", "US", [0, 200, 100, 255])
    elements = {"RescaleIntercept": "-1000", "RescaleSlope": "1", "VOILUTSequence": [table]}
    stored = np.array([[1000, 1001, 1002, 1003]], dtype=np.uint16)
    path = write_dicom(tmp_path / "a.dcm", stored, bits=12, elements=elements)
    assert grey(path).tolist() == [0, 200, 100, 255]


def test_an_image_of_one_value_is_not_a_division_by_zero(tmp_path: Path) -> None:
    assert (grey(write_dicom(tmp_path / "a.dcm", np.full((3, 3), 7, dtype=np.uint16))) == 0).all()


def test_several_frames_are_refused(tmp_path: Path) -> None:
    path = write_dicom(tmp_path / "a.dcm", np.zeros((2, 4, 4), dtype=np.uint8), frames=2)
    with pytest.raises(ImageError, match="2 frames"):
        read_image(path)


def test_a_header_without_pixels_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.dcm"
    path.write_bytes(b"not dicom at all, but called so")
    with pytest.raises(ImageError, match="no pixel data|cannot be decoded"):
        read_image(path)


@pytest.mark.parametrize("name", ["IM000001", "image.dcm", "odd.jpg"])
def test_the_content_tells_a_dicom_file_not_its_name(tmp_path: Path, name: str) -> None:
    path = write_dicom(tmp_path / name, RAMP, bits=12)
    assert is_dicom(path)
    np.testing.assert_array_equal(grey(path), np.arange(256))


def test_a_file_without_a_preamble_is_read(tmp_path: Path) -> None:
    path = write_dicom(tmp_path / "a.dcm", RAMP, bits=12, bare=True)
    assert path.read_bytes()[128:132] != b"DICM"
    np.testing.assert_array_equal(grey(path), np.arange(256))


def test_a_photograph_is_no_dicom_file(tmp_path: Path) -> None:
    assert not is_dicom(write_image(tmp_path / "a.png", shade=1))
    assert not is_dicom(tmp_path / "missing")


def test_no_identifier_is_in_an_id_and_none_in_a_message(tmp_path: Path) -> None:
    path = write_dicom(tmp_path / "mel" / f"{IDENTIFIERS[0]}_{IDENTIFIERS[1]}.dcm", RAMP, bits=12)
    broken = write_dicom(tmp_path / "mel" / f"{IDENTIFIERS[2]}.dcm", RAMP, elements={"Rows": 9999})
    listing = read_class_folders(tmp_path)
    with pytest.raises(ImageError) as caught:
        read_image(broken)
    told = [*listing.ids.tolist(), str(caught.value), repr(listing), *listing.groups.tolist()]
    assert all(one.startswith("dicom-") for one in listing.ids)
    assert [one for one in told for secret in IDENTIFIERS if secret in one] == []
    assert path.exists()


def test_only_what_the_pixels_mean_is_read_of_a_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_dicom(tmp_path / "a.dcm", RAMP, bits=12)
    headers = []
    real = pydicom.dcmread

    def spy(*args: Any, **options: Any) -> Any:
        headers.append(real(*args, **options))
        return headers[-1]

    monkeypatch.setattr(pydicom, "dcmread", spy)
    read_image(path)
    has_burned_in_text(path)
    assert len(headers) == 2
    # So no warning and no traceback of pydicom can quote a name, whatever is wrong with the file.
    loaded = "\n".join(str(one.values()) for one in headers)
    assert [secret for secret in IDENTIFIERS if secret in loaded] == []
    assert "PatientName" in real(path)


def test_ids_depend_on_the_content_and_the_key_alone(tmp_path: Path) -> None:
    one = write_dicom(tmp_path / "one.dcm", RAMP)
    same = write_dicom(tmp_path / "elsewhere" / "two.dcm", RAMP)
    other = write_dicom(tmp_path / "other.dcm", RAMP + 1)
    assert content_id(one) == content_id(same) != content_id(other)
    assert content_id(one, key=b"secret") == content_id(same, key=b"secret") != content_id(one)


def test_burned_in_text_is_noticed(tmp_path: Path) -> None:
    marked = write_dicom(tmp_path / "a.dcm", RAMP, elements={"BurnedInAnnotation": "YES"})
    plain = write_dicom(tmp_path / "b.dcm", RAMP)
    assert has_burned_in_text(marked)
    assert not has_burned_in_text(plain)
