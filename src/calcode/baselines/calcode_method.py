"""CALCoDe itself under the common protocol."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from calcode.baselines.evidence import trim_for
from calcode.baselines.protocol import Prediction, Record, Roles
from calcode.method.evidence import Evidence

RECORD = Record(
    name="calcode",
    title="CALCoDe",
    paper="Akhtar and Tanveer, Mitigating Class-Tail Undercoverage in Medical Vision-Language Models under Clinical "
    "Shift",
    venue="preprint",
    year=2026,
    assumes="METHOD.md 10: the guard covers protected classes among accepted images under exchangeability within the "
    "class; the localized threshold with its default level rule promises nothing.",
    selects="Diagnostic, bandwidth and protected classes on validation (and gate); thresholds on calibration.",
    differs="The label ranked first is in every set (METHOD.md 9; `calcode-paper-sets` is the paper's rule). Every "
    "choice the paper leaves open is fixed in METHOD.md.",
)


class CalcodeMethod:
    """The default `Calcode` with the guard at the same level as the sets.

    Parameters
    ----------
    record : Record
    changes : mapping of str to object
        Settings of `Calcode` that differ from the default, for ablations.
    """

    def __init__(self, record: Record = RECORD, changes: Mapping[str, Any] = MappingProxyType({})) -> None:
        self.record = record
        self.changes = dict(changes)

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> Prediction:
        """Sets for every image, and which images are deferred."""
        from calcode.method.model import Calcode

        settings: dict[str, Any] = {
            "miscoverage": miscoverage,
            "guard_miscoverage": miscoverage,
            "trim": trim_for(test),
            "random_state": random_state,
        }
        model = Calcode(**(settings | self.changes))
        model.fit(
            reference=roles.reference, validation=roles.validation, gate=roles.gate, calibration=roles.calibration
        )
        decisions = model.decide(test)
        return Prediction(
            sets=decisions.sets,
            top_label=decisions.top_label,
            top_probability=decisions.top_probability,
            # By the audit alone: what an empty set means is for the one who counts (METHOD.md 9).
            deferred=~decisions.accepted,
            p_values=decisions.p_audit,
            details={
                "diagnostic": model.audit_name_ or "none",
                "bandwidth": model.bandwidth_,
                "protected": " ".join(model.tail_classes_),
                "in_every_set": " ".join(model.in_every_set_),
            },
        )
