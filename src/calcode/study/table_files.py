"""Tables as CSV files: written whole or not at all, read back with their types."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path

from calcode.errors import StudyError
from calcode.files import replacing
from calcode.study.schema import Cell, Column, Row, TableSchema

SCHEMA_FILE = "schemas.json"


def write_table(folder: Path, schema: TableSchema, rows: Sequence[Row]) -> Path:
    """Write `<name>.csv`: numbers in the shortest form that reads back exactly, nothing where undefined.

    Parameters
    ----------
    folder : Path
    schema : TableSchema
    rows : sequence of mapping
        A table without rows has its head all the same.
    """
    cells = schema.checked(rows)
    path = folder / f"{schema.name}.csv"
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(schema.column_names)
        writer.writerows([_as_text(value) for value in row.values()] for row in cells)
    return path


def read_table(folder: Path, schema: TableSchema) -> list[dict[str, Cell]]:
    """The rows of a table as `write_table` was given them.

    Parameters
    ----------
    folder : Path
        The folder `tables` of a study's output.
    schema : TableSchema
    """
    path = folder / f"{schema.name}.csv"
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        if tuple(next(reader, ())) != schema.column_names:
            raise StudyError(f"{path}: its columns are not those of the schema; run the study again")
        return [
            {column.name: _from_text(cell, column) for column, cell in zip(schema.columns, line, strict=True)}
            for line in reader
        ]


def write_schemas(folder: Path, schemas: Sequence[TableSchema]) -> Path:
    """Describe every table in one JSON file beside them."""
    path = folder / SCHEMA_FILE
    content = {f"{schema.name}.csv": schema.to_dict() for schema in schemas}
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def _as_text(value: Cell) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def _from_text(cell: str, column: Column) -> Cell:
    if cell == "":
        return None
    if column.kind == "flag":
        return cell == "true"
    if column.kind == "integer":
        return int(cell)
    return float(cell) if column.kind == "number" else cell
