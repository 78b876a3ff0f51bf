"""Signatures of model files: Ed25519 over the model's digest, in a text file next to the model.

The digest inside a model file detects damage, not forgery: whoever changes a file can compute a new digest. A signature
requires the private key. The signatures of `model.safetensors` are in `model.safetensors.sig`: a first line with the
digest, then one line per signer. Needs `calcode[sign]`.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from calcode.errors import ArtifactError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_FORMAT = "calcode-signature-1"
_ALGORITHM = "ed25519:"


def signature_file(path: str | os.PathLike[str]) -> Path:
    """Path of the signature file: next to the model file, under its name with `.sig`."""
    return Path(f"{os.fspath(path)}.sig")


def write_private_key(path: str | os.PathLike[str]) -> str:
    """Make a key pair: the private key (PEM, mode 0600) at `path`, the public one next to it as `.pub`.

    Returns
    -------
    str
        The public key as text, `ed25519:...`.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    file = Path(path)
    beside = file.with_name(f"{file.name}.pub")
    if beside.exists() and not file.exists():
        raise ArtifactError(f"{beside}: exists already, and belongs to another key; name another file for a new key")
    key = Ed25519PrivateKey.generate()
    content = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        # Never overwrite a key: nothing could be signed with the old one again.
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise ArtifactError(f"{file}: exists already; name another file for a new key") from error
    with os.fdopen(handle, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    public = public_text(key.public_key())
    beside.write_text(public + "\n")
    return public


def read_private_key(path: str | os.PathLike[str]) -> Ed25519PrivateKey:
    """Read a private key written by `write_private_key` or `openssl genpkey -algorithm ed25519`."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(Path(path).read_bytes(), password=None)
    except FileNotFoundError as error:
        raise ArtifactError(f"{path}: no such key file; make one with 'calcode model key FILE'") from error
    except (ValueError, TypeError) as error:
        raise ArtifactError(
            f"{path}: not a private key in PEM without a password; make one with 'calcode model key FILE'"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ArtifactError(f"{path}: a key of another kind; Ed25519 needed")
    return key


def public_text(key: Ed25519PublicKey) -> str:
    """A public key as text, `ed25519:` and base64."""
    return _ALGORITHM + base64.b64encode(key.public_bytes_raw()).decode()


def read_public_key(key: str | os.PathLike[str]) -> Ed25519PublicKey:
    """Read a public key from its text, or from a file with that text."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    text = os.fspath(key)
    if not text.startswith(_ALGORITHM):
        try:
            text = Path(key).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ArtifactError(f"{key}: neither a public key ('{_ALGORITHM}...') nor a file with one") from error
    try:
        return Ed25519PublicKey.from_public_bytes(base64.b64decode(text.removeprefix(_ALGORITHM), validate=True))
    except (ValueError, binascii.Error) as error:
        raise ArtifactError(f"{key}: not a public key of the form '{_ALGORITHM}...'") from error


def sign_file(path: str | os.PathLike[str], *, digest: str, key: Ed25519PrivateKey) -> Path:
    """Add a signature over a model's digest to the file next to the model.

    Parameters
    ----------
    path : path-like
        The model file.
    digest : str
        Its digest, as computed from its content.
    key : Ed25519PrivateKey
    """
    public, target = public_text(key.public_key()), signature_file(path)
    signature = base64.b64encode(key.sign(_message(digest))).decode()
    try:
        signatures = _signatures(target, digest=digest) if target.is_file() else {}
    except ArtifactError as error:
        raise ArtifactError(f"{error}; if {path} is the one to sign, remove {target.name} and sign again") from error
    signatures[public] = signature
    lines = [f"{_FORMAT} {digest}", *(f"{signer} {value}" for signer, value in signatures.items())]
    target.write_text("\n".join(lines) + "\n")
    return target


def require_signature(path: str | os.PathLike[str], *, digest: str, trusted: Sequence[str | os.PathLike[str]]) -> str:
    """Return the first trusted key that signed the model, or raise an error.

    Parameters
    ----------
    path : path-like
        The model file; its signatures are next to it.
    digest : str
        Computed from the content of the file.
    trusted : sequence of str or path-like
        Public keys, as text or files.

    Raises
    ------
    ArtifactError
        If there is no signature by a trusted key, or one of them does not belong to this digest.
    """
    from cryptography.exceptions import InvalidSignature

    file = signature_file(path)
    if not file.is_file():
        raise ArtifactError(f"{path}: not signed ({file.name} is missing); calcode model sign {path} --key KEY")
    signatures = _signatures(file, digest=digest)
    for key in map(read_public_key, trusted):
        signer = public_text(key)
        if signer in signatures:
            try:
                key.verify(base64.b64decode(signatures[signer], validate=True), _message(digest))
            except (InvalidSignature, binascii.Error) as error:
                raise ArtifactError(f"{file}: the signature by {signer} is not one of this model") from error
            return signer
    signers = ", ".join(signatures) or "nobody"
    wanted = f"not by any of the {len(trusted)} trusted keys" if trusted else "and no key is trusted"
    raise ArtifactError(
        f"{path}: signed by {signers}, {wanted}; trust the key of who signed it, or sign it with one of them"
    )


def _message(digest: str) -> bytes:
    return f"{_FORMAT}\n{digest}\n".encode()


def _signatures(file: Path, *, digest: str) -> dict[str, str]:
    try:
        head, *lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ArtifactError(f"{file}: not a file of signatures") from error
    if head != f"{_FORMAT} {digest}":
        raise ArtifactError(f"{file}: belongs to another model, or the model was changed after it was signed")
    pairs = [line.split() for line in lines]
    if any(len(pair) != 2 for pair in pairs):
        raise ArtifactError(f"{file}: damaged; each line after the first holds a public key and a signature")
    return dict(pairs)
