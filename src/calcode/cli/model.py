"""`calcode model`: signatures of model files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calcode.cli.options import AsJson, ModelFile
from calcode.cli.running import command_group
from calcode.cli.service import tell


def key(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Private key to make.")], as_json: AsJson = False
) -> None:
    """Make a key pair for signing: FILE (keep it secret) and FILE.pub (give it to those who should trust you).

    Examples
    --------
    calcode model key engineer.key
    """
    from calcode.method.signatures import write_private_key

    public = write_private_key(path)
    wrote = f"Wrote {path} (keep it secret) and {path}.pub (for those who should trust you)."
    tell("model key", wrote, public, as_json=as_json, facts={"output": str(path), "public": public})


def sign(
    model: ModelFile, key: Annotated[Path, typer.Option(help="Private key.", metavar="FILE")], as_json: AsJson = False
) -> None:
    """Sign a model file; the signature is written next to it as MODEL.sig.

    Examples
    --------
    calcode model sign model.safetensors --key engineer.key
    """
    from calcode.method.signatures import read_private_key, sign_file

    digest = _digest(model)
    target = sign_file(model, digest=digest, key=read_private_key(key))
    tell("model sign", f"Wrote {target}", as_json=as_json, facts={"output": str(target), "digest": digest})


def verify(
    model: ModelFile,
    trusted: Annotated[list[str], typer.Option(help="Public key ('ed25519:...' or a file); repeat it.", metavar="KEY")],
    as_json: AsJson = False,
) -> None:
    """Check that a model file is whole and signed by a trusted key; exit code 1 if not.

    Examples
    --------
    calcode model verify model.safetensors --trusted engineer.key.pub
    """
    from calcode.method.signatures import require_signature

    digest = _digest(model)
    signer = require_signature(model, digest=digest, trusted=trusted)
    facts = {"file": str(model), "digest": digest, "signer": signer}
    tell("model verify", f"{model}: digest {digest}, signed by {signer}", as_json=as_json, facts=facts)


def _digest(path: Path) -> str:
    """The digest of a model file, home or site, after checking the file."""
    import warnings

    from calcode.errors import CalcodeWarning
    from calcode.site import load_model

    with warnings.catch_warnings(action="ignore", category=CalcodeWarning):
        return load_model(path).digest_


group = command_group(
    "Sign model files and check their signatures.",
    key,
    sign,
    verify,
    examples=("calcode model verify model.safetensors --trusted engineer.key.pub",),
)
