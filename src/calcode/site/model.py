"""`SiteModel`: a model that learns its new site from a few reviewed cases (SITE.md)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.errors import CalcodeWarning, EvidenceError, NotFittedError, RoleError, SettingsError
from calcode.method.audit import SupportAudit
from calcode.method.decisions import Decisions, choose_actions
from calcode.method.evidence import Evidence, one_per_group, robust_probabilities
from calcode.method.home_sums import adapter_probabilities, site_features
from calcode.method.model import Calcode, library_versions
from calcode.method.roles import EvidenceFormat, embeddings_digest, identities, require_evidence
from calcode.method.setting_kinds import Count
from calcode.method.singles import NOT_CERTIFIED, SinglesCertificate, with_second_label
from calcode.site.adapter import Adapter
from calcode.site.assured import SplitConformal, failure_of_look
from calcode.site.known_groups import KnownGroups
from calcode.site.levels import thinned_rows
from calcode.site.p_values import TOLERANCE, Bag, FullConformal, Ranked, Ranking, RankRule
from calcode.site.promises import site_promises
from calcode.site.settings import SiteChoices, SiteSettings

#: Representatives that a site gate needs (SITE.md S8).
MIN_GATE = 19
#: Looks at a growing sample; what the last could spend is a millionth of the first's.
MOST_LOOKS = 1000
#: Of the audit in sharp mode (SITE.md S13), which has no home model to take them from.
_SHARP_TRIM = 1
_SHARP_NEIGHBORS = 10
_SHARP_DEFERRAL = 0.05


@dataclass(eq=False, repr=False)
class SiteModel(SiteChoices):
    """Full conformal sets from reviewed local cases, with home as a prior.

    Parameters
    ----------
    home : Calcode or None
        A fitted home model; None for sharp mode, where home is the site (SITE.md S13).
    sampling : {"archive", "consecutive", "coin"} or dict of str to these
        How the reviewed cases of each class were chosen.
    miscoverage : float or dict of str to float
        delta, one for all classes or per class (others: 0.05).
    home_weight, ridge, sharpness : float
        m0, lambda and b of the adapter (SITE.md S2). Nothing is tuned at the site.
    unit : {"group", "image"}
        "image" takes every image for its own group; the promise is then approximate.
    calibrate_with : {"coin", "weighted", "all"}
        Which reviewed cases calibrate (SITE.md S5).
    unlabelled : {"report", "inf"}
        What a reviewed case without a label does: it is reported, or it counts as a score of +inf in every class.
    rare : {"keep", "count", "pool"}
        What happens to classes with too few labels (SITE.md S4).
    slack : {"keep", "thin"}
        "thin" lets exactly as many rows calibrate as the level needs (SITE.md S3).
    always_protect : sequence of str
        Classes that are never pooled and keep their level.
    assurance : float or None
        Probability over the reviewed sample with which each class's coverage holds (SITE.md S6).
    audit : {"site", "home", "off"} or None
        None: "site" if `fit` gets a gate, else "off" (SITE.md S8).
    random_state : int
        Seeds the draw of representatives, thinning and the split of the assured form.
    reference : Evidence, optional
        In sharp mode: the images that the audit measures distances to.
    trim : int, optional
        In sharp mode: prompts dropped at each end; else the home model's.

    Attributes
    ----------
    classes_ : tuple of str
    counts_ : dict of str to int
        Reviewed cases of each class that train and calibrate.
    levels_ : dict of str to float
        1 - promised coverage of each class.
    silenced_classes_ : tuple of str
        Classes that are in every set.
    bag_ids_ : tuple of str or None
        Ids of the reviewed cases in the order of the bag; None in a loaded model, whose file has no ids.
    bag_scores_ : dict of str to ndarray
        1 - p_rob(y) of each class's reviewed cases.
    gate_distances_ : ndarray or None
        Ascending distance of one gate image per group to the home reference.
    unlabelled_share_ : float
    n_outside_, n_rejected_, n_unlabelled_ : int
        Reviewed representatives left out: label -1, rejected by the audit, without a label.
    home_digest_ : str
    certificate_ : SinglesCertificate or None

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> def role(n, *, shift=0.0, name="x"):
    ...     labels = rng.integers(3, size=n)
    ...     images = np.eye(3, 8)[labels] + rng.normal(scale=0.4, size=(n, 8)) + shift
    ...     images /= np.linalg.norm(images, axis=1, keepdims=True)
    ...     return Evidence.from_text(embeddings=images, text=np.eye(3, 8)[:, None], temperature=0.2, labels=labels,
    ...                               classes=["a", "b", "c"], groups=[f"{name}{i}" for i in range(n)])
    >>> home = Calcode().fit(reference=role(99), validation=role(200, name="v"), gate=role(99, name="g"),
    ...                      calibration=role(200, name="c"))
    >>> site = SiteModel(home, sampling="consecutive").fit(reviewed=role(100, shift=0.2, name="s"))
    >>> site.decide(role(5, shift=0.2, name="t")).sets.shape
    (5, 3)
    """

    home: Calcode | None
    reference: Evidence | None = field(default=None, kw_only=True)
    from_file: bool = field(default=False, init=False)
    settings_: SiteSettings = field(init=False)
    evidence_format_: EvidenceFormat = field(init=False)
    ranking_: Ranking = field(init=False)
    bag_: Bag = field(init=False)
    counts_: dict[str, int] = field(init=False)
    levels_: dict[str, float] = field(init=False)
    silenced_classes_: tuple[str, ...] = field(init=False)
    bag_ids_: tuple[str, ...] | None = field(init=False)
    home_digest_: str = field(init=False)
    audit_: SupportAudit | None = field(init=False)
    certificate_: SinglesCertificate | None = field(init=False)

    def __post_init__(self) -> None:
        if self.home is not None and (self.reference is not None or self.trim is not None):
            raise SettingsError("reference and trim: they come from the home model; give them in sharp mode only")

    # ------------------------------------------------------------------ fitting

    def fit(
        self,
        reviewed: Evidence,
        trainers: Evidence | None = None,
        gate: Evidence | None = None,
        e: ArrayLike | None = None,
        look: int = 1,
        without_label: ArrayLike | None = None,
    ) -> Self:
        """Draw one reviewed row per group, train the adapter on them and rank with them (SITE.md S1 to S6).

        Parameters
        ----------
        reviewed : Evidence
            Reviewed cases with labels and groups; -1 is a diagnosis outside the label space.
        trainers : Evidence, optional
            Other reviewed cases, chosen without looking at these: they train and never calibrate.
        gate : Evidence, optional
            Unlabelled representatives of the site, at least 19, for the site audit.
        e : array_like of shape (n,), optional
            Review probability of every reviewed row, for `calibrate_with="weighted"` and "all".
        look : int
            In the assured form: which look at a growing sample this is, from 1 on.
        without_label : array_like of bool, shape (n,), optional
            Reviewed rows that got no label (cannot tell, disputed, late); their entry in `labels` is not looked at.
        """
        require_evidence(reviewed, role="reviewed")
        expected = self._home_format(reviewed)
        for role, evidence in (("reviewed", reviewed), ("trainers", trainers), ("gate", gate)):
            if evidence is not None:
                expected.require(evidence, role=role)
                if self.home is not None:
                    self.home.role_hashes_.require_disjoint(role, identities(evidence))
        trim = self.trim
        if trim is None:
            trim = _SHARP_TRIM if self.home is None else self.home.settings_.trim
        settings = self.checked(classes=expected.classes, trim=trim)
        look = int(Count(low=1, high=MOST_LOOKS).check("look", look) or 1)
        probabilities = None if e is None else _review_probabilities(e, n=len(reviewed), lowest="above 0")
        settings.require_review(probabilities)
        audit_kind, audit = self._site_audit(settings, gate=gate)

        self.settings_, self.evidence_format_ = settings, expected
        self.home_digest_ = "" if self.home is None else self.home.digest_
        self.sharp_ = self.home is None
        self.deferral_level_ = _SHARP_DEFERRAL if self.home is None else self.home.settings_.deferral_level
        self.audit_kind_, self.audit_, self.look_ = audit_kind, audit, look
        self.certificate_ = None
        self.versions_ = library_versions()

        rows = self._bag_rows(reviewed, without_label=without_label)
        chosen = reviewed[rows]
        labels = chosen.require_labels()
        features = site_features(chosen, trim=trim)
        weights = None
        if settings.calibrate_with == "weighted" and probabilities is not None:
            weights = 1.0 / probabilities[rows]
        self.bag_ = Bag(
            features=features, labels=labels, calibrates=np.ones(len(rows), dtype=np.bool_), weights=weights
        )
        self.bag_ids_ = tuple(map(str, rows if chosen.ids is None else chosen.ids))
        robust = robust_probabilities(chosen.prompt_logits, trim=trim)
        self.zero_shot_scores_ = 1.0 - robust[np.arange(len(rows)), labels]
        self.known_ = KnownGroups(bytes.fromhex(embeddings_digest(features)), settings.unit).admit("bag", chosen)
        self.gate_distances_ = None
        if gate is not None:
            self.known_ = self.known_.admit("gate", gate)
            if audit is not None:
                one_each = gate[one_per_group(gate, random_state=settings.random_state)]
                self.gate_distances_ = np.sort(audit.distances(one_each))
        self._set_prior(trainers, n_features=features.shape[1])
        self._install()
        self._warn_of_silence()
        return self

    def _home_format(self, reviewed: Evidence) -> EvidenceFormat:
        if self.from_file:
            raise NotFittedError(
                "fit: this model came from a file, which does not hold its home model; make a new SiteModel"
            )
        if self.home is None:
            return EvidenceFormat.from_evidence(reviewed if self.reference is None else self.reference)
        if "rule_" not in vars(self.home):
            raise NotFittedError("home: the model is not fitted; fit it first")
        if self.home.sums_ is None:
            raise NotFittedError(
                "home: this model was made without the sums that a site needs (SITE.md S2); fit it again"
            )
        return self.home.evidence_format_

    def _site_audit(self, settings: SiteSettings, *, gate: Evidence | None) -> tuple[str, SupportAudit | None]:
        """Which audit decides, and the audit itself (SITE.md S8)."""
        kind = settings.audit or ("off" if gate is None else "site")
        audit = None if self.home is None else self.home.audit_
        if kind == "home":
            if audit is None:
                raise SettingsError("audit: 'home' needs a home model with an audit; use 'site' or 'off'")
            return kind, audit
        if self.home is None and self.reference is not None:
            audit = SupportAudit(
                name="distance",
                aurocs={"distance": math.nan},
                reference=self.reference.embeddings,
                n_neighbors=_SHARP_NEIGHBORS,
                trim=settings.trim,
                fused="paper",
                gate_base={},
                gate_values=np.empty(0),
                independent=True,
            )
        if kind == "off":
            # Kept for the monitor of the support alone, which needs a gate.
            return kind, None if gate is None else audit
        if gate is None:
            raise SettingsError("audit: 'site' needs a gate; pass gate=... to fit, or audit='off'")
        if audit is None:
            raise SettingsError(
                "audit: 'site' needs the home model's diagnostic and there is none; fit home with an audit, give a "
                "reference in sharp mode, or pass audit='off'"
            )
        n_groups = len(gate) if settings.unit == "image" else len(one_per_group(gate, random_state=0))
        if n_groups < MIN_GATE:
            raise RoleError(
                f"gate: images of {n_groups} patients and {MIN_GATE} needed for the site audit; give one image of "
                "each of more patients"
            )
        if n_groups < len(gate):
            warnings.warn(
                "gate: some groups have several images; the audit's level holds for one representative per group",
                CalcodeWarning,
                stacklevel=3,
            )
        return kind, replace(audit, gate_values=np.sort(audit.statistic(gate)))

    def _bag_rows(self, reviewed: Evidence, *, without_label: ArrayLike | None) -> IntArray:
        """Rows of the representatives that calibrate, in sorted group order (SITE.md S1)."""
        settings = self.settings_
        labels = reviewed.require_labels()
        missing = np.zeros(len(reviewed), dtype=np.bool_)
        if without_label is not None:
            missing = np.asarray(without_label, dtype=np.bool_)
            if missing.shape != (len(reviewed),):
                raise EvidenceError(f"without_label: shape {missing.shape} is not ({len(reviewed)},)")
        drawn = np.arange(len(reviewed))
        if settings.unit == "group":
            drawn = one_per_group(reviewed, random_state=settings.random_state)
            if reviewed.groups is None:
                warnings.warn(
                    "groups: the reviewed cases have none, so every image counts as a patient of its own; the promise "
                    "is wrong where two images show one patient",
                    CalcodeWarning,
                    stacklevel=3,
                )
        accepted = self._audit_p_values(reviewed[drawn]) >= self.deferral_level_
        unlabelled, outside = missing[drawn], ~missing[drawn] & (labels[drawn] < 0)
        self.n_unlabelled_ = int((unlabelled & accepted).sum())
        self.n_outside_ = int((outside & accepted).sum())
        self.n_rejected_ = int((~accepted).sum())
        rows = drawn[accepted & ~unlabelled & ~outside]
        if len(rows) == 0:
            raise RoleError("reviewed: no case is left that has a label in the label space and passes the audit")
        self.unlabelled_share_ = self.n_unlabelled_ / (self.n_unlabelled_ + len(rows))
        return rows

    def _set_prior(self, trainers: Evidence | None, *, n_features: int) -> None:
        """A0 and B0 with the trainers added at weight 1 (SITE.md S2)."""
        settings = self.settings_
        n_classes = len(self.classes_)
        outer, by_class = settings.ridge * np.eye(n_features), np.zeros((n_features, n_classes))
        if self.home is not None and self.home.sums_ is not None:
            outer, by_class = self.home.sums_.prior(home_weight=settings.home_weight, ridge=settings.ridge)
        self.n_trainers_ = 0
        if trainers is not None:
            trainers = trainers[trainers.in_space]
            self.known_ = self.known_.admit("trainers", trainers)
            features = site_features(trainers, trim=settings.trim)
            outer = outer + features.T @ features
            by_class = by_class + features.T @ np.eye(n_classes)[trainers.require_labels()]
            self.n_trainers_ = len(trainers)
        self.prior_outer_, self.prior_by_class_ = outer, by_class

    def ranking_for(self, bag: Bag) -> FullConformal | SplitConformal:
        """The ranking that these reviewed rows would give with this model's prior and settings."""
        settings = self.settings_
        if settings.rare == "pool":
            settings.require_one_level(bag.labels)
        rule = RankRule(
            miscoverage=settings.levels,
            sharpness=settings.sharpness,
            rare=settings.rare,
            always_protect=tuple(self.classes_.index(name) for name in settings.always_protect),
            n_unlabelled=self.n_unlabelled_ if settings.unlabelled == "inf" else 0,
        )
        prior = (self.prior_outer_, self.prior_by_class_)
        if settings.assurance is not None:
            failure = failure_of_look(self.look_, assurance=settings.assurance)
            return SplitConformal.fit(*prior, bag=bag, rule=rule, failure=failure, random_state=settings.random_state)
        calibrates = bag.calibrates
        if settings.slack == "thin":
            calibrates = thinned_rows(bag.labels, miscoverage=settings.levels, random_state=settings.random_state)
        adapter = Adapter.fit(*prior, features=bag.features, labels=bag.labels)
        return FullConformal(adapter=adapter, bag=replace(bag, calibrates=calibrates), rule=rule)

    def _install(self) -> None:
        """Build the ranking from bag and prior, and what is read from it; also after loading."""
        self.ranking_ = self.ranking_for(self.bag_)
        counts = np.bincount(self.bag_.labels, minlength=len(self.classes_))
        self.counts_ = dict(zip(self.classes_, counts.tolist(), strict=True))
        self.levels_ = dict(zip(self.classes_, self.ranking_.miscoverage.tolist(), strict=True))
        self.silenced_classes_ = tuple(
            name for name, silent in zip(self.classes_, self.ranking_.silenced, strict=True) if silent
        )
        self.bag_scores_ = {name: self.zero_shot_scores_[self.bag_.labels == k] for k, name in enumerate(self.classes_)}
        self._digest: str | None = None

    def _warn_of_silence(self) -> None:
        for name in self.silenced_classes_:
            needed = self.ranking_.labels_needed(self.settings_.miscoverage[name])
            warnings.warn(
                f"{name}: {self.counts_[name]} reviewed labels and {needed} needed at "
                f"{1 - self.settings_.miscoverage[name]:g}: the class is in every set",
                CalcodeWarning,
                stacklevel=3,
            )

    # ------------------------------------------------------------------ decisions

    def p_values(self, evidence: Evidence, e: ArrayLike | None = None) -> FloatArray:
        """Full conformal p-value of every label (SITE.md S3 to S6).

        Parameters
        ----------
        evidence : Evidence
        e : array_like of shape (n,), optional
            Review probability of every image, required with `calibrate_with="weighted"`.

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
            Same classes, prompts, dimension and backbone as the home model's; labels are not looked at.
        e : array_like of shape (n,), optional
            As in `p_values`.
        """
        ranked, known = self._ranked(evidence, e)
        return self._decisions(evidence, ranked, known=known, p_audit=self._audit_p_values(evidence))

    def certify_singles(
        self, evidence: Evidence, risk: float = 0.05, confidence: float = 0.9, e: ArrayLike | None = None
    ) -> SinglesCertificate:
        """Check on a sample of its own how often answers of one label are wrong (SITE.md S17).

        If the sample cannot show that at most `risk` of them are, every later single answer gets a second label.

        Parameters
        ----------
        evidence : Evidence
            Labelled images that are neither in the bag nor trainers nor gate; where a group has several, one is drawn
            as in `fit`. Reference images of sharp mode may serve: the audit leaves an image's own row out.
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
        ranked, known = self._ranked(sample, None if e is None else np.asarray(e, dtype=np.float64)[rows])
        if known.any():
            raise RoleError(
                f"evidence: {int(known.sum())} images of the certification sample belong to groups that the model has "
                "seen; use other patients"
            )
        self.certificate_ = None
        p_audit = self._audit_p_values(sample, without_own=True)
        decisions = self._decisions(sample, ranked, known=known, p_audit=p_audit)
        self.certificate_ = SinglesCertificate.check(decisions, sample, risk=risk, confidence=confidence)
        self._digest = None
        return self.certificate_

    def leave_one_out(self) -> BoolArray:
        """The set that each reviewed case would get if it came now, its own row left out; shape (n, K)."""
        self._require_fitted()
        bag = self.bag_
        ranked = self.ranking_.rank(bag.features, own_rows=np.arange(len(bag)), weights=bag.weights)
        return np.asarray(ranked.p_values > ranked.levels + TOLERANCE)

    def _ranked(self, evidence: Evidence, e: ArrayLike | None) -> tuple[Ranked, BoolArray]:
        self._require_fitted()
        self.evidence_format_.require(evidence, role="evidence")
        weights = None
        if self.settings_.calibrate_with == "weighted":
            if e is None:
                raise SettingsError(
                    "e: calibrate_with='weighted' needs the review probability of every image to be decided"
                )
            with np.errstate(divide="ignore"):
                weights = 1.0 / _review_probabilities(e, n=len(evidence), lowest="0")
        own_rows, known = self.known_.find(evidence)
        features = site_features(evidence, trim=self.settings_.trim)
        return self.ranking_.rank(features, own_rows=own_rows, weights=weights), known

    def _decisions(self, evidence: Evidence, ranked: Ranked, *, known: BoolArray, p_audit: FloatArray) -> Decisions:
        supported = np.asarray(p_audit >= self.deferral_level_)
        scores = 1.0 - ranked.p_values
        threshold = 1.0 - ranked.levels - TOLERANCE
        sets = np.asarray(ranked.p_values > ranked.levels + TOLERANCE)
        if self.certificate_ is not None and not self.certificate_.certified:
            wider = with_second_label(sets, answered=supported, preference=ranked.p_values)
            threshold = np.where(wider & ~sets, scores, threshold)
            sets = wider
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
            in_every_set={name: self.counts_[name] for name in self.silenced_classes_},
        )

    def _audit_p_values(self, evidence: Evidence, *, without_own: bool = False) -> FloatArray:
        if self.audit_kind_ == "off" or self.audit_ is None:
            return np.ones(len(evidence))
        audit = self.audit_.without_own_rows() if without_own else self.audit_
        return audit.p_values(evidence)

    # ------------------------------------------------------------------ what it says of itself

    @property
    def classes_(self) -> tuple[str, ...]:
        """The label space."""
        self._require_fitted()
        return self.evidence_format_.classes

    @property
    def audit_name_(self) -> str | None:
        """The diagnostic that defers, None where nothing is deferred for support."""
        return None if self.audit_ is None or self.audit_kind_ == "off" else self.audit_.name

    @property
    def singles_sentence(self) -> str:
        """What is known about answers of one label (SITE.md S17)."""
        return NOT_CERTIFIED if self.certificate_ is None else self.certificate_.sentence

    def counts_text(self) -> str:
        """Reviewed cases of each class in words."""
        return ", ".join(f"{name} {count}" for name, count in self.counts_.items())

    def prepare(self) -> Self:
        """Make now what the first decision would make, so that several threads do not each make their own."""
        self._require_fitted()
        bag = self.bag_
        self.ranking_.rank(bag.features[:1], own_rows=np.array([-1]), weights=None)
        if self.audit_ is not None:
            self.audit_.prepare()
        return self

    @property
    def spent_failure_(self) -> float:
        """What the looks so far have spent of the failure probability (SITE.md S6)."""
        assurance = self.settings_.assurance
        if assurance is None:
            return 0.0
        return sum(failure_of_look(look, assurance=assurance) for look in range(1, self.look_ + 1))

    @property
    def promises_(self) -> tuple[str, ...]:
        """What this model promises, to whom, and what it does not (SITE.md S9 and S10)."""
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
            unlabelled_share=self.unlabelled_share_,
            failure=failure,
            sharp=self.sharp_,
        )
        return (*sentences, self.singles_sentence)

    def __repr__(self) -> str:
        if not hasattr(self, "ranking_"):
            return f"SiteModel(sampling={self.sampling!r}; not fitted)"
        designs = set(self.settings_.sampling.values())
        sampling = designs.pop() if len(designs) == 1 else str(self.settings_.sampling)
        return (
            f"SiteModel(sampling {sampling}; labels: {self.counts_text()}; unlabelled {self.unlabelled_share_:.1%}; "
            f"in every set: {', '.join(self.silenced_classes_) or 'none'}; audit {self.audit_kind_})"
        )

    def _require_fitted(self) -> None:
        if "bag_" not in vars(self):
            raise NotFittedError("SiteModel: call fit first")

    # ------------------------------------------------------------------ files

    @property
    def digest_(self) -> str:
        """SHA-256 of settings and state, as the file carries it."""
        from calcode.site.model_file import site_digest

        if self._digest is None:
            self._digest = site_digest(self)
        return self._digest

    def save(self, path: str | Path) -> None:
        """Write the model to one safetensors file (SITE.md S11); the same model gives the same bytes."""
        from calcode.site.model_file import save_site

        self._require_fitted()
        save_site(self, Path(path))

    @classmethod
    def load(cls, path: str | Path, *, trusted: Sequence[str | Path] | None = None) -> SiteModel:
        """Read a site model; a file that is truncated, altered, foreign or too new is refused.

        Parameters
        ----------
        path : path-like
        trusted : sequence of str or path-like, optional
            Public keys; the file must be signed by one of them (`calcode model sign`). Not given: not checked.
        """
        from calcode.method.artifact import read_artifact
        from calcode.site.model_file import site_from

        model = site_from(read_artifact(Path(path)))
        if trusted is not None:
            from calcode.method.signatures import require_signature

            require_signature(path, digest=model.digest_, trusted=trusted)
        return model


def _review_probabilities(e: ArrayLike, *, n: int, lowest: str) -> FloatArray:
    """e as checked float64 of shape (n,); `lowest` says whether 0 is allowed."""
    values = np.asarray(e, dtype=np.float64)
    if values.shape != (n,):
        raise EvidenceError(f"e: shape {values.shape} is not ({n},)")
    if not ((values >= 0.0) & (values <= 1.0)).all() or (lowest != "0" and (values == 0.0).any()):
        raise EvidenceError(f"e: review probabilities lie between {lowest} and 1; check the values given")
    return values
