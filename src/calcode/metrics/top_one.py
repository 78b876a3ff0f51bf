"""Metrics of the first-ranked class: calibration error and selective risk (METHOD.md 11)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from calcode.arrays import BoolArray, FloatArray
from calcode.errors import EvidenceError
from calcode.method.evidence import checked_labels

if TYPE_CHECKING:
    from calcode.method.decisions import Decisions

#: Bins of the expected calibration error.
ECE_BINS = 15


def expected_calibration_error(confidence: FloatArray, correct: BoolArray) -> float:
    """Mean distance between confidence and accuracy over 15 equal-width bins (lo, hi]; nan without examples.

    Parameters
    ----------
    confidence : ndarray of shape (n,)
        Probability of the first-ranked class; 0 falls into the first bin.
    correct : ndarray of bool, shape (n,)

    Examples
    --------
    >>> expected_calibration_error(np.array([0.75, 0.75]), np.array([True, False]))
    0.25
    """
    if len(confidence) == 0:
        return math.nan
    edges = np.linspace(0.0, 1.0, ECE_BINS + 1)
    bins = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, ECE_BINS - 1)
    gaps = np.bincount(bins, weights=correct - confidence, minlength=ECE_BINS)
    return float(np.abs(gaps).sum() / len(confidence))


@dataclass(frozen=True, eq=False, kw_only=True)
class RiskCurve:
    """Top-1 error by acceptance, as the threshold on support is lowered.

    Attributes
    ----------
    threshold, acceptance, risk : ndarray of shape (t,)
        One entry per distinct support, best first: the share of examples with support at or above it, and
        the top-1 error among them.
    area : float
        Area under the curve: risk at each step times the acceptance it adds.
    """

    threshold: FloatArray
    acceptance: FloatArray
    risk: FloatArray
    area: float


def risk_curve(*, support: ArrayLike, correct: ArrayLike) -> RiskCurve:
    """Top-1 error by acceptance, if the best supported examples are accepted first.

    Examples of equal support are accepted together, because no threshold separates them. Without ties the area is the
    mean of the risks at 1, ..., n accepted examples.

    Parameters
    ----------
    support : array_like of shape (n,)
        Audit p-values, or any other values that are larger for better support.
    correct : array_like of bool, shape (n,)

    Examples
    --------
    >>> curve = risk_curve(support=[0.9, 0.5, 0.1], correct=[True, True, False])
    >>> curve.risk.round(3).tolist(), round(curve.area, 3)
    ([0.0, 0.0, 0.333], 0.111)
    """
    values = np.asarray(support, dtype=np.float64)
    right = np.asarray(correct, dtype=np.bool_)
    if values.ndim != 1 or np.isnan(values).any():
        raise EvidenceError("support: one number per example needed, without NaN")
    if right.shape != values.shape:
        raise EvidenceError(f"correct: shape {right.shape} is not {values.shape}")
    threshold, group = np.unique(-values, return_inverse=True)
    added = np.bincount(group, minlength=len(threshold))
    wrong = np.bincount(group, weights=~right, minlength=len(threshold))
    accepted = np.cumsum(added)
    risk = np.cumsum(wrong) / accepted
    n = len(values)
    return RiskCurve(
        threshold=-threshold,
        acceptance=accepted / max(n, 1),
        risk=risk,
        area=float((risk * added).sum() / n) if n else math.nan,
    )


def selective_risk_curve(decisions: Decisions, labels: ArrayLike | Sequence[int]) -> RiskCurve:
    """`risk_curve` of the audit p-value on the images of the label space, at any deferral level.

    Parameters
    ----------
    decisions : Decisions
    labels : array_like of int, shape (n,)
        True class indices; images outside the label space (-1) are left out.

    Returns
    -------
    RiskCurve

    Examples
    --------
    >>> from calcode import Calcode, Evidence
    >>> rng = np.random.default_rng(0)
    >>> def role(n):
    ...     labels = rng.integers(3, size=n)
    ...     images = np.eye(3, 8)[labels] + rng.normal(scale=0.4, size=(n, 8))
    ...     images /= np.linalg.norm(images, axis=1, keepdims=True)
    ...     return Evidence.from_text(embeddings=images, text=np.eye(3, 8)[:, None], temperature=0.2,
    ...                               labels=labels, classes=["a", "b", "c"])
    >>> model = Calcode().fit(reference=role(100), validation=role(200), gate=role(100), calibration=role(200))
    >>> test = role(200)
    >>> curve = selective_risk_curve(model.decide(test), test.labels)
    >>> half = np.searchsorted(curve.acceptance, 0.5)
    >>> bool(curve.risk[half] < curve.risk[-1])  # the better supported half has fewer errors than all images
    True
    """
    truth = checked_labels(labels, n=len(decisions), n_classes=len(decisions.classes))
    inside = truth >= 0
    return risk_curve(support=decisions.p_audit[inside], correct=decisions.top_label[inside] == truth[inside])
