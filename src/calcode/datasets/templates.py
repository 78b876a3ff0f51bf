"""Prompt templates as files: the sentences about every class for the text tower."""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from calcode.errors import DatasetError

#: Placeholder of the label text; every template has it exactly once.
PLACE = "{label}"
_LISTS = ("classes", "label_texts", "templates")
_SUFFIX = ".toml"
_FOLDER = "prompt_files"


@dataclass(frozen=True, kw_only=True)
class PromptTemplates:
    """The label texts of K classes and the M sentences that contain them.

    Attributes
    ----------
    name : str
        Name of the packaged file, or stem of the user's file.
    classes : tuple of str
        The K class names, as in labels and tables.
    label_texts : tuple of str
        The K texts that are inserted into the sentences.
    templates : tuple of str
        The M sentences; each holds ``{label}`` once.
    source : str
        Origin of the sentences ("paper", "calcode", or the value in the file).

    Examples
    --------
    >>> skin = load_templates("dermatology")
    >>> skin.sentences()[4][0]
    'a dermoscopic image showing melanoma.'
    >>> skin.restrict(["mel", "nv"])
    PromptTemplates(dermatology: 2 classes [mel, nv] x 5 templates, source: paper)
    """

    name: str
    classes: tuple[str, ...]
    label_texts: tuple[str, ...]
    templates: tuple[str, ...]
    source: str = ""

    def __post_init__(self) -> None:
        for field in _LISTS:
            values: Sequence[object] = getattr(self, field)
            where = f"{self.name}: {field}"
            if not values:
                raise DatasetError(f"{where}: empty; give at least one")
            wrong = [value for value in values if not isinstance(value, str) or not value.strip()]
            if wrong:
                raise DatasetError(f"{where}: {wrong[0]!r} is not a text; give non-empty strings")
            repeated = sorted(str(value) for value, count in Counter(values).items() if count > 1)
            if repeated:
                raise DatasetError(f"{where}: {repeated} given more than once; each must differ")
        if len(self.label_texts) != len(self.classes):
            raise DatasetError(
                f"{self.name}: label_texts: {len(self.label_texts)} given for {len(self.classes)} classes; "
                f"give one for each, in the same order"
            )
        for sentence in self.templates:
            if sentence.count(PLACE) != 1 or {"{", "}"} & set(sentence.replace(PLACE, "")):
                raise DatasetError(f"{self.name}: templates: {sentence!r} must hold {PLACE} once and no other braces")

    def __repr__(self) -> str:
        names = ", ".join(self.classes[:8]) + (", ..." if len(self.classes) > 8 else "")
        return (
            f"PromptTemplates({self.name}: {len(self.classes)} classes [{names}] x {len(self.templates)} "
            f"templates, source: {self.source or 'not stated'})"
        )

    @property
    def digest(self) -> str:
        """SHA-256, in hex, of the classes, label texts and templates, which determine the sentences."""
        content = json.dumps([self.classes, self.label_texts, self.templates], ensure_ascii=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def sentences(self) -> tuple[tuple[str, ...], ...]:
        """The K x M sentences: classes first, then templates."""
        return tuple(tuple(sentence.replace(PLACE, text) for sentence in self.templates) for text in self.label_texts)

    def restrict(self, classes: Sequence[str]) -> PromptTemplates:
        """The same sentences for some of the classes, in the given order."""
        unknown = [name for name in classes if name not in self.classes]
        if unknown:
            raise DatasetError(f"classes: {unknown} not in {self.name}; it has {list(self.classes)}")
        text_of = dict(zip(self.classes, self.label_texts, strict=True))
        return replace(self, classes=tuple(classes), label_texts=tuple(text_of[name] for name in classes))


def packaged_templates() -> tuple[str, ...]:
    """Names of the template files included in the package.

    Examples
    --------
    >>> packaged_templates()
    ('dermatology', 'histopathology')
    """
    folder = resources.files("calcode.datasets").joinpath(_FOLDER)
    names = [entry.name for entry in folder.iterdir() if entry.name.endswith(_SUFFIX)]
    return tuple(sorted(name.removesuffix(_SUFFIX) for name in names))


def load_templates(path_or_name: str | os.PathLike[str]) -> PromptTemplates:
    """Load templates by the name of a packaged file, or from your own TOML file.

    Parameters
    ----------
    path_or_name : str or path-like
        A name of `packaged_templates`, or a path that ends in `.toml`. The file has three lists of strings, `classes`,
        `label_texts` (one per class) and `templates` (each with ``{label}`` once), and optionally one string,
        `source`.

    Returns
    -------
    PromptTemplates

    Raises
    ------
    DatasetError
        Names the file, the key and the remedy.

    Examples
    --------
    >>> load_templates("histopathology").label_texts
    ('non-tumor lymph node tissue', 'metastatic tumor tissue')
    """
    if isinstance(path_or_name, str) and path_or_name in packaged_templates():
        entry = resources.files("calcode.datasets").joinpath(_FOLDER, path_or_name + _SUFFIX)
        return _parsed(entry.read_text(encoding="utf-8"), name=path_or_name)
    path = Path(path_or_name)
    if path.suffix != _SUFFIX or not path.is_file():
        raise DatasetError(
            f"path_or_name: {str(path_or_name)!r} is neither a template file ({_SUFFIX}) nor one of "
            f"{list(packaged_templates())}"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"{path}: cannot be read as UTF-8 text ({error})") from error
    return _parsed(text, name=path.stem)


def _parsed(text: str, *, name: str) -> PromptTemplates:
    try:
        content: dict[str, Any] = tomllib.loads(text)
    except RecursionError:
        raise DatasetError(f"{name}: not a TOML file of templates (nested too deeply)") from None
    except ValueError as error:
        raise DatasetError(f"{name}: not a TOML file ({error})") from error
    missing = [key for key in _LISTS if key not in content]
    unknown = sorted(content.keys() - {*_LISTS, "source"})
    if missing or unknown:
        said = f"lacks {missing}" if missing else f"has unknown keys {unknown}"
        raise DatasetError(f"{name}: the file {said}; it must hold the lists {list(_LISTS)}")
    for key in _LISTS:
        if not isinstance(content[key], list):
            raise DatasetError(f"{name}: {key}: a list of strings needed, not {content[key]!r}")
    source = content.get("source", "")
    if not isinstance(source, str):
        raise DatasetError(f"{name}: source: a string needed, not {source!r}")
    return PromptTemplates(name=name, source=source, **{key: tuple(content[key]) for key in _LISTS})
