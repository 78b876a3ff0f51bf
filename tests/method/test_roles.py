from __future__ import annotations

import numpy as np
import pytest

from calcode import Evidence
from calcode.errors import RoleError
from calcode.method.roles import RoleHashes, identities


def evidence(ids: list[str] | None, groups: list[str | None] | None = None) -> Evidence:
    n = len(ids or groups or [])
    return Evidence(
        embeddings=np.ones((n, 1)), prompt_logits=np.zeros((n, 1, 2)), classes=["a", "b"], ids=ids, groups=groups
    )


def test_disjoint_roles_pass_and_shared_ids_are_named() -> None:
    ledger = RoleHashes(b"key").admit("reference", evidence(["a", "b"])).admit("gate", evidence(["c"]))
    with pytest.raises(RoleError, match=r"ids: 2 of the test role are in the reference role too \(a, b\)"):
        ledger.require_disjoint("test", identities(evidence(["b", "x", "a"])))
    ledger.require_disjoint("gate", identities(evidence(["c"])))


def test_what_a_model_was_fitted_on_is_said_without_a_role_that_nobody_gave() -> None:
    ledger = RoleHashes(b"key").admit("reference", evidence(["a", "b"])).admit("gate", evidence(None, ["c"]))
    with pytest.raises(
        RoleError, match=r"evidence: 2 of these images were used to fit the model as reference \(a, b\)"
    ):
        ledger.require_new("evidence", identities(evidence(["b", "x", "a"])))
    with pytest.raises(RoleError, match=r"^evidence: 1 of the groups of these images was used"):
        ledger.require_new("evidence", identities(evidence(None, ["c"])))


def test_many_offenders_are_counted_not_listed() -> None:
    names = [f"image{i:02d}" for i in range(30)]
    ledger = RoleHashes(b"key").admit("reference", evidence(names))
    with pytest.raises(RoleError, match=r"30 of .*image00, .*image04 and 25 more"):
        ledger.require_disjoint("test", identities(evidence(names)))


def test_missing_groups_are_not_shared() -> None:
    ledger = RoleHashes(b"key").admit("reference", evidence(None, ["", None, "lesion"]))
    ledger.require_disjoint("test", identities(evidence(None, [None, ""])))
    with pytest.raises(RoleError, match=r"groups: 1 of .*lesion"):
        ledger.require_disjoint("test", identities(evidence(None, ["lesion"])))


def test_hashes_depend_on_the_key_and_not_on_the_order() -> None:
    first = RoleHashes(b"one").admit("gate", evidence(["a", "b"])).hashes["gate", "ids"]
    swapped = RoleHashes(b"one").admit("gate", evidence(["b", "a"])).hashes["gate", "ids"]
    other = RoleHashes(b"two").admit("gate", evidence(["a", "b"])).hashes["gate", "ids"]
    assert len(first) == 2
    assert first == swapped
    assert not first & other
