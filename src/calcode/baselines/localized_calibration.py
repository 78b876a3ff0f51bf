"""Parts of CALCoDe as comparison methods: its audit with one global or a localized threshold, without a guard."""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

from calcode.baselines.calcode_method import RECORD as CALCODE
from calcode.baselines.local_cp import localized_prediction
from calcode.baselines.protocol import Evidence, Prediction, Record, Roles
from calcode.baselines.split import score_prediction
from calcode.baselines.support import accepted_by, audited, fitted_audit
from calcode.errors import SettingsError
from calcode.method.audit import AverageName
from calcode.method.scores import aps_scores

GLOBAL = replace(
    CALCODE,
    name="global-calibration",
    title="Global calibration only",
    assumes="Accepted calibration and accepted test images exchangeable: coverage among accepted images at least "
    "1 - miscoverage. The default audit's p-values are observations.",
    selects="Audit diagnostic on validation and gate; one threshold on accepted calibration images.",
    differs="The paper names it in a supporting table and gives no formula: the audit of METHOD.md 4 and the split "
    "quantile of accepted APS scores.",
)
RECORD = replace(
    CALCODE,
    name="localized-calibration",
    title="Localized calibration",
    assumes="Promises nothing: the level rule is `loo` (METHOD.md 5).",
    selects="Audit diagnostic and bandwidth on validation and gate; the level on accepted calibration images.",
    differs="The paper names it in a supporting table. By METHOD.md it is CALCoDe without its guard and with "
    "the paper's sets (`keep_top=False`).",
)
MEAN = replace(
    RECORD,
    name="mean-support",
    title="Localized calibration, mean support",
    differs="The paper names it in a supporting table and gives no formula: the mean instead of the median of the "
    "distances to the 10 nearest reference images, in the diagnostic `distance` and inside `fused`.",
)
UNDEFINED = replace(
    RECORD,
    name="no-semantic-term",
    title="Localized calibration, no semantic term (not reproducible)",
    assumes="Unknown.",
    selects="Unknown.",
    differs="The paper reports it in three supporting tables and nowhere says what the semantic term is: no formula "
    "of the method has a term of that name. Nothing is computed here.",
    reproducible=False,
)


class GlobalCalibration:
    """Audit with one global threshold."""

    record = GLOBAL

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> Prediction:
        """Sets for every image, and which images are deferred."""
        audit = fitted_audit(roles, random_state=random_state)
        calibration = roles.calibration[accepted_by(audit.p_values(roles.calibration))]
        return audited(score_prediction(calibration, test, aps_scores, miscoverage=miscoverage), audit, test)


class LocalizedCalibration:
    """Audit, and the localized rule `loo` on the images that it accepts.

    Parameters
    ----------
    record : Record
    average : {"median", "mean"}
        How the neighbours' distances are averaged in the audit.
    """

    def __init__(self, record: Record, *, average: AverageName) -> None:
        self.record = record
        self._average: AverageName = average

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> Prediction:
        """Sets for every image, and which images are deferred."""
        audit = fitted_audit(roles, random_state=random_state, average=self._average)
        sets = localized_prediction(
            roles.validation[accepted_by(audit.p_values(roles.validation))],
            roles.calibration[accepted_by(audit.p_values(roles.calibration))],
            test,
            level="loo",
            miscoverage=miscoverage,
            random_state=random_state,
        )
        return audited(sets, audit, test)


class NoSemanticTerm:
    """A record without a runnable method."""

    record = UNDEFINED

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> NoReturn:
        """Always raise an error."""
        name = UNDEFINED.name
        raise SettingsError(f"methods: {name!r} cannot be run, because the paper does not define it; leave it out")


METHODS = (
    GlobalCalibration(),
    LocalizedCalibration(RECORD, average="median"),
    LocalizedCalibration(MEAN, average="mean"),
    NoSemanticTerm(),
)
