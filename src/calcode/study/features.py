"""The feature file of a backbone: where it lies, and what identifies it."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from calcode.errors import CalcodeError, StudyError
from calcode.files import file_sha256

#: `demo:lite0-derm.parquet` is a file of the distribution calcode-demo-data.
_DEMO = "demo:"
_VARIABLE = re.compile(r"\$(?:\{(?P<braced>\w+)\}|(?P<bare>\w+))")


class Features(BaseModel):
    """A feature file with its prompts.

    Attributes
    ----------
    path : Path
    prompts : Path or None
        Looked for next to the features unless given.
    digest : str
        SHA-256 of both files, so that changed features are noticed.
    classes : tuple of str
        Of the prompts.
    columns : tuple of str
        Of the features.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Path
    prompts: Path | None
    digest: str
    classes: tuple[str, ...]
    columns: tuple[str, ...]


def find_features(written: str, *, prompts: str | None, folder: Path, name: str) -> Features:
    """The features that a study file names.

    Parameters
    ----------
    written : str
        A path, relative to `folder`; `$VARIABLES` are filled in; "demo:FILE" is a file of calcode-demo-data.
    prompts : str or None
    folder : Path
    name : str
        The backbone's, for advice.
    """
    from calcode.cohorts.parquet import file_schema
    from calcode.cohorts.prompts import prompts_beside, read_prompts

    path = _path(written, folder=folder)
    if not os.path.isfile(path):  # False where a name is too long, too
        raise StudyError(f"{path} does not exist; correct it, or pass --features {name}=PATH")
    bank = None if prompts is None else _path(prompts, folder=folder)
    digest = hashlib.sha256()
    try:
        found = prompts_beside(path) if bank is None else bank
        classes = read_prompts(found).classes
        for file in (path, found):
            digest.update(bytes.fromhex(file_sha256(file)))
        columns = tuple(file_schema(path).names)
    except OSError as error:
        raise StudyError(f"{error.filename or path}: {error.strerror or error}") from error
    except CalcodeError as error:
        raise StudyError(str(error)) from error
    return Features(path=path, prompts=bank, digest=digest.hexdigest(), classes=classes, columns=columns)


def _path(written: str, *, folder: Path) -> Path:
    if written.startswith(_DEMO):
        try:
            import calcode_demo_data
        except ImportError as error:
            raise StudyError(
                "the demonstration features are not installed; run 'make install' or 'pip install ./demo-data'"
            ) from error
        return Path(calcode_demo_data.path()) / written.removeprefix(_DEMO)

    def value(found: re.Match[str]) -> str:
        name = found["braced"] or found["bare"]
        if not os.environ.get(name):
            raise StudyError(f"the environment variable {name} is not set")
        return os.environ[name]

    return folder / Path(os.path.expanduser(_VARIABLE.sub(value, written)))
