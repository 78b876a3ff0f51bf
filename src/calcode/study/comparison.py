"""Compared methods on one cohort: same images, same roles, same metric code; only the method differs.

`compare_methods` yields one `MethodRow` per method; a method that fails gives a row with the reason. The rows have the
study's columns, and one table is used for the terminal and LaTeX.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import pandas as pd

from calcode.arrays import AnyArray
from calcode.baselines.protocol import Method, Record, Roles
from calcode.baselines.registry import METHODS
from calcode.errors import CalcodeError, CalcodeWarning, EvidenceError, SettingsError
from calcode.method.decisions import WORST_CLASS_MIN
from calcode.method.evidence import Evidence
from calcode.method.roles import checked_roles, identities
from calcode.metrics import Summary, subgroup_rows
from calcode.metrics.wording import count, counted
from calcode.report.parts import Cell, Column, Table
from calcode.study.decisions import MethodDecisions, decisions_from
from calcode.study.figures import DETAILED, HITS, METHOD, TITLE, detailed, hits
from calcode.study.methods import COMPLETE, named_methods
from calcode.study.specification import Point
from calcode.study.tables import Row, TableSchema, duration, flag, text
from calcode.study.view import estimate

EXCHANGEABLE_NOTE = (
    "The test images are the file's own test role, chosen by the same conditions as the fitted roles: exchangeable "
    "with the calibration images by design, so a method's promise, where it makes one, applies to them. Each figure is "
    "one observation all the same."
)
SHIFTED_NOTE = (
    "The test images were chosen apart from the fitted roles, so no promise applies to them: every figure is an "
    "observation on these images."
)
#: Shown for a figure that a method does not have.
NOT_APPLICABLE = "--"

SCHEMA = TableSchema(
    name="comparison",
    about="One row per method and, below, per subgroup and method; undefined values are empty, and so is the deferral "
    "of a method that cannot defer.",
    columns=(
        text("by", "Column of the subgroups; empty for the whole cohort.", key=True),
        text("group", "Its value.", key=True),
        METHOD,
        TITLE,
        flag("reconstruction", "Whether the method was written from formulas alone."),
        flag("transductive", "Whether the test images enter the fit."),
        *DETAILED,
        *HITS,
        duration("seconds", "Fit and prediction together.", unit="s"),
        text("problem", "Why a method has no figures."),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Requirements for every method, and how methods are judged.

    Attributes
    ----------
    miscoverage : float
        Allowed share of misses, in (0, 1).
    min_n : int
        Fewest answered test images with which a class can be the worst class.
    random_state : int
        Seed of every draw.

    Examples
    --------
    >>> Terms(miscoverage=0.1).point.target
    0.9
    """

    miscoverage: float = 0.05
    min_n: int = WORST_CLASS_MIN
    random_state: int = 0

    def __post_init__(self) -> None:
        if not 0.0 < self.miscoverage < 1.0:
            raise SettingsError(f"miscoverage: {self.miscoverage!r} must lie strictly between 0 and 1")
        if self.min_n < 1:
            raise SettingsError(f"min_n: {self.min_n} must be at least 1")

    @property
    def point(self) -> Point:
        """The terms as an operating point of a study; CALCoDe's guard has the level of the sets."""
        return Point(miscoverage=self.miscoverage, guard_miscoverage=self.miscoverage)


@dataclass(frozen=True, eq=False, kw_only=True)
class MethodRow:
    """One method of a comparison, with its figures or the reason why it has none.

    Attributes
    ----------
    record : Record
    terms : Terms
    decided : MethodDecisions or None
        None if the method failed.
    seconds : float
        Fit and prediction together; nan for a subgroup.
    problem : str
        Why nothing was decided; empty otherwise.
    warnings : tuple of str
        Warnings of the method, each once.
    """

    record: Record
    terms: Terms
    decided: MethodDecisions | None = None
    seconds: float = math.nan
    problem: str = ""
    warnings: tuple[str, ...] = ()

    @cached_property
    def summary(self) -> Summary | None:
        """All metrics of METHOD.md 11; None if nothing was decided."""
        return None if self.decided is None else self.decided.summary(min_n=self.terms.min_n)

    @property
    def defers(self) -> bool:
        """Whether the method can defer at all."""
        return self.decided is not None and self.decided.defers

    @property
    def reached(self) -> dict[str, Any]:
        """Whether coverage and worst-class coverage reach the target; None if there are no figures."""
        if self.summary is None:
            return dict.fromkeys(("coverage_hit", "worst_class_hit"))
        return hits(self.summary, self.terms.point)

    @property
    def _facts(self) -> Row:
        names = ("title", "reconstruction", "transductive")
        return {"method": self.record.name} | {name: getattr(self.record, name) for name in names}

    def cells(self) -> Row:
        """The cells of `SCHEMA` for the whole cohort; None if a value does not apply."""
        names = [column.name for column in DETAILED]
        figures = dict.fromkeys(names) if self.summary is None else detailed(self.summary)
        shown = {name: None if "deferral" in name and not self.defers else figures[name] for name in names}
        timed = {"seconds": self.seconds, "problem": self.problem}
        return {"by": "", "group": "", **self._facts, **shown, **self.reached, **timed}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with the figures of `Summary.to_dict`; None as in `cells`."""
        summary = None if self.summary is None else self.summary.to_dict()
        if summary is not None:
            del summary["promises"]  # rows have no sentences; `assumes` says what a promise would require
            if not self.defers:
                summary |= dict.fromkeys(name for name in summary if "deferral" in name)
        return {
            **self._facts,
            "assumes": self.record.assumes,
            "defers": self.defers,
            **self.reached,
            "seconds": None if math.isnan(self.seconds) else self.seconds,
            "problem": self.problem or None,
            "warnings": list(self.warnings),
            "details": {} if self.decided is None else dict(self.decided.details),
            "summary": summary,
        }


def chosen_methods(names: Sequence[str]) -> tuple[Method, ...]:
    """Methods by name or group, as in study files; in table order.

    Parameters
    ----------
    names : sequence of str
        Names of the registry and of `calcode.study.methods.GROUPS`.

    Examples
    --------
    >>> [method.record.name for method in chosen_methods(["transductive", "aps"])]
    ['aps', 'conf-ot', 'lata']
    """
    if not names:
        raise SettingsError("methods: none named; name methods or a group such as 'all'")
    return tuple(METHODS[name] for name in named_methods(names))


def compare_methods(
    roles: Roles, test: Evidence, *, methods: Sequence[Method], terms: Terms | None = None
) -> Iterator[MethodRow]:
    """Run methods on the same images, one row after the other.

    Problems that would spoil every row are checked before the first method runs: roles and test images that share an
    image or a group, other prompts, missing labels. An error of one method becomes its row.

    Parameters
    ----------
    roles : Roles
    test : Evidence
        With ids and labels; -1 marks an image outside the label space. Labels are used only to judge, never to predict.
    methods : sequence of Method
        From `chosen_methods`.
    terms : Terms, optional
    """
    if test.ids is None:
        raise EvidenceError("test: its images have no ids; give each one, so that no image is in two roles")
    if not (test.require_labels() >= 0).any():
        raise EvidenceError("test: no image has a diagnosis among the classes, so nothing can be judged")
    prompts, used = checked_roles(roles.by_name)
    prompts.require(test, role="test")
    used.require_disjoint("test", identities(test))
    return (compared_row(method, roles, test, terms=terms or Terms()) for method in methods)


def compared_row(method: Method, roles: Roles, test: Evidence, *, terms: Terms) -> MethodRow:
    """Run one method; an error becomes its row and does not end the comparison."""
    decided, problem = None, ""
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CalcodeWarning)
        try:
            prediction = method.predict(roles, test, miscoverage=terms.miscoverage, random_state=terms.random_state)
            seconds = time.perf_counter() - started
            decided = decisions_from(prediction, test)
        except Exception as error:  # one method must not stop the others
            seconds = time.perf_counter() - started
            why = str(error) if isinstance(error, CalcodeError) else f"{type(error).__name__}: {error}"
            problem = f"failed: {why}"
    said = tuple(dict.fromkeys(str(entry.message) for entry in caught))
    return MethodRow(
        record=method.record, terms=terms, decided=decided, seconds=seconds, problem=problem, warnings=said
    )


def rows_by(rows: Sequence[MethodRow], column: Sequence[object] | AnyArray) -> dict[str, list[MethodRow]]:
    """All rows for every value of a metadata column: numbers in order, then text, "unknown" last.

    Parameters
    ----------
    rows : sequence of MethodRow
        Rows of one comparison; those without decisions are left out.
    column : sequence of n values
        One value per test image; missing values count as "unknown".
    """
    groups = subgroup_rows(column)
    n = sum(len(images) for images in groups.values())
    decided = [(row, row.decided) for row in rows if row.decided is not None]
    for _, decisions in decided:
        if len(decisions) != n:
            raise EvidenceError(f"column: {n} values for {len(decisions)} images")
    return {
        value: [replace(row, decided=decisions[images], seconds=math.nan) for row, decisions in decided]
        for value, images in groups.items()
    }


def comparison_frame(
    rows: Sequence[MethodRow], groups: Mapping[str, Sequence[MethodRow]] | None = None, *, column: str = ""
) -> pd.DataFrame:
    """One line per method, followed by one per subgroup and method, with the columns of `SCHEMA`.

    Parameters
    ----------
    rows : sequence of MethodRow
    groups : mapping of str to sequence of MethodRow, optional
        From `rows_by`.
    column : str
        Name of the metadata column.
    """
    lines = [row.cells() for row in rows]
    lines += [
        row.cells() | {"by": column, "group": value} for value, members in (groups or {}).items() for row in members
    ]
    return SCHEMA.frame(lines)


# ---------------------------------------------------------------------- one table for terminal and LaTeX


def _short(value: float, digits: int = 3) -> str:
    return NOT_APPLICABLE if math.isnan(value) else f"{value:.{digits}f}"


def _with_interval(row: Any, name: str) -> Cell:
    found = estimate(row, name)
    return Cell(_short(found.value), "" if math.isnan(found.low) else f"[{_short(found.low)}, {_short(found.high)}]")


def _worst(row: Any) -> Cell:
    if not row.worst_class:
        return Cell("no class")
    cell = _with_interval(row, "worst_class_coverage")
    return replace(cell, text=f"{cell.text} {row.worst_class}, n={count(row.worst_class_n)}")


#: Which of coverage and worst-class coverage reach the target.
_HIT_WORDS = {(True, True): "both", (True, False): "cov", (False, True): "worst", (False, False): "no"}
#: Columns by heading; coverage is always next to its cost.
_COLS = {
    col.heading: col
    for col in (
        Column("method", lambda row: Cell(row.title, best=row.method == COMPLETE), numeric=False),
        Column("coverage", lambda row: _with_interval(row, "coverage"), numeric=False),
        Column("worst class", _worst, numeric=False),
        Column("size", lambda row: _short(row.set_size, 2)),
        Column("set size", lambda row: _with_interval(row, "set_size"), numeric=False),
        Column("full", lambda row: _short(row.full_set_rate)),
        Column("inform.", lambda row: _short(row.informative_rate)),
        Column(
            "single",
            lambda row: Cell(
                f"{row.n_single_right}/{row.n_single}",
                f"[{_short(row.single_right_low)}, {_short(row.single_right_high)}]" if row.n_single else "",
            ),
            numeric=False,
        ),
        Column("defer", lambda row: _short(row.deferral)),
        Column("sel.acc", lambda row: _short(row.selective_accuracy)),
        Column("ECE", lambda row: _short(row.calibration_error)),
        Column("hit", lambda row: _HIT_WORDS[bool(row.coverage_hit), bool(row.worst_class_hit)]),
        Column("s", lambda row: "" if math.isnan(row.seconds) else f"{row.seconds:.1f}"),
    )
}
RELIABILITY = ("method", "coverage", "worst class", "size", "full", "defer", "single", "hit")
UTILITY = ("method", "set size", "full", "inform.", "defer", "sel.acc", "ECE", "s")
EVERYTHING = ("method", "coverage", "worst class", *UTILITY[1:5], "single", *UTILITY[5:7], "hit", "s")


def comparison_table(rows: Sequence[MethodRow], headings: Sequence[str]) -> Table:
    """Compared methods as a table; a method without figures gets the number of its note.

    Parameters
    ----------
    rows : sequence of MethodRow
    headings : sequence of str
        Such as `RELIABILITY`, `UTILITY` or `EVERYTHING`.
    """
    failed = {row.record.name: f"none ({i})" for i, row in enumerate((row for row in rows if row.problem), 1)}

    def shown(column: Column, position: int, row: Any) -> str | Cell:
        if row.problem:
            return str((row.title, failed[row.method], *[""] * len(headings))[position])
        assert column.cell is not None, "every column here says what it shows"
        return column.cell(row)

    columns = [replace(_COLS[name], cell=partial(shown, _COLS[name], i)) for i, name in enumerate(headings)]
    return Table(name="comparison", caption="", columns=columns, rows=comparison_frame(rows), layout="scroll")


def comparison_notes(rows: Sequence[MethodRow]) -> list[str]:
    """Why methods have no figures, what the signs mean, and which methods reach the target."""
    problems = [row for row in rows if row.problem]
    judged = [row for row in rows if not row.problem]
    notes = [f"({i}) {row.record.title}: {row.problem}" for i, row in enumerate(problems, 1)]
    marginal = sum(row.reached["coverage_hit"] for row in judged)
    both = sum(row.reached["coverage_hit"] and row.reached["worst_class_hit"] for row in judged)
    terms = rows[0].terms
    notes += [
        f"hit: coverage reaches the target {terms.point.target:g} (cov), the worst class does (worst), or both. "
        f"Overall {marginal} of {counted(len(judged), 'method')} reach it, {both} also in their worst class.",
        "single: answers that are one diagnosis, as right/all, with the 95 % interval of the share that is right.",
        f"{NOT_APPLICABLE}: cannot defer. Deferral and informative rate are shares of all images, all else is about "
        "answered ones.",
        "Brackets: 95 % intervals, Wilson for coverage, bootstrap for set size; that of the worst class holds the "
        "truly worst class, whichever it is.",
    ]
    if any(row.record.reconstruction for row in rows):
        notes.append("(reconstruction): written from formulas, because no code was published.")
    classwise = judged[0].summary.classwise if judged and judged[0].summary else ()
    small = [entry for entry in classwise if entry.n < terms.min_n]
    if small:
        named = ", ".join(f"{entry.name} ({count(entry.n)})" for entry in small)
        notes.append(f"Not called the worst, with fewer than {counted(terms.min_n, 'test image')}: {named}.")
    return notes


def comparison_warnings(rows: Sequence[MethodRow]) -> list[str]:
    """Every warning once, preceded by the methods that gave it."""
    by_text: dict[str, list[str]] = {}
    for row in rows:
        for said in row.warnings:
            by_text.setdefault(said, []).append(row.record.title)
    return [
        f"{' and '.join(titles) if len(titles) < 3 else f'{titles[0]} and {len(titles) - 1} other methods'}: {said}"
        for said, titles in by_text.items()
    ]
