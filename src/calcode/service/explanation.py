"""Explain a decision from its record and, unless erased, its embedding."""

from __future__ import annotations

import json
import math

import numpy as np
from pydantic import BaseModel, Field
from sqlalchemy import select

from calcode.method.explain import nearest
from calcode.service.audit.chain import Record
from calcode.service.in_every_answer import in_every_answer
from calcode.service.models import Models
from calcode.service.service import Service
from calcode.service.tables import SECRET_PART
from calcode.service.wording import answer_in_words, audit_of, promises_in_words, support_in_words

_N_NEIGHBOURS = 10


class ClassFacts(BaseModel):
    """The result for one class. It is in the set if its score does not exceed its threshold."""

    name: str
    score: float | None = Field(description="null: too few cases were read to compare the image with")
    threshold: float | None = Field(description="null: no limit")
    in_set: bool
    in_every_set: bool = Field(description="the model cannot leave the class out: it knows too few cases of it")


class NeighbourFacts(BaseModel):
    """A reference image near the decided image. Its label has no influence on the decision."""

    id: str
    label: str
    distance: float


class Explanation(BaseModel):
    """A decision with the facts that explain it."""

    action: str
    reason: str
    p_audit: float | None
    sentences: list[str]
    classes: list[ClassFacts]
    neighbours: list[NeighbourFacts]
    model: str
    promises: list[str]
    known_patient: bool | None = Field(description="null: not told to programs")

    def for_programs(self) -> Explanation:
        """Return a copy that does not say whether the patient was in the model's data (SERVICE.md 11)."""
        return self.model_copy(update={"known_patient": None})


def explanation_of(record: Record, service: Service) -> Explanation:
    """The explanation of a recorded decision."""
    body = json.loads(record.body)
    deferred = body["action"] == "defer"
    models = service.models.get(body["line"])
    # No class names after an internal error, or if the line is no longer served.
    names = models.prompts.classes if models is not None and body["scores"] else ()
    words = {} if models is None else models.settings.names
    always = in_every_answer(service, body)
    unscored = frozenset() if always.scored else always.names
    classes = [
        ClassFacts(
            name=name,
            score=None if name in unscored else score,
            threshold=None if name in unscored else limit,
            in_set=not deferred and name in body["set"],
            in_every_set=name in always.names,
        )
        for name, score, limit in zip(names, body["scores"], body["thresholds"], strict=False)
    ]
    audit = audit_of(service, body)
    found = answer_in_words(
        body["action"],
        body["reason"],
        [words.get(name, name) for name in body["set"]],
        n_classes=len(body["scores"]),
        always={words.get(name, name) for name in always.names},
        audit=audit,
    )
    if (p_audit := body["p_audit"]) is not None:
        found.append(support_in_words(p_audit, audit))
    return Explanation(
        action=body["action"],
        reason=body["reason"],
        p_audit=body["p_audit"],
        sentences=found,
        # Best fit first; classes without a score come last.
        classes=sorted(classes, key=lambda entry: math.inf if entry.score is None else entry.score),
        neighbours=[] if models is None else _neighbours(record.seq, models, service),
        model=body["model"],
        promises=promises_in_words(service, body["line"], body["model"]),
        known_patient=body["known_group"],
    )


def _neighbours(seq: int, models: Models, service: Service) -> list[NeighbourFacts]:
    """The nearest reference images; none without a reference file or after the embedding was erased."""
    reference = models.reference
    if reference is None:
        return []
    with service.database.reading() as connection:
        query = select(SECRET_PART.c.content).where(SECRET_PART.c.seq == seq, SECRET_PART.c.name == "embedding")
        content = connection.execute(query).scalar()
    if content is None:
        return []
    evidence = models.champion.evidence(np.frombuffer(content, dtype="<f4")[None, :])
    found = nearest(evidence, reference, count=_N_NEIGHBOURS)
    return [NeighbourFacts(id=entry.id, label=entry.label_name, distance=entry.distance) for entry in found]
