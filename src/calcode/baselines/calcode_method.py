"""CALCoDe under the common protocol, and ablations that each remove one part."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from calcode.baselines.protocol import Evidence, Prediction, Record, Roles
from calcode.baselines.split import trim_for
from calcode.method.model import Calcode

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
    """The default `Calcode`, with its guard at the level of the sets.

    Parameters
    ----------
    record : Record
    changes : mapping of str to object
        Settings of `Calcode` that differ from the defaults, for ablations.
    """

    def __init__(self, record: Record = RECORD, changes: Mapping[str, Any] = MappingProxyType({})) -> None:
        self.record = record
        self.changes = dict(changes)

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> Prediction:
        """Sets for every image, and which images are deferred."""
        settings: dict[str, Any] = {
            "miscoverage": miscoverage,
            "guard_miscoverage": miscoverage,
            "trim": trim_for(test),
            "random_state": random_state,
        }
        model = Calcode(**(settings | self.changes)).fit(**roles.by_name)
        return model_prediction(model, test)


def model_prediction(model: Calcode, test: Evidence) -> Prediction:
    """Prediction of a fitted model for images, with the choices that the model made."""
    decisions = model.decide(test)
    return Prediction(
        sets=decisions.sets,
        top_label=decisions.top_label,
        top_probability=decisions.top_probability,
        # Deferred by the audit alone; how an empty set counts is left to the evaluation (METHOD.md 9).
        deferred=~decisions.accepted,
        p_values=decisions.p_audit,
        details={
            "diagnostic": model.audit_name_ or "none",
            "bandwidth": model.bandwidth_,
            "protected": " ".join(model.tail_classes_),
            "in_every_set": " ".join(model.in_every_set_),
        },
    )


_UNGUARDED = "Promises nothing: no class is guarded, and the level rule is `loo` (METHOD.md 10)."
#: Setting and value of every ablation, with its name, title and effect, in table order.
_CHANGES: tuple[tuple[str, Any, str, str, str], ...] = (
    (
        *("keep_top", False, "paper-sets", "the paper's sets"),
        "keep_top=False: the label ranked first may be missing from its own set, and an empty set is deferred.",
    ),
    (
        *("protect", "none", "no-guard", "no guard"),
        "protect='none': no class is guarded. With keep_top=False the decisions of localized calibration.",
    ),
    ("protect", "all", "guard-all", "guard all", "protect='all': every class is guarded, whatever validation says."),
    ("audit", None, "no-audit", "no audit", "audit=None: every image is accepted, in every role."),
    (
        *("bandwidth", math.inf, "no-localization", "no localization"),
        "bandwidth=inf: all calibration images weigh the same, also inside the guard.",
    ),
    ("trim", 0, "no-trimming", "no trimming", "trim=0: plain mean of the prompt probabilities."),
)
ABLATIONS = tuple(
    CalcodeMethod(
        replace(
            RECORD,
            name=f"calcode-{name}",
            title=f"CALCoDe, {title}",
            assumes=_UNGUARDED if value == "none" else RECORD.assumes,
            differs=f"{what} {RECORD.differs}",
        ),
        {setting: value},
    )
    for setting, value, name, title, what in _CHANGES
)
METHODS = (CalcodeMethod(), *ABLATIONS)
