"""Labels from elsewhere, one by one or as a CSV file, which is recorded whole or not at all (SERVICE.md 6)."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, select

from calcode.files import csv_delimiter
from calcode.service.keys import SiteSecret
from calcode.service.labels import OUTSIDE, receive_label
from calcode.service.log import Transaction
from calcode.service.problems import Problem
from calcode.service.tables import DECISION

#: Accepted sources of a label.
SOURCES = ("pathology", "consensus")
_COLUMNS = ("decision", "study", "label", "line", "source")
_MOST_ROWS = 100_000
#: Mistakes that are listed; the others are counted.
_LISTED = 50


class GivenLabel(NamedTuple):
    """A label as it was sent, for one decision or for all images of a study."""

    decision: str | None
    study: str | None
    label: str
    line: str | None = None
    source: str = "pathology"


class LabelledLine(NamedTuple):
    """What is needed to check the labels of a line."""

    classes: Sequence[str]
    #: Makes the pseudonyms of the line.
    secret: SiteSecret


def read_label_file(text: str) -> list[GivenLabel]:
    r"""Read a CSV file with the columns label, decision or study, and optionally line and source.

    Examples
    --------
    >>> read_label_file("study,label\nS-1,mel\n")
    [GivenLabel(decision=None, study='S-1', label='mel', line=None, source='pathology')]
    """
    text = text.removeprefix("\ufeff")
    rows = csv.DictReader(io.StringIO(text), delimiter=csv_delimiter(text.partition("\n")[0]))
    names = [name.strip() for name in rows.fieldnames or ()]
    rows.fieldnames = names
    unknown = sorted(set(names) - set(_COLUMNS))
    if "label" not in names or not {"decision", "study"} & set(names) or unknown or len(set(names)) < len(names):
        raise Problem(422, "csv: the columns are label, decision or study, and if wanted line and source.")
    try:
        given = [
            GivenLabel(
                decision=_cell(row, "decision"),
                study=_cell(row, "study"),
                label=_cell(row, "label") or "",
                line=_cell(row, "line"),
                source=_cell(row, "source") or "pathology",
            )
            for row in rows
        ]
    except csv.Error as error:
        raise Problem(422, f"csv: line {rows.line_num}: {error}.") from error
    if not 1 <= len(given) <= _MOST_ROWS:
        raise Problem(422, f"csv: {len(given)} rows; 1 to {_MOST_ROWS:,} are taken at once.")
    return given


def _cell(row: Mapping[str | None, str | list[str] | None], name: str) -> str | None:
    value = row.get(name)
    return value.strip() or None if isinstance(value, str) else None


def receive_labels(
    transaction: Transaction, given: Sequence[GivenLabel], *, lines: Mapping[str, LabelledLine], actor: str
) -> list[tuple[str, str]]:
    """Record labels, all of them or none.

    Parameters
    ----------
    transaction : Transaction
    given : sequence of GivenLabel
    lines : mapping of str to LabelledLine
        Lines that the sender may label.
    actor : str

    Returns
    -------
    list of (str, str)
        Decision and id of the review, in the order given.

    Raises
    ------
    Problem
        422 that names every wrong row without its values, which may identify a person.
    """
    mistakes: list[str] = []
    wanted: dict[tuple[str, str], tuple[str, LabelledLine, int]] = {}
    for number, entry in enumerate(given, start=1):
        where = f"row {number}: " if len(given) > 1 else ""
        try:
            found = _decisions(transaction.connection, entry, lines)
        except ValueError as error:
            mistakes.append(f"{where}{error}")
            continue
        for decision, line in found:
            label, _, row = wanted.setdefault((decision, entry.source), (entry.label, line, number))
            if label != entry.label:
                mistakes.append(f"{where}another label than row {row} for the same case")
    if mistakes:
        listed = mistakes[:_LISTED] + ([f"and {len(mistakes) - _LISTED} more"] if len(mistakes) > _LISTED else [])
        raise Problem(422, f"Nothing was recorded. {'; '.join(listed)}.", extra={"mistakes": listed})
    return [
        (decision, receive_label(transaction, decision, label=label, source=source, actor=actor, classes=line.classes))
        for (decision, source), (label, line, _) in wanted.items()
    ]


def _decisions(
    connection: Connection, entry: GivenLabel, lines: Mapping[str, LabelledLine]
) -> list[tuple[str, LabelledLine]]:
    """Return the decisions that a label is about, and their lines; raise ValueError if it is invalid."""
    if (entry.decision is None) == (entry.study is None):
        raise ValueError("name a decision or a study, one of them")
    if entry.source not in SOURCES:
        raise ValueError(f"source is {' or '.join(SOURCES)}")
    if entry.line is not None and entry.line not in lines:
        raise ValueError("no line of this name may be labelled")
    if entry.decision is None and entry.line is None and len(lines) != 1:
        raise ValueError("name the line of the study")
    query = select(DECISION.c.id, DECISION.c.line).order_by(DECISION.c.seq)
    if entry.decision is not None:
        query = query.where(DECISION.c.id == entry.decision)
    else:
        line = entry.line or next(iter(lines))
        digest = lines[line].secret.pseudonym("study", str(entry.study))
        query = query.where(DECISION.c.line == line, DECISION.c.study_digest == digest)
    rows = connection.execute(query).all()
    if not rows or any(row.line not in lines or entry.line not in (None, row.line) for row in rows):
        raise ValueError(f"no decision has this {'study' if entry.decision is None else 'id'}")
    for row in rows:
        classes = lines[row.line].classes
        if entry.label not in (*classes, OUTSIDE):
            raise ValueError(f"label is one of {', '.join((*classes, OUTSIDE))}")
    return [(row.id, lines[row.line]) for row in rows]
