from __future__ import annotations

import numpy as np
import pytest

from calcode.cohorts import Cohort
from calcode.errors import EvidenceError, RoleError
from calcode.method.evidence import Evidence

N = 12


@pytest.fixture
def cohort() -> Cohort:
    rng = np.random.default_rng(0)
    evidence = Evidence(
        embeddings=np.eye(N),
        prompt_logits=rng.normal(size=(N, 2, 3)),
        labels=np.arange(N) % 4 - 1,
        classes="abc",
        ids=[f"i{i}" for i in range(N)],
    )
    return Cohort(
        evidence=evidence,
        metadata={"number": np.arange(N), "site": np.array(["east", "west", "south"])[np.arange(N) % 3]},
        roles=np.array(["gate", "test"])[np.arange(N) // 6],
    )


@pytest.mark.parametrize("rows", [slice(2, 9, 3), np.arange(N) % 2 == 0, [5, 1, 1], 7, np.int64(-1)])
def test_a_selection_keeps_all_columns_together(cohort: Cohort, rows: object) -> None:
    part = cohort[rows]
    index = np.atleast_1d(np.arange(N)[rows])
    assert part.column("number").tolist() == index.tolist()
    assert part.evidence.ids.tolist() == [f"i{i}" for i in index]
    assert np.array_equal(part.evidence.prompt_logits, cohort.evidence.prompt_logits[index])
    assert part.roles.tolist() == cohort.roles[index].tolist()
    assert part.column("id").tolist() == part.evidence.ids.tolist()
    assert part.column("role").tolist() == part.roles.tolist()


def test_restriction_then_in_space_leaves_the_rows_of_the_kept_classes(cohort: Cohort) -> None:
    kept = cohort.restrict(["c", "a"]).in_space_only()
    original = cohort.evidence.labels[kept.column("number")]
    assert kept.column("number").tolist() == np.flatnonzero(np.isin(cohort.evidence.labels, [0, 2])).tolist()
    assert np.array_equal(kept.evidence.labels, np.where(original == 2, 0, 1))
    assert np.array_equal(
        kept.evidence.prompt_logits, cohort.evidence.prompt_logits[kept.column("number")][:, :, [2, 0]]
    )


def test_roles_are_selected_by_name(cohort: Cohort) -> None:
    assert cohort.with_role("test").column("number").tolist() == list(range(6, 12))
    assert len(cohort.with_role("test", "gate")) == N
    with pytest.raises(RoleError, match=r"\['calibration'\] is no role of this cohort; it has \['gate', 'test'\]"):
        cohort.with_role("calibration")
    with pytest.raises(RoleError, match="this cohort has none"):
        Cohort(evidence=cohort.evidence).with_role("test")


def test_an_unknown_column_is_named_with_those_there_are(cohort: Cohort) -> None:
    with pytest.raises(EvidenceError, match=r"no 'group' in this cohort; it has \['id', 'number', 'role', 'site'\]"):
        cohort.column("group")


def test_columns_of_another_length_are_refused(cohort: Cohort) -> None:
    with pytest.raises(EvidenceError, match=r"site: \(3,\) values for 12 images"):
        Cohort(evidence=cohort.evidence, metadata={"site": np.arange(3)})
    with pytest.raises(EvidenceError, match="roles: "):
        Cohort(evidence=cohort.evidence, roles=np.array(["gate"]))


def test_the_representation_says_what_is_in_it(cohort: Cohort) -> None:
    assert repr(cohort) == (
        "Cohort(12 images, classes [a, b, c]; labels: 9 in the label space, 3 outside; "
        "roles [gate, test]; metadata [number, site])"
    )
