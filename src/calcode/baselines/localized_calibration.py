"""Localized calibration: the audit and the localized threshold of CALCoDe, without its guard."""

from __future__ import annotations

from calcode.baselines.calcode_method import RECORD as CALCODE
from calcode.baselines.local_cp import localized_prediction
from calcode.baselines.protocol import Prediction, Record, Roles
from calcode.baselines.support import accepted_by, audited, fitted_audit
from calcode.method.audit import SupportAudit
from calcode.method.evidence import Evidence

RECORD = Record(
    name="localized-calibration",
    title="Localized calibration",
    paper=CALCODE.paper,
    venue=CALCODE.venue,
    year=CALCODE.year,
    assumes="Promises nothing: the level rule is `loo` (METHOD.md 5).",
    selects="Audit diagnostic and bandwidth on validation and gate; the level on accepted calibration images.",
    differs="The paper names it in a supporting table. By METHOD.md it is CALCoDe without its guard and with "
    "the paper's sets (`keep_top=False`).",
)


def audited_localized(
    audit: SupportAudit, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int
) -> Prediction:
    """The localized rule `loo` on what the audit accepts.

    Parameters
    ----------
    audit : SupportAudit
    roles : Roles
    test : Evidence
    miscoverage : float
    random_state : int
    """
    sets = localized_prediction(
        roles.validation[accepted_by(audit.p_values(roles.validation))],
        roles.calibration[accepted_by(audit.p_values(roles.calibration))],
        test,
        level="loo",
        miscoverage=miscoverage,
        random_state=random_state,
    )
    return audited(sets, audit, test)


class LocalizedCalibration:
    """Audit and localized threshold."""

    record = RECORD

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> Prediction:
        """Sets for every image, and which images are deferred."""
        audit = fitted_audit(roles, random_state=random_state)
        return audited_localized(audit, roles, test, miscoverage=miscoverage, random_state=random_state)
