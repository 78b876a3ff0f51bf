from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dataset_makers import picture, write_csv, write_image
from PIL import Image

from calcode.datasets import ImageListing, duplicates, read_csv_images, without_duplicates
from calcode.errors import DatasetError


@pytest.fixture
def listing(tmp_path: Path) -> ImageListing:
    """Eight images: a copy with another label, the same pixels in another format, a copy in another role."""
    write_image(tmp_path / "a.png", shade=1)
    shutil.copy(tmp_path / "a.png", tmp_path / "b.png")
    picture(shade=2).save(tmp_path / "c.png")
    picture(shade=2).save(tmp_path / "d.bmp")
    picture(shade=3).save(tmp_path / "e.png")
    picture(shade=3).save(tmp_path / "f.png", compress_level=0)
    write_image(tmp_path / "g.png", shade=4)
    (tmp_path / "h.png").write_bytes(b"broken")
    rows = [
        ("a", "mel", "p1", "test"),
        ("b", "nv", "p2", "test"),
        ("c", "mel", "p3", "test"),
        ("d", "mel", "p3", "test"),
        ("e", "nv", "p4", "gate"),
        ("f", "nv", "p5", "test"),
        ("g", "nv", "p6", "gate"),
        ("h", "nv", "p7", "gate"),
    ]
    return read_csv_images(write_csv(tmp_path / "a.csv", ("id", "label_name", "group", "role"), rows))


def test_copies_are_found_by_bytes_and_by_pixels(listing: ImageListing) -> None:
    report = duplicates(listing, workers=2)
    assert [(one.ids, one.kind) for one in report.groups] == [
        (("a", "b"), "file"),
        (("c", "d"), "pixels"),
        (("e", "f"), "pixels"),
    ]
    assert report.unreadable == (7,)


def test_what_does_harm_is_told_apart(listing: ImageListing) -> None:
    report = duplicates(listing, workers=0)
    assert [one.ids for one in report.conflicting] == [("a", "b")]
    assert [one.ids for one in report.across_roles] == [("e", "f")]
    assert [one.across_groups for one in report.groups] == [True, False, True]
    assert str(report) == (
        "3 groups of identical images, 1 with conflicting labels, 1 across roles; 1 images could not be read"
    )
    assert duplicates(replace(listing, roles=None), workers=0).across_roles == ()


def test_conflicts_go_whole_and_of_the_others_one_stays(listing: ImageListing) -> None:
    report = duplicates(listing, workers=0)
    assert without_duplicates(listing, report).ids.tolist() == ["c", "e", "g", "h"]
    backwards = listing[::-1]
    kept = without_duplicates(backwards, duplicates(backwards, workers=0))
    assert set(kept.ids) == {"c", "e", "g", "h"}
    assert duplicates(kept, workers=0).groups == ()


def test_the_shape_is_part_of_the_content(tmp_path: Path) -> None:
    flat = np.zeros((2, 8, 3), dtype=np.uint8)
    Image.fromarray(flat).save(tmp_path / "wide.png")
    Image.fromarray(flat.reshape(8, 2, 3)).save(tmp_path / "tall.png")
    table = write_csv(tmp_path / "a.csv", ("id", "label_name"), [("wide", "nv"), ("tall", "nv")])
    assert duplicates(read_csv_images(table), workers=0).groups == ()


def test_a_negative_number_of_workers_is_refused(listing: ImageListing) -> None:
    with pytest.raises(DatasetError, match="workers: -1"):
        duplicates(listing, workers=-1)
