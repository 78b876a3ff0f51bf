"""The documentation page of the tables, written from their schemas."""

from __future__ import annotations

from calcode.study.registry import EXPERIMENTS
from calcode.study.schema import Column, TableSchema

_HEAD = """\
# Tables of the study

`calcode study run` writes one CSV file per table into `tables/`, and their schemas into `tables/schemas.json`. All
of them are computed from the decisions and measurements under `work/`. An empty cell is an undefined value: nothing
was accepted, or the column does not apply. Numbers are written so that they read back exactly. On shifted settings
every figure is an observation, and coverage never stands without set size, full-set rate and deferral.

A study that leaves an experiment out writes its tables with their heads alone. Two runs of the same study give the
same bytes, except in columns marked *measured*, which hold durations.

This page is written by `python -m calcode.study.docs_page > docs/study-tables.md`; a test compares the two.
"""


def tables_page() -> str:
    """The page as Markdown."""
    parts = [_HEAD]
    for experiment in EXPERIMENTS.values():
        parts.append(f"## {experiment.title}\n\nExperiment `{experiment.name}`.\n")
        parts += [_table(schema) for schema in experiment.tables]
    return "\n".join(parts)


def _table(schema: TableSchema) -> str:
    key = ", ".join(f"`{name}`" for name in schema.key)
    lines = [
        f"### {schema.name}.csv",
        "",
        f"{schema.about} A row is told by {key}.",
        "",
        "| column | type | unit | what |",
        "|---|---|---|---|",
        *(_line(column) for column in schema.columns),
        "",
    ]
    return "\n".join(lines)


def _line(column: Column) -> str:
    measured = " *Measured.*" if column.varies else ""
    return f"| `{column.name}` | {column.kind} | {column.unit} | {column.about}{measured} |"


if __name__ == "__main__":
    import sys

    sys.stdout.write(tables_page())
