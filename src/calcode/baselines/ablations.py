"""CALCoDe with one part taken out at a time, everything else unchanged."""

from __future__ import annotations

import math
from dataclasses import replace

from calcode.baselines.calcode_method import RECORD as CALCODE
from calcode.baselines.calcode_method import CalcodeMethod
from calcode.baselines.protocol import Record

_UNGUARDED = "Promises nothing: no class is guarded, and the level rule is `loo` (METHOD.md 10)."


def _record(name: str, title: str, what: str, *, assumes: str = CALCODE.assumes) -> Record:
    return replace(
        CALCODE, name=f"calcode-{name}", title=f"CALCoDe, {title}", assumes=assumes, differs=f"{what} {CALCODE.differs}"
    )


PAPER_SETS = CalcodeMethod(
    _record(
        "paper-sets",
        "the paper's sets",
        "keep_top=False: the label ranked first may be missing from its own set, and an empty set is deferred.",
    ),
    {"keep_top": False},
)
NO_GUARD = CalcodeMethod(
    _record(
        "no-guard",
        "no guard",
        "protect='none': no class is guarded. With keep_top=False the decisions of localized calibration.",
        assumes=_UNGUARDED,
    ),
    {"protect": "none"},
)
GUARD_ALL = CalcodeMethod(
    _record("guard-all", "guard all", "protect='all': every class is guarded, whatever validation says."),
    {"protect": "all"},
)
NO_AUDIT = CalcodeMethod(
    _record("no-audit", "no audit", "audit=None: every image is accepted, in every role."), {"audit": None}
)
NO_LOCALIZATION = CalcodeMethod(
    _record(
        "no-localization",
        "no localization",
        "bandwidth=inf: all calibration images weigh the same, also inside the guard.",
    ),
    {"bandwidth": math.inf},
)
NO_TRIMMING = CalcodeMethod(
    _record("no-trimming", "no trimming", "trim=0: plain mean of the prompt probabilities."), {"trim": 0}
)

#: In table order.
ABLATIONS = (PAPER_SETS, NO_GUARD, GUARD_ALL, NO_AUDIT, NO_LOCALIZATION, NO_TRIMMING)
