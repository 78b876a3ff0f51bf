"""Personal content outside the chain: the log holds a commitment, a deletable row holds salt and content."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from typing import NamedTuple

#: Salts drawn together, because a system call for each salt would cost as much as the hash. A salt is removed when it
#: is used, and a forked process draws its own.
_SALTS: deque[bytes] = deque()
os.register_at_fork(after_in_child=_SALTS.clear)
#: Largest number of bytes that `hashlib` takes without releasing the GIL.
_KEPT = 2047


class SecretPart(NamedTuple):
    """Content that can be deleted while the log stays verifiable.

    Attributes
    ----------
    name : str
        Kind of content: "identity", "embedding", "image".
    digest : str
        SHA-256(salt + content) in hex, which the record holds. Without the salt it reveals nothing about the content.
    salt, content : bytes
    media_type : str
    delete_after : str or None
        Day from which `calcode service retain` deletes it.
    """

    name: str
    digest: str
    salt: bytes
    content: bytes
    media_type: str
    delete_after: str | None = None


def secret_part(name: str, content: bytes, *, media_type: str, delete_after: str | None = None) -> SecretPart:
    """Return content with a salt of its own and the commitment to both.

    Examples
    --------
    >>> part = secret_part("identity", b"patient 7", media_type="text/plain")
    >>> part.digest == hashlib.sha256(part.salt + b"patient 7").hexdigest()
    True
    """
    try:
        salt = _SALTS.pop()
    except IndexError:
        drawn = os.urandom(16 * 64)
        _SALTS.extend(drawn[start : start + 16] for start in range(16, len(drawn), 16))
        salt = drawn[:16]
    return SecretPart(name, content_digest(salt + content), salt, content, media_type, delete_after)


def content_digest(content: bytes) -> str:
    """Return the SHA-256 in hex, computed in pieces so small that the GIL is not released.

    A request that released the GIL would get it back after the writer's turn, which takes far longer than the hash.

    Examples
    --------
    >>> content_digest(bytes(5000)) == hashlib.sha256(bytes(5000)).hexdigest()
    True
    """
    if len(content) <= _KEPT:
        return hashlib.sha256(content).hexdigest()
    state = hashlib.sha256(content[:_KEPT])
    for start in range(_KEPT, len(content), _KEPT):
        state.update(content[start : start + _KEPT])
    return state.hexdigest()
