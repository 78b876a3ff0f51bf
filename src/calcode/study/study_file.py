"""Read a study file as a checked study: find its features, and report all mistakes at once."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from calcode.errors import CalcodeError, FeatureFileError, StudyError, all_mistakes
from calcode.files import file_sha256, require_regular
from calcode.study import specification as spec
from calcode.toml_mistakes import keys_at, mistake, unknown

#: Prefix of a file in the distribution calcode-demo-data, such as `demo:lite0-derm.parquet`.
_DEMO = "demo:"
_VARIABLE = re.compile(r"\$(?:\{(?P<braced>\w+)\}|(?P<bare>\w+))")


def read_study(path: Path, *, features: Mapping[str, Path] | None = None, output: Path | None = None) -> spec.Study:
    """Read the study that a file describes; every value is checked before any work.

    Parameters
    ----------
    path : Path
    features : mapping of str to Path, optional
        Feature files to use instead of those in the file, by "backbone" or "backbone/setting".
    output : Path, optional
        Folder to use instead of the one in the file. Paths in the file are relative to the file.

    Raises
    ------
    StudyError
        Names every wrong key and, for an unknown one, the nearest valid key.
    """
    try:
        content = tomllib.loads(require_regular(path).read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise StudyError(f"{path}: not UTF-8 text, so no TOML") from error
    except FeatureFileError as error:
        raise StudyError(str(error)) from error
    except (ValueError, RecursionError, OSError) as error:
        raise StudyError(f"{path}: not TOML ({error})") from error
    if isinstance(content.get("settings"), str):
        content["settings"] = spec.packaged_tables(content["settings"])
    own = {key: content.pop(key) for key in spec.option_types() if key in content}
    options, errors = spec.checked_options(own)
    try:
        written = spec.StudyFile.model_validate_json(json.dumps(content, default=str))
    except ValidationError as error:
        errors += error.errors()
    if errors:
        raise StudyError(all_mistakes(path, [_sentence(entry) for entry in errors]))
    given = dict(features or {})
    backbones, left_out = [], {}
    problems: list[str] = []
    for i, entry in enumerate(written.backbones):
        where = f"backbones[{i}]"
        # Paths by setting; those of the user replace those in the file.
        paths = {
            key.partition("/")[2] or spec.EVERY_SETTING: str(own_path.absolute())
            for key, own_path in given.items()
            if key.partition("/")[0] == entry.name
        }
        if spec.EVERY_SETTING not in paths:
            listed = {spec.EVERY_SETTING: entry.features} if isinstance(entry.features, str) else entry.features
            paths = listed | paths
        try:
            found = {
                setting: find_features(text, prompts=entry.prompts, folder=path.parent, name=entry.name)
                for setting, text in paths.items()
            }
        except StudyError as error:
            if entry.optional and entry.name not in {key.partition("/")[0] for key in given}:
                left_out[entry.name] = str(error)
            else:
                problems.append(f"{where}.features: {error}")
            continue
        backbones.append(spec.Backbone(name=entry.name, title=entry.title or entry.name, features=found))
    if not backbones and not problems:
        problems.append("backbones: no features found: " + "; ".join(left_out.values()))
    known = [entry.name for entry in written.backbones]
    problems += [
        f"features: {unknown('backbone', key.partition('/')[0], known)}"
        for key in given
        if key.partition("/")[0] not in known
    ]
    common = {name: getattr(written, name) for name in spec.Common.model_fields}
    study = spec.Study.model_construct(**common, backbones=tuple(backbones), options=options, left_out=left_out)
    problems += _mismatches(study, known)
    if problems:
        raise StudyError(all_mistakes(path, problems))
    where_to = output if output is not None else path.parent / written.output
    titled = tuple(entry.model_copy(update={"title": entry.title or entry.name}) for entry in study.settings)
    return study.model_copy(update={"output": str(where_to), "settings": titled})


def _mismatches(study: spec.Study, backbones: Sequence[str]) -> list[str]:
    """What the settings need but the features do not have: backbones, classes, columns."""
    problems = [
        f"settings[{i}].backbones: {unknown('backbone', name, backbones)}"
        for i, setting in enumerate(study.settings)
        for name in setting.backbones or ()
        if name not in backbones
    ]
    columns: dict[str, list[str]] = {}
    for setting, backbone in study.combinations():
        features = backbone.features_for(setting.name)
        assert features is not None, "as in combinations"
        missing = [name for name in setting.classes or () if name not in features.classes]
        if missing:
            problems.append(
                f"settings.classes: {missing} of {setting.name} are not among the prompts of {backbone.name}, "
                f"which are {list(features.classes)}"
            )
        for part, conditions in (("source", setting.source), ("target", setting.target)):
            for column in (entry.column for entry in conditions if entry.column not in features.columns):
                where = f"settings.{part} of {setting.name}: {unknown('column', column, features.columns)}"
                columns.setdefault(where, []).append(str(features.path))
    return problems + [f"{where}, in {' and '.join(dict.fromkeys(paths))}" for where, paths in columns.items()]


def find_features(written: str, *, prompts: str | None, folder: Path, name: str) -> spec.Features:
    """Find the features that a study file names.

    Parameters
    ----------
    written : str
        A path, relative to `folder`; `$VARIABLES` are substituted; "demo:FILE" is a file of calcode-demo-data.
    prompts : str or None
    folder : Path
    name : str
        Name of the backbone, for the error's advice.
    """
    from calcode.cohorts.parquet import file_schema
    from calcode.cohorts.prompts import prompt_file_for, read_prompts

    path = _path(written, folder=folder)
    if not os.path.isfile(path):  # also False if a name is too long
        raise StudyError(f"{path} does not exist; correct it, or pass --features {name}=PATH")
    bank = None if prompts is None else _path(prompts, folder=folder)
    digest = hashlib.sha256()
    try:
        found = prompt_file_for(path) if bank is None else bank
        classes = read_prompts(found).classes
        for file in (path, found):
            digest.update(bytes.fromhex(file_sha256(file)))
        columns = tuple(file_schema(path).names)
    except OSError as error:
        raise StudyError(f"{error.filename or path}: {error.strerror or error}") from error
    except CalcodeError as error:
        raise StudyError(str(error)) from error
    return spec.Features(path=path, prompts=bank, digest=digest.hexdigest(), classes=classes, columns=columns)


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


def json_schema() -> dict[str, Any]:
    """The JSON schema of a study file, for editors that complete and check TOML."""
    schema = spec.StudyFile.model_json_schema()
    settings = schema["properties"]["settings"]
    schema["properties"]["settings"] = {"anyOf": [{"type": "string", "enum": ["dermatology"]}, settings]}
    for key, (kind, _) in spec.option_types().items():
        own = TypeAdapter(kind).json_schema(ref_template="#/$defs/{model}")
        schema["$defs"] |= own.pop("$defs", {})
        schema["properties"][key] = own
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "calcode study", **schema}


def _sentence(error: Any) -> str:
    """One validation error of pydantic as a sentence with the key and its value."""
    found = mistake(error, _known_keys, top="study")
    if error["type"] == "string_pattern_mismatch":
        where = found.partition(":")[0]
        return f"{where}: {error['input']!r} cannot be part of a file name; use letters, digits, _ . + -"
    complete = error["type"] in ("missing", "extra_forbidden", "value_error", "too_short")
    return found if complete else f"{found}, not {error['input']!r}"


def _known_keys(loc: Sequence[Any]) -> list[str]:
    """Keys of the table at a location in the file; options of experiments are at its top level."""
    options = {key: kind for key, (kind, _) in spec.option_types().items()}
    if loc and loc[0] in options:
        return keys_at(options[loc[0]], loc[1:])
    return keys_at(spec.StudyFile, loc) + ([] if loc else list(options))
