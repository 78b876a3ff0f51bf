"""Who was in which role, as keyed hashes: the overlap check of METHOD.md 1 without ids in clear."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from calcode.arrays import AnyArray, FloatArray, TextArray
from calcode.errors import RoleError
from calcode.method.evidence import Evidence

_HASH_BYTES = 16
_SHOWN = 5
KINDS = ("ids", "groups")


def embeddings_digest(embeddings: FloatArray) -> str:
    """SHA-256 of the embeddings' bytes."""
    return hashlib.sha256(np.ascontiguousarray(embeddings).data).hexdigest()


@dataclass(frozen=True, eq=False)
class RoleLedger:
    """Keyed hashes of the ids and groups of every role that has been used.

    Parameters
    ----------
    key : bytes
        Differs from model to model, so that hashes of two models cannot be joined.
    hashes : dict
        (role, "ids" or "groups") to an ascending array of 16-byte hashes.
    """

    key: bytes
    hashes: dict[tuple[str, str], AnyArray] = field(default_factory=dict)

    def admit(self, role: str, evidence: Evidence) -> RoleLedger:
        """The ledger with one more role, after the check that it overlaps with none before."""
        self.require_disjoint(role, evidence)
        entries = {
            (role, kind): self._hashed(set(_values(evidence, kind))) for kind in KINDS if _has(evidence, kind)
        }
        return RoleLedger(self.key, self.hashes | entries)

    def require_disjoint(self, role: str, evidence: Evidence) -> None:
        """Raise `RoleError` naming the ids or groups that another role holds already."""
        for kind in KINDS:
            if not _has(evidence, kind):
                continue
            hashed = {self._hash(value): value for value in set(_values(evidence, kind))}
            for (other, other_kind), known in self._known.items():
                if other_kind == kind and other != role:
                    shared = sorted(hashed[key] for key in hashed.keys() & known)
                    if shared:
                        raise RoleError(_overlap_message(kind, shared, role, other))

    def _hashed(self, values: Iterable[str]) -> AnyArray:
        # Sorted, so that the order tells nothing about the rows.
        return np.array(sorted(self._hash(value) for value in values), dtype=f"S{_HASH_BYTES * 2}")

    def _hash(self, value: str) -> bytes:
        hasher = self._keyed.copy()
        hasher.update(value.encode())
        return hasher.hexdigest().encode()

    @cached_property
    def _keyed(self) -> hashlib.blake2b:
        """A hash that has taken the key in already: a copy of it costs a third of a new one."""
        return hashlib.blake2b(key=self.key, digest_size=_HASH_BYTES)

    @cached_property
    def _known(self) -> dict[tuple[str, str], frozenset[bytes]]:
        return {entry: frozenset(hashes.tolist()) for entry, hashes in self.hashes.items()}


def _has(evidence: Evidence, kind: str) -> bool:
    return getattr(evidence, kind) is not None


def _values(evidence: Evidence, kind: str) -> list[str]:
    column: TextArray = getattr(evidence, kind)
    # An empty text means that the value is missing for this row.
    return [value for value in column.tolist() if value]


def _overlap_message(kind: str, shared: list[str], role: str, other: str) -> str:
    shown = ", ".join(shared[:_SHOWN]) + (f" and {len(shared) - _SHOWN} more" if len(shared) > _SHOWN else "")
    return (
        f"{kind}: {len(shared)} of the {role} role are in the {other} role too ({shown}); the roles must share "
        "neither images nor groups: split by group, or drop these rows"
    )
