"""Behaviour of a fitted site model: p-values, decisions and statements about itself (SITE.md S3 to S10 and S17)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from calcode.arrays import BoolArray, FloatArray
from calcode.errors import NotFittedError, RoleError, SettingsError
from calcode.method.audit import SupportAudit
from calcode.method.decisions import Decisions, choose_actions
from calcode.method.evidence import Evidence, one_per_group
from calcode.method.home_sums import adapter_probabilities, site_features
from calcode.method.model import Calcode
from calcode.method.roles import EvidenceFormat, identities, require_evidence
from calcode.method.singles import NOT_CERTIFIED, SinglesCertificate, second_labels
from calcode.metrics.wording import percent
from calcode.site.assured import failure_of_look
from calcode.site.known_groups import KnownGroups
from calcode.site.promises import site_promises
from calcode.site.ranking import TOLERANCE, Bag, Ranked, Ranking
from calcode.site.sample import review_probabilities
from calcode.site.settings import SiteSettings


class FittedSite:
    """The state of a fitted `calcode.site.SiteModel`, described in its docstring, and its decisions."""

    home: Calcode | None
    settings_: SiteSettings
    evidence_format_: EvidenceFormat
    bag_: Bag
    bag_ids_: tuple[str, ...] | None
    zero_shot_scores_: FloatArray
    prior_outer_: FloatArray
    prior_by_class_: FloatArray
    known_: KnownGroups
    audit_: SupportAudit | None
    audit_kind_: str
    deferral_level_: float
    gate_distances_: FloatArray | None
    home_digest_: str
    sharp_: bool
    look_: int
    n_unlabelled_: int
    n_outside_: int
    n_rejected_: int
    n_trainers_: int
    n_added_: int
    versions_: dict[str, str]
    # Derived from the bag by `_install`.
    ranking_: Ranking
    counts_: dict[str, int]
    calibrating_: dict[str, int]
    thresholds_: dict[str, tuple[int, int]]
    levels_: dict[str, float]
    in_every_set_: dict[str, int]
    silenced_classes_: tuple[str, ...]
    bag_scores_: dict[str, FloatArray]
    unlabelled_share_: float
    certificate_: SinglesCertificate | None
    _digest: str | None

    def p_values(self, evidence: Evidence, e: ArrayLike | None = None) -> FloatArray:
        """Full conformal p-value of every label (SITE.md S3 to S6).

        Parameters
        ----------
        evidence : Evidence
        e : array_like of shape (n,), optional
            Review probability of every image, required with `calibrate_with="weighted"`; taken from the evidence if
            not given.

        Returns
        -------
        ndarray of shape (n, K)
        """
        return self._ranked(evidence, e)[0].p_values

    def decide(self, evidence: Evidence, e: ArrayLike | None = None) -> Decisions:
        """Action, reason and set for every image (SITE.md S8).

        Parameters
        ----------
        evidence : Evidence
            Same classes, prompts, dimension and backbone as the home model's; labels are ignored.
        e : array_like of shape (n,), optional
            As in `p_values`.
        """
        ranked, known = self._ranked(evidence, e)
        return self._decisions(evidence, ranked, known=known, p_audit=self._audit_p_values(evidence))

    def certify_singles(
        self, evidence: Evidence, risk: float = 0.05, confidence: float = 0.9, e: ArrayLike | None = None
    ) -> SinglesCertificate:
        """Check on a separate sample how often answers of one label are wrong (SITE.md S17).

        If the sample cannot show that at most `risk` of them are wrong, every later single answer gets a second label.

        Parameters
        ----------
        evidence : Evidence
            Labelled images that are not in bag, trainers or gate; one per group is drawn as in `fit`. Reference images
            of sharp mode may be used: the audit ignores an image's own row.
        risk, confidence : float
        e : array_like of shape (n,), optional
            As in `p_values`.
        """
        self._require_fitted()
        require_evidence(evidence, role="evidence")
        rows = np.arange(len(evidence))
        if self.settings_.unit == "group":
            rows = one_per_group(evidence, random_state=self.settings_.random_state)
        sample = evidence[rows]
        if self.home is not None:
            self.home.role_hashes_.require_new("evidence", identities(sample))
        ranked, known = self._ranked(sample, None if e is None else np.asarray(e, dtype=np.float64)[rows])
        if known.any():
            raise RoleError(
                f"evidence: {int(known.sum())} images of the certification sample belong to groups that the model has "
                "seen; use other patients"
            )
        p_audit = self._audit_p_values(sample, without_own=True)
        with self._all_or_nothing():
            self.certificate_ = None
            decisions = self._decisions(sample, ranked, known=known, p_audit=p_audit)
            self.certificate_ = SinglesCertificate.check(decisions, sample, risk=risk, confidence=confidence)
            self._digest = None
        return self.certificate_

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Restore the model if a step of a change fails."""
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    def leave_one_out(self) -> BoolArray:
        """The set that each reviewed case would get if it came now, without its own row; shape (n, K)."""
        self._require_fitted()
        bag = self.bag_
        return self.ranking_.rank(bag.features, own_rows=np.arange(len(bag)), weights=bag.weights).sets

    def _ranked(self, evidence: Evidence, e: ArrayLike | None) -> tuple[Ranked, BoolArray]:
        self._require_fitted()
        self.evidence_format_.require(evidence, role="evidence")
        weights = self.image_weights(len(evidence), evidence.review_probability if e is None else e)
        own_rows, known = self.known_.find(len(evidence), ids=evidence.ids, groups=evidence.groups)
        features = site_features(evidence, trim=self.settings_.trim)
        return self.ranking_.rank(features, own_rows=own_rows, weights=weights), known

    def image_weights(self, n: int, e: ArrayLike | None) -> FloatArray | None:
        """1/e of n images with `calibrate_with="weighted"`, else None (SITE.md S5); shape (n,).

        Parameters
        ----------
        n : int
        e : array_like of shape (n,), optional
            Their review probabilities, required in that case.
        """
        if self.settings_.calibrate_with != "weighted":
            return None
        if e is None:
            raise SettingsError(
                "e: calibrate_with='weighted' needs the review probability of every image to be decided; give e=..., "
                "or evidence with review_probability"
            )
        with np.errstate(divide="ignore"):
            return np.asarray(1.0 / review_probabilities(e, n=n, lowest="0"))

    def _decisions(self, evidence: Evidence, ranked: Ranked, *, known: BoolArray, p_audit: FloatArray) -> Decisions:
        supported = np.asarray(p_audit >= self.deferral_level_)
        scores = 1.0 - ranked.p_values
        threshold = 1.0 - ranked.levels - TOLERANCE
        sets = ranked.sets
        if self.certificate_ is not None and not self.certificate_.certified:
            joins = second_labels(sets, answered=supported, preference=ranked.p_values)
            sets, threshold = sets | joins, np.where(joins, scores, threshold)
        action, reason, label = choose_actions(sets, supported=supported)
        probabilities = adapter_probabilities(ranked.outputs, sharpness=self.settings_.sharpness)
        top_label = ranked.outputs.argmax(axis=1)
        return Decisions(
            action=action,
            reason=reason,
            label=label,
            sets=sets,
            localized_sets=sets.copy(),
            p_audit=p_audit,
            threshold=threshold,
            scores=scores,
            top_label=top_label,
            top_probability=probabilities[np.arange(len(top_label)), top_label],
            known_group=known,
            ids=None if evidence.ids is None else evidence.ids.copy(),
            classes=self.classes_,
            model_digest=self.digest_,
            promises=self.promises_,
            in_every_set=self.in_every_set_,
        )

    def _audit_p_values(self, evidence: Evidence, *, without_own: bool = False) -> FloatArray:
        if self.audit_kind_ == "off" or self.audit_ is None:
            return np.ones(len(evidence))
        audit = self.audit_.without_own_rows() if without_own else self.audit_
        return audit.p_values(evidence)

    @property
    def classes_(self) -> tuple[str, ...]:
        """The label space."""
        self._require_fitted()
        return self.evidence_format_.classes

    @property
    def audit_name_(self) -> str | None:
        """The diagnostic that defers; None if nothing is deferred for low support."""
        return None if self.audit_ is None or self.audit_kind_ == "off" else self.audit_.name

    @property
    def singles_sentence(self) -> str:
        """Sentence about how often answers of one label are wrong (SITE.md S17)."""
        return NOT_CERTIFIED if self.certificate_ is None else self.certificate_.sentence

    def facts_text(self) -> str:
        """Text for every printout: how the reviewed cases were chosen, how many, and what they do not rule out."""
        designs = set(self.settings_.sampling.values())
        sampling = designs.pop() if len(designs) == 1 else str(self.settings_.sampling)
        labels = ", ".join(f"{name} {count}" for name, count in self.counts_.items())
        return (
            f"sampling {sampling}; labels: {labels}; unlabelled {percent(self.unlabelled_share_)}; in every set: "
            f"{', '.join(self.silenced_classes_) or 'none'}; audit {self.audit_kind_}"
        )

    def shortage_text(self, name: str) -> str:
        """Labels that a class in every set has, and how many it needs."""
        n, calibrating, delta = self.counts_[name], self.calibrating_[name], self.settings_.miscoverage[name]
        labels = f"{n} reviewed labels" if calibrating == n else f"{calibrating} of {n} reviewed labels calibrate"
        return f"{labels} and {self.ranking_.labels_needed(delta)} needed at {1 - delta:g}"

    def prepare(self) -> Self:
        """Build now what the first decision would build, so that several threads do not each build their own."""
        self._require_fitted()
        bag = self.bag_
        self.ranking_.rank(bag.features[:1], own_rows=np.array([-1]), weights=None)
        if self.audit_ is not None:
            self.audit_.prepare()
        return self

    @property
    def spent_failure_(self) -> float:
        """Part of the failure probability spent by the looks so far (SITE.md S6)."""
        assurance = self.settings_.assurance
        if assurance is None:
            return 0.0
        return sum(failure_of_look(look, assurance=assurance) for look in range(1, self.look_ + 1))

    @property
    def promises_(self) -> tuple[str, ...]:
        """What this model promises, for whom, and what it does not promise (SITE.md S9 and S10)."""
        settings = self.settings_
        failure = None
        if settings.assurance is not None:
            failure = failure_of_look(self.look_, assurance=settings.assurance)
        sentences = site_promises(
            settings,
            audit=self.audit_kind_,
            counts=np.array(list(self.counts_.values())),
            levels=np.array(list(self.levels_.values())),
            silenced=self.ranking_.silenced,
            pooled=np.array([bool(self.ranking_.pool(k)) for k in range(len(self.classes_))]),
            unlabelled_share=self.unlabelled_share_,
            failure=failure,
            sharp=self.sharp_,
        )
        return (*sentences, self.singles_sentence)

    def __repr__(self) -> str:
        if not hasattr(self, "ranking_"):
            return "SiteModel(not fitted)"
        return f"SiteModel({self.facts_text()})"

    def _require_fitted(self) -> None:
        if "bag_" not in vars(self):
            raise NotFittedError("SiteModel: call fit first")

    @property
    def digest_(self) -> str:
        """SHA-256 of settings and state, as stored in the file."""
        from calcode.site.model_file import site_digest

        if self._digest is None:
            self._digest = site_digest(self)
        return self._digest

    def save(self, path: str | Path) -> None:
        """Write the model to one safetensors file (SITE.md S11); the same model gives the same bytes."""
        from calcode.site.model_file import save_site

        self._require_fitted()
        save_site(self, Path(path))
