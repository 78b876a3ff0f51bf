"""Diagnoses that are in an answer whatever the image shows: the model knows too few cases to rule them out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from calcode.errors import CalcodeError
from calcode.method.model import Calcode
from calcode.service.recalibration import report_of

if TYPE_CHECKING:
    from calcode.service.service import Service


class InEveryAnswer(NamedTuple):
    """Classes that an answer holds by construction.

    Attributes
    ----------
    names : frozenset of str
    scored : bool
        Whether their scores say how well the image fits them. A home model scores every class; the score of a site
        model compares with read cases, and without enough of them it says nothing.
    """

    names: frozenset[str]
    scored: bool


def in_every_answer(service: Service, body: Mapping[str, Any]) -> InEveryAnswer:
    """The classes that a recorded decision could not have left out, as the model that decided marks them.

    Parameters
    ----------
    service : Service
    body : mapping
        Of a record of kind `decision`. Where the model's file cannot be read any more, the report of its calibration
        says it.
    """
    line, digest = body["line"], body["model"]
    models = service.models.get(line)
    if models is None or not body["scores"]:
        return InEveryAnswer(frozenset(), scored=True)
    try:
        model = models.model(digest).model
    except CalcodeError:
        with service.database.reading() as connection:
            report = report_of(connection, line, digest) or {"classes": []}
        names = frozenset(entry["name"] for entry in report["classes"] if entry["in_every_set"])
        return InEveryAnswer(names, scored=False)
    if isinstance(model, Calcode):
        # The class that fits best is in the answer for its fit.
        best, _ = min(zip(model.classes_, body["scores"], strict=True), key=lambda entry: entry[1])
        return InEveryAnswer(frozenset(model.in_every_set_) - {best}, scored=True)
    return InEveryAnswer(frozenset(model.silenced_classes_), scored=False)
