"""The summary of a cohort by the values of any metadata column (METHOD.md 11)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from calcode.arrays import AnyArray, IntArray
from calcode.errors import EvidenceError
from calcode.method.decisions import WORST_CLASS_MIN
from calcode.method.evidence import checked_labels
from calcode.metrics.summary import Summary, summarize

if TYPE_CHECKING:
    from calcode.method.decisions import Decisions

#: Text forms of missing values of Python, numpy, pandas and CSV files; NaN and NA cannot be compared directly.
_MISSING = ("None", "", "nan", "NaN", "NaT", "<NA>")


def summarize_by(
    decisions: Decisions,
    labels: ArrayLike | Sequence[int],
    groups_column: Sequence[object] | AnyArray,
    *,
    min_n: int = WORST_CLASS_MIN,
    random_state: int = 0,
    n_resamples: int = 500,
) -> dict[str, Summary]:
    """`summarize` for every value of a metadata column.

    Parameters
    ----------
    decisions, labels, min_n, random_state, n_resamples
        As in `summarize`.
    groups_column : sequence of n values
        One value per image; images without one are summarised under "unknown".

    Returns
    -------
    dict of str to Summary
        In the order of `subgroup_rows`.

    Examples
    --------
    Decisions on the images of a feature file, by hospital::

        test = features.read(role="test")
        by_site = summarize_by(model.decide(test.evidence), test.evidence.labels, test.metadata["site"])
        for site, summary in by_site.items():
            print(site, summary.coverage, summary.set_size, summary.deferral)
    """
    truth = checked_labels(labels, n=len(decisions), n_classes=len(decisions.classes))
    rows = subgroup_rows(groups_column)
    n_values = sum(len(chosen) for chosen in rows.values())
    if n_values != len(decisions):
        raise EvidenceError(f"groups_column: {n_values} values for {len(decisions)} images")
    return {
        value: summarize(
            decisions[chosen], truth[chosen], min_n=min_n, random_state=random_state, n_resamples=n_resamples
        )
        for value, chosen in rows.items()
    }


def subgroup_rows(groups_column: Sequence[object] | AnyArray) -> dict[str, IntArray]:
    """Row indices of every value of a column: numbers in order, then text in order, "unknown" last.

    None, NaN and empty text are missing values and count as "unknown".

    Examples
    --------
    >>> subgroup_rows(["f", None, "m", "f"])
    {'f': array([0, 3]), 'm': array([2]), 'unknown': array([1])}
    """
    rows: dict[str, list[int]] = {}
    order: dict[str, tuple[int, float, str]] = {}
    # Arrow's scalars are not numbers until they are converted to Python values.
    plain = groups_column.to_pylist() if hasattr(groups_column, "to_pylist") else groups_column
    for row, value in enumerate(plain):
        key = "unknown" if str(value) in _MISSING else str(value)
        rows.setdefault(key, []).append(row)
        number = isinstance(value, int | float | np.integer | np.floating)
        kind = 2 if key == "unknown" else 0 if number else 1
        order[key] = (kind, float(value) if kind == 0 else 0.0, key)
    return {key: np.array(rows[key], dtype=np.int64) for key in sorted(rows, key=order.__getitem__)}
