"""Checkpoints as signed notes: the C2SP formats `signed-note` and `tlog-checkpoint`, signed with Ed25519.

A checkpoint states the length of the log, the root of its tree and the head of its chain. If it is kept on another
machine, it shows later whether the log was changed or cut.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from calcode.errors import ServiceError

_ED25519 = b"\x01"


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint states.

    Attributes
    ----------
    origin : str
        Name of the log.
    size : int
        Number of records.
    root : bytes
        RFC 6962 tree head of the records.
    head : str
        Hash of the last record, in hex.
    """

    origin: str
    size: int
    root: bytes
    head: str

    def text(self) -> str:
        """Return the body of the note; the chain's head is an extension line."""
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\nhead {self.head}\n"


def sign_checkpoint(checkpoint: Checkpoint, key: Ed25519PrivateKey) -> str:
    """Return the signed note: body, empty line, signature line."""
    text = checkpoint.text()
    signature = _key_id(checkpoint.origin, key.public_key()) + key.sign(text.encode())
    return f"{text}\n\u2014 {checkpoint.origin} {base64.b64encode(signature).decode()}\n"


def open_checkpoint(note: str, key: Ed25519PublicKey, *, source: str = "checkpoint") -> Checkpoint:
    """Read a note and check its signature.

    Raises
    ------
    ServiceError
        If the note is malformed or no line of it is signed with this key.
    """
    text, separator, signatures = note.rpartition("\n\n")
    lines = text.split("\n")
    if not separator or len(lines) != 4 or not lines[1].isdecimal() or not lines[3].startswith("head "):
        raise ServiceError(f"{source}: not a checkpoint of a calcode log")
    text += "\n"
    origin = lines[0]
    for line in signatures.splitlines():
        dash, _, rest = line.partition(" ")
        name, _, encoded = rest.rpartition(" ")
        try:
            raw = base64.b64decode(encoded, validate=True)
            root = base64.b64decode(lines[2], validate=True)
        except ValueError:  # not base64, or not even ASCII
            continue
        if dash == "\u2014" and name == origin and raw[:4] == _key_id(origin, key):
            try:
                key.verify(raw[4:], text.encode())
            except InvalidSignature:
                break
            return Checkpoint(origin=origin, size=int(lines[1]), root=root, head=lines[3].removeprefix("head "))
    raise ServiceError(f"{source}: not signed with the key of this log, or changed after it was signed")


def verifier_key(origin: str, key: Ed25519PublicKey) -> str:
    """Return the public key in the form that other tools for signed notes read."""
    content = base64.b64encode(_ED25519 + key.public_bytes_raw()).decode()
    return f"{origin}+{_key_id(origin, key).hex()}+{content}"


def _key_id(name: str, key: Ed25519PublicKey) -> bytes:
    return hashlib.sha256(name.encode() + b"\n" + _ED25519 + key.public_bytes_raw()).digest()[:4]
