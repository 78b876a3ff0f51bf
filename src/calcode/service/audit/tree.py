"""The Merkle tree over the records (RFC 6962, 2.1): one root for the whole log, short proofs for one record."""

from __future__ import annotations

import hashlib
import threading
from binascii import unhexlify
from collections.abc import Callable, Iterable, Sequence


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


class Subtrees:
    """Inclusion proofs for a growing list of records (RFC 6962, 2.1.1) that read one subtree and not the whole list.

    The roots of all complete subtrees of so many leaves are kept in memory: they stay as they are when the list grows.

    Parameters
    ----------
    hashes : callable
        Returns the hashes in hex of the records after one position up to another.
    leaves : int
        Leaves of a subtree, a power of two.

    Examples
    --------
    >>> records = ["00" * 32, "11" * 32, "22" * 32]
    >>> subtrees = Subtrees(lambda after, upto: records[after:upto])
    >>> proof = subtrees.proof(2, size=3)
    >>> root_from_proof(records[2], index=2, size=3, proof=proof) == root(records)
    True
    """

    def __init__(self, hashes: Callable[[int, int], Sequence[str]], *, leaves: int = 1024) -> None:
        self._hashes, self._leaves = hashes, leaves
        self._roots: list[bytes] = []
        self._turn = threading.Lock()

    def proof(self, index: int, *, size: int) -> list[bytes]:
        """Return the sibling hashes that lead from a leaf to the root of the first `size` leaves, nearest first.

        Parameters
        ----------
        index : int
            Position of the leaf, from 0.
        size : int
        """
        n = self._leaves
        own, rest = index - index % n, size - size % n
        with self._turn:
            for start in range(n * len(self._roots), rest, n):
                self._roots.append(root(self._hashes(start, start + n)))
            roots = self._roots[: size // n]
        if rest < size:
            roots.append(root(self._hashes(rest, size)))
        leaves = [leaf_hash(record) for record in self._hashes(own, min(own + n, size))]
        return _siblings(leaves, index - own) + _siblings(roots, index // n)


def _siblings(level: Sequence[bytes], position: int) -> list[bytes]:
    """Return the siblings on the way from a node to the root, level by level; a node without one moves up unchanged."""
    proof = []
    while len(level) > 1:
        sibling = position ^ 1
        if sibling < len(level):
            proof.append(level[sibling])
        pairs = [node_hash(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        level = [*pairs, *level[len(level) - len(level) % 2 :]]
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
