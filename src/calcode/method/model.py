"""`Calcode`: the whole method, array-first (METHOD.md 1 to 9)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import numpy as np

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.errors import CalcodeWarning, NotFittedError, RoleError, SettingsError
from calcode.method.audit import DIAGNOSTICS, SupportAudit
from calcode.method.bandwidth import BandwidthTrial, choose_bandwidth
from calcode.method.cross_fit import MIN_EXAMPLES, Pilot
from calcode.method.decisions import Decisions, choose_actions
from calcode.method.evidence import Evidence, robust_probabilities
from calcode.method.fitted import Learned
from calcode.method.localized import LocalizedRule, canonical_order, label_sets
from calcode.method.quantiles import smallest_finite_count
from calcode.method.role_hashes import embeddings_digest
from calcode.method.roles import checked_roles, labels_in_space, require_evidence
from calcode.method.scores import aps_scores, true_label_scores
from calcode.method.settings import Settings, checked_settings
from calcode.method.tail import (
    ClassGuard,
    class_evidence,
    discover_tail,
    in_every_set_sentence,
    miscoverage_of,
)
from calcode.method.thresholds import GuardedThresholds, ThresholdSearch, TiledThresholds, tiling_pays


class Calcode(Learned):
    """Class-tail adaptive localized conformal deferral around a frozen image-text model.

    Parameters
    ----------
    miscoverage : float
        delta: allowed share of accepted images whose set misses the diagnosis.
    guard_miscoverage : float or dict of str to float
        delta_y of the protected classes, one for all or per class (others: `miscoverage`).
    discovery_margin : float
        gamma: a class is protected when its held-out coverage falls below 1 - miscoverage - gamma.
    deferral_level : float
        Images with an audit p-value below it are deferred.
    trim : int
        Prompts dropped at each end of every class's evidence.
    n_neighbors : int
        k of the audit distance.
    bandwidth : "auto" or float
        h of the kernel; +inf turns localization off.
    support_budget : float
        Share of infinite held-out thresholds that the automatic bandwidth may cause.
    level : {"loo", "exact", "upper", "certified"}
        How the local level is found; all but "loo" come with a guarantee.
    level_grid : int or None
        Number of levels "loo" chooses from; None takes the critical value itself.
    n_folds : int
        Folds of the pilot on validation.
    min_class_count : int
        Classes with fewer accepted validation examples are protected.
    class_local_min : int
        Fewest calibration examples for a class-local threshold beside the class-global one.
    audit : sequence of str or None
        Candidate diagnostics; None accepts every image.
    fused : {"paper", "split"}
        Which part of the gate ranks `fused`.
    protect : {"discovered", "all", "none"}
    always_protect : sequence of str
        Classes protected whatever validation says.
    keep_top : bool
        The label ranked first is in every set (METHOD.md 9); False is the paper's rule.
    binary_utility : bool
        With two classes: defer full sets too.
    random_state : int
        Seeds the folds and the halving of the gate.

    Attributes
    ----------
    classes_ : tuple of str
    audit_name_, audit_auroc_ : str and float, or None without an audit
    audit_aurocs_ : dict of str to float
    bandwidth_ : float
    bandwidth_trace_ : tuple of BandwidthTrial
        Empty when the bandwidth was given.
    local_level_ : float or None
        None for "exact" and "upper".
    tail_classes_ : tuple of str
    tail_reasons_ : dict of str to TailReason
    tail_evidence_ : tuple of ClassEvidence
        Held-out coverage of every class.
    tail_thresholds_ : dict of str to float
        Class-global quantiles, may be inf.
    n_accepted_per_class_ : dict of str to int
        Accepted calibration examples.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> def role(n):
    ...     labels = rng.integers(3, size=n)
    ...     images = np.eye(3, 8)[labels] + rng.normal(scale=0.4, size=(n, 8))
    ...     images /= np.linalg.norm(images, axis=1, keepdims=True)
    ...     return Evidence.from_text(embeddings=images, text=np.eye(3, 8)[:, None], temperature=0.2,
    ...                               labels=labels, classes=["a", "b", "c"])
    >>> model = Calcode().fit(reference=role(100), validation=role(200), gate=role(100), calibration=role(200))
    >>> decisions = model.decide(role(50))
    >>> decisions.sets.shape
    (50, 3)
    """

    def __init__(
        self,
        *,
        miscoverage: float = 0.05,
        guard_miscoverage: float | Mapping[str, float] = 0.05,
        discovery_margin: float = 0.05,
        deferral_level: float = 0.05,
        trim: int = 1,
        n_neighbors: int = 10,
        bandwidth: float | str = "auto",
        support_budget: float = 0.25,
        level: str = "loo",
        level_grid: int | None = 1001,
        n_folds: int = 5,
        min_class_count: int = 10,
        class_local_min: int = 50,
        audit: Sequence[str] | None = DIAGNOSTICS,
        fused: str = "paper",
        protect: str = "discovered",
        always_protect: Sequence[str] = (),
        keep_top: bool = True,
        binary_utility: bool = False,
        random_state: int = 0,
    ) -> None:
        self.miscoverage = miscoverage
        self.guard_miscoverage = guard_miscoverage
        self.discovery_margin = discovery_margin
        self.deferral_level = deferral_level
        self.trim = trim
        self.n_neighbors = n_neighbors
        self.bandwidth = bandwidth
        self.support_budget = support_budget
        self.level = level
        self.level_grid = level_grid
        self.n_folds = n_folds
        self.min_class_count = min_class_count
        self.class_local_min = class_local_min
        self.audit = audit
        self.fused = fused
        self.protect = protect
        self.always_protect = always_protect
        self.keep_top = keep_top
        self.binary_utility = binary_utility
        self.random_state = random_state

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The settings by name, as scikit-learn's tools ask for them (`deep` changes nothing here)."""
        return {name: getattr(self, name) for name in Settings.__dataclass_fields__}

    def set_params(self, **params: Any) -> Self:
        """Change settings by name; they take effect at the next fit."""
        for name, value in params.items():
            if name not in Settings.__dataclass_fields__:
                raise SettingsError(
                    f"{name}: no such setting; there are {', '.join(Settings.__dataclass_fields__)}"
                )
            setattr(self, name, value)
        return self

    # ------------------------------------------------------------------ fitting

    def fit(
        self, *, reference: Evidence, validation: Evidence, gate: Evidence, calibration: Evidence
    ) -> Self:
        """`fit_audit`, `discover_tail` and `calibrate`, in this order.

        Parameters
        ----------
        reference, validation, gate, calibration : Evidence
            Disjoint roles; `validation` and `calibration` need labels inside the label space.
        """
        # The stages check again what they are given; here all roles are checked before any work.
        self._checked_settings(reference)
        checked_roles(
            {"reference": reference, "validation": validation, "gate": gate, "calibration": calibration}
        )
        self.fit_audit(reference=reference, validation=validation, gate=gate)
        self.discover_tail(validation=validation)
        return self.calibrate(calibration=calibration)

    def fit_audit(self, *, reference: Evidence, validation: Evidence, gate: Evidence) -> Self:
        """Choose the audit diagnostic on validation and calibrate it on the gate (METHOD.md 4)."""
        settings = self._checked_settings(reference)
        roles = {"reference": reference, "validation": validation, "gate": gate}
        interface, ledger = checked_roles(roles)
        self._forget()
        self.settings_ = settings
        self.interface_ = interface
        self.ledger_ = ledger
        self.manifest_ = {role: _manifest_entry(evidence) for role, evidence in roles.items()}
        self.audit_ = None
        if settings.audit is not None:
            self.audit_ = SupportAudit.fit(
                reference=reference,
                validation=validation,
                gate=gate,
                candidates=settings.audit,
                n_neighbors=settings.n_neighbors,
                trim=settings.trim,
                fused=settings.fused,
                random_state=settings.random_state,
            )
        return self

    def discover_tail(self, *, validation: Evidence) -> Self:
        """Choose the bandwidth and the protected classes on accepted validation (METHOD.md 6 and 7)."""
        self._require("audit_", before="discover_tail", call="fit_audit")
        settings = self.settings_
        self.interface_.require(validation, role="validation")
        if self.manifest_["validation"] != _manifest_entry(validation):
            raise RoleError("validation: not the images that fit_audit was given; pass the same evidence")
        labels = labels_in_space(validation, role="validation")
        seen = None if self.audit_ is None else self.audit_.validation_p_values
        p_values = self.audit_p_values(validation) if seen is None else seen
        accepted = p_values >= settings.deferral_level
        pilot = None
        if accepted.sum() >= MIN_EXAMPLES:
            pilot = Pilot(
                embeddings=validation.embeddings[accepted],
                scores=self._scores(validation)[1][accepted],
                labels=labels[accepted],
                n_folds=settings.n_folds,
                random_state=settings.random_state,
            )
        self.bandwidth_, self.bandwidth_trace_ = _bandwidth_for(pilot, settings)
        outcome = None
        if pilot is not None:
            outcome = pilot.judge(
                bandwidth=self.bandwidth_, miscoverage=settings.miscoverage, grid=settings.level_grid
            )
        self.tail_evidence_ = class_evidence(
            outcome,
            labels[accepted],
            classes=self.classes_,
            bound=1.0 - settings.miscoverage - settings.discovery_margin,
        )
        self.tail_reasons_ = discover_tail(
            self.tail_evidence_,
            min_class_count=settings.min_class_count,
            protect=settings.protect,
            always_protect=settings.always_protect,
        )
        return self

    def calibrate(self, *, calibration: Evidence) -> Self:
        """Calibrate the localized rule and the guards; audit, bandwidth and classes are frozen by now."""
        self._require("tail_reasons_", before="calibrate", call="discover_tail")
        settings = self.settings_
        if len(calibration) == 0:
            raise RoleError("calibration: the role is empty")
        self.interface_.require(calibration, role="calibration")
        labels = labels_in_space(calibration, role="calibration")
        self.ledger_ = self.ledger_.admit("calibration", calibration)
        self.manifest_ = self.manifest_ | {"calibration": _manifest_entry(calibration)}
        accepted = np.flatnonzero(self.audit_p_values(calibration) >= settings.deferral_level)
        scores = true_label_scores(self._scores(calibration)[1][accepted], labels[accepted])
        embeddings = calibration.embeddings[accepted]
        order = canonical_order(embeddings, scores)
        rule = LocalizedRule.fit(
            embeddings,
            scores,
            bandwidth=self.bandwidth_,
            miscoverage=settings.miscoverage,
            level=settings.level,
            grid=settings.level_grid,
        )
        self._install(rule=rule, labels=labels[accepted][order])
        self.versions_ = library_versions()
        if shortfall := in_every_set_sentence(self.guards_):
            warnings.warn(shortfall, CalcodeWarning, stacklevel=2)
        if rule.always_infinite:
            needed = smallest_finite_count(miscoverage=settings.miscoverage)
            warnings.warn(
                f"calibration: {len(accepted)} accepted images and {needed} needed for a finite threshold at "
                f"{1 - settings.miscoverage:g}: every set is full",
                CalcodeWarning,
                stacklevel=2,
            )
        return self

    def _install(self, *, rule: LocalizedRule, labels: IntArray) -> None:
        """Take over the calibrated rule and build the guards from its points."""
        settings = self.settings_
        self.rule_ = rule
        self.calibration_labels_ = labels
        self.guards_ = tuple(
            ClassGuard.fit(
                name=name,
                index=self.classes_.index(name),
                calibration=rule,
                labels=labels,
                miscoverage=miscoverage_of(name, settings.guard_miscoverage, default=settings.miscoverage),
                class_local_min=settings.class_local_min,
                grid=settings.level_grid,
            )
            for name in self.tail_reasons_
        )
        # Made when first needed, never saved.
        self._digest: str | None = None
        self._search: ThresholdSearch | None = None

    # ------------------------------------------------------------------ deciding

    def decide(self, evidence: Evidence) -> Decisions:
        """Action, reason and set for every image (METHOD.md 9).

        Parameters
        ----------
        evidence : Evidence
            Same classes, prompts, dimension, prompt digest and backbone as at fit; labels are not looked at.
        """
        return self.decide_with(evidence, thresholds=self.thresholds)

    def decide_with(
        self,
        evidence: Evidence,
        *,
        thresholds: Callable[[FloatArray, FloatArray], tuple[FloatArray, FloatArray]],
    ) -> Decisions:
        """`decide` with another engine for the thresholds, for instance one on a GPU.

        Parameters
        ----------
        evidence : Evidence
        thresholds : callable
            As `thresholds` of this class.
        """
        self._require("rule_", before="decide", call="fit")
        self.interface_.require(evidence, role="evidence")
        self.ledger_.require_disjoint("test", evidence)
        robust, scores = self._scores(evidence)
        p_audit = self.audit_p_values(evidence)
        localized, guarded = thresholds(evidence.embeddings, scores)
        localized_sets = label_sets(scores, localized)
        top_label = robust.argmax(axis=1)
        if self.settings_.keep_top:
            first = np.arange(len(scores)), top_label
            guarded[first] = np.maximum(guarded[first], scores[first])
            localized_sets[first] = True
        sets = label_sets(scores, guarded)
        action, reason, label = choose_actions(
            sets,
            supported=np.asarray(p_audit >= self.settings_.deferral_level),
            binary_utility=self.settings_.binary_utility,
        )
        return Decisions(
            action=action,
            reason=reason,
            label=label,
            sets=sets,
            localized_sets=localized_sets,
            p_audit=p_audit,
            threshold=guarded,
            scores=scores,
            top_label=top_label,
            top_probability=robust[np.arange(len(robust)), top_label],
            ids=None if evidence.ids is None else evidence.ids.copy(),
            classes=self.classes_,
            model_digest=self.digest_,
            promises=self.promises_,
            in_every_set=self.in_every_set_,
        )

    def predict_set(self, evidence: Evidence) -> BoolArray:
        """The guarded sets of every image, deferred or not; shape (n, K)."""
        return self.decide(evidence).sets

    def prepare(self) -> Self:
        """Make now what the first decision would make, so that several threads do not each make their own."""
        rule = self.fitted_rule
        self.thresholds(rule.embeddings[:1], rule.embeddings[:1])
        if self.audit_ is not None:
            self.audit_.prepare()
        return self

    @property
    def fitted_rule(self) -> LocalizedRule:
        """The calibrated localized rule, whatever the settings say by now."""
        self._require("rule_", before="decide", call="fit")
        return self.rule_

    def thresholds(self, embeddings: FloatArray, scores: FloatArray) -> tuple[FloatArray, FloatArray]:
        """tau(x), shape (n,), and the guarded thresholds (Eq. 15), shape (n, K).

        Parameters
        ----------
        embeddings : ndarray of shape (n, d)
            Unit rows.
        scores : ndarray of shape (n, K)
            Not looked at here; engines that may stop early need them.
        """
        if self._search is None:
            self._search = self._threshold_search()
        return self._search.of(embeddings)

    def _threshold_search(self) -> ThresholdSearch:
        search = TiledThresholds if tiling_pays(self.rule_) else GuardedThresholds
        return search(self.rule_, guards=self.guards_, n_classes=len(self.classes_))

    def _scores(self, evidence: Evidence) -> tuple[FloatArray, FloatArray]:
        """Robust probabilities and APS scores, each of shape (n, K)."""
        robust = robust_probabilities(evidence.prompt_logits, trim=self.settings_.trim)
        return robust, aps_scores(robust)

    def audit_p_values(self, evidence: Evidence) -> FloatArray:
        """p_audit of every image (Eq. 9), 1 without an audit; available from `fit_audit` on; shape (n,)."""
        self._require("audit_", before="audit_p_values", call="fit_audit")
        if self.audit_ is None:
            return np.ones(len(evidence))
        return self.audit_.p_values(evidence)

    # ------------------------------------------------------------------ files

    @property
    def digest_(self) -> str:
        """SHA-256 of the model's settings and learned state, as its file carries it."""
        from calcode.method.model_file import model_digest

        self._learned("rule_")
        if self._digest is None:
            self._digest = model_digest(self)
        return self._digest

    def __repr__(self) -> str:
        if not hasattr(self, "rule_"):
            return (
                f"Calcode(miscoverage={self.miscoverage}, deferral_level={self.deferral_level}; not fitted)"
            )
        return (
            f"Calcode({len(self.classes_)} classes; audit {self.audit_name_ or 'none'}; "
            f"bandwidth {self.bandwidth_:.4g}; level {self.settings_.level}; "
            f"protected {list(self.tail_classes_) or 'none'}; {len(self.rule_.scores)} calibration images)"
        )

    def save(self, path: str | Path) -> None:
        """Write the model to one safetensors file; the same model gives the same bytes."""
        from calcode.method.model_file import save_model

        self._require("rule_", before="save", call="fit")
        save_model(self, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Calcode:
        """Read a model file; one that is truncated, altered, foreign or too new is refused."""
        from calcode.method.model_file import load_model

        return load_model(Path(path))

    # ------------------------------------------------------------------ guards of the order

    def _checked_settings(self, evidence: Evidence) -> Settings:
        settings = checked_settings(self.get_params())
        require_evidence(evidence, role="reference")
        settings.require_classes(evidence.classes)
        settings.require_prompts(evidence.n_prompts)
        return settings

    def _forget(self) -> None:
        """Drop what an earlier fit learned, so that no step builds on a stale one."""
        for name in [name for name in vars(self) if name.endswith("_") and not name.startswith("_")]:
            delattr(self, name)

    def _require(self, attribute: str, *, before: str, call: str) -> None:
        if attribute not in vars(self):
            raise NotFittedError(f"{before}: call {call} first")


def _bandwidth_for(pilot: Pilot | None, settings: Settings) -> tuple[float, tuple[BandwidthTrial, ...]]:
    if settings.bandwidth is not None:
        return settings.bandwidth, ()
    if pilot is None:
        raise RoleError(
            f"deferral_level: fewer than {MIN_EXAMPLES} validation images reach {settings.deferral_level}, so "
            "bandwidth='auto' has nothing to choose on; lower deferral_level or give a number for bandwidth"
        )
    return choose_bandwidth(
        pilot,
        miscoverage=settings.miscoverage,
        grid=settings.level_grid,
        support_budget=settings.support_budget,
    )


def library_versions() -> dict[str, str]:
    """Versions of what a fit depends on, kept with the model."""
    return {name: version(name) for name in ("calcode", "numpy", "scikit-learn", "scipy")}


def _manifest_entry(evidence: Evidence) -> dict[str, Any]:
    return {"n": len(evidence), "embeddings": embeddings_digest(evidence.embeddings)}
