"""The site's two secrets: the key of coins and pseudonyms, and the key that signs checkpoints."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import Connection, select

from calcode.errors import ServiceError
from calcode.method.signatures import read_private_key, write_private_key
from calcode.service.settings import SiteSettings
from calcode.service.tables import DECISION, DEPLOYMENT, EVENT, of_kinds
from calcode.site import uniform

#: Block size of SHA-256 in bytes.
_BLOCK = 64
#: Bytes of a keyed digest that stand for an identifier: 128 bits halve the size of indexes.
_PSEUDONYM = 16


class SiteSecret:
    """The secret behind coins (SITE.md S5) and pseudonyms.

    Parameters
    ----------
    key : bytes
        Made once per site; anyone who has it can recompute every coin and test guesses of identifiers.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        # HMAC-SHA256 (RFC 2104) with the key absorbed once: a copy costs a third of a new HMAC.
        padded = hashlib.sha256(key).digest() if len(key) > _BLOCK else key
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in padded.ljust(_BLOCK, b"\0")))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in padded.ljust(_BLOCK, b"\0")))

    @property
    def digest(self) -> str:
        """SHA-256 of the secret, as recorded in the log."""
        return hashlib.sha256(self._key).hexdigest()

    def for_line(self, line: str) -> SiteSecret:
        """Return the secret of one line: a patient has a different coin and pseudonym on every line.

        Examples
        --------
        >>> secret = SiteSecret(bytes(32))
        >>> secret.for_line("north").coin("patient-7") == secret.for_line("south").coin("patient-7")
        False
        """
        return SiteSecret(hmac.digest(self._key, f"line\n{line}".encode(), "sha256"))

    def pseudonym(self, kind: str, value: str) -> str:
        """Return the keyed digest that stands for an identifier in the log.

        Examples
        --------
        >>> secret = SiteSecret(bytes(32))
        >>> secret.pseudonym("group", "patient-7") == secret.pseudonym("study", "patient-7")
        False
        """
        return self._mac(f"{kind}\n{value}")[:_PSEUDONYM].hex()

    def _mac(self, text: str) -> bytes:
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(text.encode())
        outer.update(inner.digest())
        return outer.digest()

    def coin(self, group: str) -> float:
        """u of SITE.md S5, the same at every toss of a group.

        Examples
        --------
        >>> secret = SiteSecret(bytes(32))
        >>> secret.coin("patient-7") == secret.coin("patient-7")
        True
        """
        return uniform(self._mac(group))

    def draws(self, image: str) -> tuple[float, float]:
        """Return two numbers of an image, independent of each other and of the coin: parts of one keyed digest.

        The image of a visit with the smallest first number stands for the patient (SITE.md S1). The second number draws
        a second reader (SERVICE.md 8).
        """
        digest = self._mac(f"image {image}")
        return uniform(digest), uniform(digest[8:])


def make_missing_keys(connection: Connection, site: SiteSettings) -> None:
    """Make missing secrets in the data folder, unless a service has already started on the log.

    A log in use has its own secrets: new ones would differ and hide that the old ones are lost.
    """
    if _last_start(connection) is not None:
        return
    path = site.path("secret.key")
    if not path.exists():
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(os.urandom(32))
            stream.flush()
            os.fsync(stream.fileno())
    if site.checkpoints.key is None and not site.path("checkpoint.key").exists():
        write_private_key(site.path("checkpoint.key"))


def _last_start(connection: Connection) -> Any:
    """What the last start of a service recorded; None if no service has started on the log."""
    query = select(EVENT.c.body).where(of_kinds("started")).order_by(EVENT.c.seq.desc()).limit(1)
    body = connection.execute(query).scalar()
    return None if body is None else json.loads(body)


def site_secret(site: SiteSettings) -> SiteSecret:
    """Read the secret from the data folder.

    Raises
    ------
    ServiceError
        If it is missing or incomplete.
    """
    path = site.path("secret.key")
    if not path.exists():
        raise ServiceError(
            f"{path}: no such file, which holds the secret of all coins and pseudonyms; put the copy from outside this "
            "machine there. Before the first start, 'calcode service init SITE' makes it"
        )
    key = path.read_bytes()
    if len(key) != 32:
        raise ServiceError(f"{path}: {len(key)} bytes, a secret has 32; put the original file back")
    return SiteSecret(key)


def require_same_coins(connection: Connection, site: SiteSettings, secret: SiteSecret) -> None:
    """Refuse a site file that would change patients' coins (SITE.md S5).

    Coins and pseudonyms come from the secret and the name of the line. A line may be added, removed and restored; a
    name that disappears while another appears is a renamed line.

    Raises
    ------
    ServiceError
        For another secret, a renamed line, or a log from before lines had their own keys.
    """
    last = _last_start(connection)
    if last is None:
        return
    if last["secret_sha256"] != secret.digest:
        raise ServiceError(
            f"{site.path('secret.key')}: not the secret that this log began with; every coin and pseudonym would "
            "change. Put the original file back"
        )
    served = connection.execute(select(DEPLOYMENT.c.line).distinct()).scalars()
    now, before = {line.name for line in site.lines}, set(last.get("lines") or served)
    gone, new = ", ".join(sorted(before - now)), ", ".join(sorted(now - before))
    if gone and new:
        raise ServiceError(
            f"lines: the site file names {new}, and no longer {gone}, which the last start served. A line with a new "
            "name would toss the coin of every patient again: put the old name back. If one line really ends and "
            f"another begins, start once with both, and take {gone} out afterwards"
        )
    first = connection.execute(select(DECISION.c.key).order_by(DECISION.c.seq).limit(1)).scalar()
    if first is not None and len(first) > 2 * _PSEUDONYM:
        raise ServiceError(
            f"{site.data}: this log was begun by a version in which lines had no keys of their own; here its patients' "
            "coins would be tossed again and its requests decided twice. Keep it to read, verify and export, and begin "
            "a new log: another name, another data folder and another folder for its checkpoints"
        )


def checkpoint_key(site: SiteSettings) -> Ed25519PrivateKey:
    """Read the key that signs checkpoints: the one that the site file names, else the one in the data folder.

    Raises
    ------
    ServiceError
        If it is missing.
    """
    if site.checkpoints.key is not None:
        if not Path(site.checkpoints.key).exists():
            raise ServiceError(
                f"{site.checkpoints.key}: no such file, which key in [checkpoints] names; make it with 'calcode model "
                "key FILE', or take key out of the site file: then it is made in the data folder"
            )
        return read_private_key(Path(site.checkpoints.key))
    path = site.path("checkpoint.key")
    if not path.exists():
        raise ServiceError(
            f"{path}: no such file, which holds the key that signs checkpoints; put the copy from outside this machine "
            "there. Before the first start, 'calcode service init SITE' makes it"
        )
    return read_private_key(path)
