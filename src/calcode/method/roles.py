"""What evidence must look like to be understood by a fitted model."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from calcode.arrays import IntArray
from calcode.errors import EvidenceError, MismatchError, RoleError
from calcode.method.evidence import Evidence
from calcode.method.role_hashes import RoleLedger, embeddings_digest

#: Different images from which on two roles cannot have the same ones by chance.
_TELLING = 20
_COMPARED = {
    "classes": "classes or their order",
    "n_prompts": "number of prompts",
    "dimension": "embedding dimension",
    "prompt_digest": "prompt digest",
    "backbone": "backbone",
}


@dataclass(frozen=True, kw_only=True)
class Interface:
    """Classes, prompts, dimension and origin of the evidence a model was fitted on."""

    classes: tuple[str, ...]
    n_prompts: int
    dimension: int
    prompt_digest: str | None
    backbone: str | None

    @classmethod
    def of(cls, evidence: Evidence) -> Self:
        """The interface that this evidence has."""
        return cls(
            classes=evidence.classes,
            n_prompts=evidence.n_prompts,
            dimension=evidence.dimension,
            prompt_digest=evidence.prompt_digest,
            backbone=evidence.backbone,
        )

    def require(self, evidence: Evidence, *, role: str) -> None:
        """Raise `MismatchError` naming the first thing that differs."""
        require_evidence(evidence, role=role)
        given = Interface.of(evidence)
        for name, what in _COMPARED.items():
            expected, found = getattr(self, name), getattr(given, name)
            if expected != found:
                raise MismatchError(
                    f"{role}: {what} {_shown(found)} differs from {_shown(expected)} that the model was fitted on; "
                    "pass evidence made as that was, or fit on evidence made like this"
                )


def checked_roles(roles: Mapping[str, Evidence]) -> tuple[Interface, RoleLedger]:
    """Check that roles fit together and are disjoint (METHOD.md 1), before any work is done.

    Parameters
    ----------
    roles : mapping of str to Evidence
        By role name, the reference first: it sets the interface.
    """
    for role, evidence in roles.items():
        require_evidence(evidence, role=role)
    interface = Interface.of(roles["reference"])
    for role, evidence in roles.items():
        if len(evidence) == 0:
            raise RoleError(f"{role}: the role is empty")
        interface.require(evidence, role=role)
        if role in ("validation", "calibration"):
            labels_in_space(evidence, role=role)
    for (role, evidence), (other, earlier) in itertools.combinations(roles.items(), 2):
        # Seen even where there are neither ids nor groups to compare.
        same = np.array_equal(evidence.embeddings, earlier.embeddings)
        if same and len(np.unique(evidence.embeddings, axis=0)) >= _TELLING:
            raise RoleError(
                f"{other}: the same images as in the {role} role; the roles must share neither images nor groups"
            )
    ledger = RoleLedger(bytes.fromhex(embeddings_digest(roles["reference"].embeddings)))
    for role, evidence in roles.items():
        ledger = ledger.admit(role, evidence)
    return interface, ledger


def require_evidence(given: object, *, role: str) -> None:
    """Raise unless it is `Evidence`: what a feature file gives is a cohort that holds it."""
    if isinstance(given, Evidence):
        return
    remedy = "pass cohort.evidence" if hasattr(given, "evidence") else "make it with Evidence.from_text(...)"
    raise EvidenceError(f"{role}: {type(given).__name__} given, Evidence needed; {remedy}")


def labels_in_space(evidence: Evidence, *, role: str) -> IntArray:
    """The labels, none of them missing and none outside the label space, or a `RoleError`."""
    if evidence.labels is None:
        raise RoleError(f"{role}: labels are needed and the evidence has none")
    outside = np.flatnonzero(evidence.labels < 0)
    if len(outside):
        raise RoleError(
            f"{role}: {len(outside)} labels of -1 (first: row {outside[0]}); images outside the label space may "
            "be in reference, gate and test only"
        )
    return evidence.labels


def _shown(value: object) -> str:
    if value is None:
        return "(none)"
    return str(list(value)) if isinstance(value, tuple) else repr(value)
