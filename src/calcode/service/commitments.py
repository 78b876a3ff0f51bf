"""Do the personal parts still have the digests that the log holds of them? (SERVICE.md 4)

The chain covers commitments, not contents: a part that was changed in the database is found here alone.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from calcode.service.audit.parts import content_digest
from calcode.service.database import Driver
from calcode.service.log import Log

#: Records whose parts are asked for in one transaction, and parts that are looked at together.
_ASKED, _PAGE = 5000, 200


def changed_parts(log: Log) -> list[str]:
    """A sentence about the first record with a personal part that is not the one it was written with.

    A part that is missing is no fault: it may have been erased.

    Parameters
    ----------
    log : Log
        Its chain is verified apart from this (`Log.verify`): a commitment is as good as its record.

    Returns
    -------
    list of str
        One sentence at most; nothing if every part is as it was.
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
                        # Found in the text, a commitment need not be parsed out of it, which takes as long as all else.
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
    """What is wrong with a part; None if it is the one that its record commits to."""
    said = _commitments(body)
    if name not in said:
        return f"record {seq} has a personal part '{name}' that it does not commit to"
    # SQLite keeps text in a column of bytes if it is given some.
    if isinstance(salt, bytes) and isinstance(content, bytes) and content_digest(salt + content) == said[name]:
        return None
    return f"the personal part '{name}' of record {seq} was changed: the record commits to another content"


def _commitments(body: str | None) -> dict[str, str]:
    try:
        said = json.loads(body or "{}").get("parts", {})
    except (ValueError, TypeError, AttributeError):
        return {}
    return said if isinstance(said, dict) else {}
