"""An alarm: its finding and what to do about it (SITE.md S7)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self

from calcode.metrics.wording import counted
from calcode.monitor.protocol import State

#: What each monitor found, and what a person should do about it.
_FINDINGS = {
    "M1": (
        "the images are farther from the home reference, or closer to it, than those of the gate",
        "Look at the newest images: a new camera, light, crop or population. Until a person has decided, answer with "
        "the full set or defer; a changed site needs a new bag and a new gate.",
    ),
    "M2": (
        "the zero-shot scores of '{name}' are no longer those of the reference",
        "Compare recent '{name}' cases with older ones: camera, selection of patients, way of labelling. If they "
        "changed, collect a new bag.",
    ),
    "M3": (
        "'{name}' is missed more often than its line allows",
        "Do not rely on the coverage of '{name}'. Answer with the full set or defer until a person has chosen a "
        "new bag; old reviewed cases become its trainers.",
    ),
}


class Alarm(NamedTuple):
    """The first time that a monitor's capital reached its threshold 1 / alpha.

    Attributes
    ----------
    monitor : {"M1", "M2", "M3"}
    name : str
        The class of M2 and M3, empty for M1.
    n : int
        Number of patients (M1), or of read cases of its class (M2, M3), that the monitor had seen.
    when : str
        Time of the case, from the caller.
    log_capital, alpha : float
        Evidence against the null hypothesis, and the level of the test.

    Examples
    --------
    >>> print(Alarm("M1", "", 217, "", 8.1, 0.0005).finding[:22])
    M1, after 217 patients
    >>> print(Alarm("M3", "mel", 31, "", 8.1, 0.0005).finding)
    M3, after 31 read cases of 'mel': 'mel' is missed more often than its line allows; evidence 3,294, alarm at 2,000.
    """

    monitor: str
    name: str
    n: int
    when: str
    log_capital: float
    alpha: float

    @property
    def finding(self) -> str:
        """When the alarm was raised, what was found, and on what evidence."""
        when = f" ({self.when})" if self.when else ""
        what = _FINDINGS[self.monitor][0].format(name=self.name)
        # M1 counts patients; the others count labels of their class, which are far fewer.
        cases = f"{counted(self.n, 'read case')} of '{self.name}'"
        seen = counted(self.n, "patient") if self.monitor == "M1" else cases
        return (
            f"{self.monitor}, after {seen}{when}: {what}; evidence "
            f"{math.exp(min(self.log_capital, 700.0)):,.0f}, alarm at {1 / self.alpha:,.0f}."
        )

    @property
    def advice(self) -> str:
        """What a person should do now."""
        return _FINDINGS[self.monitor][1].format(name=self.name)

    @classmethod
    def from_state(cls, state: Any) -> Self:
        """Restore a saved alarm; raise `ArtifactError` if its state is invalid."""
        entry = State(state, name="alarm")
        entry.require(entry["monitor"] in list(_FINDINGS), "monitor")
        return cls(
            entry.text("monitor"),
            entry.text("name"),
            entry.integer("n", low=1),
            entry.text("when"),
            entry.number("log_capital"),
            entry.share("alpha"),
        )
