"""`Calcode`: the whole method, array-first (METHOD.md 1 to 9)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from calcode import __version__
from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.errors import CalcodeWarning, NotFittedError, RoleError
from calcode.kernels.threads import core_blocks, run_blocks
from calcode.method import roles, tail
from calcode.method.audit import SupportAudit
from calcode.method.bandwidth import MIN_EXAMPLES, BandwidthTrial, CrossFit, choose_bandwidth
from calcode.method.decisions import Decisions, choose_actions, promises_of
from calcode.method.evidence import Evidence, one_per_group, robust_probabilities
from calcode.method.home_sums import HomeSums
from calcode.method.localized import LocalizedRule, canonical_order
from calcode.method.quantiles import smallest_finite_count
from calcode.method.scores import aps_scores, label_sets, true_label_scores
from calcode.method.settings import Settings, parameters_section
from calcode.method.singles import NOT_CERTIFIED, SinglesCertificate, second_labels

#: The step that makes a missing attribute, if it is not the last step.
_MADE_BY = {"audit_": "fit_audit", "bandwidth_": "discover_tail"}


class Calcode(Settings):
    """Class-tail adaptive localized conformal deferral around a frozen image-text model.

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

    settings_: Settings
    evidence_format_: roles.EvidenceFormat
    role_hashes_: roles.RoleHashes
    manifest_: dict[str, dict[str, Any]]
    audit_: SupportAudit | None
    bandwidth_: float
    bandwidth_trace_: tuple[BandwidthTrial, ...]
    tail_evidence_: tuple[tail.ClassEvidence, ...]
    tail_reasons_: dict[str, tail.TailReason]
    rule_: LocalizedRule
    guards_: tuple[tail.ClassGuard, ...]
    classes_: tuple[str, ...]
    #: What this model promises and what it does not, in plain words (METHOD.md 10).
    promises_: tuple[str, ...]
    #: Classes whose threshold is +inf for every image, with their number of accepted calibration images. A set that
    #: always holds a label says nothing about that label: its coverage of 100 % is no achievement.
    in_every_set_: dict[str, int]
    calibration_labels_: IntArray
    versions_: dict[str, str]
    #: What a site needs from home (SITE.md S16); None in older model files, which did not keep it.
    sums_: HomeSums | None = None
    #: Result of `certify_singles` (SITE.md S17).
    certificate_: SinglesCertificate | None = None

    # ------------------------------------------------------------------ fitting

    def fit(
        self,
        *,
        reference: Evidence,
        validation: Evidence,
        gate: Evidence,
        calibration: Evidence,
        device: str | None = None,
    ) -> Self:
        """`fit_audit`, `discover_tail` and `calibrate`, in this order.

        Parameters
        ----------
        reference, validation, gate, calibration : Evidence
            Disjoint roles; `validation` and `calibration` need labels inside the label space.
        device : str, optional
            A torch device such as "cuda" for the products; faster from about ten thousand images on. Sums in another
            order may change the last digits of what is fitted.
        """
        # The steps check their arguments again; here all roles are checked before any work.
        self._checked_settings(reference)
        roles.checked_roles(
            {"reference": reference, "validation": validation, "gate": gate, "calibration": calibration}
        )
        self.fit_audit(reference=reference, validation=validation, gate=gate, device=device)
        self.discover_tail(validation=validation, device=device)
        return self.calibrate(calibration=calibration, device=device)

    def fit_audit(
        self, *, reference: Evidence, validation: Evidence, gate: Evidence, device: str | None = None
    ) -> Self:
        """Choose the audit diagnostic on validation and calibrate it on the gate (METHOD.md 4)."""
        settings = self._checked_settings(reference)
        given = {"reference": reference, "validation": validation, "gate": gate}
        expected, hashes = roles.checked_roles(given)
        self._forget()
        self.settings_ = settings
        self.evidence_format_, self.classes_ = expected, expected.classes
        self.role_hashes_ = hashes
        self.manifest_ = {role: _manifest_entry(evidence) for role, evidence in given.items()}
        # Kept until calibration: the home sums are over all three roles.
        self._summed_roles = (reference, validation)
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
                device=device,
            )
            n, level = len(self.audit_.gate_values), settings.deferral_level
            if 1 / (n + 1) >= level > 0:
                warnings.warn(
                    f"gate: its {n} ranked images give no p-value below {1 / (n + 1):.3g}, so no image is ever "
                    f"deferred for low support at deferral_level={level:g}; {math.floor(1 / level)} needed",
                    CalcodeWarning,
                    stacklevel=2,
                )
        return self

    def discover_tail(self, *, validation: Evidence, device: str | None = None) -> Self:
        """Choose the bandwidth and the protected classes on accepted validation (METHOD.md 6 and 7)."""
        audit, settings = self.audit_, self.settings_
        self.evidence_format_.require(validation, role="validation")
        if self.manifest_["validation"] != _manifest_entry(validation):
            raise RoleError("validation: not the images that fit_audit was given; pass the same evidence")
        labels = roles.labels_in_space(validation, role="validation")
        seen = None if audit is None else audit.validation_p_values
        p_values = self.audit_p_values(validation) if seen is None else seen
        accepted = p_values >= settings.deferral_level
        cross_fit = None
        if accepted.sum() >= MIN_EXAMPLES:
            cross_fit = CrossFit(
                embeddings=validation.embeddings[accepted],
                scores=aps_scores(robust_probabilities(validation.prompt_logits, trim=settings.trim))[accepted],
                labels=labels[accepted],
                n_folds=settings.n_folds,
                random_state=settings.random_state,
                device=device,
            )
        self.bandwidth_trace_ = ()
        if settings.bandwidth != "auto":
            self.bandwidth_ = float(settings.bandwidth)
        elif cross_fit is None:
            raise RoleError(
                f"deferral_level: fewer than {MIN_EXAMPLES} validation images reach {settings.deferral_level}, so "
                "bandwidth='auto' has nothing to choose on; lower deferral_level or give a number for bandwidth"
            )
        else:
            self.bandwidth_, self.bandwidth_trace_ = choose_bandwidth(
                cross_fit,
                miscoverage=settings.miscoverage,
                grid=settings.level_grid,
                support_budget=settings.support_budget,
            )
        outcome = None
        if cross_fit is not None:
            outcome = cross_fit.judge(
                bandwidth=self.bandwidth_, miscoverage=settings.miscoverage, grid=settings.level_grid
            )
        self.tail_evidence_ = tail.class_evidence(
            outcome,
            labels[accepted],
            classes=self.classes_,
            bound=1.0 - settings.miscoverage - settings.discovery_margin,
        )
        self.tail_reasons_ = tail.discover_tail(
            self.tail_evidence_,
            min_class_count=settings.min_class_count,
            protect=settings.protect,
            always_protect=settings.always_protect,
        )
        return self

    def calibrate(self, *, calibration: Evidence, device: str | None = None) -> Self:
        """Calibrate the localized rule and the guards; audit, bandwidth and protected classes stay unchanged."""
        bandwidth, settings = self.bandwidth_, self.settings_
        if len(calibration) == 0:
            raise RoleError("calibration: the role is empty")
        self.evidence_format_.require(calibration, role="calibration")
        labels = roles.labels_in_space(calibration, role="calibration")
        self.role_hashes_ = self.role_hashes_.admit("calibration", calibration)
        self.manifest_ = self.manifest_ | {"calibration": _manifest_entry(calibration)}
        accepted = np.flatnonzero(self.audit_p_values(calibration) >= settings.deferral_level)
        of_labels = aps_scores(robust_probabilities(calibration.prompt_logits, trim=settings.trim))
        scores = true_label_scores(of_labels[accepted], labels[accepted])
        embeddings = calibration.embeddings[accepted]
        order = canonical_order(embeddings, scores)
        rule = LocalizedRule.fit(
            embeddings,
            scores,
            bandwidth=bandwidth,
            miscoverage=settings.miscoverage,
            level=settings.level,
            grid=settings.level_grid,
            device=device,
        )
        self.certificate_ = None
        self._install(rule=rule, labels=labels[accepted][order], device=device)
        if self.audit_ is not None:
            self.audit_ = replace(self.audit_, device=None)
        self.versions_ = library_versions()
        self.sums_ = HomeSums.fit((*self._summed_roles, calibration), trim=settings.trim)
        if shortfall := tail.in_every_set_sentence(self.guards_):
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

    def _install(
        self,
        *,
        rule: LocalizedRule,
        labels: IntArray,
        device: str | None = None,
        masses: tuple[FloatArray, FloatArray] | None = None,
    ) -> None:
        """Store the calibrated rule and build the guards from its points, or from `masses` that a file kept."""
        settings, shares = self.settings_, self.settings_.guard_miscoverage
        self.rule_ = rule
        self.calibration_labels_ = labels
        self.guards_ = tuple(
            tail.ClassGuard.fit(
                name=name,
                index=self.classes_.index(name),
                calibration=rule,
                labels=labels,
                miscoverage=shares.get(name, settings.miscoverage) if isinstance(shares, Mapping) else shares,
                class_local_min=settings.class_local_min,
                grid=settings.level_grid,
                device=device,
                masses=masses,
            )
            for name in self.tail_reasons_
        )
        self.promises_ = promises_of(
            level=settings.level,
            miscoverage=settings.miscoverage,
            audit_independent=None if self.audit_ is None else self.audit_.independent,
            guards=self.guards_,
            binary_utility=settings.binary_utility,
            singles=NOT_CERTIFIED if self.certificate_ is None else self.certificate_.sentence,
        )
        self.in_every_set_ = {guard.name: guard.n for guard in self.guards_ if math.isinf(guard.quantile)}
        if rule.always_infinite:
            self.in_every_set_ = self.n_accepted_per_class_
        for made_again in ("_search", "digest_"):
            vars(self).pop(made_again, None)

    # ------------------------------------------------------------------ decisions

    def decide(self, evidence: Evidence) -> Decisions:
        """Action, reason and set for every image (METHOD.md 9).

        Parameters
        ----------
        evidence : Evidence
            Same classes, prompts, dimension, prompt digest and backbone as at fit; labels are ignored.
        """
        self.evidence_format_.require(evidence, role="evidence")
        self.role_hashes_.require_new("evidence", roles.identities(evidence))
        n = len(evidence.embeddings)
        localized, guarded = self.prepare()._search.thresholds(evidence.embeddings)
        p_audit = np.ones(n) if self.audit_ is None else self.audit_.p_values(evidence)
        blocks = list(core_blocks(n))
        if len(blocks) <= 1:
            return self._decisions(evidence, p_audit, localized, guarded)
        _ = self.digest_  # computed once here, not by every thread
        decided: dict[int, Decisions] = {}

        def decide_block(rows: slice) -> None:
            decided[rows.start] = self._decisions(evidence[rows], p_audit[rows], localized[rows], guarded[rows])

        run_blocks(decide_block, blocks)
        return Decisions.concatenate([decided[rows.start] for rows in blocks])

    def certify_singles(self, evidence: Evidence, risk: float = 0.05, confidence: float = 0.9) -> SinglesCertificate:
        """Check on a separate sample how often answers of one label are wrong (SITE.md S17).

        If the sample cannot show that at most `risk` of them are wrong, every later single answer gets a second label.

        Parameters
        ----------
        evidence : Evidence
            Labelled images that are not in validation, gate or calibration; one per group is drawn. Reference images
            may be used: the audit ignores an image's own row.
        risk, confidence : float
            Allowed share of wrong single answers, and the required confidence.

        Examples
        --------
        Before the first decision on new images::

            found = model.certify_singles(held_out.evidence, risk=0.05)
            found.certified, found.sentence
        """
        self.evidence_format_.require(evidence, role="evidence")
        others = {entry: hashes for entry, hashes in self.role_hashes_.hashes.items() if entry[0] != "reference"}
        roles.RoleHashes(self.role_hashes_.key, others).require_new("evidence", roles.identities(evidence))
        sample = evidence[one_per_group(evidence, random_state=self.settings_.random_state)]
        p_audit = np.ones(len(sample))
        if self.audit_ is not None:
            p_audit = self.audit_.without_own_rows().p_values(sample)
        before, self.certificate_ = self.certificate_, None
        try:
            decisions = self._decisions(sample, p_audit, *self.thresholds(sample.embeddings))
            before = SinglesCertificate.check(decisions, sample, risk=risk, confidence=confidence)
        finally:
            self.certificate_ = before
        self.promises_ = (*self.promises_[:-1], self.certificate_.sentence)
        vars(self).pop("digest_", None)
        return self.certificate_

    def _decisions(
        self, evidence: Evidence, p_audit: FloatArray, localized: FloatArray, guarded: FloatArray
    ) -> Decisions:
        robust = robust_probabilities(evidence.prompt_logits, trim=self.settings_.trim)
        scores = aps_scores(robust)
        supported = np.asarray(p_audit >= self.settings_.deferral_level)
        localized_sets = label_sets(scores, localized[:, None])
        top_label = robust.argmax(axis=1)
        if self.settings_.keep_top:
            first = np.arange(len(scores)), top_label
            guarded[first] = np.maximum(guarded[first], scores[first])
            localized_sets[first] = True
        sets = label_sets(scores, guarded)
        if self.certificate_ is not None and not self.certificate_.certified:
            joins = second_labels(sets, answered=supported, preference=robust)
            sets, guarded = sets | joins, np.where(joins, scores, guarded)
        action, reason, label = choose_actions(sets, supported=supported, binary_utility=self.settings_.binary_utility)
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
        """The guarded sets of every image, including deferred ones; shape (n, K)."""
        return self.decide(evidence).sets

    def prepare(self) -> Self:
        """Build now what the first decision would build, so that several threads do not each build their own."""
        if "_search" not in vars(self):
            self._search = tail.GuardedThresholds(self.rule_, guards=self.guards_, n_classes=len(self.classes_))
        if self.audit_ is not None:
            self.audit_.prepare()
        return self

    def thresholds(self, embeddings: FloatArray) -> tuple[FloatArray, FloatArray]:
        """tau(x), shape (n,), and the guarded thresholds (Eq. 15), shape (n, K), before the first label is kept.

        Parameters
        ----------
        embeddings : ndarray of shape (n, d)
            Unit rows.
        """
        return self.prepare()._search.thresholds(embeddings)

    def audit_p_values(self, evidence: Evidence) -> FloatArray:
        """p_audit of every image (Eq. 9), 1 without an audit; available from `fit_audit` on; shape (n,)."""
        if self.audit_ is None:
            return np.ones(len(evidence))
        return self.audit_.p_values(evidence)

    # ------------------------------------------------------------------ what fit found

    @property
    def audit_name_(self) -> str | None:
        """The chosen diagnostic."""
        return None if self.audit_ is None else self.audit_.name

    @property
    def audit_auroc_(self) -> float | None:
        """AUROC of the chosen diagnostic for top-1 error on validation."""
        return None if self.audit_ is None else self.audit_.auroc

    @property
    def audit_aurocs_(self) -> dict[str, float]:
        """AUROC of every candidate."""
        return {} if self.audit_ is None else dict(self.audit_.aurocs)

    @property
    def local_level_(self) -> float | None:
        """eta of the localized rule; inf with too few calibration examples, None for "exact" and "upper"."""
        return self.rule_.eta

    @property
    def tail_classes_(self) -> tuple[str, ...]:
        """Names of the protected classes, in class order."""
        return tuple(self.tail_reasons_)

    @property
    def tail_thresholds_(self) -> dict[str, float]:
        """Class-global quantile of every protected class."""
        return {guard.name: guard.quantile for guard in self.guards_}

    @property
    def n_accepted_per_class_(self) -> dict[str, int]:
        """Accepted calibration examples of every class."""
        counts = np.bincount(self.calibration_labels_, minlength=len(self.classes_))
        return {name: int(count) for name, count in zip(self.classes_, counts, strict=True)}

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # Called only for missing attributes.
            raise NotFittedError(f"the model is not fitted: call {_MADE_BY.get(name, 'fit')} first")

    # ------------------------------------------------------------------ files

    @cached_property
    def digest_(self) -> str:
        """SHA-256 of the model's settings and fitted values, as stored in its file."""
        from calcode.method.model_file import model_digest

        return model_digest(self)

    def __repr__(self) -> str:
        if not hasattr(self, "rule_"):
            return f"Calcode(miscoverage={self.miscoverage}, deferral_level={self.deferral_level}; not fitted)"
        return (
            f"Calcode({len(self.classes_)} classes; audit {self.audit_name_ or 'none'}; "
            f"bandwidth {self.bandwidth_:.4g}; level {self.settings_.level}; "
            f"protected {list(self.tail_classes_) or 'none'}; {len(self.rule_.scores)} calibration images)"
        )

    def save(self, path: str | Path) -> None:
        """Write the model to one safetensors file; the same model gives the same bytes."""
        from calcode.method.model_file import save_model

        save_model(self, Path(path))

    @classmethod
    def load(cls, path: str | Path, *, trusted: Sequence[str | Path] | None = None) -> Calcode:
        """Read a model file; refuse one that is truncated, altered, of another program, or too new.

        Parameters
        ----------
        path : path-like
        trusted : sequence of str or path-like, optional
            Public keys; the file must be signed by one of them (`calcode model sign`). None: not checked.

        Examples
        --------
        A loaded model decides like the saved one, on any machine::

            model.save("model.safetensors")
            Calcode.load("model.safetensors").decide(evidence)
        """
        from calcode.method.artifact import HOME_KEY, read_artifact
        from calcode.method.model_file import model_from

        model = model_from(read_artifact(Path(path), key=HOME_KEY))
        if trusted is not None:
            from calcode.method.signatures import require_signature

            require_signature(path, digest=model.digest_, trusted=trusted)
        return model

    # ------------------------------------------------------------------ guards of the order

    def _checked_settings(self, evidence: Evidence) -> Settings:
        roles.require_evidence(evidence, role="reference")
        return self.checked(evidence.classes, n_prompts=evidence.n_prompts)

    def _forget(self) -> None:
        """Drop the results of an earlier fit, so that no step uses outdated ones."""
        for name in [name for name in vars(self) if name.endswith("_") and not name.startswith("_")]:
            delattr(self, name)


if Calcode.__doc__ is not None:  # python -OO has none
    Calcode.__doc__ = Calcode.__doc__.replace("    Attributes\n", f"{parameters_section()}\n\n    Attributes\n", 1)


@cache
def library_versions() -> dict[str, str]:
    """Versions of the libraries that a fit depends on; kept with the model."""
    return {"calcode": __version__} | {name: version(name) for name in ("numpy", "scikit-learn", "scipy")}


def _manifest_entry(evidence: Evidence) -> dict[str, Any]:
    kept = {kind: len(values) for kind, values in roles.identities(evidence).items()}
    return {"n": len(evidence), "embeddings": evidence.embeddings_digest, "ids": 0, "groups": 0} | kept
