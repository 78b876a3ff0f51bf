"""Which images belong to a group that the site model has seen, without ids in clear text (SITE.md S1 and S11)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from calcode.arrays import AnyArray, BoolArray, IntArray
from calcode.errors import RoleError
from calcode.method.evidence import Evidence
from calcode.method.roles import HASH_BYTES, keyed_hashes

#: numpy type of a hash in hexadecimal digits.
_HEX = f"S{2 * HASH_BYTES}"
_SHOWN = 5


@dataclass(frozen=True, eq=False)
class KnownGroups:
    """Keyed hashes of the groups in bag, trainers and gate, and of the ids in the bag.

    Parameters
    ----------
    key : bytes
        Differs between models.
    unit : {"group", "image"}
        With "image" every image is its own group and is recognised by its id.
    hashes : dict of str to ndarray of bytes
        "bag" and "bag_ids" in the order of the bag, "trainers" and "gate" sorted. An image without a group or id has
        its own hash there, so that no entry is empty and no two entries of the bag are equal.
    """

    key: bytes
    unit: str
    hashes: dict[str, AnyArray] = field(default_factory=dict)

    def admit(self, role: str, evidence: Evidence) -> KnownGroups:
        """Return a copy with the bag, or with one more role after checking that none of its groups is in the bag."""
        groups, ids = self._own_hashes(evidence)
        if role == "bag":
            return KnownGroups(self.key, self.unit, self.hashes | {"bag": groups, "bag_ids": ids})
        self._require_new(role, evidence)
        return KnownGroups(self.key, self.unit, self.hashes | {role: np.unique(groups)})

    def with_reviewed(self, evidence: Evidence) -> KnownGroups:
        """Return a copy with further rows of the bag, after checking that their groups are not in it."""
        self._require_new("reviewed", evidence)
        groups, ids = self._own_hashes(evidence)
        joined = {
            name: np.concatenate([self.hashes[name], added]) for name, added in (("bag", groups), ("bag_ids", ids))
        }
        return KnownGroups(self.key, self.unit, self.hashes | joined)

    def _own_hashes(self, evidence: Evidence) -> tuple[AnyArray, AnyArray]:
        """Hashes of groups and ids; an image without one gets its own hash."""
        groups, ids = self._hashed(len(evidence), ids=evidence.ids, groups=evidence.groups)
        first = len(self.hashes.get("bag", ()))
        images = (f"image {first + row}".encode() + vector.tobytes() for row, vector in enumerate(evidence.embeddings))
        own = np.array(keyed_hashes(self.key, images), dtype=_HEX)
        return np.where(groups == b"", own, groups), np.where(ids == b"", own, ids)

    def _require_new(self, role: str, evidence: Evidence) -> None:
        own_rows, known = self.find(len(evidence), ids=evidence.ids, groups=evidence.groups)
        shared = np.flatnonzero(known if role == "reviewed" else own_rows >= 0)
        if len(shared):
            names = evidence.groups if evidence.groups is not None and self.unit == "group" else evidence.ids
            shown: Sequence[str] = [str(row) if names is None else str(names[row]) for row in shared[:_SHOWN]]
            more = f" and {len(shared) - _SHOWN} more" if len(shared) > _SHOWN else ""
            whose = "that the model has seen" if role == "reviewed" else "of the reviewed cases that calibrate"
            raise RoleError(
                f"{role}: {len(shared)} images belong to groups {whose} ({', '.join(shown)}{more}); "
                "leave these groups out of one of the two"
            )

    def find(self, n: int, *, ids: Iterable[str] | None, groups: Iterable[str] | None) -> tuple[IntArray, BoolArray]:
        """For each image, the row of the bag that shares its group (-1 if none), and whether its group is known.

        Parameters
        ----------
        n : int
            Number of images.
        ids, groups : iterable of str or None
            Of the images, if available; an empty text is a missing value.

        Returns
        -------
        own_rows : ndarray of shape (n,)
        known : ndarray of bool, shape (n,)
        """
        by_group, by_id = self._rows
        group_hashes, id_hashes = self._hashed(n, ids=ids, groups=groups)
        own_rows = np.array(
            [by_group.get(group, by_id.get(name, -1)) for group, name in zip(group_hashes, id_hashes, strict=True)],
            dtype=np.int64,
        )
        others = np.concatenate([self.hashes.get(role, group_hashes[:0]) for role in ("trainers", "gate")])
        return own_rows, (own_rows >= 0) | np.isin(group_hashes, others)

    @cached_property
    def _rows(self) -> tuple[dict[bytes, int], dict[bytes, int]]:
        by_group, by_id = (
            {value: row for row, value in enumerate(self.hashes[name].tolist())} for name in ("bag", "bag_ids")
        )
        return by_group, by_id

    def _hashed(self, n: int, *, ids: Iterable[str] | None, groups: Iterable[str] | None) -> tuple[AnyArray, AnyArray]:
        """Hashes of the groups and of the ids, empty if missing; each of shape (n,)."""
        return self._column(n, None if self.unit == "image" else groups), self._column(n, ids)

    def _column(self, n: int, values: Iterable[str] | None) -> AnyArray:
        if values is None:
            return np.zeros(n, dtype=_HEX)
        given = list(values)
        hashed = keyed_hashes(self.key, given)
        return np.array([digest if value else b"" for digest, value in zip(hashed, given, strict=True)], dtype=_HEX)
