"""What a fitted model promises, and what it only observed, in plain words (METHOD.md 10)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from calcode.method.levels import LevelName
from calcode.method.tail import ClassGuard

SHIFT_NOTE = (
    "Observed only: every figure on a cohort that is not exchangeable with the calibration images "
    "(another hospital, device or population)."
)


def promises_of(
    *,
    level: LevelName,
    miscoverage: float,
    audit_independent: bool | None,
    guards: Sequence[ClassGuard],
    binary_utility: bool,
) -> tuple[str, ...]:
    """One sentence per statement, each beginning with "Promised" or "Observed only".

    Parameters
    ----------
    level : {"loo", "exact", "upper", "certified"}
    miscoverage : float
    audit_independent : bool or None
        Whether the audit was selected without the gate images that calibrate it; None without an audit.
    guards : sequence of ClassGuard
    binary_utility : bool
    """
    contains = "Promised always: the guarded set contains the localized set."
    if not guards:
        contains += " No class is protected here, so the two are the same."
    sentences = [contains]
    if audit_independent:
        sentences.append(
            "Promised for images exchangeable with the gate: the audit p-value is at most a with probability at most a."
        )
    elif audit_independent is False:
        sentences.append(
            "Observed only: the audit's false-alarm rate, because 'fused' was a candidate and looks at the gate "
            "(fused='split', or leaving it out, makes it a promise)."
        )
    localized = f"coverage of the localized sets at {1 - miscoverage:g} among accepted exchangeable images"
    if level == "loo":
        sentences.append(f"Observed only: {localized} (level='certified' makes it a promise).")
    else:
        sentences.append(f"Promised: {localized}.")
    for guard in guards:
        only = f" (with {guard.n} calibration examples only by putting the label in every set)"
        sentences.append(
            f"Promised: coverage of '{guard.name}' at {1 - guard.miscoverage:g} among its accepted exchangeable images"
            f"{only if math.isinf(guard.quantile) else ''}"
            f"{', before full sets are deferred' if binary_utility else ''}."
        )
    return (*sentences, SHIFT_NOTE)
