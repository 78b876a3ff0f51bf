"""`SiteModel`: a model that learns its new site from a few reviewed cases (SITE.md)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from calcode.arrays import FloatArray
from calcode.errors import CalcodeWarning, NotFittedError, RoleError, SettingsError
from calcode.method.evidence import Evidence, embeddings_digest, one_per_group, robust_probabilities
from calcode.method.home_sums import site_features
from calcode.method.model import Calcode, library_versions
from calcode.method.roles import EvidenceFormat, RoleHashes, identities, require_evidence
from calcode.method.settings import Kind
from calcode.site.adapter import Adapter
from calcode.site.assured import SplitConformal, failure_of_look
from calcode.site.audit import site_audit
from calcode.site.fitted import FittedSite
from calcode.site.known_groups import KnownGroups
from calcode.site.levels import thinned_rows
from calcode.site.p_values import FullConformal
from calcode.site.ranking import Bag, RankRule
from calcode.site.sample import reviewed_probabilities, reviewed_sample
from calcode.site.settings import SiteChoices

#: Most looks at a growing sample; the last look could spend a millionth of what the first does.
MOST_LOOKS = 1000
#: Settings of the audit in sharp mode (SITE.md S13), which has no home model to take them from.
_SHARP_TRIM = 1
_SHARP_DEFERRAL = 0.05


@dataclass(eq=False, repr=False)
class SiteModel(FittedSite, SiteChoices):
    """Full conformal sets from reviewed local cases, with home as a prior.

    Parameters
    ----------
    home : Calcode or None
        A fitted home model; None for sharp mode, in which the site is home (SITE.md S13).
    sampling : {"archive", "consecutive", "coin"} or dict of str to these
        How the reviewed cases of each class were chosen.
    miscoverage : float or dict of str to float
        delta, one for all classes or per class (others: 0.05).
    home_weight, ridge, sharpness : float
        m0, lambda and b of the adapter (SITE.md S2). Nothing is tuned at the site.
    unit : {"group", "image"}
        "image" treats every image as its own group; the promise is then approximate.
    calibrate_with : {"coin", "weighted", "all"}
        Which reviewed cases calibrate (SITE.md S5).
    unlabelled : {"report", "inf"}
        Handling of reviewed cases without a label: they are reported, or count as a score of +inf in every class.
    rare : {"keep", "count", "pool"}
        Handling of classes with too few labels (SITE.md S4).
    slack : {"keep", "thin"}
        With "thin", exactly as many rows calibrate as the level needs (SITE.md S3).
    always_protect : sequence of str
        Classes that are never pooled and keep their level.
    assurance : float or None
        Probability over the reviewed sample with which each class's coverage holds (SITE.md S6).
    audit : {"site", "home", "off"} or None
        None: "site" if `fit` gets a gate, else "off" (SITE.md S8).
    random_state : int
        Seeds the draw of representatives, thinning and the split of the assured form.
    reference : Evidence, optional
        In sharp mode: the images to which the audit measures distances.
    trim : int, optional
        In sharp mode: values dropped at each end; else the home model's setting is used.

    Attributes
    ----------
    classes_ : tuple of str
    counts_ : dict of str to int
        Reviewed cases of each class that train and calibrate.
    calibrating_ : dict of str to int
        How many of them calibrate: fewer in the assured form and with `slack="thin"`.
    thresholds_ : dict of str to (int, int)
        Rank of the threshold among the calibrating scores of a class, from the smallest, and their number. With rank 0,
        or a rank above their number, the class is in every set.
    levels_ : dict of str to float
        1 - promised coverage of each class.
    silenced_classes_ : tuple of str
        Classes that are in every set.
    bag_ids_ : tuple of str or None
        Ids of the reviewed cases in the order of the bag; None in a loaded model, because a file has no ids.
    bag_scores_ : dict of str to ndarray
        1 - p_rob(y) of each class's reviewed cases.
    gate_distances_ : ndarray or None
        Ascending distance of one gate image per group to the home reference.
    unlabelled_share_ : float
    n_outside_, n_rejected_, n_unlabelled_ : int
        Reviewed representatives left out: with label -1, rejected by the audit, without a label.
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

    def __post_init__(self) -> None:
        if self.home is not None and (self.reference is not None or self.trim is not None):
            raise SettingsError("reference and trim: they come from the home model; give them in sharp mode only")

    def fit(
        self,
        reviewed: Evidence,
        trainers: Evidence | None = None,
        gate: Evidence | None = None,
        e: ArrayLike | None = None,
        look: int = 1,
        without_label: ArrayLike | None = None,
    ) -> Self:
        """Draw one reviewed row per group, train the adapter on these rows and rank with them (SITE.md S1 to S6).

        Parameters
        ----------
        reviewed : Evidence
            Reviewed cases with labels and groups; -1 means a diagnosis outside the label space.
        trainers : Evidence, optional
            Other reviewed cases, chosen without knowledge of `reviewed`: they train and never calibrate.
        gate : Evidence, optional
            Unlabelled representatives of the site, at least 19, for the site audit.
        e : array_like of shape (n,), optional
            Review probability of every reviewed row, for `calibrate_with="weighted"` and "all"; taken from the
            evidence if not given. With "coin" it is not used, and a warning says so.
        look : int
            In the assured form: the number of this look at a growing sample, from 1 on.
        without_label : array_like of bool, shape (n,), optional
            Reviewed rows without a label (cannot tell, disputed, late); their entry in `labels` is ignored.
        """
        require_evidence(reviewed, role="reviewed")
        if self.from_file:
            raise NotFittedError(
                "fit: this model came from a file, which does not hold its home model; make a new SiteModel"
            )
        if self.home is None:
            expected = EvidenceFormat.from_evidence(reviewed if self.reference is None else self.reference)
        elif "rule_" not in vars(self.home):
            raise NotFittedError("home: the model is not fitted; fit it first")
        elif self.home.sums_ is None:
            raise NotFittedError(
                "home: this model was made without the sums that a site needs (SITE.md S2); fit it again"
            )
        else:
            expected = self.home.evidence_format_
        seen = RoleHashes(b"") if self.home is None else self.home.role_hashes_
        if self.reference is not None:
            # An image of the reference would be its own nearest neighbour in the audit (SITE.md S13).
            seen = seen.admit("reference", self.reference)
        for role, evidence in (("reviewed", reviewed), ("trainers", trainers), ("gate", gate)):
            if evidence is not None:
                expected.require(evidence, role=role)
                # The home gate and the site gate may share images: they are not compared with each other.
                others = {entry: hashes for entry, hashes in seen.hashes.items() if entry[0] != role}
                RoleHashes(seen.key, others).require_new(role, identities(evidence))
        trim = self.trim
        if trim is None:
            trim = _SHARP_TRIM if self.home is None else self.home.settings_.trim
        settings = self.checked(classes=expected.classes, trim=trim)
        look = int(Kind("count", low=1, high=MOST_LOOKS).check("look", look))
        probabilities = reviewed_probabilities(reviewed, e, settings=settings)
        audit_kind, audit = site_audit(settings, home=self.home, reference=self.reference, gate=gate)

        with self._all_or_nothing():
            self.settings_, self.evidence_format_ = settings, expected
            self.home_digest_ = "" if self.home is None else self.home.digest_
            self.sharp_ = self.home is None
            self.deferral_level_ = _SHARP_DEFERRAL if self.home is None else self.home.settings_.deferral_level
            self.audit_kind_, self.audit_, self.look_ = audit_kind, audit, look
            self.versions_ = library_versions()
            self.n_unlabelled_ = self.n_outside_ = self.n_rejected_ = self.n_added_ = 0

            chosen, self.bag_, self.zero_shot_scores_ = self._counted(
                reviewed, probabilities, without_label=without_label
            )
            if len(chosen) == 0:
                raise RoleError("reviewed: no case is left that has a label in the label space and passes the audit")
            self.bag_ids_ = tuple(map(str, range(len(chosen)) if chosen.ids is None else chosen.ids))
            key = bytes.fromhex(embeddings_digest(self.bag_.features))
            self.known_ = KnownGroups(key, settings.unit).admit("bag", chosen)
            self.gate_distances_ = None
            if gate is not None:
                self.known_ = self.known_.admit("gate", gate)
                if audit is not None:
                    one_each = gate[one_per_group(gate, random_state=settings.random_state)]
                    self.gate_distances_ = np.sort(audit.distances(one_each))
            if self.home is None or self.home.sums_ is None:
                n_features = self.bag_.features.shape[1]
                outer, by_class = settings.ridge * np.eye(n_features), np.zeros((n_features, len(expected.classes)))
            else:
                outer, by_class = self.home.sums_.prior(home_weight=settings.home_weight, ridge=settings.ridge)
            self.n_trainers_ = 0
            if trainers is not None:
                # Trainers have weight 1 (SITE.md S2).
                trainers = trainers[trainers.in_space]
                self.known_ = self.known_.admit("trainers", trainers)
                features = site_features(trainers, trim=trim)
                outer = outer + features.T @ features
                by_class = by_class + features.T @ np.eye(len(expected.classes))[trainers.require_labels()]
                self.n_trainers_ = len(trainers)
            self.prior_outer_, self.prior_by_class_ = outer, by_class
            self._install(self.ranking_for(self.bag_))
        for name in self.silenced_classes_:
            warnings.warn(
                f"{name}: {self.shortage_text(name)}: the class is in every set", CalcodeWarning, stacklevel=2
            )
        return self

    def add(self, reviewed: Evidence, e: ArrayLike | None = None, without_label: ArrayLike | None = None) -> Self:
        """Add reviewed cases to the bag: each is a rank-one update, not a new fit (SITE.md S6).

        The result is the model that `fit` makes of all reviewed cases, in another order, if every group has one row; of
        several rows one is drawn among the cases of this call, not of all. The time of an update must be chosen by
        counts or the calendar, not by looking at scores. A certificate of single answers becomes invalid.

        Parameters
        ----------
        reviewed : Evidence
            Reviewed cases of new groups, chosen in the same way as those of `fit`.
        e, without_label
            As in `fit`, of these cases.
        """
        self._require_fitted()
        settings, ranking = self.settings_, self.ranking_
        if not isinstance(ranking, FullConformal) or settings.slack == "thin":
            raise SettingsError(
                "add: the assured form and slack='thin' draw anew among all reviewed cases; call fit with all of them"
            )
        self.evidence_format_.require(reviewed, role="reviewed")
        if self.home is not None:
            self.home.role_hashes_.require_new("reviewed", identities(reviewed))
        probabilities = reviewed_probabilities(reviewed, e, settings=settings)
        with self._all_or_nothing():
            chosen, bag, zero_shot_scores = self._counted(reviewed, probabilities, without_label=without_label)
            self.known_ = self.known_.with_reviewed(chosen)
            self.bag_ = self.bag_.joined(bag)
            if self.bag_ids_ is not None:
                names = range(len(self.bag_ids_), len(self.bag_)) if chosen.ids is None else chosen.ids
                self.bag_ids_ += tuple(map(str, names))
            self.zero_shot_scores_ = np.concatenate([self.zero_shot_scores_, zero_shot_scores])
            self.n_added_ += len(chosen)
            if settings.rare == "pool":
                settings.require_one_level(self.bag_.labels)
            self._install(ranking.added(bag, rule=self._rule()))
        return self

    def _counted(
        self, reviewed: Evidence, probabilities: FloatArray | None, *, without_label: ArrayLike | None
    ) -> tuple[Evidence, Bag, FloatArray]:
        """The representatives that calibrate, with their rows and zero-shot scores; the others are only counted."""
        settings = self.settings_
        sample = reviewed_sample(
            reviewed,
            settings=settings,
            accepted=lambda drawn: np.asarray(self._audit_p_values(drawn) >= self.deferral_level_),
            without_label=without_label,
        )
        self.n_unlabelled_ += sample.n_unlabelled
        self.n_outside_ += sample.n_outside
        self.n_rejected_ += sample.n_rejected
        chosen = reviewed[sample.rows]
        labels = chosen.require_labels()
        weights = None
        if settings.calibrate_with == "weighted" and probabilities is not None:
            weights = 1.0 / probabilities[sample.rows]
        calibrates = np.ones(len(chosen), dtype=np.bool_)
        features = site_features(chosen, trim=settings.trim)
        robust = robust_probabilities(chosen.prompt_logits, trim=settings.trim)
        bag = Bag(features=features, labels=labels, calibrates=calibrates, weights=weights)
        return chosen, bag, 1.0 - robust[np.arange(len(chosen)), labels]

    def ranking_for(self, bag: Bag) -> FullConformal | SplitConformal:
        """The ranking of these reviewed rows with this model's prior and settings."""
        settings, rule = self.settings_, self._rule()
        if settings.rare == "pool":
            settings.require_one_level(bag.labels)
        prior = (self.prior_outer_, self.prior_by_class_)
        if settings.assurance is not None:
            failure = failure_of_look(self.look_, assurance=settings.assurance)
            return SplitConformal.fit(*prior, bag=bag, rule=rule, failure=failure, random_state=settings.random_state)
        calibrates = bag.calibrates
        if settings.slack == "thin":
            calibrates = thinned_rows(bag.labels, miscoverage=settings.levels, random_state=settings.random_state)
        adapter = Adapter.fit(*prior, features=bag.features, labels=bag.labels)
        return FullConformal(adapter=adapter, bag=replace(bag, calibrates=calibrates), rule=rule)

    def _rule(self) -> RankRule:
        settings = self.settings_
        return RankRule(
            miscoverage=settings.levels,
            sharpness=settings.sharpness,
            rare=settings.rare,
            always_protect=tuple(self.classes_.index(name) for name in settings.always_protect),
            n_unlabelled=self.n_unlabelled_ if settings.unlabelled == "inf" else 0,
        )

    def _install(self, ranking: FullConformal | SplitConformal) -> None:
        """Store a ranking of the bag and the values derived from it; also used after loading."""
        self.ranking_ = ranking
        self.unlabelled_share_ = self.n_unlabelled_ / (self.n_unlabelled_ + len(self.bag_))
        counts = np.bincount(self.bag_.labels, minlength=len(self.classes_))
        self.counts_ = dict(zip(self.classes_, counts.tolist(), strict=True))
        calibrating = np.bincount(self.bag_.labels[ranking.bag.calibrates], minlength=len(self.classes_))
        self.calibrating_ = dict(zip(self.classes_, calibrating.tolist(), strict=True))
        ranks = zip(ranking.threshold_ranks.tolist(), calibrating.tolist(), strict=True)
        self.thresholds_ = dict(zip(self.classes_, ranks, strict=True))
        self.levels_ = dict(zip(self.classes_, ranking.miscoverage.tolist(), strict=True))
        self.in_every_set_ = {
            name: self.counts_[name] for name, silent in zip(self.classes_, ranking.silenced, strict=True) if silent
        }
        self.silenced_classes_ = tuple(self.in_every_set_)
        self.bag_scores_ = {name: self.zero_shot_scores_[self.bag_.labels == k] for k, name in enumerate(self.classes_)}
        self.certificate_ = None
        self._digest: str | None = None

    @classmethod
    def load(cls, path: str | Path, *, trusted: Sequence[str | Path] | None = None) -> SiteModel:
        """Read a site model; refuse a file that is truncated, altered, of another program, or too new.

        Parameters
        ----------
        path : path-like
        trusted : sequence of str or path-like, optional
            Public keys; the file must be signed by one of them (`calcode model sign`). None: not checked.
        """
        from calcode.method.artifact import SITE_KEY, read_artifact
        from calcode.site.model_file import site_from

        model = site_from(read_artifact(Path(path), key=SITE_KEY))
        if trusted is not None:
            from calcode.method.signatures import require_signature

            require_signature(path, digest=model.digest_, trusted=trusted)
        return model
