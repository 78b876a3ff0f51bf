"""A recorded decision in the words that a report carries, whatever its format."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Self

from calcode.service.audit.chain import Record

NOTICE = "Research software, not a medical device. Not verified by a clinician."
_WHY_DEFERRED = {
    "low_support": "the image is unlike those the model was calibrated on",
    "empty_set": "no diagnosis is plausible enough",
    "full_set": "every diagnosis is plausible",
    "alarm": "an alarm about this model is open",
    "error": "the model failed on this image",
}


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
        Who decided; the model by its digest.
    action, reason : str
    diagnoses : tuple of str
        The whole set, also where the case is deferred.
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
    promises: tuple[str, ...]

    @classmethod
    def of_record(cls, record: Record, promises: list[str]) -> Self:
        """The statement of a record of kind `decision`."""
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
            promises=tuple(promises),
        )

    @property
    def conclusion(self) -> str:
        """The answer in one or two sentences.

        Examples
        --------
        >>> Statement(decision="1", seq=1, at="", line="skin", model="", action="set", reason="none",
        ...           diagnoses=("mel", "nv"), promises=()).conclusion
        'Set of 2 possible diagnoses: mel, nv.'
        """
        names = ", ".join(self.diagnoses)
        if self.action == "defer":
            why = _WHY_DEFERRED.get(self.reason, self.reason)
            rest = f" Diagnoses that cannot be excluded: {names}." if names else " No diagnosis is offered."
            return f"Deferred to a clinician: {why}.{rest}"
        if self.action == "label":
            return f"One diagnosis: {names}."
        return f"Set of {len(self.diagnoses)} possible diagnoses: {names}."

    def uid(self, what: str) -> str:
        """A DICOM UID for a part of the report, the same at every attempt to send it.

        Examples
        --------
        >>> statement = Statement(decision="1", seq=1, at="", line="skin", model="", action="set", reason="none",
        ...                       diagnoses=(), promises=())
        >>> statement.uid("report") == statement.uid("report") != statement.uid("device")
        True
        """
        return stable_uid(f"{self.decision}/{what}")


def stable_uid(name: str) -> str:
    """A UID under 2.25 that depends on the name alone."""
    return f"2.25.{uuid.uuid5(uuid.NAMESPACE_URL, f'calcode/{name}').int}"
