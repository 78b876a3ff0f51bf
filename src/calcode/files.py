"""Files that appear whole or not at all, and JSON that is the same text for the same value."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from calcode.errors import FeatureFileError


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary name beside `path`, renamed to it when the block ends well and removed when it does not.

    The temporary name lies in the same folder, because only within one file system is a rename atomic.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "a.txt") as temporary:
    ...         _ = temporary.write_text("whole")
    ...     sorted(entry.name for entry in Path(folder).iterdir())
    ['a.txt']
    """
    final = Path(path)
    if not final.parent.is_dir():
        raise FeatureFileError(f"path: the folder {final.parent} does not exist; create it first")
    temporary = final.with_name(f".{final.name}.{os.urandom(6).hex()}.part")
    try:
        yield temporary
        # Without this a crash of the machine could leave the new name with old or missing bytes.
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        os.replace(temporary, final)
    finally:
        temporary.unlink(missing_ok=True)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, read a piece at a time."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def canonical_json(value: object) -> str:
    """JSON that is the same text for the same value: sorted keys, no spaces, no NaN.

    Examples
    --------
    >>> canonical_json({"b": 1, "a": [True]})
    '{"a":[true],"b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
