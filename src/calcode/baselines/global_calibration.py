"""Global calibration only: the audit of CALCoDe, then split APS on the accepted calibration images."""

from __future__ import annotations

from calcode.baselines.aps import aps_prediction
from calcode.baselines.calcode_method import RECORD as CALCODE
from calcode.baselines.evidence import robust
from calcode.baselines.protocol import Prediction, Record, Roles
from calcode.baselines.support import accepted_by, audited, fitted_audit
from calcode.method.evidence import Evidence

RECORD = Record(
    name="global-calibration",
    title="Global calibration only",
    paper=CALCODE.paper,
    venue=CALCODE.venue,
    year=CALCODE.year,
    assumes="Accepted calibration and accepted test images exchangeable: coverage among accepted images at least "
    "1 - miscoverage. The default audit's p-values are observations.",
    selects="Audit diagnostic on validation and gate; one threshold on accepted calibration images.",
    differs="The paper names it in a supporting table and gives no formula: the audit of METHOD.md 4 and the split "
    "quantile of accepted APS scores.",
)


class GlobalCalibration:
    """Audit and one global threshold."""

    record = RECORD

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> Prediction:
        """Sets for every image, and which images are deferred."""
        audit = fitted_audit(roles, random_state=random_state)
        calibration = roles.calibration[accepted_by(audit.p_values(roles.calibration))]
        sets = aps_prediction(robust(calibration), calibration.require_labels(), robust(test), miscoverage=miscoverage)
        return audited(sets, audit, test)
