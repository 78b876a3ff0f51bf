"""An answer in plain words, the same on pages and in reports."""

from __future__ import annotations

from collections.abc import Sequence

_WHY = {
    "low_support": "The image is unlike those that the model was checked with, so its answer could not be trusted.",
    "empty_set": "No diagnosis fits the image well enough.",
    "full_set": "Every diagnosis is still possible.",
    "error": "A technical fault stopped the model.",
    "alarm": "An alarm is open, so that the model does not answer by itself until two people have decided.",
}


def answer_in_words(action: str, reason: str, diagnoses: Sequence[str]) -> list[str]:
    """The answer, and why it is no single diagnosis.

    Examples
    --------
    >>> answer_in_words("set", "none", ["melanoma", "naevus"])
    ['The model names 2 diagnoses that are possible: melanoma, naevus.']
    """
    if action == "defer":
        first = "The model gives no answer and leaves this case to a clinician."
    elif len(diagnoses) == 1:
        first = f"The model names one diagnosis: {diagnoses[0]}."
    else:
        first = f"The model names {len(diagnoses)} diagnoses that are possible: {', '.join(diagnoses)}."
    return [first, *([_WHY[reason]] if reason in _WHY else [])]
