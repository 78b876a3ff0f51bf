"""Check that personal parts still match their digests in the log (SERVICE.md 4).

The chain covers commitments, not contents: only this check finds a part that was changed in the database.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from calcode.service.audit.parts import content_digest
from calcode.service.database import Driver
from calcode.service.log import Log

#: Records whose parts are read in one transaction, and parts that are fetched together.
_ASKED, _PAGE = 5000, 200


def changed_parts(log: Log) -> list[str]:
    """Return a sentence about the first personal part that differs from what its record commits to.

    A missing part is not a fault: it may have been erased.

    Parameters
    ----------
    log : Log
        Verify its chain separately (`Log.verify`): a commitment is only as good as its record.

    Returns
    -------
    list of str
        At most one sentence; empty if no part was changed.
    """
    query = (
        "SELECT secret_part.seq, secret_part.name, salt, content, body FROM secret_part "
        "LEFT JOIN event ON event.seq = secret_part.seq WHERE secret_part.seq > ? AND secret_part.seq <= ? "
        "ORDER BY secret_part.seq, secret_part.name"
    )
    after = 0
    try:
        with log.database.reading() as connection:
            ((first, last),) = Driver(connection).rows("SELECT min(seq), max(seq) FROM secret_part")
        after = 0 if first is None else int(first) - 1
        while last is not None and after < last:
            with log.database.reading() as connection:
                for rows in Driver(connection).pages(query, after, after + _ASKED, size=_PAGE):
                    for seq, name, salt, content, body in rows:
                        # Search the text for the commitment first: parsing the body takes as long as all else.
                        if not _is_said(name, salt, content, body) and (
                            why := _difference(seq, name, salt, content, body)
                        ):
                            return [why]
            after += _ASKED
    except log.database.driver_error as error:
        return [f"the database cannot read the personal parts after record {after}: {error}"]
    return []


def _is_said(name: str, salt: Any, content: Any, body: str | None) -> bool:
    try:
        return body is not None and f'"{name}":"{sha256(salt + content).hexdigest()}"' in body
    except TypeError:  # a column of another type
        return False


def _difference(seq: int, name: str, salt: Any, content: Any, body: str | None) -> str | None:
    """Describe what is wrong with a part; None if it matches the commitment of its record."""
    said = _commitments(body)
    if name not in said:
        return f"record {seq} has a personal part '{name}' that it does not commit to"
    # SQLite stores text in a BLOB column if given text.
    if isinstance(salt, bytes) and isinstance(content, bytes) and content_digest(salt + content) == said[name]:
        return None
    return f"the personal part '{name}' of record {seq} was changed: the record commits to another content"


def _commitments(body: str | None) -> dict[str, str]:
    try:
        said = json.loads(body or "{}").get("parts", {})
    except (ValueError, TypeError, AttributeError):
        return {}
    return said if isinstance(said, dict) else {}
