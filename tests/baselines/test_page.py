"""docs/baselines.md shows what the records say. `python tests/baselines/test_page.py` writes its tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest
from doc_blocks import ROOT

from calcode.baselines import METHODS, Record

PAGE = ROOT / "docs" / "baselines.md"


def _table(head: Sequence[str], cells: Callable[[Record], Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for method in METHODS.values():
        # A bar would open another cell.
        row = [cell.replace("|", "\\|") for cell in cells(method.record)]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def _marks(record: Record) -> str:
    marks = ["transductive"] * record.transductive + ["reconstruction"] * record.reconstruction
    return ", ".join(marks + ["not reproducible"] * (not record.reproducible))


def sources() -> str:
    return _table(
        ("name", "method", "paper", "venue, year", "marks"),
        lambda record: (
            f"`{record.name}`",
            record.title,
            record.paper,
            f"{record.venue}, {record.year}",
            _marks(record),
        ),
    )


def promises() -> str:
    return _table(
        ("name", "assumes", "selects, on which role"),
        lambda record: (f"`{record.name}`", record.assumes, record.selects),
    )


def differences() -> str:
    def cells(record: Record) -> tuple[str, str]:
        alone = f" One test image alone: {record.single_image}" if record.single_image else ""
        return f"`{record.name}`", record.differs + alone

    return _table(("name", "difference"), cells)


TABLES: dict[str, Callable[[], str]] = {"sources": sources, "promises": promises, "differences": differences}


def with_tables(page: str) -> str:
    """The page with every table made anew between its marks."""
    for name, render in TABLES.items():
        start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, opened, rest = page.partition(start)
        _, closed, after = rest.partition(end)
        assert opened, f"no {start} in {PAGE.name}"
        assert closed, f"no {end} in {PAGE.name}"
        page = f"{before}{start}\n\n{render()}\n\n{end}{after}"
    return page


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_are_those_of_the_records(name: str) -> None:
    assert TABLES[name]() in PAGE.read_text(), "run: python tests/baselines/test_page.py"


@pytest.mark.parametrize("name", TABLES)
def test_every_method_has_one_row_of_as_many_cells_as_the_head(name: str) -> None:
    head, rule, *rows = TABLES[name]().splitlines()
    bars = re.compile(r"(?<!\\)\|")
    assert len(rows) == len(METHODS)
    assert {len(bars.findall(line)) for line in (head, rule, *rows)} == {len(bars.findall(head))}


def test_reconstructions_and_what_cannot_be_reproduced_are_marked() -> None:
    rows = dict(zip(METHODS, sources().splitlines()[2:], strict=True))
    for name, method in METHODS.items():
        last = rows[name].rstrip("| ").rpartition("|")[2]
        assert ("reconstruction" in last) == method.record.reconstruction, name
        assert ("not reproducible" in last) == (not method.record.reproducible), name
        assert ("transductive" in last) == method.record.transductive, name


def test_the_commands_of_the_cost_table_exist() -> None:
    scripts = re.findall(r"`python (benchmarks/\S+\.py)", PAGE.read_text())
    assert len(scripts) > 3
    assert [script for script in scripts if not (ROOT / script).is_file()] == []


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
