r"""The chain of records (SERVICE.md 4): every record carries the hash of the one before it.

hash = SHA-256("calcode-log-1\n" prev "\n" seq "\n" at "\n" kind "\n" actor "\n" SHA-256(body)), digests in lower-case
hex, the body as canonical JSON.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

#: `prev` of the first record.
GENESIS = "0" * 64


class Record(NamedTuple):
    """One record of the log, in the order of the columns that make its hash.

    Attributes
    ----------
    seq : int
        Position in the log, from 1 without gaps; the only order there is.
    at : str
        Wall clock, UTC, ISO 8601.
    kind, actor : str
        What happened and who did it.
    body : str
        Canonical JSON; nothing about a person.
    prev, hash : str
        Of the record before, and of this one.
    """

    seq: int
    at: str
    kind: str
    actor: str
    body: str
    prev: str
    hash: str


def record_hash(*, prev: str, seq: int, at: str, kind: str, actor: str, body: str) -> str:
    """The hash of a record.

    Examples
    --------
    >>> record_hash(prev=GENESIS, seq=1, at="2026-01-01T00:00:00Z", kind="started", actor="service", body="{}")[:8]
    '7c6f860f'
    """
    content = hashlib.sha256(body.encode()).hexdigest()
    return hashlib.sha256(f"calcode-log-1\n{prev}\n{seq}\n{at}\n{kind}\n{actor}\n{content}".encode()).hexdigest()


@dataclass(frozen=True)
class Break:
    """The first record that is not as it was written, and why that is known."""

    seq: int
    why: str


def verified_hashes(
    records: Iterable[tuple[Any, ...]], *, seq: int = 0, head: str = GENESIS
) -> tuple[list[str], Break | None]:
    """Hashes of the records as long as the chain holds, and where it breaks.

    Parameters
    ----------
    records : iterable of tuple
        In the order of `seq`; the fields of a `Record`.
    seq, head : int and str
        Position and hash of the record before the first one.
    """
    sha256 = hashlib.sha256
    hashes: list[str] = []
    for number, at, kind, actor, body, prev, own in records:
        seq += 1
        if number != seq:
            return hashes, Break(seq, f"record {seq} is missing: the next one is {number}")
        if prev != head:
            return hashes, Break(seq, f"record {seq} does not follow record {seq - 1}: 'prev' is another hash")
        # `record_hash` written out: a function call for each record would cost a fifth of the rate.
        content = sha256(body.encode()).hexdigest()
        line = f"calcode-log-1\n{prev}\n{seq}\n{at}\n{kind}\n{actor}\n{content}"
        head = sha256(line.encode()).hexdigest()
        if head != own:
            return hashes, Break(seq, f"record {seq} was changed: its content does not have its hash")
        hashes.append(head)
    return hashes, None
