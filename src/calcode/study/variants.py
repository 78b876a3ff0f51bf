"""Variants of CALCoDe that share all stages in which they agree.

A sensitivity analysis changes one setting. The stages before the one that uses this setting are the same for all its
values. So the audit, the bandwidth and the discovery are computed once for all variants that share them.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from calcode.baselines.calcode_method import model_prediction
from calcode.baselines.protocol import Roles
from calcode.baselines.split import trim_for
from calcode.cohorts import Cohort
from calcode.errors import CalcodeWarning, SettingsError
from calcode.method.evidence import Evidence
from calcode.method.model import Calcode
from calcode.method.settings import Settings
from calcode.method.tail import discover_tail
from calcode.study.cohorts import SettingCohorts
from calcode.study.decisions import MethodDecisions, decisions_from
from calcode.study.jobs import Job, job
from calcode.study.specification import Combination, Study

#: Settings that each stage uses in addition to those of the stages before it.
_AUDIT = ("audit", "n_neighbors", "trim", "fused", "random_state")
_DISCOVERY = ("deferral_level", "miscoverage", "level_grid", "bandwidth", "support_budget", "n_folds")
_CALIBRATION = ("guard_miscoverage", "level", "class_local_min", "binary_utility", "keep_top")
_Key = tuple[Any, ...]


class VariantModels:
    """Fitted models by settings.

    Parameters
    ----------
    roles : Roles
    base : mapping of str to object
        Settings of `Calcode` that all variants share unless a variant changes them.
    """

    def __init__(self, roles: Roles, base: Mapping[str, Any]) -> None:
        self._roles = roles
        self._base = Calcode(**base).get_params()
        self._audited: dict[_Key, Calcode] = {}
        self._discovered: dict[_Key, Calcode] = {}
        self._calibrated: dict[_Key, Calcode] = {}

    def audited(self, changes: Mapping[str, Any]) -> Calcode:
        """A model with a fitted audit."""
        params = self._base | dict(changes)
        key = _key(params, _AUDIT)
        if key not in self._audited:
            self._audited[key] = Calcode(**params).fit_audit(
                reference=self._roles.reference, validation=self._roles.validation, gate=self._roles.gate
            )
        return _copied(self._audited[key], params)

    def fitted(self, changes: Mapping[str, Any]) -> Calcode:
        """A fitted model; variants without a relevant difference share one model."""
        params = self._base | dict(changes)
        model = self._with_tail(params)
        key = (*_key(params, (*_AUDIT, *_DISCOVERY, *_CALIBRATION)), tuple(model.tail_reasons_))
        if key not in self._calibrated:
            self._calibrated[key] = model.calibrate(calibration=self._roles.calibration)
        return self._calibrated[key]

    def _with_tail(self, params: Mapping[str, Any]) -> Calcode:
        key = _key(params, (*_AUDIT, *_DISCOVERY))
        if key not in self._discovered:
            self._discovered[key] = self.audited(params).discover_tail(validation=self._roles.validation)
        model = _copied(self._discovered[key], params)
        settings = model.settings_
        bound = 1.0 - settings.miscoverage - settings.discovery_margin
        model.tail_evidence_ = tuple(replace(row, bound=bound) for row in model.tail_evidence_)
        model.tail_reasons_ = discover_tail(
            model.tail_evidence_,
            min_class_count=settings.min_class_count,
            protect=settings.protect,
            always_protect=settings.always_protect,
        )
        return model


def point_settings(point: Mapping[str, Any], *, evidence: Evidence, seed: int) -> dict[str, Any]:
    """Settings of `Calcode` at an operating point, equal to those of the compared method."""
    return {**point, "trim": trim_for(evidence), "random_state": seed}


def point_options(study: Study) -> dict[str, Any]:
    """The options of a job that `variant_models` reads."""
    return {"point": study.point.model_dump(exclude={"name"}), "seed": study.seed}


def variants_job(study: Study, what: str, where: Combination, variants: Mapping[str, Any]) -> Job:
    """The job in which every variant decides on the target of a combination."""
    return job(f"{__name__}:decide_variants", what, where, point_options(study) | {"variants": variants})


def variant_models(cohorts: SettingCohorts, options: Mapping[str, Any]) -> VariantModels:
    """Models for the roles of a setting at the operating point of a job."""
    base = point_settings(options["point"], evidence=cohorts.roles.calibration, seed=options["seed"])
    return VariantModels(cohorts.roles, base)


def decide_variants(cohorts: SettingCohorts, options: Mapping[str, Any]) -> dict[str, MethodDecisions]:
    """Decisions on the target by every variant in `options["variants"]`, which maps names to changed settings.

    A variant that these features do not allow, such as a trim that leaves no prompts, is left out with a
    warning.
    """
    models = variant_models(cohorts, options)
    decided: dict[int, MethodDecisions] = {}
    kept: dict[str, MethodDecisions] = {}
    for name, changes in options["variants"].items():
        try:
            model = models.fitted(changes)
        except SettingsError as error:
            warnings.warn(f"variant {name} left out: {error}", CalcodeWarning, stacklevel=2)
            continue
        if id(model) not in decided:
            decided[id(model)] = decided_by(model, cohorts.target)
        kept[name] = decided[id(model)]
    return kept


def decided_by(model: Calcode, target: Cohort) -> MethodDecisions:
    """Decisions of a fitted model on images."""
    return decisions_from(model_prediction(model, target.evidence), target.evidence)


def _copied(model: Calcode, params: Mapping[str, Any]) -> Calcode:
    """A copy with the same fitted stages and other settings for the later ones."""
    variant = copy.copy(model).set_params(**params)
    variant.settings_ = Settings(**params).checked()
    return variant


def _key(params: Mapping[str, Any], names: tuple[str, ...]) -> _Key:
    def hashable(value: Any) -> Any:
        if isinstance(value, Mapping):
            return tuple(sorted(value.items()))
        return tuple(value) if isinstance(value, list) else value

    return tuple(hashable(params[name]) for name in names)
