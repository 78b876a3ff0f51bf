"""Conditions on rows as a user types them: column, comparison, value."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from calcode.cohorts import FeatureFile
from calcode.errors import FeatureFileError

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.compute

_CONDITION = re.compile(r"^\s*(?P<column>[^=!<>]+?)\s*(?P<comparison>!=|<=|>=|==|=|<|>)\s*(?P<value>.*?)\s*$")


def row_filter(conditions: Sequence[str] | None, features: FeatureFile) -> pyarrow.compute.Expression | None:
    """All conditions as one filter for `FeatureFile.read`, or None where there are none.

    Parameters
    ----------
    conditions : sequence of str or None
        Such as "site!=rosendahl"; the value is read as the column's type.
    features : FeatureFile
        Whose columns are meant.
    """
    if not conditions:
        return None
    from calcode.cohorts.parquet_stream import file_schema

    schema = file_schema(features.path)
    expressions = [_expression(text, schema=schema, features=features) for text in conditions]
    whole = expressions[0]
    for expression in expressions[1:]:
        whole = whole & expression
    return whole


def _expression(text: str, *, schema: pyarrow.Schema, features: FeatureFile) -> pyarrow.compute.Expression:
    import pyarrow.compute as pc

    found = _CONDITION.match(text)
    if found is None:
        raise typer.BadParameter(
            f"{text!r} is no condition; write column, comparison (= != < <= > >=) and value, such as 'site!=rosendahl'",
            param_hint="--where",
        )
    column = found["column"]
    if column not in schema.names or column == "embedding":
        others = [name for name in schema.names if name != "embedding"]
        raise FeatureFileError(
            f"{features.path}: no column {column!r} for --where {text!r}; it has {', '.join(others)}"
        )
    field = pc.field(column)
    value = _value(found["value"], kind=schema.field(column).type, condition=text, features=features)
    comparisons = {
        "=": field == value,
        "==": field == value,
        "!=": field != value,
        "<": field < value,
        "<=": field <= value,
        ">": field > value,
        ">=": field >= value,
    }
    return comparisons[found["comparison"]]


def _value(text: str, *, kind: pyarrow.DataType, condition: str, features: FeatureFile) -> Any:
    import pyarrow as pa

    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    unquoted = text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
    try:
        return pa.scalar(unquoted).cast(plain)
    except pa.ArrowException as error:
        raise FeatureFileError(
            f"{features.path}: {unquoted!r} in --where {condition!r} is no value of the column's type {plain}; "
            "write one that is"
        ) from error
