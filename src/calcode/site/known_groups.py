"""Which images belong to a group that the site model has seen, without ids in clear (SITE.md S1 and S11)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from calcode.arrays import AnyArray, BoolArray, IntArray, TextArray
from calcode.errors import RoleError
from calcode.method.evidence import Evidence

_HASH_BYTES = 16
_SHOWN = 5


@dataclass(frozen=True, eq=False)
class KnownGroups:
    """Keyed hashes of the groups in bag, trainers and gate, and of the bag's ids.

    Parameters
    ----------
    key : bytes
        Differs from model to model.
    unit : {"group", "image"}
        With "image" every image is its own group and is known by its id.
    hashes : dict of str to ndarray of bytes
        "bag" and "bag_ids" in the order of the bag, "trainers" and "gate" sorted. An image without a group or an id
        has a digest of its own in that place, so that every digest is one and no two of the bag are equal.
    """

    key: bytes
    unit: str
    hashes: dict[str, AnyArray] = field(default_factory=dict)

    def admit(self, role: str, evidence: Evidence) -> KnownGroups:
        """With one more role, after the check that none of its groups is in the bag."""
        rows = [
            self._hash(f"image {row}".encode() + embedding.tobytes())
            for row, embedding in enumerate(evidence.embeddings)
        ]
        groups, ids = (
            np.where((hashed := self._hashed(evidence, kind)) == b"", np.array(rows, dtype=hashed.dtype), hashed)
            for kind in ("groups", "ids")
        )
        if role == "bag":
            return KnownGroups(self.key, self.unit, self.hashes | {"bag": groups, "bag_ids": ids})
        own_rows, _ = self.find(evidence)
        shared = np.flatnonzero(own_rows >= 0)
        if len(shared):
            names = evidence.groups if evidence.groups is not None and self.unit == "group" else evidence.ids
            raise RoleError(_shared_message(role, rows=shared, names=names))
        return KnownGroups(self.key, self.unit, self.hashes | {role: np.unique(groups)})

    def find(self, evidence: Evidence) -> tuple[IntArray, BoolArray]:
        """Row of the bag that shares the image's group, -1 without one, and whether its group is known at all.

        Returns
        -------
        own_rows : ndarray of shape (n,)
        known : ndarray of bool, shape (n,)
        """
        groups, ids = self._hashed(evidence, "groups"), self._hashed(evidence, "ids")
        by_group, by_id = self._rows
        own_rows = np.array(
            [by_group.get(group, by_id.get(name, -1)) for group, name in zip(groups, ids, strict=True)], dtype=np.int64
        )
        others = np.concatenate([self.hashes.get(role, groups[:0]) for role in ("trainers", "gate")])
        return own_rows, (own_rows >= 0) | (np.isin(groups, others) & (groups != b""))

    @cached_property
    def _rows(self) -> tuple[dict[bytes, int], dict[bytes, int]]:
        by_group, by_id = (
            {value: row for row, value in enumerate(self.hashes[name].tolist())} for name in ("bag", "bag_ids")
        )
        return by_group, by_id

    def _hashed(self, evidence: Evidence, kind: str) -> AnyArray:
        """Hash of each row's group or id, empty where there is none; shape (n,)."""
        column: TextArray | None = getattr(evidence, kind)
        if column is None or (kind == "groups" and self.unit == "image"):
            return np.zeros(len(evidence), dtype=f"S{2 * _HASH_BYTES}")
        hashed = [self._hash(value.encode()) if value else b"" for value in column.tolist()]
        return np.array(hashed, dtype=f"S{2 * _HASH_BYTES}")

    def _hash(self, value: bytes) -> bytes:
        keyed = self._keyed.copy()
        keyed.update(value)
        return keyed.hexdigest().encode()

    @cached_property
    def _keyed(self) -> hashlib.blake2b:
        """A hash that has taken the key in already: a copy of it costs a third of a new one."""
        return hashlib.blake2b(key=self.key, digest_size=_HASH_BYTES)


def _shared_message(role: str, *, rows: IntArray, names: TextArray | None) -> str:
    shown: Sequence[str] = [str(row) if names is None else str(names[row]) for row in rows[:_SHOWN]]
    more = f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
    return (
        f"{role}: {len(rows)} images belong to groups of the reviewed cases that calibrate ({', '.join(shown)}{more}); "
        "leave these groups out of one of the two"
    )
