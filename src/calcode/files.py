"""Private files written atomically, checks before a file is opened, and JSON."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from calcode.errors import CalcodeError, FeatureFileError, OutputError

#: Environment variable with octal permissions for written files, such as 0640, instead of 0600.
MODE_VARIABLE = "CALCODE_FILE_MODE"
_PRIVATE = 0o600
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
#: Largest size in bytes to which the members of an archive may unpack.
_UNPACKED_BYTES = 1 << 31
_LONE_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


@contextmanager
def replacing(path: str | os.PathLike[str], *, private: bool = True) -> Iterator[Path]:
    """Yield a temporary file in the folder of `path`; rename it to `path` on success, remove it on failure.

    A rename is atomic only within one file system, hence the same folder. Temporary files of `path` that a killed
    process left there are removed.

    Parameters
    ----------
    path : path-like
    private : bool
        Only the owner may read the file, during writing and afterwards (0600, or the mode in CALCODE_FILE_MODE).
        False is for files without patients' data: pages, figures and tables of averages.

    Raises
    ------
    OutputError
        If the folder is missing or not writable, or the disk is full; an existing file stays unchanged.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "a.txt") as temporary:
    ...         _ = temporary.write_text("whole")
    ...     sorted(entry.name for entry in Path(folder).iterdir())
    ['a.txt']
    """
    with replacing_together(path, private=private) as (temporary,):
        yield temporary


@contextmanager
def replacing_together(*paths: str | os.PathLike[str], private: bool = True) -> Iterator[tuple[Path, ...]]:
    """Do the same as `replacing` for files that belong together: all are written before the first is renamed.

    The last file is the one that makes no sense without the others. Its old version is removed before the others
    change. So if the process stops in between, an old last file is never found next to new others.
    """
    finals = [Path(path) for path in paths]
    mode = os.environ.get(MODE_VARIABLE, "")
    if mode and not re.fullmatch("0?[0-7]{3}", mode):
        raise OutputError(f"{MODE_VARIABLE}: {mode!r} is not a file mode such as 0640")
    temporaries: dict[Path, int] = {}
    try:
        with ExitStack() as handles:
            for final in finals:
                # Remove what a killed process left of this file. A file that is being written is locked, and stays.
                left = re.compile(rf"\.{re.escape(final.name)}\.[0-9a-f]{{12}}\.part")
                for entry in os.scandir(final.parent) if os.name == "posix" and final.parent.is_dir() else ():
                    with suppress(OSError):
                        if left.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                            with open(entry.path, "rb") as leftover:
                                if _lock(leftover.fileno()):
                                    os.unlink(entry.path)
                temporary = final.with_name(f".{final.name}.{os.urandom(6).hex()}.part")
                if not final.parent.is_dir():
                    raise OutputError(f"{final}: the folder {final.parent} does not exist; create it first")
                # Recorded before the file exists: Ctrl-C may come between creating the file and the next line.
                temporaries[temporary] = -1
                try:
                    handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, _PRIVATE if private else 0o666)
                except OSError as error:
                    raise OutputError(f"{final}: cannot be written ({error.strerror}); name another place") from error
                temporaries[temporary] = handle
                handles.callback(os.close, handle)
                if private and mode:
                    os.chmod(temporary, int(mode, 8))
                # The lock lasts as long as this process lives. It distinguishes the file from a leftover.
                _lock(handle)
            try:
                yield tuple(temporaries)
                for handle in temporaries.values():
                    # Without fsync a crash of the machine could leave the new name with old or missing bytes.
                    os.fsync(handle)
            except Exception as error:
                # Libraries wrap the system's error in their own classes but keep its text.
                number = error.errno if isinstance(error, OSError) else None
                full = number in _NO_ROOM or "No space left" in str(error)
                if isinstance(error, CalcodeError) or not full:
                    raise
                names = " and ".join(map(str, finals))
                raise OutputError(
                    f"{names}: the disk is full; nothing was written. Make room, or write to another place"
                ) from error
        for final in finals[1:][-1:]:
            final.unlink(missing_ok=True)
        for temporary, final in zip(temporaries, finals, strict=True):
            os.replace(temporary, final)
        for folder in dict.fromkeys(final.parent for final in finals):
            # Without fsync a crash of the machine could undo a rename. Some folders may only be written into, and some
            # file systems of other machines do not support fsync of a folder.
            with suppress(PermissionError):
                handle = os.open(folder, os.O_RDONLY)
                try:
                    os.fsync(handle)
                except OSError as error:
                    if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
                        raise
                finally:
                    os.close(handle)
    finally:
        for temporary in temporaries:
            # A read-only disk refuses even to remove a missing file; that must not hide the original error.
            with suppress(OSError):
                temporary.unlink()


def _lock(handle: int) -> bool:
    """Lock an open file until it is closed; False if another process holds it."""
    try:
        import fcntl
    except ImportError:  # Windows: two jobs on one file are then the user's to avoid
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Lock a folder for this process until the block or the process ends."""
    with (folder / "lock").open("w") as file:
        if not _lock(file.fileno()):
            raise OutputError(f"{folder}: another process is at work there; wait for it or give another name")
        yield


def require_regular(path: str | os.PathLike[str]) -> Path:
    """Return the path if it is a regular file that this user may read; a pipe or a device could block forever.

    Examples
    --------
    >>> require_regular("/dev/null")
    Traceback (most recent call last):
    calcode.errors.FeatureFileError: /dev/null: a device, not a file; name a file
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise FeatureFileError(f"{os.fspath(path)}: no such file") from None
    except (OSError, ValueError) as error:
        raise FeatureFileError(f"{os.fspath(path)!r}: cannot be opened ({error})") from None
    if not stat.S_ISREG(mode):
        raise FeatureFileError(f"{os.fspath(path)}: {special_kind(mode)}, not a file; name a file")
    if not os.access(path, os.R_OK):
        raise FeatureFileError(f"{os.fspath(path)}: this user may not read it; change its owner or its mode")
    return Path(path)


def special_kind(mode: int) -> str:
    """Name the kind of a file that is not regular, from its `st_mode`."""
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def require_small_archive(path: str | os.PathLike[str], *, limit: int = _UNPACKED_BYTES) -> Path:
    """Return the path of a zip archive (`.npz`) if its directory states at most `limit` unpacked bytes.

    Python's reader stops at the stated size of a member, so a wrong directory cannot make it unpack more.
    """
    import zipfile

    file = require_regular(path)
    try:
        with zipfile.ZipFile(file) as archive:
            total = sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise FeatureFileError(f"{file}: not a readable archive ({error})") from error
    if total > limit:
        raise FeatureFileError(
            f"{file}: unpacks to {total:,} bytes, at most {limit:,} are read; it is no prompt or feature archive"
        )
    return file


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, read a piece at a time."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


#: JSON encoder with one text per value: sorted keys, no spaces, no NaN. Created once, because a new encoder for every
#: value would cost as much as the encoding.
canonical_json: Callable[[object], str] = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
).encode


def csv_delimiter(head: str) -> str:
    """Return the delimiter of a CSV header: a semicolon in spreadsheets of many countries, a tab in some programs.

    Examples
    --------
    >>> csv_delimiter("id;label"), csv_delimiter("id")
    (';', ',')
    """
    return max(",;\t", key=head.count)


def json_ready(value: Any) -> Any:
    """Convert to plain values for JSON: NaN becomes null, infinity the text "inf", a path its text.

    Examples
    --------
    >>> json_ready({"bandwidth": math.inf, "coverage": (math.nan, 0.5)})
    {'bandwidth': 'inf', 'coverage': [None, 0.5]}
    """
    if isinstance(value, Mapping):
        return {str(key): json_ready(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(entry) for entry in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value


def parsed_json(text: str | bytes, *, source: object) -> Any:
    """Parse JSON text from an untrusted source; every fault is raised as a `FeatureFileError`.

    It refuses text that is not UTF-8, nesting too deep to read, numbers with thousands of digits, NaN and infinities,
    half of a surrogate pair, and repeated names in one object.

    Parameters
    ----------
    text : str or bytes
    source : object
        Named in the error: the file, or the part of the file.

    Examples
    --------
    >>> parsed_json('{"a": [1, true]}', source="example")
    {'a': [1, True]}
    >>> parsed_json('{"a": NaN}', source="example")
    Traceback (most recent call last):
    calcode.errors.FeatureFileError: example: not valid JSON (NaN is not a JSON number)
    """
    try:
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
        value = json.loads(decoded, parse_constant=_refuse_constant, object_pairs_hook=_without_repeats)
        if _LONE_SURROGATE.search(decoded):
            canonical_json(value).encode("utf-8")
        return value
    except RecursionError:
        raise FeatureFileError(f"{source}: not valid JSON here (nested too deeply)") from None
    except UnicodeError:
        raise FeatureFileError(f"{source}: not valid JSON (not UTF-8 text)") from None
    except ValueError as error:
        raise FeatureFileError(f"{source}: not valid JSON ({error})") from None


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice in one object")
    return found
