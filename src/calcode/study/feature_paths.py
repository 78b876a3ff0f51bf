"""Where the features of every backbone lie, and what identifies them."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from calcode.errors import CalcodeError, StudyError
from calcode.files import file_sha256
from calcode.study.specification import EVERY_SETTING, Backbone, Features
from calcode.study.toml_values import TomlTable

#: `demo:lite0-derm.parquet` is a file of the distribution calcode-demo-data.
_DEMO = "demo:"
_VARIABLE = re.compile(r"\$(?:\{(?P<braced>\w+)\}|(?P<bare>\w+))")


def find_backbones(
    tables: Sequence[TomlTable], *, folder: Path, given: Mapping[str, Path]
) -> tuple[tuple[Backbone, ...], dict[str, str]]:
    """The backbones whose features are there, and why optional ones are left out.

    Parameters
    ----------
    tables : sequence of TomlTable
        One [[backbones]] each; `features` is a path, or a table of paths by setting.
    folder : Path
        That relative paths start from: where the study file lies.
    given : mapping of str to Path
        Feature files named by the user instead, by "backbone" or "backbone/setting".
    """
    if not tables:
        raise StudyError("backbones: none given; write at least one [[backbones]]")
    found: list[Backbone] = []
    left_out: dict[str, str] = {}
    for table in tables:
        name = table.name("name")
        if name in left_out or any(backbone.name == name for backbone in found):
            raise StudyError(f"{table.where}.name: {name!r} is the name of another backbone too")
        title = table.words("title", default=name)
        optional = table.truth("optional", default=False)
        paths = _written_paths(table, name, given)
        prompts = table.words("prompts") if table.has("prompts") else None
        table.finish()
        try:
            features = {
                setting: _features(path, prompts=prompts, folder=folder, where=table.where, name=name)
                for setting, path in paths.items()
            }
        except StudyError as error:
            if not optional or name in {key.partition("/")[0] for key in given}:
                raise
            left_out[name] = str(error)
            continue
        found.append(Backbone(name=name, title=title, features=features))
    known = [*(backbone.name for backbone in found), *left_out]
    unknown = sorted(key for key in given if key.partition("/")[0] not in known)
    if unknown:
        raise StudyError(f"features: no backbone {unknown} in the study file; it has {known}")
    if not found:
        raise StudyError("backbones: no features found: " + "; ".join(left_out.values()))
    return tuple(found), left_out


def _written_paths(table: TomlTable, name: str, given: Mapping[str, Path]) -> dict[str, str]:
    """Paths by setting, as the file and the user name them."""
    own = {
        key.partition("/")[2] or EVERY_SETTING: str(path.absolute())
        for key, path in given.items()
        if key.partition("/")[0] == name
    }
    written = table.take("features")
    if EVERY_SETTING in own:
        return own
    if isinstance(written, str):
        return {EVERY_SETTING: written} | own
    paths = {setting: str(path) for setting, path in table.table("features").items()}
    if not paths:
        raise StudyError(f"{table.where}.features: empty; give a path, or a table of paths by setting")
    return paths | own


def _features(written: str, *, prompts: str | None, folder: Path, where: str, name: str) -> Features:
    from calcode.cohorts.prompts import prompts_beside, read_prompts

    path = _path(written, folder=folder, where=where)
    if not path.is_file():
        raise StudyError(
            f"{where}.features: {path} does not exist; correct it, or pass --features {name}=PATH"
        )
    bank = None if prompts is None else _path(prompts, folder=folder, where=where)
    digest = hashlib.sha256()
    try:
        beside = prompts_beside(path) if bank is None else bank
        classes = read_prompts(beside).classes
        for file in (path, beside):
            digest.update(bytes.fromhex(file_sha256(file)))
    except OSError as error:
        raise StudyError(f"{where}.features: {error.filename}: {error.strerror}") from error
    except CalcodeError as error:
        raise StudyError(f"{where}.features: {error}") from error
    return Features(path=path, prompts=bank, digest=digest.hexdigest(), classes=classes)


def _path(written: str, *, folder: Path, where: str) -> Path:
    if written.startswith(_DEMO):
        return _demo_file(written.removeprefix(_DEMO), where=where)

    def value(found: re.Match[str]) -> str:
        name = found["braced"] or found["bare"]
        if not os.environ.get(name):
            raise StudyError(f"{where}.features: the environment variable {name} is not set")
        return os.environ[name]

    return folder / Path(_VARIABLE.sub(value, written)).expanduser()


def _demo_file(name: str, *, where: str) -> Path:
    try:
        import calcode_demo_data
    except ImportError as error:
        raise StudyError(
            f"{where}.features: the demonstration features are not installed; run 'make install' or "
            "'pip install ./demo-data'"
        ) from error
    return Path(calcode_demo_data.path()) / name
