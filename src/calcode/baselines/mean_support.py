"""Localized calibration with mean support: the audit distance is the mean of the neighbours' distances."""

from __future__ import annotations

from dataclasses import replace

from calcode.baselines.localized_calibration import RECORD as LOCALIZED
from calcode.baselines.localized_calibration import audited_localized
from calcode.baselines.protocol import Prediction, Roles
from calcode.baselines.support import fitted_audit
from calcode.method.evidence import Evidence

RECORD = replace(
    LOCALIZED,
    name="mean-support",
    title="Localized calibration, mean support",
    differs="The paper names it in a supporting table and gives no formula: the mean instead of the median of the "
    "distances to the 10 nearest reference images, in the diagnostic `distance` and inside `fused`.",
)


class MeanSupport:
    """Audit by mean distance, and localized threshold."""

    record = RECORD

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> Prediction:
        """Sets for every image, and which images are deferred."""
        audit = fitted_audit(roles, random_state=random_state, average="mean")
        return audited_localized(audit, roles, test, miscoverage=miscoverage, random_state=random_state)
