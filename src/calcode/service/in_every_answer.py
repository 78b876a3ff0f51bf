"""Diagnoses that are in every answer, because the model knows too few cases to rule them out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from calcode.errors import CalcodeError
from calcode.method.model import Calcode
from calcode.service.recalibration import report_of

if TYPE_CHECKING:
    from calcode.service.service import Service


class InEveryAnswer(NamedTuple):
    """Classes that an answer includes by construction.

    Attributes
    ----------
    names : frozenset of str
    scored : bool
        Whether their scores say how well the image fits them. A home model scores every class; a site model's score
        compares the image with read cases and is meaningless without enough of them.
    """

    names: frozenset[str]
    scored: bool


def in_every_answer(service: Service, body: Mapping[str, Any]) -> InEveryAnswer:
    """Return the classes that a recorded decision could not have left out, according to the model that decided.

    Parameters
    ----------
    service : Service
    body : mapping
        Body of a record of kind `decision`. If the model's file can no longer be read, the report of its
        recalibration is used.
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
        # The best-fitting class is in the answer because of its fit.
        best, _ = min(zip(model.classes_, body["scores"], strict=True), key=lambda entry: entry[1])
        return InEveryAnswer(frozenset(model.in_every_set_) - {best}, scored=True)
    return InEveryAnswer(frozenset(model.silenced_classes_), scored=False)
