from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from dataset_makers import write_csv, write_dicom, write_image

from calcode.datasets import CsvColumns, read_class_folders, read_csv_images
from calcode.errors import CalcodeWarning, DatasetError


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three images in two folders and their table in the names of feature files."""
    for number, name in enumerate(("x/one.jpg", "x/two.jpg", "y/three.png")):
        write_image(tmp_path / "photos" / name, shade=number)
    rows = [
        ("1", "x/one.jpg", "mel", "p1", "test", "60"),
        ("2", "x/two.jpg", "nv", "p1", "test", ""),
        ("3", "three.png", "scc", "p2", "gate", "50"),
    ]
    write_csv(tmp_path / "photos" / "list.csv", ("id", "path", "label_name", "group", "role", "age"), rows)
    return tmp_path / "photos"


def test_the_usual_names_are_found(photos: Path) -> None:
    listing = read_csv_images(photos / "list.csv", classes=["mel", "nv"], outside=["scc"])
    assert listing.ids.tolist() == ["1", "2", "3"]
    assert listing.labels.tolist() == [0, 1, -1]
    assert listing.groups.tolist() == ["p1", "p1", "p2"]
    assert listing.roles is not None
    assert listing.roles.tolist() == ["test", "test", "gate"]
    np.testing.assert_array_equal(listing.metadata["age"], [60, np.nan, 50])
    # The third path names no folder and is found by its name.
    assert listing.has_file.all()


def test_own_names_and_own_words(tmp_path: Path) -> None:
    write_image(tmp_path / "images" / "one.jpg", shade=1)
    write_csv(tmp_path / "a.csv", ("file", "dx", "who", "ward"), [("one.jpg", "Melanoma", "p1", "East")])
    listing = read_csv_images(
        tmp_path / "a.csv",
        images=tmp_path / "images",
        columns=CsvColumns(path="file", label="dx", group="who", metadata={"site": "ward"}),
        classes=["mel"],
        label_map={"Melanoma": "mel"},
    )
    assert listing.ids.tolist() == ["one"]
    assert listing.label_names.tolist() == ["mel"]
    assert listing.source_labels.tolist() == ["Melanoma"]
    assert listing.metadata["site"].tolist() == ["East"]


def test_a_named_column_must_exist(photos: Path) -> None:
    with pytest.raises(DatasetError, match=r"no column \['dx'\]"):
        read_csv_images(photos / "list.csv", columns=CsvColumns(label="dx"))


def test_ids_or_paths_are_needed(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", ("name", "label_name"), [("one", "mel")])
    with pytest.raises(DatasetError, match="neither a column 'id' nor 'path'"):
        read_csv_images(tmp_path / "a.csv")


def test_an_id_is_also_a_file_name_dots_and_all(tmp_path: Path) -> None:
    write_image(tmp_path / "scan.v2.png", shade=1)
    write_csv(tmp_path / "a.csv", ("id", "label_name"), [("scan.v2", "mel")])
    assert read_csv_images(tmp_path / "a.csv").has_file.all()


def test_surprising_labels_and_repeated_ids_are_told(photos: Path) -> None:
    table = photos / "list.csv"
    table.write_text(table.read_text().replace("2,x/two", "1,x/two"))
    with pytest.warns(CalcodeWarning, match=r"unknown labels: scc; 1 ids repeated \(first: 1\)"):
        listing = read_csv_images(table, classes=["mel", "nv"])
    assert listing.repeated_ids == ("1",)


def test_classes_default_to_what_occurs(photos: Path) -> None:
    listing = read_csv_images(photos / "list.csv", outside=["scc"])
    assert listing.classes == ("mel", "nv")


def test_without_labels_the_classes_must_be_given(tmp_path: Path) -> None:
    write_image(tmp_path / "one.png", shade=1)
    write_csv(tmp_path / "a.csv", ("path",), [("one.png",)])
    with pytest.raises(DatasetError, match="has no column 'label_name'"):
        read_csv_images(tmp_path / "a.csv")
    assert read_csv_images(tmp_path / "a.csv", classes=["mel"]).counts == {"": 1}


def test_a_dicom_file_takes_its_id_from_the_table_or_from_its_content(tmp_path: Path) -> None:
    write_dicom(tmp_path / "DOE_JANE.dcm", np.zeros((4, 4), dtype=np.uint8))
    named = write_csv(tmp_path / "named.csv", ("id", "path", "label_name"), [("case-1", "DOE_JANE.dcm", "mel")])
    rows = [("DOE_JANE.dcm", "mel"), ("ROE_RICHARD.dcm", "mel"), ("ROE_RICHARD", "mel")]
    bare = write_csv(tmp_path / "bare.csv", ("path", "label_name"), rows)
    assert read_csv_images(named).ids.tolist() == ["case-1"]
    with pytest.warns(CalcodeWarning, match="2 of 3 image files are missing") as caught:
        ids = read_csv_images(bare).ids.tolist()
    assert ids[0].startswith("dicom-")
    # A file that is not there cannot be hashed; its name is not shown either.
    assert ids[1:] == ["row-2", "row-3"]
    assert "ROE" not in str(caught[0].message)
    with pytest.warns(CalcodeWarning):
        keyed = read_csv_images(bare, dicom_key=b"secret").ids.tolist()
    assert keyed[0] != ids[0]


def test_notes_do_not_name_dicom_files(tmp_path: Path) -> None:
    for place in ("a", "b"):
        write_dicom(tmp_path / place / "DOE_JANE.dcm", np.zeros((4, 4), dtype=np.uint8))
    table = write_csv(tmp_path / "a.csv", ("id", "path", "label_name"), [("1", "a/DOE_JANE.dcm", "mel")])
    listing = read_csv_images(table)
    assert any("several places: 1" in note for note in listing.notes)
    assert "DOE" not in " ".join(listing.notes)


def test_class_folders(tmp_path: Path) -> None:
    for number, name in enumerate(("mel/1.png", "mel/deeper/2.png", "nv/1.png", "nv/3.png", "scc/4.png", "loose.png")):
        write_image(tmp_path / name, shade=number)
    listing = read_class_folders(tmp_path, outside=["scc"])
    assert listing.classes == ("mel", "nv")
    assert dict(zip(listing.ids.tolist(), listing.label_names.tolist(), strict=True)) == {
        "mel/1": "mel",
        "2": "mel",
        "nv/1": "nv",
        "3": "nv",
        "4": "scc",
    }
    assert listing.repeated_ids == ()
    assert any("no class folder, left out: 1" in note for note in listing.notes)


def test_copies_of_one_dicom_file_have_two_ids(tmp_path: Path) -> None:
    for name in ("mel/a.dcm", "nv/b.dcm"):
        write_dicom(tmp_path / name, np.ones((4, 4), dtype=np.uint8))
    first, second = read_class_folders(tmp_path).ids.tolist()
    assert second == f"{first}-2"


def test_a_folder_without_class_folders_is_refused(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png", shade=1)
    with pytest.raises(DatasetError, match="no images in folders below"):
        read_class_folders(tmp_path)
