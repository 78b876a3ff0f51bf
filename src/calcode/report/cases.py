"""Example cases: what the guard kept, and what it did not."""

from __future__ import annotations

import numpy as np

from calcode.arrays import BoolArray, IntArray
from calcode.report.figures import CohortFigures, class_counts
from calcode.report.inputs import ReportCohort
from calcode.report.markup import Column, Html, element, section, table
from calcode.report.wording import count, counted, listed, number, percent

#: Cases shown of each kind.
_SHOWN = 6
_COLUMNS = (
    Column("image", numeric=False),
    Column("true class", numeric=False),
    Column("first-ranked", numeric=False),
    Column("localized set", numeric=False),
    Column("CALCoDe's set", numeric=False),
    Column("p-value"),
)


def cases_part(key: str, figures: CohortFigures) -> Html:
    """Two tables of example cases with the counts they were taken from."""
    return section(
        key,
        "Cases",
        element("h4", None, "The localized set missed the truth, the guard kept it"),
        element("p", None, kept_sentence(figures)),
        _case_table(figures.cohort, figures.kept, caption="Examples of cases that the guard kept"),
        element("h4", None, "The truth was missed all the same"),
        element("p", None, missed_sentence(figures)),
        _case_table(figures.cohort, figures.missed, caption="Examples of cases that were missed"),
        level=3,
    )


def kept_sentence(figures: CohortFigures) -> str:
    """How often the guard made the difference, and how often it only made sets larger."""
    kept, widened = int(figures.kept.sum()), int(figures.widened.sum())
    if not figures.cohort.model.tail_classes_:
        return "No class is protected, so the guard kept nothing."
    found = (
        f"{counted(kept, 'accepted image')} ({_by_class(figures, figures.kept)})"
        if kept
        else "no accepted image"
    )
    further = counted(widened, "further accepted image")
    price = f"It added labels to {further} whose localized set held the truth already."
    return f"The guard made the difference for {found}. {price}"


def missed_sentence(figures: CohortFigures) -> str:
    """How many sets of accepted images are wrong, by class, and how many of them were deferred as empty."""
    missed = int(figures.missed.sum())
    if not missed:
        return "No set of an accepted image of the label space misses the truth."
    deferred = int((figures.missed & figures.cohort.decisions.deferred).sum())
    sentence = f"{counted(missed, 'accepted image')} ({_by_class(figures, figures.missed)})."
    return f"{sentence} {count(deferred)} of them went to a clinician after all." if deferred else sentence


def _by_class(figures: CohortFigures, mask: BoolArray) -> str:
    counts = class_counts(mask, labels=figures.cohort.labels, classes=figures.cohort.classes)
    return listed([f"{name} {count(n)}" for name, n in counts.items()])


def chosen_rows(mask: BoolArray, *, labels: IntArray, shown: int = _SHOWN) -> IntArray:
    """Rows of the mask, one class after the other in turn, so that no frequent class fills the table.

    Examples
    --------
    >>> chosen_rows(np.array([True, True, True, False]), labels=np.array([0, 0, 1, 1]), shown=2)
    array([0, 2])
    """
    rows = np.flatnonzero(mask)
    turn = np.zeros(len(rows), dtype=np.int64)
    for label in np.unique(labels[rows]):
        members = labels[rows] == label
        turn[members] = np.arange(int(members.sum()))
    order = np.lexsort((rows, labels[rows], turn))
    return rows[order][:shown]


def _case_table(cohort: ReportCohort, mask: BoolArray, *, caption: str) -> Html:
    chosen = chosen_rows(mask, labels=cohort.labels)
    if not len(chosen):
        return Html("")
    total = int(mask.sum())
    return table(
        _COLUMNS,
        [_case(cohort, int(row)) for row in chosen],
        caption=f"{caption}: {len(chosen)} of {count(total)}, taken from the classes in turn",
        style="stack",
    )


def _case(cohort: ReportCohort, row: int) -> list[str]:
    decisions = cohort.decisions
    top = decisions.classes[int(decisions.top_label[row])]
    name = f"row {row}" if decisions.ids is None else str(decisions.ids[row])
    return [
        name,
        decisions.classes[int(cohort.labels[row])],
        f"{top} ({percent(float(decisions.top_probability[row]), digits=0)})",
        set_words(decisions.localized_sets[row], decisions.classes),
        set_words(decisions.sets[row], decisions.classes),
        number(float(decisions.p_audit[row]), digits=3),
    ]


def set_words(members: BoolArray, classes: tuple[str, ...]) -> str:
    """A set as text.

    Examples
    --------
    >>> set_words(np.array([True, False, True]), ("a", "b", "c"))
    'a, c'
    >>> set_words(np.array([True, True]), ("a", "b")), set_words(np.array([False, False]), ("a", "b"))
    ('all 2: a, b', 'empty')
    """
    names = [classes[i] for i in np.flatnonzero(members)]
    if not names:
        return "empty"
    words = ", ".join(names)
    return f"all {len(names)}: {words}" if len(names) == len(classes) else words
