"""The readers on the owners' own CSV files, where these are at hand (they are not part of the project)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from doc_blocks import ROOT

from calcode.cohorts import ROLES
from calcode.datasets import ImageListing
from calcode.datasets.ham10000 import ham10000_setting, is_ham10000_id, read_ham10000, rosendahl_setting
from calcode.datasets.isic import read_isic2018_test, read_isic2019_training
from calcode.datasets.pad_ufes_20 import read_pad_ufes_20
from calcode.datasets.registry import external_setting, pad_ufes_20_setting
from calcode.errors import CalcodeWarning, DatasetError

FOLDER = ROOT.parent / "shared" / "metadata"

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason=f"the published CSV files are not at hand ({FOLDER} does not exist)"
)


def read(reader: Callable[..., ImageListing], *folders: Path, **options: object) -> ImageListing:
    """Without images; every other count must be the published one, so this is all the warnings say."""
    with pytest.warns(CalcodeWarning) as caught:
        listing = reader(*folders, **options)
    for one in caught:
        said = str(one.message).partition(": ")[2]
        assert "image files are missing" in said
        assert ";" not in said
    return listing


def test_ham10000() -> None:
    listing = read(read_ham10000, FOLDER)
    assert len(listing) == 10_015
    assert len(set(listing.groups)) == 7470
    assert listing.counts == {"akiec": 327, "bcc": 514, "bkl": 1099, "df": 115, "mel": 1113, "nv": 6705, "vasc": 142}
    assert Counter(listing.metadata["site"].tolist()) == {
        "vidir_molemax": 3954,
        "vidir_modern": 3363,
        "rosendahl": 2259,
        "vienna_dias": 439,
    }
    assert all(map(is_ham10000_id, listing.ids))


def test_the_papers_split_of_ham10000() -> None:
    listing = read(ham10000_setting, FOLDER)
    assert listing.roles is not None
    found = Counter(listing.roles.tolist())
    for role, size in zip(ROLES, (2040, 1935, 1986, 2050, 2004), strict=True):
        assert found[role] == pytest.approx(size, abs=5)


def test_rosendahl() -> None:
    listing = read(rosendahl_setting, FOLDER)
    assert listing.roles is not None
    assert (listing.roles == "external").sum() == 2259
    assert listing[listing.roles == "external"].counts["vasc"] == 3


def test_isic2019_training_holds_all_of_ham10000() -> None:
    listing = read(read_isic2019_training, FOLDER)
    ham = read(read_ham10000, FOLDER)
    assert len(listing) == 25_331
    assert listing.counts == {
        "akiec": 867,
        "bcc": 3323,
        "bkl": 2624,
        "df": 239,
        "mel": 4522,
        "nv": 12_875,
        "vasc": 253,
        "scc": 628,
    }
    assert not any(name.endswith("_downsampled") for name in listing.ids)
    assert listing.repeated_ids == ()
    assert set(ham.ids) <= set(listing.ids)
    # What HAM10000 calls akiec (with Bowen's disease in it) is SCC here for 197 of its 327 images.
    label_here = dict(zip(listing.ids.tolist(), listing.label_names.tolist(), strict=True))
    akiec = ham.ids[ham.label_names == "akiec"].tolist()
    assert Counter(label_here[name] for name in akiec) == {"scc": 197, "akiec": 130}


def test_isic2019_training_as_an_external_cohort() -> None:
    source = read(ham10000_setting, FOLDER)
    with pytest.raises(DatasetError, match="external: 10,015 ids"):
        external_setting(source, read(read_isic2019_training, FOLDER))
    rest = read(read_isic2019_training, FOLDER, without_ham10000=True)
    assert len(rest) == 15_316
    assert set(rest.metadata["site"]) == {"", "bcn", "msk"}
    both = external_setting(source, rest)
    assert len(both) == 25_331
    named = read(read_isic2019_training, FOLDER, exclude_ids=source.ids.tolist())
    assert named.ids.tolist() == rest.ids.tolist()


def test_isic2018_test() -> None:
    listing = read(read_isic2018_test, FOLDER)
    assert len(listing) == 1511
    assert "ISIC_0035068" not in listing.ids


def test_pad_ufes_20() -> None:
    listing = read(read_pad_ufes_20, FOLDER)
    assert len(listing) == 2298
    assert listing.counts == {"akiec": 730, "bcc": 845, "bkl": 235, "mel": 52, "nv": 244, "scc": 192}
    assert listing.in_space.sum() == 2106
    assert len(set(listing.groups)) == 1373
    assert np.isnan(listing.metadata["fitzpatrick"]).sum() == 804
    assert (listing.metadata["sex"] == "").sum() == 804


def test_ham10000_to_pad_ufes_20() -> None:
    listing = read(pad_ufes_20_setting, FOLDER, FOLDER)
    assert listing.roles is not None
    away = listing[listing.roles == "external"]
    assert (away.in_space.sum(), (~away.in_space).sum()) == (2106, 192)
    assert len(listing) == 10_015 - 115 - 142 + 2298
