"""`calcode model`: signatures of model files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calcode.cli.options import ModelFile
from calcode.cli.running import Command, guarded


def key(path: Annotated[Path, typer.Argument(metavar="FILE", help="Private key to make.")]) -> None:
    """Make a key pair for signing: FILE (keep it secret) and FILE.pub (give it to those who shall trust you)."""
    from calcode.method.signatures import write_private_key

    typer.echo(write_private_key(path))


def sign(
    model: ModelFile, key: Annotated[Path, typer.Option("--key", help="Private key.", metavar="FILE")]
) -> None:
    """Sign a model file; the signature is written beside it as MODEL.sig."""
    from calcode.method.signatures import read_private_key, sign_file

    target = sign_file(model, digest=_digest(model), key=read_private_key(key))
    typer.echo(f"Wrote {target}")


def verify(
    model: ModelFile,
    trusted: Annotated[
        list[str],
        typer.Option("--trusted", help="Public key ('ed25519:...' or a file); repeat it.", metavar="KEY"),
    ],
) -> None:
    """Check that a model file is whole and signed by a trusted key; exit code 1 if not."""
    from calcode.method.signatures import require_signature

    digest = _digest(model)
    signer = require_signature(model, digest=digest, trusted=trusted)
    typer.echo(f"{model}: digest {digest}, signed by {signer}")


def _digest(path: Path) -> str:
    """The digest of a whole model file, home or site."""
    import warnings

    from calcode.errors import CalcodeWarning
    from calcode.site import load_model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        return load_model(path).digest_


#: The group; `calcode.cli.app` adds it under the name "model".
group = typer.Typer(
    help="Sign model files and check their signatures.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (
    Command(run=key, examples=("calcode model key engineer.key",)),
    Command(run=sign, examples=("calcode model sign model.safetensors --key engineer.key",)),
    Command(run=verify, examples=("calcode model verify model.safetensors --trusted engineer.key.pub",)),
):
    group.command(_command.name, help=_command.help_text())(guarded(_command.run))
