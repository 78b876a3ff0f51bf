"""The sheet that a reviewer fills in: id, group, label and reason, without the model's answer."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.cohorts.parquet import meant_class
from calcode.errors import FeatureFileError, all_mistakes
from calcode.files import csv_delimiter, replacing
from calcode.method.evidence import Evidence
from calcode.site.plan import TRAINING, ReviewPlan

COLUMNS = ("id", "group", "label", "why")
#: Entries that a reviewer may write instead of a diagnosis.
CANNOT_TELL = "cannot tell"
OTHER = "other"
#: Number of lines that the message about a mistake names; the others are only counted.
_SHOWN = 10


def require_replaceable(path: Path, *, drawn_once: bool) -> None:
    """Raise if a new sheet would destroy labels, or cases that cannot be drawn again.

    Parameters
    ----------
    path : Path
        Sheet that would be overwritten, if it exists.
    drawn_once : bool
        Whether the new cases are drawn by the coin, which is tossed only once per patient.
    """
    lines = read_lines(path)[1] if path.is_file() else {}
    remedy = "write the new sheet to another file with --output"
    if any(line.get("label") for line in lines.values()):
        raise FeatureFileError(f"{path}: its labels are filled in; {remedy}")
    if drawn_once and lines:
        raise FeatureFileError(f"{path}: its {len(lines)} cases wait for a label and are not drawn again; {remedy}")


def write_sheet(path: Path, evidence: Evidence, plan: ReviewPlan) -> None:
    """Write the planned cases with empty labels."""
    assert evidence.ids is not None  # the plan was made from them
    assert evidence.groups is not None
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(COLUMNS)
        for row, why in zip(plan.rows, plan.why, strict=True):
            writer.writerow([evidence.ids[row], evidence.groups[row], "", why])


@dataclass(frozen=True, eq=False, kw_only=True)
class ReviewedCases:
    """A filled sheet, matched with its images.

    Attributes
    ----------
    rows : ndarray of int
        Rows of the evidence, in the order of the sheet.
    labels : ndarray of int
        -1 if the diagnosis is outside the label space, or missing.
    without_label : ndarray of bool
        Cases whose label is empty or "cannot tell".
    training : ndarray of bool
        Cases that train but do not calibrate.
    review_probability : ndarray of float or None
        NaN if the cell is empty; None if the sheet has no such column.
    """

    rows: IntArray
    labels: IntArray
    without_label: BoolArray
    training: BoolArray
    review_probability: FloatArray | None


def read_lines(path: Path) -> tuple[Sequence[str], dict[int, dict[str, str]]]:
    """Columns of a sheet, and its lines by number; in many countries spreadsheets separate cells by semicolons."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        head = text.partition("\n")[0]
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=csv_delimiter(head), strict=True)
        stripped = ((reader.line_num, [cell.strip() for cell in cells]) for cells in reader)
        columns = next(stripped, (1, []))[1]
        # Spreadsheets may save lines of empty cells.
        lines = {number: cells for number, cells in stripped if any(cells)}
    except (UnicodeDecodeError, csv.Error) as error:
        raise FeatureFileError(f"{path}: not a CSV file in UTF-8 ({error}); save the sheet as CSV UTF-8") from error
    for name in columns:
        if name and columns.count(name) > 1:
            raise FeatureFileError(f"{path}: {columns.count(name)} columns are called {name!r}; keep one")
    for number, cells in lines.items():
        if any(cells[len(columns) :]):
            raise FeatureFileError(
                f"{path}: line {number}: {len(cells)} cells and {len(columns)} columns; put a text with a separator in "
                "quotation marks"
            )
    return columns, {number: dict(zip(columns, cells, strict=False)) for number, cells in lines.items()}


def read_sheet(
    path: Path, *, ids: Sequence[str], groups: Sequence[str], classes: Sequence[str], sampling: str
) -> ReviewedCases:
    """Read a filled sheet; raise one error that names all mistakes with their lines.

    Parameters
    ----------
    path : Path
        CSV with the columns id and label, and optionally group, why and review_probability.
    ids, groups : sequence of str
        Of the images that the model can decide on.
    classes : sequence of str
        Diagnoses allowed in the column label; "other", "cannot tell" and an empty cell are allowed too.
    sampling : str
        How the cases were chosen; the column why must not contradict it.
    """
    if not path.is_file():
        raise FeatureFileError(f"{path}: no such file; 'calcode site plan' writes one")
    columns, lines = read_lines(path)
    missing = [name for name in ("id", "label") if name not in columns]
    if missing:
        raise FeatureFileError(f"{path}: no column {', '.join(missing)}; it has {', '.join(columns) or 'none'}")
    row_of = {name: row for row, name in enumerate(ids)}
    allowed = (*classes, OTHER, CANNOT_TELL)
    found: dict[str, str] = {}
    # The lines of each mistake: a misspelled class is one mistake on many lines.
    mistakes: dict[str, list[int]] = {}

    def wrong(number: int, what: str) -> None:
        mistakes.setdefault(what, []).append(number)

    rows, labels, empty, training, shares = [], [], [], [], []
    for number, line in lines.items():
        name, group, label, why = (line.get(column, "") for column in COLUMNS)
        if name not in row_of:
            wrong(number, f"no image {name!r} in the feature file; check the id")
            continue
        known = groups[row_of[name]]
        if group and group != known:
            wrong(
                number,
                f"image {name!r} has the group {group!r}, and {known!r} in the feature file; was one column "
                "of the sheet sorted without the others?",
            )
        if why not in ("", sampling, TRAINING):
            wrong(
                number,
                f"the case was chosen by {why!r}, and sampling says {sampling}; say how the cases were "
                f"chosen, and write '{TRAINING}' where a case is only to train",
            )
        if found.setdefault(name, label) != label:
            wrong(number, f"image {name!r} has two labels, {found[name]!r} and {label!r}; keep one")
        if row_of[name] in rows:
            continue
        if label and label not in allowed:
            meant = meant_class(label, allowed)
            listed = f"{', '.join(classes)}, '{OTHER}', '{CANNOT_TELL}' or nothing"
            advice = f"did you mean {meant!r}?" if meant else f"write one of {listed}"
            wrong(number, f"{label!r} is no diagnosis of the model; {advice}")
        rows.append(row_of[name])
        labels.append(list(classes).index(label) if label in classes else -1)
        empty.append(label in ("", CANNOT_TELL))
        training.append(why == TRAINING)
        share = line.get("review_probability", "")
        try:
            shares.append(float(share or "nan"))
        except ValueError:
            wrong(number, f"review_probability {share!r} is no number; write one above 0 and up to 1")
    if mistakes:
        raise FeatureFileError(all_mistakes(path, [f"{_lines(numbers)}: {what}" for what, numbers in mistakes.items()]))
    if not rows:
        raise FeatureFileError(f"{path}: no case on the sheet")
    return ReviewedCases(
        rows=np.array(rows, dtype=np.int64),
        labels=np.array(labels, dtype=np.int64),
        without_label=np.array(empty, dtype=np.bool_),
        training=np.array(training, dtype=np.bool_),
        review_probability=np.array(shares) if "review_probability" in columns else None,
    )


def _lines(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
    return f"line{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers[:_SHOWN]))}{more}"
