"""`CalcodeClassifier`: CALCoDe around a scikit-learn classifier.

Rows become `Evidence` (features or `embed` give the embeddings, `predict_proba` the logits of a single prompt),
`Calcode` decides, and class indices become labels again.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils import _safe_indexing, check_random_state, column_or_1d, get_tags, indexable
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from calcode.arrays import AnyArray, BoolArray, FloatArray, IntArray, TextArray
from calcode.cohorts.roles import split_roles
from calcode.errors import CalcodeWarning, RoleError, SettingsError
from calcode.method.decisions import Decisions
from calcode.method.evidence import Evidence
from calcode.method.model import Calcode

#: The rows that train the estimator; they have no role in CALCoDe.
_TRAIN = "train"
#: Smaller probabilities are raised to this value, so that their logarithms are finite.
_SMALLEST_PROBABILITY = 1e-12
#: Diagnostics that are constant, up to rounding, for the log-probabilities of a single prompt: they cannot audit.
_SILENT_DIAGNOSTICS = ("energy", "prompt")
#: Standardised features are clipped to this size: its square is still far from overflow.
_FARTHEST = 1e100


class CalcodeClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Wrap any classifier with `predict_proba`: give one label, a set of labels, or a deferral.

    `fit` splits its rows into the roles of CALCoDe (METHOD.md 1) and, unless the estimator is frozen, a part that
    trains the estimator. `predict` and `predict_proba` are those of the estimator; CALCoDe adds `predict_set` and
    `decide`.

    Parameters
    ----------
    estimator : classifier with predict_proba
        Unfitted: a clone of it is trained. Fitted: wrap it in `sklearn.frozen.FrozenEstimator`, and it is used
        unchanged; then no row passed to `fit` may have been used to train it.
    calcode : Calcode, optional
        Holds the settings; it is copied and not itself fitted. Class names are the labels as text. The diagnostics
        "energy" and "prompt" are left out of the audit, because probabilities of one prompt contain neither.
    embed : callable or transformer, optional
        Maps rows to embeddings of shape (n, d), which are compared by cosine distance. A transformer is cloned and
        fitted on the reference rows, without labels; one inside `FrozenEstimator` is not. With `embed`, X may be
        anything that `embed` and `estimator` accept. Without it, features are standardised on the reference rows and
        get a constant coordinate; see Notes.
    train_size : float
        Share of the rows that trains the estimator. Not used with a frozen estimator.
    sizes : sequence of four positive numbers
        Proportions in which reference, validation, gate and calibration share the other rows.
    random_state : int, RandomState instance or None
        Seeds the split. The settings of `calcode` and of the estimator have their own seeds.

    Attributes
    ----------
    classes_ : ndarray of shape (K,)
        Labels found by `fit`, ascending; with a frozen estimator, the estimator's own classes.
    estimator_ : classifier
    embed_ : callable or transformer
    calcode_ : Calcode
        The fitted model. It can be saved, and its attributes `tail_classes_`, `bandwidth_`, ... can be read.
    roles_ : ndarray of str, shape (n,)
        Part of each row of `fit`: "train", "reference", "validation", "gate" or "calibration".
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If X has column names.

    Notes
    -----
    Raw features cannot serve as embeddings: their cosine depends on the origin and on every unit, it ignores the
    length of a row, and a row of zeros has no cosine. So the default standardises each feature. Mean and deviation come
    from the reference rows, so that calibration and gate rows are treated like new ones. It then appends the square
    root of the number of features, which is the length of a typical row. So outlying rows are far away even if they
    lie in the direction of the data, and a row at the mean is ordinary. To use the cosine of the features
    themselves, pass ``embed=sklearn.preprocessing.Normalizer()``.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = load_digits(return_X_y=True)
    >>> model = CalcodeClassifier(LogisticRegression(max_iter=1000)).fit(X[:1300] / 16, y[:1300])
    >>> model.decide(X[1300:] / 16).sets.shape
    (497, 10)
    """

    def __init__(
        self,
        estimator: Any,
        *,
        calcode: Calcode | None = None,
        embed: Callable[[Any], Any] | Any | None = None,
        train_size: float = 0.4,
        sizes: Sequence[float] = (0.2, 0.25, 0.2, 0.35),
        random_state: Any = 0,
    ) -> None:
        self.estimator = estimator
        self.calcode = calcode
        self.embed = embed
        self.train_size = train_size
        self.sizes = sizes
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator)
        tags.non_deterministic = inner.non_deterministic
        tags.input_tags.positive_only = inner.input_tags.positive_only
        if inner.classifier_tags is not None:
            tags.classifier_tags.multi_class = inner.classifier_tags.multi_class
            tags.classifier_tags.poor_score = inner.classifier_tags.poor_score
        return tags

    # ------------------------------------------------------------------ fitting

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Split the rows, train the estimator unless it is frozen, and fit CALCoDe on the roles.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Finite numbers, or anything that `embed` and the estimator accept if `embed` is given.
        y : array_like of shape (n,)
            Labels, at least two different ones.
        groups : array_like of shape (n,), optional
            Patient, lesion, ...: rows that belong together. No group is split between parts.
        """
        model = self._unfitted_calcode()
        self._check_parameters()
        rows, y = self._checked_training(X, y)
        self.classes_, codes = self._label_space(y)
        # `Calcode.fit` checks its settings too, but only after the estimator has been trained.
        model.checked(_names(self.classes_))
        self.roles_ = self._split(np.array(_names(self.classes_))[codes], groups)
        self.estimator_ = clone(self.estimator)
        if not self._is_frozen():
            training = np.flatnonzero(self.roles_ == _TRAIN)
            unseen = np.setdiff1d(self.classes_, y[training])
            if len(unseen):
                warnings.warn(
                    f"train_size: no row of the classes {unseen.tolist()} is in the training part, so the estimator "
                    "gives them probability 0; raise train_size or give more rows",
                    CalcodeWarning,
                    stacklevel=2,
                )
            self.estimator_.fit(_safe_indexing(rows, training), y[training])
        self.embed_ = feature_embedding() if self.embed is None else self.embed
        if hasattr(self.embed_, "transform") and not isinstance(self.embed_, FrozenEstimator):
            reference = np.flatnonzero(self.roles_ == "reference")
            self.embed_ = clone(self.embed_).fit(_safe_indexing(rows, reference))
        group_of = None if groups is None else np.asarray(groups)

        def evidence_of(role: str) -> Evidence:
            members = np.flatnonzero(self.roles_ == role)
            return self._evidence(
                _safe_indexing(rows, members),
                labels=codes[members],
                groups=None if group_of is None else group_of[members],
            )

        self.calcode_ = model.fit(
            reference=evidence_of("reference"),
            validation=evidence_of("validation"),
            gate=evidence_of("gate"),
            calibration=evidence_of("calibration"),
        )
        return self

    def _unfitted_calcode(self) -> Calcode:
        """A copy of the settings, without the diagnostics that are constant here."""
        if self.calcode is None:
            model = Calcode()
        elif isinstance(self.calcode, Calcode):
            model = clone(self.calcode, safe=False)
        else:
            raise SettingsError(f"calcode: {self.calcode!r} is not a Calcode; write calcode=Calcode(...)")
        if model.audit is None or isinstance(model.audit, str):
            return model
        heard = tuple(name for name in model.audit if name not in _SILENT_DIAGNOSTICS)
        if model.audit and not heard:
            raise SettingsError(
                f"calcode: audit={tuple(model.audit)!r} says nothing about probabilities; use 'distance', 'msp' or "
                "'fused'"
            )
        model.audit = heard
        return model

    def _is_frozen(self) -> bool:
        return isinstance(self.estimator, FrozenEstimator)

    def _check_parameters(self) -> None:
        if not hasattr(self.estimator, "predict_proba"):
            raise SettingsError(
                f"estimator: {type(self.estimator).__name__} has no predict_proba; use a classifier that has, or wrap "
                "it in sklearn.calibration.CalibratedClassifierCV"
            )
        if self._is_frozen():
            check_is_fitted(self.estimator)
        elif not 0.0 < self.train_size < 1.0:
            raise SettingsError(f"train_size: {self.train_size!r} must lie strictly between 0 and 1")
        if len(self.sizes) != 4 or not all(size > 0 for size in self.sizes):
            raise SettingsError(
                f"sizes: {self.sizes!r} are not four positive numbers (reference, validation, gate, calibration)"
            )
        if not (self.embed is None or hasattr(self.embed, "transform") or callable(self.embed)):
            raise SettingsError(f"embed: {self.embed!r} is neither callable nor a transformer")

    def _checked_training(self, X: Any, y: Any) -> tuple[Any, AnyArray]:
        """Rows that can be indexed, and their labels, checked as scikit-learn does."""
        if self.embed is None:
            array, labels = validate_data(self, X, y)
            rows = _with_column_names(X, array)
        else:
            validate_data(self, X, y, skip_check_array=True)
            (rows,) = indexable(X)
            labels = column_or_1d(y, warn=True)
            check_consistent_length(rows, labels)
        check_classification_targets(labels)
        return rows, labels

    def _label_space(self, y: AnyArray) -> tuple[AnyArray, IntArray]:
        """The classes, and the class index of every label."""
        found, codes = np.unique(y, return_inverse=True)
        if not self._is_frozen():
            if len(found) < 2:
                raise RoleError(f"y: only one class ({found[0]}); at least two are needed to decide between")
            return found, codes
        classes = np.asarray(self.estimator.classes_)
        index_of = {label: index for index, label in enumerate(classes.tolist())}
        unknown = [label for label in found.tolist() if label not in index_of]
        if unknown:
            raise RoleError(
                f"y: {unknown} are not among the classes of the frozen estimator {classes.tolist()}; leave these "
                "rows out"
            )
        return classes, np.array([index_of[label] for label in found.tolist()])[codes]

    def _split(self, labels: TextArray, groups: Any) -> TextArray:
        """A role, or "train", for every row."""
        seed = self.random_state
        if not isinstance(seed, Integral):
            seed = check_random_state(seed).randint(np.iinfo(np.int32).max)
        shares = np.asarray(self.sizes, dtype=np.float64) / math.fsum(self.sizes)
        if self._is_frozen():
            return split_roles(labels, groups, sizes=shares.tolist(), random_state=int(seed))
        # The training rows take the place of the test role, which is kept disjoint from the four roles.
        sizes = [*(shares * (1.0 - self.train_size)).tolist(), float(self.train_size)]
        roles = split_roles(labels, groups, sizes=sizes, random_state=int(seed))
        return np.where(roles == "test", _TRAIN, roles)

    # ------------------------------------------------------------------ deciding

    def predict_proba(self, X: Any) -> FloatArray:
        """Probabilities of the estimator; shape (n, K). They ignore deferral.

        A class that the training part lacked has probability 0.
        """
        return self._probabilities(self._checked_rows(X))

    def predict(self, X: Any) -> AnyArray:
        """The most probable label of every row, shape (n,), as from the estimator alone.

        This ignores deferral and the sets: a row that `decide` defers gets a label here like any other. `score` and
        every scorer based on `predict` ignore them too.
        """
        probabilities = self.predict_proba(X)
        labels: AnyArray = self.classes_[probabilities.argmax(axis=1)]
        return labels

    def predict_set(self, X: Any) -> BoolArray:
        """Which labels are in the set of every row, deferred or not; shape (n, K), columns as in `classes_`."""
        return self.decide(X).sets

    def decide(self, X: Any) -> Decisions:
        """Action, reason and set for every row.

        Class indices in the result are positions in `classes_`. Rows that were passed to `fit` say nothing about
        coverage.
        """
        rows = self._checked_rows(X)
        return self.calcode_.decide(self._evidence(rows, labels=None, groups=None))

    def _checked_rows(self, X: Any) -> Any:
        check_is_fitted(self)
        if self.embed is None:
            return _with_column_names(X, validate_data(self, X, reset=False))
        validate_data(self, X, reset=False, skip_check_array=True)
        return indexable(X)[0]

    def _probabilities(self, rows: Any) -> FloatArray:
        known = self.estimator_.predict_proba(rows)
        column_of = {label: column for column, label in enumerate(self.classes_.tolist())}
        columns = [column_of[label] for label in np.asarray(self.estimator_.classes_).tolist()]
        probabilities = np.zeros((len(known), len(self.classes_)))
        probabilities[:, columns] = known
        return probabilities

    def _evidence(self, rows: Any, *, labels: IntArray | None, groups: AnyArray | None) -> Evidence:
        """Embeddings, and log-probabilities as the logits of a single prompt."""
        embed = self.embed_.transform if hasattr(self.embed_, "transform") else self.embed_
        clipped = np.clip(self._probabilities(rows), _SMALLEST_PROBABILITY, None)
        # Sums in single precision are not exactly 1, which an audit would treat as differences between rows.
        logits = np.log(clipped / clipped.sum(axis=1, keepdims=True))
        return Evidence(
            embeddings=np.asarray(embed(rows)),
            prompt_logits=logits[:, None, :],
            labels=labels,
            classes=_names(self.classes_),
            groups=groups,
        )


def _names(classes: AnyArray) -> tuple[str, ...]:
    return tuple(str(label) for label in classes)


def _with_column_names(X: Any, array: AnyArray) -> Any:
    """The table itself if X is one, for an estimator that uses column names."""
    return X if hasattr(X, "columns") else array


def feature_embedding() -> Any:
    """An unfitted transformer: standardise the features, then `with_constant`."""
    pipeline = make_pipeline(StandardScaler(), FunctionTransformer(with_constant))
    return pipeline.set_output(transform="default")


def with_constant(features: AnyArray) -> FloatArray:
    """Unit rows of standardised features and a constant that is the length of a typical row.

    No row then has length zero, and rows of one direction but different lengths stay different.

    Parameters
    ----------
    features : ndarray of shape (n, d)

    Returns
    -------
    ndarray of shape (n, d + 1)

    Examples
    --------
    >>> with_constant(np.array([[0.0], [1.0], [1e300]])).round(6)
    array([[0.      , 1.      ],
           [0.707107, 0.707107],
           [1.      , 0.      ]])
    """
    bounded = np.clip(np.asarray(features, dtype=np.float64), -_FARTHEST, _FARTHEST)
    n, dimension = bounded.shape
    lifted = np.hstack([bounded, np.full((n, 1), math.sqrt(dimension))])
    unit: FloatArray = lifted / np.linalg.norm(lifted, axis=1, keepdims=True)
    return unit
