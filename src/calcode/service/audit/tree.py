"""The Merkle tree over the records (RFC 6962, 2.1): one root for the whole log, short proofs for one record."""

from __future__ import annotations

import hashlib
from binascii import unhexlify
from collections.abc import Iterable, Sequence


def leaf_hash(record: str) -> bytes:
    """Return the leaf of a record, from its hash in hex."""
    return hashlib.sha256(b"\x00" + bytes.fromhex(record)).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the parent of two nodes."""
    return hashlib.sha256(b"\x01" + left + right).digest()


class TreeHead:
    """The root of a growing list of records, in logarithmic memory.

    Examples
    --------
    >>> head = TreeHead()
    >>> head.extend(["00" * 32, "11" * 32, "22" * 32])
    >>> head.size, head.root() == root(["00" * 32, "11" * 32, "22" * 32])
    (3, True)
    """

    def __init__(self) -> None:
        self.size = 0
        #: Roots of the complete subtrees, largest first; their sizes are the bits of `size`.
        self._peaks: list[bytes] = []

    def extend(self, records: Iterable[str]) -> None:
        """Add records by their hashes in hex."""
        sha256 = hashlib.sha256
        nodes = [sha256(b"\x00" + unhexlify(record)).digest() for record in records]
        before, self.size, peaks = self.size, self.size + len(nodes), []
        # Level by level: if `before` has the bit, an old peak is the first node. A last node without a pair is a peak.
        while nodes:
            if before & 1:
                nodes.insert(0, self._peaks.pop())
            if len(nodes) & 1:
                peaks.append(nodes.pop())
            node = iter(nodes)
            nodes = [sha256(b"\x01" + left + right).digest() for left, right in zip(node, node, strict=True)]
            before >>= 1
        self._peaks += reversed(peaks)

    def root(self) -> bytes:
        """Return the tree head; for the empty log, the SHA-256 of no bytes."""
        if not self._peaks:
            return hashlib.sha256(b"").digest()
        node = self._peaks[-1]
        for peak in reversed(self._peaks[:-1]):
            node = node_hash(peak, node)
        return node


def root(records: Sequence[str]) -> bytes:
    """Return the tree head of records given by their hashes in hex."""
    head = TreeHead()
    head.extend(records)
    return head.root()


def inclusion_proof(records: Sequence[str], index: int) -> list[bytes]:
    """Return the sibling hashes that lead from one leaf to the root, nearest the leaf first (RFC 6962, 2.1.1).

    Parameters
    ----------
    records : sequence of str
        Hashes in hex of all records under the root.
    index : int
        Position of the leaf, from 0.
    """
    # Level by level; a node without a sibling moves up unchanged.
    proof, level, position = [], [leaf_hash(record) for record in records], index
    while len(level) > 1:
        sibling = position ^ 1
        if sibling < len(level):
            proof.append(level[sibling])
        pairs = [node_hash(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        level = pairs + level[len(level) - len(level) % 2 :]
        position //= 2
    return proof


def root_from_proof(record: str, *, index: int, size: int, proof: Sequence[bytes]) -> bytes:
    """Return the root that a proof leads to, to be compared with the root of a checkpoint.

    Parameters
    ----------
    record : str
        Hash of the record in hex.
    index, size : int
        Position of the leaf, from 0, and number of leaves.
    proof : sequence of bytes

    Raises
    ------
    ValueError
        If the proof has the wrong length or the position lies outside the tree.
    """
    if not 0 <= index < size:
        raise ValueError(f"index: {index} is not a leaf of a tree of {size}")
    node, position, last, left = leaf_hash(record), index, size - 1, list(proof)
    while last > 0:
        if position % 2 == 1 or position < last:
            if not left:
                raise ValueError("proof: too short")
            sibling = left.pop(0)
            node = node_hash(sibling, node) if position % 2 == 1 else node_hash(node, sibling)
        position //= 2
        last //= 2
    if left:
        raise ValueError("proof: too long")
    return node
