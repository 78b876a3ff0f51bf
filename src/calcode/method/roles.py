"""The data roles of METHOD.md 1: checks of evidence, and that no image or group has two roles."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import numpy as np

from calcode.arrays import IntArray
from calcode.errors import EvidenceError, MismatchError, RoleError
from calcode.method.evidence import Evidence

#: Two roles with the same embeddings, at least this many of them different, cannot agree by chance.
_TELLING = 20
#: Bytes of a keyed hash.
HASH_BYTES = 16
#: The roles of a fit, in the order of their use.
FITTED_ROLES = ("reference", "validation", "gate", "calibration")
_SHOWN = 5
_COMPARED = {
    "classes": "classes or their order",
    "n_prompts": "number of prompts",
    "dimension": "embedding dimension",
    "prompt_digest": "prompt digest",
    "backbone": "backbone",
}


def keyed_hashes(key: bytes, values: Iterable[str | bytes]) -> list[bytes]:
    """Keyed hashes, as hex and in order, that replace ids and groups in a file.

    Examples
    --------
    >>> [len(digest) for digest in keyed_hashes(bytes(16), ["patient 7", "patient 8"])]
    [32, 32]
    """
    # A hash that already contains the key: copying it costs a third of creating a new one.
    keyed = hashlib.blake2b(key=key, digest_size=HASH_BYTES)
    hashed = []
    for value in values:
        hasher = keyed.copy()
        hasher.update(value if isinstance(value, bytes) else value.encode())
        hashed.append(hasher.hexdigest().encode())
    return hashed


@dataclass(frozen=True, kw_only=True)
class EvidenceFormat:
    """Classes, prompts, dimension and origin of the evidence a model was fitted on."""

    classes: tuple[str, ...]
    n_prompts: int
    dimension: int
    prompt_digest: str | None
    backbone: str | None

    @classmethod
    def from_evidence(cls, evidence: Evidence) -> Self:
        """The format of this evidence."""
        return cls(
            classes=evidence.classes,
            n_prompts=evidence.n_prompts,
            dimension=evidence.dimension,
            prompt_digest=evidence.prompt_digest,
            backbone=evidence.backbone,
        )

    def require(self, evidence: Evidence, *, role: str) -> None:
        """Raise `MismatchError` that names the first difference."""
        if type(evidence) is not Evidence:
            require_evidence(evidence, role=role)
        found = {
            "classes": evidence.classes,
            "n_prompts": evidence.prompt_logits.shape[1],
            "dimension": evidence.embeddings.shape[1],
            "prompt_digest": evidence.prompt_digest,
            "backbone": evidence.backbone,
        }
        for name, what in _COMPARED.items():
            if found[name] != getattr(self, name):
                raise MismatchError(
                    f"{role}: {what} {_shown(found[name])} differs from {_shown(getattr(self, name))} that the model "
                    "was fitted on; pass evidence made as that was, or fit on evidence made like this"
                )


def checked_roles(roles: Mapping[str, Evidence]) -> tuple[EvidenceFormat, RoleHashes]:
    """Check that the roles match and are disjoint (METHOD.md 1), before any work is done.

    Parameters
    ----------
    roles : mapping of str to Evidence
        By role name, the reference first: the others must have its format.
    """
    for role, evidence in roles.items():
        require_evidence(evidence, role=role)
    expected = EvidenceFormat.from_evidence(roles["reference"])
    for role, evidence in roles.items():
        if len(evidence) == 0:
            raise RoleError(f"{role}: the role is empty")
        expected.require(evidence, role=role)
        if role in ("validation", "calibration"):
            labels_in_space(evidence, role=role)
    for (role, evidence), (other, earlier) in itertools.combinations(roles.items(), 2):
        # Works even if there are no ids or groups to compare.
        same = np.array_equal(evidence.embeddings, earlier.embeddings)
        if same and len(np.unique(evidence.embeddings, axis=0)) >= _TELLING:
            raise RoleError(
                f"{other}: the same images as in the {role} role; the roles must share neither images nor groups"
            )
    hashes = RoleHashes(bytes.fromhex(roles["reference"].embeddings_digest))
    for role, evidence in roles.items():
        hashes = hashes.admit(role, evidence)
    return expected, hashes


def require_evidence(given: object, *, role: str) -> None:
    """Raise unless `given` is `Evidence`; a feature file, for example, yields a cohort that holds it."""
    if isinstance(given, Evidence):
        return
    remedy = "pass cohort.evidence" if hasattr(given, "evidence") else "make it with Evidence.from_text(...)"
    raise EvidenceError(f"{role}: {type(given).__name__} given, Evidence needed; {remedy}")


def labels_in_space(evidence: Evidence, *, role: str) -> IntArray:
    """Return the labels; raise `RoleError` if they are missing or one is outside the label space."""
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


@dataclass(frozen=True, eq=False)
class RoleHashes:
    """Members of each role as keyed hashes: the overlap check of METHOD.md 1 without ids in clear text.

    Parameters
    ----------
    key : bytes
        Differs between models, so that hashes of two models cannot be linked.
    hashes : dict
        (role, "ids" or "groups") to 16-byte hashes in hexadecimal digits.
    """

    key: bytes
    hashes: dict[tuple[str, str], frozenset[bytes]] = field(default_factory=dict)

    def admit(self, role: str, evidence: Evidence) -> RoleHashes:
        """Return the hashes with one more role, after checking that it overlaps with no earlier role."""
        named = identities(evidence)
        self.require_disjoint(role, named)
        added = {(role, kind): frozenset(keyed_hashes(self.key, values)) for kind, values in named.items()}
        return RoleHashes(self.key, self.hashes | added)

    def require_disjoint(self, role: str, named: Mapping[str, Collection[str]]) -> None:
        """Raise `RoleError` that names the ids or groups, as from `identities`, that another role already holds."""
        for kind, values in named.items():
            digests = keyed_hashes(self.key, values)
            for (other, other_kind), known in self.hashes.items():
                if other_kind == kind and other != role and not known.isdisjoint(digests):
                    n, shown = _shared(values, digests, known)
                    raise RoleError(
                        f"{kind}: {n} of the {role} role are in the {other} role too ({shown}); the roles must share "
                        "neither images nor groups: split by group, or drop these rows"
                    )

    def require_new(self, argument: str, named: Mapping[str, Collection[str]]) -> None:
        """Raise `RoleError` that names the ids or groups, as from `identities`, on which the model was fitted."""
        for kind, values in named.items():
            digests = keyed_hashes(self.key, values)
            for (role, role_kind), known in self.hashes.items():
                if role_kind == kind and not known.isdisjoint(digests):
                    n, shown = _shared(values, digests, known)
                    of_these = {"ids": "of these images", "groups": "of the groups of these images"}[kind]
                    raise RoleError(
                        f"{argument}: {n:,} {of_these} {'was' if n == 1 else 'were'} used to fit the model as {role} "
                        f"({shown}); give images of patients that it has not seen"
                    )

    def holds(self, kind: str, values: Iterable[str]) -> list[bool]:
        """Whether each id ("ids") or group ("groups") was in any role; an empty value never was."""
        known, asked = self._in_any_role.get(kind, frozenset()), list(values)
        if not known:
            return [False] * len(asked)
        return [
            value != "" and digest in known for digest, value in zip(keyed_hashes(self.key, asked), asked, strict=True)
        ]

    def first_words(self) -> dict[str, IntArray]:
        """First eight bytes of every hash in any role, as numbers, for "ids" and "groups" if present."""
        return {
            kind: np.array([bytes.fromhex(digest[:16].decode()) for digest in digests], dtype="V8").view(np.int64)
            for kind, digests in self._in_any_role.items()
        }

    @cached_property
    def _in_any_role(self) -> dict[str, frozenset[bytes]]:
        kinds = {kind for _, kind in self.hashes}
        return {
            kind: frozenset().union(*(hashes for (_, own), hashes in self.hashes.items() if own == kind))
            for kind in kinds
        }


def _shared(values: Iterable[str], digests: Iterable[bytes], known: Collection[bytes]) -> tuple[int, str]:
    """Count the values that have a known hash, and list the first of them."""
    shared = sorted(value for value, digest in zip(values, digests, strict=True) if digest in known)
    more = f" and {len(shared) - _SHOWN:,} more" if len(shared) > _SHOWN else ""
    return len(shared), f"{', '.join(shared[:_SHOWN])}{more}"


def identities(evidence: Evidence) -> dict[str, set[str]]:
    """The different ids and groups that the evidence has; an empty text is a missing value."""
    columns = {"ids": evidence.ids, "groups": evidence.groups}
    return {
        kind: {value for value in column.tolist() if value} for kind, column in columns.items() if column is not None
    }
