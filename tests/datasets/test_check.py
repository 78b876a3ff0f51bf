from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from dataset_makers import IDENTIFIERS, write_csv, write_dicom, write_image
from typer.testing import CliRunner

from calcode.cli.data import group as data_commands
from calcode.datasets import CheckReport, ImageListing, check_listing, read_csv_images
from calcode.datasets.check import Level
from calcode.errors import CalcodeWarning

HEADER = ("id", "path", "label_name", "group", "role")


def clean_rows() -> list[list[str]]:
    return [
        [f"i{number}", f"i{number}.png", "mel" if number % 2 else "nv", f"p{number}", role]
        for number, role in enumerate(["reference", "validation", "gate", "calibration", "test", "test"])
    ]


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    """A folder with which nothing is wrong."""
    folder = tmp_path / "clean"
    for number in range(6):
        write_image(folder / f"i{number}.png", shade=number)
    write_csv(folder / "list.csv", HEADER, clean_rows())
    return folder


def listing_of(folder: Path) -> ImageListing:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        return read_csv_images(folder / "list.csv", classes=["mel", "nv"], outside=["scc"])


def report_on(folder: Path) -> CheckReport:
    return check_listing(listing_of(folder), workers=2)


def kinds(report: CheckReport) -> dict[str, str]:
    return {one.kind: one.level.value for one in report.findings}


def test_a_clean_folder_has_no_findings_and_every_image_is_counted(clean: Path) -> None:
    steps: list[int] = []
    report = check_listing(listing_of(clean), advance=steps.append)
    assert report.findings == ()
    assert not report.must_fix
    assert sum(steps) == 6


def damage_missing(folder: Path) -> None:
    (folder / "i0.png").unlink()


def damage_unreadable(folder: Path) -> None:
    content = (folder / "i0.png").read_bytes()
    (folder / "i0.png").write_bytes(content[: len(content) // 2])


def damage_size(folder: Path) -> None:
    write_image(folder / "i0.png", shade=0, size=(200, 63))


def damage_copy_in_other_role(folder: Path) -> None:
    shutil.copy(folder / "i0.png", folder / "i2.png")


def damage_copy_with_other_label(folder: Path) -> None:
    shutil.copy(folder / "i4.png", folder / "i5.png")


def changed(row: int, column: str, value: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        rows = clean_rows()
        rows[row][HEADER.index(column)] = value
        write_csv(folder / "list.csv", HEADER, rows)

    return change


@pytest.mark.parametrize(
    ("damage", "kind", "level", "example"),
    [
        (damage_missing, "missing-files", "fix", "i0"),
        (damage_unreadable, "unreadable", "fix", "i0: broken"),
        (damage_size, "small-images", "warning", "i0: 200 x 63"),
        (damage_copy_in_other_role, "duplicates-across-roles", "fix", "i0 (reference) = i2 (gate)"),
        (damage_copy_with_other_label, "conflicting-duplicates", "fix", "i4 (nv) = i5 (mel)"),
        (changed(0, "group", "p4"), "straddling-groups", "fix", "p4"),
        (changed(0, "id", "i4"), "repeated-ids", "fix", "i4"),
        (changed(0, "label_name", "nevus"), "unknown-labels", "fix", "nevus"),
        (changed(0, "label_name", ""), "unlabelled", "warning", "i0"),
    ],
)
def test_every_kind_of_damage_is_found_and_nothing_else(
    clean: Path, damage: Callable[[Path], None], kind: str, level: str, example: str
) -> None:
    damage(clean)
    report = report_on(clean)
    assert kinds(report) == {kind: level}
    assert report.findings[0].examples[0].startswith(example)
    assert report.must_fix == (level == "fix")


def test_copies_within_one_group_do_no_harm(clean: Path) -> None:
    rows = clean_rows()
    rows[5][2:4] = rows[4][2:4]
    write_csv(clean / "list.csv", HEADER, rows)
    shutil.copy(clean / "i4.png", clean / "i5.png")
    assert kinds(report_on(clean)) == {"duplicates-within-groups": "note"}


def test_copies_filed_under_two_patients_are_worth_a_look(clean: Path) -> None:
    rows = clean_rows()
    rows[5][2] = "nv"
    write_csv(clean / "list.csv", HEADER, rows)
    shutil.copy(clean / "i4.png", clean / "i5.png")
    assert kinds(report_on(clean)) == {"duplicates": "warning"}


def test_a_class_without_images_is_worth_a_look(clean: Path) -> None:
    rows = [row for row in clean_rows() if row[2] == "nv"]
    write_csv(clean / "list.csv", HEADER, rows)
    assert kinds(report_on(clean)) == {"empty-classes": "warning", "note": "note"}


def test_what_must_be_fixed_comes_first(clean: Path) -> None:
    damage_size(clean)
    (clean / "i1.png").unlink()
    report = report_on(clean)
    assert [one.level for one in report.findings] == [Level.FIX, Level.WARNING]


def test_text_in_dicom_pixels_is_worth_a_look(clean: Path) -> None:
    pixels = np.arange(6400, dtype=np.uint16).reshape(80, 80)
    write_dicom(clean / "scan.dcm", pixels, elements={"BurnedInAnnotation": "YES"})
    changed(0, "path", "scan.dcm")(clean)
    found = kinds(report_on(clean))
    assert found["burned-in-text"] == "warning"


class TestCommand:
    def run(self, *arguments: str | Path) -> tuple[int, str]:
        result = CliRunner().invoke(data_commands, [str(one) for one in arguments])
        return result.exit_code, result.output

    def test_a_clean_folder_is_success(self, clean: Path) -> None:
        code, said = self.run("check", "csv", clean)
        assert code == 0
        assert "Nothing must be fixed" in said
        assert "6 images listed, 6 files found" in said

    def test_something_to_fix_is_exit_code_one(self, clean: Path) -> None:
        damage_missing(clean)
        code, said = self.run("check", "csv", clean)
        assert code == 1
        assert "Must be fixed" in said
        assert "missing" in said
        assert "i0" in said

    def test_json_for_machines(self, clean: Path) -> None:
        damage_unreadable(clean)
        code, said = self.run("check", "csv", clean, "--json", "--workers", "1")
        facts = json.loads(said)
        assert code == 1
        assert facts["must_fix"] is True
        assert facts["images"] == facts["files"] == 6
        assert facts["counts"] == {"mel": 3, "nv": 3}
        assert facts["roles"]["test"] == 2
        assert [one["kind"] for one in facts["findings"]] == ["unreadable"]

    def test_own_columns(self, clean: Path) -> None:
        rows = [[row[1], row[2]] for row in clean_rows()]
        table = write_csv(clean / "other.csv", ("file", "dx"), rows)
        code, said = self.run(
            *("check", "csv", clean, "--csv", table, "--path-column", "file", "--label-column", "dx"),
            *("--classes", "mel,nv", "--json"),
        )
        assert code == 0
        assert json.loads(said)["classes"] == ["mel", "nv"]

    def test_class_folders(self, tmp_path: Path) -> None:
        write_image(tmp_path / "mel" / "a.png", shade=1)
        write_image(tmp_path / "odd" / "b.png", shade=2)
        code, said = self.run("check", "folders", tmp_path, "--classes", "mel", "--outside", "odd")
        assert code == 0, said
        code, said = self.run("check", "folders", tmp_path, "--classes", "mel")
        assert code == 1
        assert "odd" in said

    def test_no_identifier_of_a_dicom_file_is_shown(self, tmp_path: Path) -> None:
        pixels = np.arange(6400, dtype=np.uint16).reshape(80, 80)
        write_dicom(tmp_path / "mel" / f"{IDENTIFIERS[0]}.dcm", pixels)
        write_dicom(tmp_path / "nv" / f"{IDENTIFIERS[1]}.dcm", pixels)
        write_dicom(tmp_path / "nv" / f"{IDENTIFIERS[2]}.dcm", pixels, elements={"Rows": 5000})
        for extra in ((), ("--json",)):
            code, said = self.run("check", "folders", tmp_path, *extra)
            assert code == 1
            assert "dicom-" in said
            assert [secret for secret in IDENTIFIERS if secret in said] == []

    def test_a_folder_too_small_to_be_split_is_checked_all_the_same(self, ham_folder: Path) -> None:
        code, said = self.run("check", "ham10000", ham_folder, "--json")
        facts = json.loads(said)
        assert code == 0
        assert facts["roles"] == {}
        assert any("cannot fill 5 roles" in one["message"] for one in facts["findings"])

    def test_the_roles_of_the_paper_are_made_and_checked(self, tmp_path: Path) -> None:
        rows = []
        for number in range(10):
            name = f"ISIC_{24306 + number:07d}"
            rows.append((f"HAM_{number}", name, "nv", "histo", "50", "male", "back", "vidir_modern"))
            write_image(tmp_path / f"{name}.jpg", shade=number % 9)
        header = ("lesion_id", "image_id", "dx", "dx_type", "age", "sex", "localization", "dataset")
        write_csv(tmp_path / "HAM10000_metadata.csv", header, rows)
        code, said = self.run("check", "ham10000", tmp_path, "--json")
        facts = json.loads(said)
        assert sum(facts["roles"].values()) == 10
        assert len(facts["roles"]) == 5
        found = {one["kind"] for one in facts["findings"]}
        assert found & {"duplicates", "duplicates-across-roles"}
        assert code == int("duplicates-across-roles" in found)

    def test_a_small_copy_of_pad(self, pad_folder: Path) -> None:
        code, said = self.run("check", "pad-ufes-20", pad_folder, "--json")
        facts = json.loads(said)
        assert code == 0
        assert facts["published"] == 2298
        assert {one["kind"] for one in facts["findings"]} == {"counts"}
        assert any("BCC 1 of 845" in one["message"] for one in facts["findings"])

    def test_an_unknown_name_lists_the_known_ones(self, tmp_path: Path) -> None:
        code, said = self.run("check", "imagenet", tmp_path)
        assert code == 1
        assert "ham10000" in said

    def test_options_for_own_images_are_refused_for_a_published_set(self, ham_folder: Path) -> None:
        code, said = self.run("check", "ham10000", ham_folder, "--label-column", "dx")
        assert code == 2
        assert "csv" in said

    def test_the_list_names_every_data_set(self) -> None:
        code, said = self.run("list", "--json")
        assert code == 0
        names = {one["name"] for one in json.loads(said)["datasets"]}
        assert {"ham10000", "isic2019-test", "pad-ufes-20", "camelyon17", "csv", "folders"} <= names
        code, said = self.run("list")
        assert code == 0
        assert "ham10000" in said
