"""Small folders of our own with the columns and names of the published data sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest
from dataset_makers import write_csv, write_image

HAM_HEADER = ("lesion_id", "image_id", "dx", "dx_type", "age", "sex", "localization", "dataset")
HAM_ROWS = (
    ("HAM_0000001", "ISIC_0024306", "nv", "follow_up", "45.0", "male", "back", "vidir_molemax"),
    ("HAM_0000001", "ISIC_0024307", "nv", "follow_up", "45.0", "male", "back", "vidir_molemax"),
    ("HAM_0000002", "ISIC_0024308", "mel", "histo", "80.0", "female", "unknown", "rosendahl"),
    ("HAM_0000003", "ISIC_0024309", "akiec", "histo", "", "unknown", "face", "rosendahl"),
)


@pytest.fixture
def ham_folder(tmp_path: Path) -> Path:
    """Four images of three lesions in the two folders of the published archives."""
    folder = tmp_path / "ham"
    write_csv(folder / "HAM10000_metadata.csv", HAM_HEADER, HAM_ROWS)
    for number, row in enumerate(HAM_ROWS):
        part = "HAM10000_images_part_1" if number < 2 else "HAM10000_images_part_2"
        write_image(folder / part / f"{row[1]}.jpg", shade=number)
    return folder


ISIC_HEADER = ("image", "MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC", "UNK")


def one_hot(name: str, label: str, *extra: str) -> tuple[str, ...]:
    return (name, *("1.0" if column == label else "0.0" for column in ISIC_HEADER[1:]), *extra)


@pytest.fixture
def isic_training_folder(tmp_path: Path) -> Path:
    """Five images: one `_downsampled`, one SCC, one of HAM10000."""
    folder = tmp_path / "isic-training"
    rows = [
        one_hot("ISIC_0000000", "NV"),
        one_hot("ISIC_0000030_downsampled", "AK"),
        one_hot("ISIC_0053463", "SCC"),
        one_hot("ISIC_0024306", "NV"),
        one_hot("ISIC_0053464", "MEL"),
    ]
    write_csv(folder / "ISIC_2019_Training_GroundTruth.csv", ISIC_HEADER, rows)
    write_csv(
        folder / "ISIC_2019_Training_Metadata.csv",
        ("image", "age_approx", "anatom_site_general", "lesion_id", "sex", "diagnosis"),
        [
            ("ISIC_0000000", "55", "anterior torso", "", "female", ""),
            ("ISIC_0000030_downsampled", "", "", "MSK4_0000011", "", ""),
            ("ISIC_0053463", "70", "head/neck", "BCN_0000001", "male", ""),
            ("ISIC_0024306", "45", "posterior torso", "HAM_0000001", "male", ""),
        ],
    )
    for number, row in enumerate(rows):
        write_image(folder / "ISIC_2019_Training_Input" / f"{row[0]}.jpg", shade=10 + number)
    return folder


@pytest.fixture
def isic_test_folder(tmp_path: Path) -> Path:
    """Four images of the test release, with its two further columns and without lesions."""
    folder = tmp_path / "isic-test"
    rows = [
        one_hot("ISIC_0034321", "UNK", "0.0", "1.0"),
        one_hot("ISIC_0034322", "AK", "1.0", "0.0"),
        one_hot("ISIC_0034323_downsampled", "VASC", "1.0", "0.0"),
        one_hot("ISIC_0034324", "SCC", "1.0", "0.0"),
    ]
    header = (*ISIC_HEADER, "score_weight", "validation_weight")
    write_csv(folder / "ISIC_2019_Test_GroundTruth.csv", header, rows)
    write_csv(
        folder / "ISIC_2019_Test_Metadata.csv",
        ("image", "age_approx", "anatom_site_general", "sex"),
        [(row[0], "60", "upper extremity", "female") for row in rows],
    )
    for number, row in enumerate(rows):
        write_image(folder / "ISIC_2019_Test_Input" / f"{row[0]}.jpg", shade=20 + number)
    return folder


PAD_HEADER = (
    *("patient_id", "lesion_id", "smoke", "age", "gender", "fitspatrick", "region"),
    *("diagnostic", "img_id", "biopsed"),
)
PAD_ROWS = (
    ("PAT_1516", "1765", "", "8", "", "", "ARM", "NEV", "PAT_1516_1765_530.png", "False"),
    ("PAT_46", "881", "False", "55", "FEMALE", "3.0", "NECK", "BCC", "PAT_46_881_939.png", "True"),
    ("PAT_47", "881", "False", "65", "MALE", "2.0", "FACE", "ACK", "PAT_47_881_100.png", "False"),
    ("PAT_48", "7", "False", "75", "MALE", "1.0", "NOSE", "SCC", "PAT_48_7_101.png", "True"),
    ("PAT_49", "8", "False", "45", "MALE", "2.0", "BACK", "SEK", "PAT_49_8_102.png", "False"),
    ("PAT_50", "9", "False", "46", "MALE", "2.0", "BACK", "MEL", "PAT_50_9_103.png", "True"),
)


@pytest.fixture
def pad_folder(tmp_path: Path) -> Path:
    """Six photographs of six patients; the number of one lesion is used for two patients."""
    folder = tmp_path / "pad"
    write_csv(folder / "metadata.csv", PAD_HEADER, PAD_ROWS)
    for number, row in enumerate(PAD_ROWS):
        write_image(folder / "images" / f"imgs_part_{number % 3 + 1}" / row[8], shade=30 + number)
    return folder


@pytest.fixture
def camelyon_folder(tmp_path: Path) -> Callable[..., Path]:
    """A maker of Camelyon17 folders: patients per centre, patches per patient and class."""

    def make(*, patients: int = 1, patches: int = 1, with_images: bool = True) -> Path:
        folder = tmp_path / "wilds" / "camelyon17_v1.0"
        rows = list(_camelyon_rows(patients=patients, patches=patches))
        header = ("", "patient", "node", "x_coord", "y_coord", "tumor", "slide", "center", "split")
        write_csv(folder / "metadata.csv", header, rows)
        for number, row in enumerate(rows if with_images else ()):
            place = f"patient_{row[1]}_node_{row[2]}"
            name = f"patch_{place}_x_{row[3]}_y_{row[4]}.png"
            write_image(folder / "patches" / place / name, shade=number, size=(96, 96))
        return folder

    return make


def _camelyon_rows(*, patients: int, patches: int) -> Iterable[Sequence[str]]:
    number = 0
    for centre in range(5):
        for patient in range(patients):
            name = f"{20 * centre + patient + 4:03d}"
            for patch in range(patches):
                for tumor in range(2):
                    yield tuple(str(one) for one in (number, name, 1, 32 * patch, 32 * tumor, tumor, centre, centre, 0))
                    number += 1
