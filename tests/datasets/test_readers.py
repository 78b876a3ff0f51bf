"""The readers on small folders of our own that are laid out like the published ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from dataset_makers import write_csv, write_image

from calcode.datasets import ImageListing
from calcode.datasets.camelyon17 import read_camelyon17
from calcode.datasets.ham10000 import read_ham10000
from calcode.datasets.isic import read_isic2018_test, read_isic2019_test, read_isic2019_training
from calcode.datasets.pad_ufes_20 import read_pad_ufes_20
from calcode.errors import CalcodeWarning, DatasetError

Reader = Callable[[Path], ImageListing]


def quietly(reader: Callable[..., ImageListing], folder: Path, **options: object) -> ImageListing:
    """Read a small copy: that its counts differ from the published ones is expected, and said."""
    with pytest.warns(CalcodeWarning, match="published"):
        return reader(folder, **options)


class TestHam10000:
    def test_columns(self, ham_folder: Path) -> None:
        listing = quietly(read_ham10000, ham_folder)
        assert listing.ids.tolist() == ["ISIC_0024306", "ISIC_0024307", "ISIC_0024308", "ISIC_0024309"]
        assert listing.label_names.tolist() == ["nv", "nv", "mel", "akiec"]
        assert listing.groups.tolist() == ["HAM_0000001", "HAM_0000001", "HAM_0000002", "HAM_0000003"]
        assert listing.metadata["site"].tolist() == ["vidir_molemax"] * 2 + ["rosendahl"] * 2
        assert listing.metadata["sex"].tolist() == ["male", "male", "female", ""]
        assert listing.metadata["anatomic_site"].tolist() == ["back", "back", "", "face"]
        np.testing.assert_array_equal(listing.metadata["age"], [45.0, 45.0, 80.0, np.nan])

    def test_both_folders_of_images_are_found(self, ham_folder: Path) -> None:
        listing = quietly(read_ham10000, ham_folder)
        assert listing.has_file.all()
        for name, path in zip(listing.ids, listing.paths, strict=True):
            assert Path(path).is_file()
            assert Path(path).stem == name

    def test_one_flat_folder_is_as_good(self, ham_folder: Path) -> None:
        for file in ham_folder.glob("*/*.jpg"):
            shutil.move(file, ham_folder / file.name)
        assert quietly(read_ham10000, ham_folder).has_file.all()

    def test_the_warning_says_what_is_missing(self, ham_folder: Path) -> None:
        (ham_folder / "HAM10000_images_part_2" / "ISIC_0024308.jpg").unlink()
        with pytest.warns(CalcodeWarning) as caught:
            listing = read_ham10000(ham_folder)
        (message,) = [str(one.message) for one in caught]
        assert "4 images listed, 10,015 published" in message
        assert "nv 2 of 6,705" in message
        assert "3 groups, 7,470 published" in message
        assert "1 of 4 image files are missing (first: ISIC_0024308)" in message
        assert listing.paths[2] == ""

    def test_what_archivers_leave_behind_is_not_an_image(self, ham_folder: Path) -> None:
        write_image(ham_folder / "__MACOSX" / "ISIC_0024306.jpg", shade=99)
        (ham_folder / "HAM10000_images_part_1" / "._ISIC_0024306.jpg").write_bytes(b"x")
        listing = quietly(read_ham10000, ham_folder)
        assert "part_1" in listing.paths[0]
        assert listing.notes == ()

    def test_an_archive_unpacked_twice_is_noted(self, ham_folder: Path) -> None:
        shutil.copytree(ham_folder / "HAM10000_images_part_1", ham_folder / "copy")
        listing = quietly(read_ham10000, ham_folder)
        assert any("occur in several places: 2" in note for note in listing.notes)

    def test_images_without_a_row_are_noted(self, ham_folder: Path) -> None:
        write_image(ham_folder / "extra" / "ISIC_0099999.jpg", shade=99)
        listing = quietly(read_ham10000, ham_folder)
        assert len(listing) == 4
        assert any("image files without a row in the table, left out: 1" in note for note in listing.notes)

    def test_a_copy_of_the_table_without_sites_is_read_and_noted(self, ham_folder: Path) -> None:
        table = ham_folder / "HAM10000_metadata.csv"
        lines = [line.rpartition(",")[0] for line in table.read_text().splitlines()]
        table.write_text("\n".join(lines) + "\n")
        listing = quietly(read_ham10000, ham_folder)
        assert (listing.metadata["site"] == "").all()
        assert any("no column 'dataset'" in note for note in listing.notes)

    def test_an_unknown_label_is_kept_and_named(self, ham_folder: Path) -> None:
        table = ham_folder / "HAM10000_metadata.csv"
        table.write_text(table.read_text().replace(",mel,", ",melanoma,"))
        with pytest.warns(CalcodeWarning, match="unknown labels: melanoma"):
            listing = read_ham10000(ham_folder)
        assert listing.unknown_labels == ("melanoma",)
        assert listing.labels[2] == -1


class TestIsic2019:
    def test_training_labels_ids_and_collections(self, isic_training_folder: Path) -> None:
        listing = quietly(read_isic2019_training, isic_training_folder)
        assert listing.ids[1] == "ISIC_0000030"
        assert listing.label_names.tolist() == ["nv", "akiec", "scc", "nv", "mel"]
        assert listing.source_labels.tolist() == ["NV", "AK", "SCC", "NV", "MEL"]
        assert listing.in_space.tolist() == [True, True, False, True, True]
        assert listing.unknown_labels == ()
        assert listing.metadata["site"].tolist() == ["", "msk", "bcn", "ham", ""]
        assert listing.groups.tolist() == ["", "MSK4_0000011", "BCN_0000001", "HAM_0000001", ""]
        # The last image is in no row of the metadata.
        np.testing.assert_array_equal(listing.metadata["age"], [55, np.nan, 70, 45, np.nan])

    def test_files_with_the_suffix_and_files_without_it_are_found(self, isic_training_folder: Path) -> None:
        images = isic_training_folder / "ISIC_2019_Training_Input"
        assert quietly(read_isic2019_training, isic_training_folder).has_file.all()
        (images / "ISIC_0000030_downsampled.jpg").rename(images / "ISIC_0000030.jpg")
        assert quietly(read_isic2019_training, isic_training_folder).has_file.all()

    def test_ham10000_is_noted_and_can_be_left_out(self, isic_training_folder: Path) -> None:
        whole = quietly(read_isic2019_training, isic_training_folder)
        assert any("HAM10000" in note for note in whole.notes)
        rest = quietly(read_isic2019_training, isic_training_folder, without_ham10000=True)
        assert rest.ids.tolist() == ["ISIC_0000000", "ISIC_0000030", "ISIC_0053463", "ISIC_0053464"]
        assert not any("HAM10000" in note for note in rest.notes)
        named = quietly(read_isic2019_training, isic_training_folder, exclude_ids=["ISIC_0024306", "ISIC_0000030"])
        assert named.ids.tolist() == ["ISIC_0000000", "ISIC_0053463", "ISIC_0053464"]

    def test_what_was_left_out_on_purpose_is_not_missing(self, isic_training_folder: Path) -> None:
        whole = quietly(read_isic2019_training, isic_training_folder)
        rest = quietly(read_isic2019_training, isic_training_folder, without_ham10000=True)
        assert whole.expected is not None
        assert rest.expected is not None
        assert rest.expected.images == whole.expected.images - 1 == 25_330
        assert rest.expected.labels["NV"] == whole.expected.labels["NV"] - 1

    def test_the_test_release(self, isic_test_folder: Path) -> None:
        listing = quietly(read_isic2019_test, isic_test_folder)
        assert listing.label_names.tolist() == ["unk", "akiec", "vasc", "scc"]
        assert listing.in_space.tolist() == [False, True, True, False]
        assert listing.ids[2] == "ISIC_0034323"
        assert (listing.groups == "").all()
        assert (listing.metadata["age"] == 60).all()
        assert listing.has_file.all()

    def test_the_published_sum_outside_is_compared(self, isic_test_folder: Path) -> None:
        with pytest.warns(CalcodeWarning, match="outside the label space 2 of 2,212"):
            read_isic2019_test(isic_test_folder)

    def test_without_the_metadata_file_it_is_said(self, isic_test_folder: Path) -> None:
        (isic_test_folder / "ISIC_2019_Test_Metadata.csv").unlink()
        listing = quietly(read_isic2019_test, isic_test_folder)
        assert np.isnan(listing.metadata["age"]).all()
        assert any("no ISIC_2019_Test_Metadata.csv" in note for note in listing.notes)

    @pytest.mark.parametrize("row", ["0,0,0,0,0,0,0,0,0", "1,1,0,0,0,0,0,0,0", "0.5,0.5,0,0,0,0,0,0,0"])
    def test_a_row_without_exactly_one_diagnosis_is_refused(self, isic_test_folder: Path, row: str) -> None:
        table = isic_test_folder / "ISIC_2019_Test_GroundTruth.csv"
        table.write_text(table.read_text() + f"ISIC_0000001,{row},1,0\n")
        with pytest.raises(DatasetError, match="ISIC_0000001 has not exactly one 1"):
            read_isic2019_test(isic_test_folder)


def test_isic2018_leaves_the_synthetic_image_out(tmp_path: Path) -> None:
    header = ("image", "MEL", "NV", "BCC", "AKIEC", "BKL", "DF", "VASC")
    rows = [("ISIC_0034524", *"0100000"), ("ISIC_0035068", *"0100000"), ("ISIC_0034525", *"0001000")]
    write_csv(tmp_path / "ISIC2018_Task3_Test_GroundTruth.csv", header, rows)
    for number, row in enumerate(rows):
        write_image(tmp_path / "images" / f"{row[0]}.jpg", shade=number)
    listing = quietly(read_isic2018_test, tmp_path)
    assert listing.ids.tolist() == ["ISIC_0034524", "ISIC_0034525"]
    assert listing.label_names.tolist() == ["nv", "akiec"]
    assert any("synthetic" in note for note in listing.notes)


class TestPad:
    def test_labels_and_subgroups(self, pad_folder: Path) -> None:
        listing = quietly(read_pad_ufes_20, pad_folder)
        assert listing.classes == ("akiec", "bcc", "bkl", "mel", "nv")
        assert listing.label_names.tolist() == ["nv", "bcc", "akiec", "scc", "bkl", "mel"]
        assert listing.in_space.sum() == 5
        assert listing.ids[0] == "PAT_1516_1765_530"
        assert listing.metadata["sex"].tolist() == ["", "female", "male", "male", "male", "male"]
        np.testing.assert_array_equal(listing.metadata["fitzpatrick"], [np.nan, 3, 2, 1, 2, 2])
        assert listing.metadata["anatomic_site"][1] == "neck"
        assert listing.has_file.all()

    def test_a_lesion_number_used_twice_does_not_join_two_patients(self, pad_folder: Path) -> None:
        listing = quietly(read_pad_ufes_20, pad_folder)
        assert listing.groups[1:3].tolist() == ["PAT_46", "PAT_47"]


class TestCamelyon17:
    def test_paths_patients_and_centres(self, camelyon_folder: Callable[..., Path]) -> None:
        folder = camelyon_folder()
        listing = quietly(read_camelyon17, folder)
        assert listing.has_file.all()
        assert listing.ids[0] == "patient_004_node_1_x_0_y_0"
        assert listing.label_names[:2].tolist() == ["non-tumor", "tumor"]
        assert listing.groups[0] == "patient_004"
        assert set(listing.metadata["site"]) == {f"centre {centre}" for centre in range(5)}

    def test_the_folder_above_will_do(self, camelyon_folder: Callable[..., Path]) -> None:
        assert quietly(read_camelyon17, camelyon_folder().parent).has_file.all()

    def test_leading_zeros_lost_in_a_spreadsheet_are_put_back(self, camelyon_folder: Callable[..., Path]) -> None:
        folder = camelyon_folder()
        table = folder / "metadata.csv"
        table.write_text(table.read_text().replace(",004,", ",4,").replace(",024,", ",24,"))
        assert quietly(read_camelyon17, folder).has_file.all()


@pytest.mark.parametrize(
    "reader",
    [read_ham10000, read_isic2018_test, read_isic2019_test, read_isic2019_training, read_pad_ufes_20, read_camelyon17],
)
def test_an_empty_folder_says_which_file_it_should_hold(reader: Reader, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"folder: no .*\.csv.* in .*; its CSV files: none"):
        reader(tmp_path)
