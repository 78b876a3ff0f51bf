"""The demonstration data as they lie in the repository; a source distribution comes without them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from calcode.cohorts import open_features

FOLDER = Path(__file__).parents[2] / "demo-data" / "src" / "calcode_demo_data" / "data"

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the demonstration data are not here")


@pytest.fixture(scope="module")
def card() -> dict:
    return json.loads((FOLDER / "card.json").read_text())


def test_the_files_are_those_of_the_card(card: dict) -> None:
    assert {entry.name for entry in FOLDER.iterdir()} == {*card["files"], "card.json"}
    for name, facts in card["files"].items():
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == facts["sha256"], name


def test_the_cohort_is_as_described(card: dict) -> None:
    file = open_features(FOLDER / "lite0-derm.parquet")
    assert dict(file.role_counts) == card["roles"]
    assert (list(file.classes), file.backbone, file.n_rows) == (card["classes"], "lite0-derm", 12_284)
    stored = pq.read_schema(FOLDER / "lite0-derm.parquet")
    assert stored.field("embedding").type == pa.list_(pa.float16(), card["embedding_dim"])
    assert [name for name in stored.names if name != "embedding"] == [
        "id",
        "label_name",
        "role",
        "group",
        "dataset",
        "site",
        "age",
        "sex",
        "fitzpatrick",
        "anatomic_site",
        "source_label",
    ]
    assert file.prompts.temperature == pytest.approx(card["temperature"])
    assert list(file.prompts.templates) == card["templates"]


@pytest.mark.parametrize(
    ("metric", "choice", "classes"),
    [
        ("ham_test", pc.field("role") == "test", None),
        ("ham_site_rosendahl", pc.field("site") == "rosendahl", None),
        ("pad_5way", pc.field("dataset") == "padufes20", ["akiec", "bcc", "bkl", "mel", "nv"]),
    ],
)
def test_rounding_keeps_the_accuracy_of_the_full_features(
    card: dict, metric: str, choice: pc.Expression, classes: list[str] | None
) -> None:
    cohort = open_features(FOLDER / "lite0-derm.parquet").read(where=choice, classes=classes)
    evidence = cohort.in_space_only().evidence
    facts = card["metrics_of_float32"][metric]
    assert len(evidence) == facts["n"]
    right = evidence.prompt_logits.mean(axis=1).argmax(axis=1) == evidence.labels
    assert right.mean() == pytest.approx(facts["top1"], abs=1e-3)
    recalls = [right[evidence.labels == label].mean() for label in np.unique(evidence.labels)]
    assert np.mean(recalls) == pytest.approx(facts["balanced"], abs=1e-3)


def test_no_group_is_in_two_roles() -> None:
    cohort = open_features(FOLDER / "lite0-derm.parquet").read()
    roles_of = {}
    for group, role in zip(cohort.evidence.groups.tolist(), cohort.roles.tolist(), strict=True):
        roles_of.setdefault(group, set()).add(role)
    assert {len(roles) for roles in roles_of.values()} == {1}
