"""A recorded decision in the words of a report, the same for every format."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from calcode.service.audit.chain import Record
from calcode.service.wording import answer_in_words

NOTICE = "Research software, not a medical device. Not verified by a clinician."


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What is reported about one image.

    Attributes
    ----------
    decision : str
        Id of the decision; every UID of a report is derived from it, so that a report sent twice is the same one.
    seq : int
        Position in the log.
    at : str
        UTC time of the decision.
    line, model : str
        Line that decided, and digest of its model.
    action, reason : str
    diagnoses : tuple of str
        The whole set, also if the case is deferred.
    n_classes : int
        Number of diagnoses that the model knows.
    always : frozenset of str
        Diagnoses that are in every answer.
    audit : str or None
        The diagnostic that defers; None if it is not known.
    names : mapping of str to str
        Full names of classes, if the site file has them.
    promises : tuple of str
    """

    decision: str
    seq: int
    at: str
    line: str
    model: str
    action: str
    reason: str
    diagnoses: tuple[str, ...]
    n_classes: int
    promises: tuple[str, ...]
    always: frozenset[str] = frozenset()
    audit: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_record(
        cls,
        record: Record,
        *,
        promises: Sequence[str],
        names: Mapping[str, str],
        always: frozenset[str],
        audit: str | None,
    ) -> Self:
        """Return the statement of a record of kind `decision`."""
        body = json.loads(record.body)
        return cls(
            decision=body["id"],
            seq=record.seq,
            at=record.at,
            line=body["line"],
            model=body["model"],
            action=body["action"],
            reason=body["reason"],
            diagnoses=tuple(body["set"]),
            n_classes=len(body["scores"]),
            always=always,
            audit=audit,
            promises=tuple(promises),
            names=names,
        )

    def spelled(self, diagnosis: str) -> str:
        """Return the name of a class for people."""
        return self.names.get(diagnosis, diagnosis)

    @property
    def conclusion(self) -> str:
        """The answer in a few sentences.

        Examples
        --------
        >>> Statement(decision="1", seq=1, at="", line="skin", model="", action="set", reason="none",
        ...           diagnoses=("mel", "nv"), n_classes=7, promises=(), names={"mel": "melanoma"}).conclusion
        '2 of 7 diagnoses remain possible: melanoma, nv.'
        """
        diagnoses = [self.spelled(name) for name in self.diagnoses]
        always = {self.spelled(name) for name in self.always}
        said = answer_in_words(
            self.action, self.reason, diagnoses, n_classes=self.n_classes, always=always, audit=self.audit
        )
        if self.action == "defer" and diagnoses:
            said.append(f"Not excluded: {', '.join(diagnoses)}.")
        return " ".join(said)

    def uid(self, what: str) -> str:
        """Return a DICOM UID for a part of the report, which is the same at every attempt to send it.

        Examples
        --------
        >>> statement = Statement(decision="1", seq=1, at="", line="skin", model="", action="set", reason="none",
        ...                       diagnoses=(), n_classes=7, promises=())
        >>> statement.uid("report") == statement.uid("report") != statement.uid("device")
        True
        """
        return stable_uid(f"{self.decision}/{what}")


def stable_uid(name: str) -> str:
    """Return a UID under 2.25 that depends only on the name."""
    return f"2.25.{uuid.uuid5(uuid.NAMESPACE_URL, f'calcode/{name}').int}"
