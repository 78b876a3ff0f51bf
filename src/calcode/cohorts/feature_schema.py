"""What a feature file must look like, checked on its schema alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from calcode.errors import FeatureFileError

if TYPE_CHECKING:
    import pyarrow

#: Columns with a meaning of their own; every other column is metadata.
RESERVED_COLUMNS = ("id", "label", "label_name", "role", "group", "embedding")
#: Keys of the schema metadata.
CLASSES_KEY = b"classes"
BACKBONE_KEY = b"backbone"
DIGEST_KEY = b"prompt_digest"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Which columns a feature file has and what its schema metadata say.

    Attributes
    ----------
    columns : tuple of str
        All columns, in the order of the file.
    label_column : str or None
        `label_name` if there is one, else `label`, else None.
    file_classes : tuple of str or None
        The classes an integer `label` counts through.
    dimension : int or None
        Length of an embedding; None if the lists have no fixed size and only the rows can tell.
    """

    columns: tuple[str, ...]
    label_column: str | None
    file_classes: tuple[str, ...] | None
    dimension: int | None
    backbone: str | None
    prompt_digest: str | None

    @property
    def metadata_columns(self) -> tuple[str, ...]:
        """The columns without a meaning of their own."""
        return tuple(name for name in self.columns if name not in RESERVED_COLUMNS)

    @property
    def checks_label_index(self) -> bool:
        """Whether integer labels stand beside the names, so that the two can be compared."""
        return self.label_column == "label_name" and "label" in self.columns and self.file_classes is not None


def layout_of(schema: pyarrow.Schema, *, path: Path) -> Layout:
    """Check the schema of a feature file.

    Raises
    ------
    FeatureFileError
        Naming the file, the column and the remedy.
    """
    names = tuple(schema.names)
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise FeatureFileError(f"{path}: {repeated} named more than once; give every column its own name")
    for needed, what in (
        ("id", "one string per image"),
        ("embedding", "a fixed-size list of float16 or float32"),
    ):
        if needed not in names:
            raise FeatureFileError(
                f"{path}: no column {needed!r} ({what}); it has {list(names)}. Add it, or write with "
                f"write_features"
            )
    for name in ("id", "label_name", "role", "group"):
        if name in names:
            _check_words(schema.field(name).type, path=path, name=name)
    metadata = schema.metadata or {}
    file_classes = _classes(metadata.get(CLASSES_KEY), path=path)
    return Layout(
        columns=names,
        label_column=_label_column(schema, file_classes=file_classes, path=path),
        file_classes=file_classes,
        dimension=_dimension(schema.field("embedding").type, path=path),
        backbone=_text(metadata.get(BACKBONE_KEY)),
        prompt_digest=_text(metadata.get(DIGEST_KEY)),
    )


def _check_words(kind: pyarrow.DataType, *, path: Path, name: str) -> None:
    import pyarrow.types as types

    if types.is_dictionary(kind):
        kind = kind.value_type
    words = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    numbers = types.is_integer(kind) and name in {"id", "group"}
    if not (words or numbers or types.is_null(kind)):
        raise FeatureFileError(f"{path}: column {name!r} is {kind}, strings needed; convert it")


def _label_column(schema: pyarrow.Schema, *, file_classes: tuple[str, ...] | None, path: Path) -> str | None:
    import pyarrow.types as types

    if "label_name" in schema.names:
        return "label_name"
    if "label" not in schema.names:
        return None
    kind = schema.field("label").type
    if not (types.is_integer(kind) or types.is_null(kind)):
        raise FeatureFileError(
            f"{path}: column 'label' is {kind}, class indices needed; name diagnoses in a column 'label_name'"
        )
    if file_classes is None:
        raise FeatureFileError(
            f"{path}: column 'label' holds indices, but the schema metadata have no 'classes' to count "
            f"through; add a JSON list of names there, or name the diagnoses in a column 'label_name'"
        )
    return "label"


def _dimension(kind: pyarrow.DataType, *, path: Path) -> int | None:
    import pyarrow.types as types

    fixed = types.is_fixed_size_list(kind)
    if not (fixed or types.is_list(kind) or types.is_large_list(kind)) or not types.is_floating(
        kind.value_type
    ):
        raise FeatureFileError(
            f"{path}: column 'embedding' is {kind}, a fixed-size list of float16 or float32 needed; convert "
            f"it"
        )
    return int(kind.list_size) if fixed else None


def _classes(value: bytes | None, *, path: Path) -> tuple[str, ...] | None:
    if value is None:
        return None
    try:
        names = json.loads(value)
    except ValueError as error:
        raise FeatureFileError(f"{path}: 'classes' in the schema metadata is not JSON ({error})") from error
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise FeatureFileError(
            f"{path}: 'classes' in the schema metadata is not a JSON list of names: {names!r}"
        )
    return tuple(names)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
