"""Compared methods on one cohort: same images, same roles, same metric code; only the method differs.

`compare_methods` gives one `MethodRow` after the other; a method that fails is a row that says why.
"""

from __future__ import annotations

import difflib
import functools
import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from calcode.arrays import AnyArray, IntArray
from calcode.baselines.protocol import Method, Record, Roles
from calcode.baselines.registry import METHODS
from calcode.errors import CalcodeError, CalcodeWarning, EvidenceError, SettingsError
from calcode.method.evidence import Evidence
from calcode.method.roles import checked_roles, identities
from calcode.metrics import Summary, subgroup_rows
from calcode.study.decision_rows import DecisionRows
from calcode.study.method_groups import ABLATION_NAMES, PAPER
from calcode.study.results import summary_of
from calcode.study.schema import Cell
from calcode.study.specification import Point
from calcode.study.summary_columns import DETAILED, detailed, reaches

#: The method that the others are compared with.
OURS = "calcode"

EXCHANGEABLE_NOTE = (
    "The test images are the file's own test role, chosen by the same conditions as the fitted roles: exchangeable "
    "with the calibration images by design, so a method's promise, where it makes one, applies to them. Each figure is "
    "one observation all the same."
)
SHIFTED_NOTE = (
    "The test images were chosen apart from the fitted roles, so no promise applies to them: every figure is an "
    "observation on these images."
)

#: Words that stand for several methods.
GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "all": tuple(METHODS),
        "paper": PAPER,
        "deferring": tuple(name for name in METHODS if name.startswith("top1-")),
        "split": ("lac", "aps", "aps-randomised", "raps", "saps", "mondrian", "clustered"),
        "local": ("local-cp", "base-lcp", "rlcp", "lcp-vlm"),
        "transductive": tuple(name for name, method in METHODS.items() if method.record.transductive),
        "reconstructions": tuple(name for name, method in METHODS.items() if method.record.reconstruction),
        "ablations": ABLATION_NAMES,
    }
)
_DECIDED_PER_IMAGE = (
    "ids",
    "labels",
    "sets",
    "accepted",
    "deferred",
    "p_values",
    "top_label",
    "top_probability",
)


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What every method is held to, and how it is judged.

    Attributes
    ----------
    miscoverage : float
        Allowed share of misses, in (0, 1).
    min_images : int
        Test images a class needs to be called the worst, the same classes for every method.
    random_state : int
        Seed of every draw.

    Examples
    --------
    >>> Terms(miscoverage=0.1).point.target
    0.9
    """

    miscoverage: float = 0.05
    min_images: int = 20
    random_state: int = 0

    def __post_init__(self) -> None:
        if not 0.0 < self.miscoverage < 1.0:
            raise SettingsError(f"miscoverage: {self.miscoverage!r} must lie strictly between 0 and 1")
        if self.min_images < 1:
            raise SettingsError(f"min_images: {self.min_images} must be at least 1")

    @property
    def point(self) -> Point:
        """The same as an operating point of a study; CALCoDe guards at the level of the sets."""
        return Point(miscoverage=self.miscoverage, guard_miscoverage=self.miscoverage)


DEFAULT_TERMS = Terms()


@dataclass(frozen=True, eq=False, kw_only=True)
class MethodRow:
    """One method of a comparison, with its figures or with the reason why there are none.

    Attributes
    ----------
    record : Record
    terms : Terms
    decided : DecisionRows or None
        None where the method was not run or failed.
    seconds : float or None
        Fit and prediction together.
    problem : str
        Why nothing was decided; empty otherwise.
    warnings : tuple of str
        What the method warned about, each once.
    """

    record: Record
    terms: Terms
    decided: DecisionRows | None = None
    seconds: float | None = None
    problem: str = ""
    warnings: tuple[str, ...] = ()

    @functools.cached_property
    def summary(self) -> Summary | None:
        """Every metric of METHOD.md 11, or None where nothing was decided."""
        if self.decided is None:
            return None
        return summary_of(self.decided, min_images=self.terms.min_images)

    @property
    def defers(self) -> bool:
        """Whether the method can defer at all."""
        return self.decided is not None and self.decided.defers

    @property
    def hits_marginal(self) -> bool | None:
        """Whether coverage reaches the target; None without figures."""
        return None if self.summary is None else reaches(self.summary.coverage.value, self.terms.point)

    @property
    def hits_worst(self) -> bool | None:
        """Whether the coverage of the worst class reaches the target; None without figures."""
        if self.summary is None:
            return None
        return reaches(self.summary.worst_class_coverage.value, self.terms.point)

    def within(self, images: IntArray) -> MethodRow:
        """The same decisions looked at on some of the images only, by their positions."""
        if self.decided is None:
            return self
        kept = {name: getattr(self.decided, name)[images] for name in _DECIDED_PER_IMAGE}
        return replace(self, decided=replace(self.decided, **kept), seconds=None)

    def cells(self) -> dict[str, Cell]:
        """One line of plain values: the study's figures with intervals, and what belongs to the method.

        Undefined values are None; so is the deferral of a method that cannot defer.
        """
        names = [column.name for column in DETAILED]
        figures = dict.fromkeys(names) if self.summary is None else detailed(self.summary)
        return {
            "method": self.record.name,
            "title": self.record.title,
            "reconstruction": self.record.reconstruction,
            "transductive": self.record.transductive,
            **{name: self._shown(name, figures[name]) for name in names},
            "coverage_hit": self.hits_marginal,
            "worst_class_hit": self.hits_worst,
            "seconds": self.seconds,
            "problem": self.problem or None,
        }

    def _shown(self, name: str, value: Cell) -> Cell:
        undefined = isinstance(value, float) and math.isnan(value)
        return None if undefined or ("deferral" in name and not self.defers) else value

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, the figures as `Summary.to_dict` gives them; None as in `cells`."""
        summary = None if self.summary is None else self.summary.to_dict()
        if summary is not None:
            del summary["promises"]  # rows carry no sentences; `assumes` says what a promise would rest on
            if not self.defers:
                summary |= dict.fromkeys(name for name in summary if "deferral" in name)
        return {
            "method": self.record.name,
            "title": self.record.title,
            "reconstruction": self.record.reconstruction,
            "reproducible": self.record.reproducible,
            "transductive": self.record.transductive,
            "assumes": self.record.assumes,
            "defers": self.defers,
            "coverage_hit": self.hits_marginal,
            "worst_class_hit": self.hits_worst,
            "seconds": self.seconds,
            "problem": self.problem or None,
            "warnings": list(self.warnings),
            "details": {} if self.decided is None else dict(self.decided.details),
            "summary": summary,
        }


def chosen_methods(names: Sequence[str]) -> tuple[Method, ...]:
    """Methods by name or group, in table order; "all" is the whole registry, with what cannot be run.

    Parameters
    ----------
    names : sequence of str
        Names of the registry and of `GROUPS`.

    Examples
    --------
    >>> [method.record.name for method in chosen_methods(["transductive", "aps"])]
    ['aps', 'conf-ot', 'lata']
    """
    if not names:
        raise SettingsError("methods: none named; name methods or a group such as 'all'")
    wanted: set[str] = set()
    for name in names:
        if name not in GROUPS and name not in METHODS:
            near = difflib.get_close_matches(name, [*GROUPS, *METHODS], n=1)
            advice = f"did you mean {near[0]!r}? " if near else ""
            raise SettingsError(
                f"methods: {name!r} not known; {advice}Groups: {', '.join(GROUPS)}. Methods: {', '.join(METHODS)}"
            )
        wanted.update(GROUPS.get(name, (name,)))
    return tuple(method for name, method in METHODS.items() if name in wanted)


def compare_methods(
    roles: Roles, test: Evidence, *, methods: Sequence[Method], terms: Terms = DEFAULT_TERMS
) -> Iterator[MethodRow]:
    """Run methods on the same images, one row after the other.

    Everything that would spoil every row is checked before the first method runs: roles and test images that
    share an image or a group, other prompts, missing labels. An error of one method becomes its row.

    Parameters
    ----------
    roles : Roles
    test : Evidence
        With ids and labels; -1 marks an image outside the label space. The labels are used to judge, never to predict.
    methods : sequence of Method
        As `chosen_methods` gives them.
    terms : Terms
    """
    if test.ids is None:
        raise EvidenceError("test: its images have no ids; give each one, so that roles can be told apart")
    if not (test.require_labels() >= 0).any():
        raise EvidenceError("test: no image has a diagnosis among the classes, so nothing can be judged")
    expected, hashes = checked_roles(
        {
            "reference": roles.reference,
            "validation": roles.validation,
            "gate": roles.gate,
            "calibration": roles.calibration,
        }
    )
    expected.require(test, role="test")
    hashes.require_disjoint("test", identities(test))
    return (_row(method, roles, test, terms=terms) for method in methods)


def rows_by(rows: Sequence[MethodRow], column: Sequence[object] | AnyArray) -> dict[str, list[MethodRow]]:
    """Every row for every value of a metadata column: numbers in order, then text, "unknown" last.

    Parameters
    ----------
    rows : sequence of MethodRow
        Of one comparison; those without decisions are left out.
    column : sequence of n values
        One per test image; missing ones count as "unknown".
    """
    groups = subgroup_rows(column)
    n = sum(len(images) for images in groups.values())
    decided = [row for row in rows if row.decided is not None]
    for row in decided:
        if len(row.decided or ()) != n:
            raise EvidenceError(f"column: {n} values for {len(row.decided or ())} images")
    return {value: [row.within(images) for row in decided] for value, images in groups.items()}


def target_hits(rows: Sequence[MethodRow]) -> tuple[int, int, int]:
    """How many rows reach the target overall, how many in their worst class too, and how many have figures."""
    judged = [row for row in rows if row.hits_marginal is not None]
    marginal = sum(bool(row.hits_marginal) for row in judged)
    both = sum(bool(row.hits_marginal and row.hits_worst) for row in judged)
    return marginal, both, len(judged)


def _row(method: Method, roles: Roles, test: Evidence, *, terms: Terms) -> MethodRow:
    if not method.record.reproducible:
        return MethodRow(record=method.record, terms=terms, problem=f"not run: {method.record.differs}")
    decided, problem = None, ""
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CalcodeWarning)
        try:
            prediction = method.predict(
                roles, test, miscoverage=terms.miscoverage, random_state=terms.random_state
            )
            seconds = time.perf_counter() - started
            decided = DecisionRows.of(prediction, test)
        except Exception as error:  # one method must not cost the others
            seconds = time.perf_counter() - started
            why = str(error) if isinstance(error, CalcodeError) else f"{type(error).__name__}: {error}"
            problem = f"failed: {why}"
    return MethodRow(
        record=method.record,
        terms=terms,
        decided=decided,
        seconds=seconds,
        problem=problem,
        warnings=tuple(dict.fromkeys(str(entry.message) for entry in caught)),
    )
