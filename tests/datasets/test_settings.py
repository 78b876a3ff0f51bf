from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dataset_makers import write_csv

from calcode.cohorts import ROLES
from calcode.datasets.camelyon17 import camelyon17_setting
from calcode.datasets.ham10000 import HAM10000_SIZES, ham10000_setting, rosendahl_setting
from calcode.datasets.isic import read_isic2019_training
from calcode.datasets.registry import external_setting, isic2019_setting, pad_ufes_20_setting
from calcode.errors import CalcodeWarning, DatasetError


@pytest.fixture(autouse=True)
def _small_copies_are_small() -> Iterator[None]:
    """Every folder here is far from complete; that this is said is tested with the readers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        yield


@pytest.fixture
def many_lesions(tmp_path: Path) -> Path:
    """A table in the layout of HAM10000: 1,000 images of 700 lesions, some from Queensland; no images."""
    rng = np.random.default_rng(0)
    labels = rng.choice(["nv", "mel", "bkl", "df"], p=[0.6, 0.2, 0.15, 0.05], size=700)
    rows = []
    for lesion, label in enumerate(labels):
        for _ in range(1 + (lesion < 300)):
            image = f"ISIC_{24306 + len(rows):07d}"
            site = "rosendahl" if lesion % 5 == 0 else "vidir_modern"
            rows.append((f"HAM_{lesion:07d}", image, label, "histo", "50.0", "male", "back", site))
    header = ("lesion_id", "image_id", "dx", "dx_type", "age", "sex", "localization", "dataset")
    write_csv(tmp_path / "many" / "HAM10000_metadata.csv", header, rows)
    return tmp_path / "many"


def test_ham10000_in_the_papers_proportions_with_whole_lesions(many_lesions: Path) -> None:
    listing = ham10000_setting(many_lesions)
    assert listing.roles is not None
    found = Counter(listing.roles.tolist())
    for role, size in zip(ROLES, HAM10000_SIZES, strict=True):
        assert found[role] == pytest.approx(1000 * size / 10_015, abs=3)
    roles_of: dict[str, set[str]] = {}
    for group, role in zip(listing.groups.tolist(), listing.roles.tolist(), strict=True):
        roles_of.setdefault(group, set()).add(role)
    assert all(len(roles) == 1 for roles in roles_of.values())


def test_the_order_of_the_table_does_not_matter_and_the_seed_does(many_lesions: Path) -> None:
    def by_id(seed: int) -> dict[str, str]:
        listing = ham10000_setting(many_lesions, random_state=seed)
        assert listing.roles is not None
        return dict(zip(listing.ids.tolist(), listing.roles.tolist(), strict=True))

    before = by_id(0)
    table = many_lesions / "HAM10000_metadata.csv"
    header, *lines = table.read_text().splitlines()
    table.write_text("\n".join([header, *reversed(lines)]) + "\n")
    assert by_id(0) == before
    assert by_id(1) != before


def test_rosendahl_is_external_and_the_others_keep_their_roles(many_lesions: Path) -> None:
    home, away = ham10000_setting(many_lesions), rosendahl_setting(many_lesions)
    assert home.roles is not None
    assert away.roles is not None
    queensland = home.metadata["site"] == "rosendahl"
    assert (away.roles[queensland] == "external").all()
    np.testing.assert_array_equal(away.roles[~queensland], home.roles[~queensland])


def test_rosendahl_needs_the_column_of_sites(many_lesions: Path) -> None:
    table = many_lesions / "HAM10000_metadata.csv"
    lines = [line.rpartition(",")[0] for line in table.read_text().splitlines()]
    table.write_text("\n".join(lines) + "\n")
    with pytest.raises(DatasetError, match="no image has the site 'rosendahl'"):
        rosendahl_setting(many_lesions)


def test_pad_as_external_cohort_in_its_five_classes(many_lesions: Path, pad_folder: Path) -> None:
    listing = pad_ufes_20_setting(many_lesions, pad_folder)
    source = ham10000_setting(many_lesions)
    assert listing.roles is not None
    assert listing.classes == ("akiec", "bcc", "bkl", "mel", "nv")
    away = listing.roles == "external"
    assert away.sum() == 6
    assert listing.in_space[away].sum() == 5
    assert listing[away].counts["scc"] == 1
    # The source loses the classes that the photographs do not show, and nothing else.
    assert (~away).sum() == len(source) - source.counts["df"]
    assert listing.in_space[~away].all()
    assert set(listing.metadata["dataset"]) == {"ham10000", "pad-ufes-20"}
    assert listing.unknown_labels == ()


def test_isic2019_test_keeps_what_lies_outside(many_lesions: Path, isic_test_folder: Path) -> None:
    listing = isic2019_setting(many_lesions, isic_test_folder)
    assert listing.roles is not None
    away = listing[listing.roles == "external"]
    assert away.label_names.tolist() == ["unk", "akiec", "vasc", "scc"]
    assert len(listing) == 1004


def test_isic2019_training_is_refused_beside_ham10000(many_lesions: Path, isic_training_folder: Path) -> None:
    source = ham10000_setting(many_lesions)
    with pytest.raises(DatasetError, match=r"external: 1 ids .*ISIC_0024306.*without_ham10000=True"):
        external_setting(source, read_isic2019_training(isic_training_folder))
    kept = external_setting(source, read_isic2019_training(isic_training_folder, without_ham10000=True))
    assert len(kept) == 1000 + 4
    named = read_isic2019_training(isic_training_folder, exclude_ids=source.ids.tolist())
    assert len(external_setting(source, named)) == 1000 + 4


def test_a_shared_lesion_is_refused_even_if_no_image_is(many_lesions: Path, pad_folder: Path) -> None:
    source = ham10000_setting(many_lesions)
    other = replace(source[:1], ids=np.array(["another"]), roles=None)
    with pytest.raises(DatasetError, match="external: 1 groups"):
        external_setting(source, other)


def test_an_external_setting_needs_roles_and_common_classes(many_lesions: Path, pad_folder: Path) -> None:
    source = ham10000_setting(many_lesions)
    other = replace(source[:0], classes=("cat",), roles=None)
    with pytest.raises(DatasetError, match="share none"):
        external_setting(source, other)
    with pytest.raises(DatasetError, match="source: it has no roles"):
        external_setting(replace(source, roles=None), other)


class TestCamelyon17:
    def test_centre_two_is_held_out_and_patients_stay_whole(self, camelyon_folder: Callable[..., Path]) -> None:
        folder = camelyon_folder(patients=8, patches=30, with_images=False)
        listing = camelyon17_setting(folder, per_class=100)
        assert listing.roles is not None
        away = listing.roles == "external"
        assert set(listing.metadata["site"][away]) == {"centre 2"}
        assert "centre 2" not in set(listing.metadata["site"][~away])
        assert listing[away].counts == {"non-tumor": 100, "tumor": 100}
        assert listing[~away].counts == {"non-tumor": 100, "tumor": 100}
        assert set(listing.roles[~away]) == set(ROLES)
        patients = [set(listing.groups[listing.roles == role]) for role in ROLES]
        assert sum(map(len, patients)) == len(set.union(*patients))
        # Whole patients only: near the paper's share of the reference, not on it.
        assert 0.1 < (listing.roles == "reference").sum() / 200 < 0.3

    def test_the_draw_follows_the_seed_not_the_rows(self, camelyon_folder: Callable[..., Path]) -> None:
        folder = camelyon_folder(patients=3, patches=10, with_images=False)
        before = set(camelyon17_setting(folder, per_class=12).ids)
        table = folder / "metadata.csv"
        header, *lines = table.read_text().splitlines()
        table.write_text("\n".join([header, *reversed(lines)]) + "\n")
        assert set(camelyon17_setting(folder, per_class=12).ids) == before
        assert set(camelyon17_setting(folder, per_class=12, random_state=1).ids) != before

    def test_too_few_patches_are_said(self, camelyon_folder: Callable[..., Path]) -> None:
        folder = camelyon_folder(patients=3, patches=10, with_images=False)
        with pytest.warns(CalcodeWarning, match="50 of 'tumor' asked for, 30 there"):
            listing = camelyon17_setting(folder, per_class=50)
        assert listing.roles is not None
        assert (listing.roles == "external").sum() == 60
