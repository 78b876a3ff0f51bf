r"""The chain of records (SERVICE.md 4): every record carries the hash of the one before it.

hash = SHA-256("calcode-log-1\n" prev "\n" seq "\n" at "\n" kind "\n" actor "\n" SHA-256(body)), digests in lower-case
hex, the body as canonical JSON.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

#: `prev` of the first record.
GENESIS = "0" * 64
#: Columns that are not hashed themselves; the body repeats them and is hashed.
COPIED = ("id", "subject")
#: Kinds whose bodies hold no other body, which are most of a log: copies are found in their text without parsing it.
_FLAT = ("decision", "shadow_decision")


class Record(NamedTuple):
    """One record of the log, in the order of the columns that make its hash.

    Attributes
    ----------
    seq : int
        Position in the log, from 1 without gaps; the only order of records.
    at : str
        Wall clock, UTC, ISO 8601.
    kind, actor : str
        What happened and who did it.
    body : str
        Canonical JSON, without personal data.
    prev, hash : str
        Hashes of the record before and of this one.
    """

    seq: int
    at: str
    kind: str
    actor: str
    body: str
    prev: str
    hash: str


def record_hash(prev: str, seq: int, at: str, kind: str, actor: str, body: str) -> str:
    """Return the hash of a record.

    Examples
    --------
    >>> record_hash(GENESIS, 1, "2026-01-01T00:00:00Z", "started", "service", "{}")[:8]
    '7c6f860f'
    """
    return header_hash(prev, seq, at, kind, actor, hashlib.sha256(body.encode()).hexdigest())


def header_hash(prev: str, seq: int, at: str, kind: str, actor: str, body_sha256: str) -> str:
    """Return the hash of a record whose body is not shown, from the SHA-256 of the body.

    Examples
    --------
    >>> digest = hashlib.sha256(b"{}").hexdigest()
    >>> header_hash(GENESIS, 1, "2026-01-01T00:00:00Z", "started", "service", digest)[:8]
    '7c6f860f'
    """
    line = f"calcode-log-1\n{prev}\n{seq}\n{at}\n{kind}\n{actor}\n{body_sha256}"
    return hashlib.sha256(line.encode()).hexdigest()


@dataclass(frozen=True)
class Break:
    """The first record that is missing or was changed, and how this is known."""

    seq: int
    why: str


def verified_hashes(
    rows: Iterable[tuple[Any, ...]], *, seq: int = 0, head: str = GENESIS
) -> tuple[list[str], Break | None]:
    """Return the hashes of the records before the first one that is missing or was changed, and that break if any.

    Parameters
    ----------
    rows : iterable of tuple
        In the order of `seq`: the fields of a `Record`, then the columns of `COPIED`.
    seq, head : int and str
        Position and hash of the record before the first one.
    """
    sha256, hashes = hashlib.sha256, list[str]()
    # The search for the subject begins here: a little before its place in the bodies so far.
    near = sys.maxsize
    try:
        for number, at, kind, actor, body, prev, own, id, subject in rows:
            seq += 1
            if number != seq:
                return hashes, Break(seq, f"record {seq} is missing: the next one is {number}")
            if prev != head:
                return hashes, Break(seq, f"record {seq} does not follow record {seq - 1}: 'prev' is another hash")
            # `record_hash` written out: a function call for each record would cost a fifth of the rate.
            line = f"calcode-log-1\n{prev}\n{seq}\n{at}\n{kind}\n{actor}\n{sha256(body.encode()).hexdigest()}"
            head = sha256(line.encode()).hexdigest()
            if head != own:
                return hashes, Break(seq, f"record {seq} was changed: its content does not have its hash")
            copy = f'"subject":"{subject}"'
            if (
                kind not in _FLAT
                # With a quote, a copy could match the id and the keys after it.
                or '"' in id
                or '"' in subject
                or f'"id":"{id}"' not in body
                # `in` on a slice takes half the time of `find`, which reads its arguments first.
                or (copy not in body[near:] and (near := body.find(copy) * 15 // 16) < 0)
            ):
                said = json.loads(body)
                if (id, subject) != (said.get("id"), said.get("subject")):
                    return hashes, Break(seq, f"record {seq} was changed: its body has another id or subject")
            hashes.append(head)
    except (AttributeError, TypeError):
        return hashes, Break(seq, f"record {seq} was changed: a column holds no text")
    except ValueError:
        return hashes, Break(seq, f"record {seq} was changed: its body is not JSON")
    return hashes, None
