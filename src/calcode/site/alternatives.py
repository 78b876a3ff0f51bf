"""Alternatives to a site model, with or without reviewed local cases, for comparison (SITE.md S15)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.method.evidence import Evidence, robust_probabilities
from calcode.method.home_sums import site_features
from calcode.method.quantiles import conformal_quantile, conformal_rank
from calcode.method.scores import aps_scores, lac_scores
from calcode.site.simulation import DrawFigures, DrawnCases, judged

_LEVEL = 0.05
_TRIM = 1
#: Maps home's calibration images, the site's cohort and a draw to figures on the patients that were not reviewed.
Alternative = Callable[[Evidence, Evidence, DrawnCases], DrawFigures]


def _class_thresholds(scores: FloatArray, labels: IntArray, *, n_classes: int) -> FloatArray:
    """Conformal quantile of each class's own scores; shape (K,)."""
    return np.array([conformal_quantile(scores[labels == k, k], miscoverage=_LEVEL) for k in range(n_classes)])


def _zero_shot(score: Callable[[FloatArray], FloatArray]) -> Alternative:
    """Zero-shot scores, with a threshold per class from the reviewed cases."""

    def alternative(home: Evidence, cohort: Evidence, cases: DrawnCases) -> DrawFigures:
        scores = score(robust_probabilities(cohort.prompt_logits, trim=_TRIM))
        labels = cohort.require_labels()
        limits = _class_thresholds(scores[cases.reviewed], labels[cases.reviewed], n_classes=cohort.n_classes)
        return judged_draw(scores[cases.test] <= limits, cohort, cases, calibrating=labels[cases.reviewed])

    return alternative


def _logistic(*, per_class: bool) -> Alternative:
    """Logistic regression on one half of the reviewed cases, thresholds from the other."""

    def alternative(home: Evidence, cohort: Evidence, cases: DrawnCases) -> DrawFigures:
        from sklearn.linear_model import LogisticRegression

        features, labels = site_features(cohort, trim=_TRIM), cohort.require_labels()
        half = len(cases.reviewed) // 2
        training, calibrating = cases.reviewed[:half], cases.reviewed[half:]
        model = LogisticRegression(max_iter=1000).fit(features[training], labels[training])
        probabilities = np.zeros((len(cohort), cohort.n_classes))
        probabilities[:, model.classes_] = model.predict_proba(features)
        scores = lac_scores(probabilities)
        own = labels[calibrating]
        if per_class:
            limits = _class_thresholds(scores[calibrating], own, n_classes=cohort.n_classes)
        else:
            limits = np.full(cohort.n_classes, conformal_quantile(scores[calibrating, own], miscoverage=_LEVEL))
        return judged_draw(scores[cases.test] <= limits, cohort, cases, calibrating=own)

    return alternative


def _label_free(home: Evidence, cohort: Evidence, cases: DrawnCases) -> DrawFigures:
    """Home's calibration images, weighted by their similarity to the site's images; no local label is used."""
    from sklearn.linear_model import LogisticRegression

    both = np.concatenate([home.embeddings, cohort.embeddings[cases.test]])
    origin = np.repeat([0, 1], [len(home), len(cases.test)])
    odds = LogisticRegression(max_iter=1000).fit(both, origin).decision_function(both)
    weights = np.exp(np.clip(odds, -20, 20))
    scores = lac_scores(robust_probabilities(home.prompt_logits, trim=_TRIM))
    own = scores[np.arange(len(home)), home.require_labels()]
    order = np.argsort(own)
    mass = np.cumsum(weights[: len(home)][order])
    at_site = lac_scores(robust_probabilities(cohort.prompt_logits[cases.test], trim=_TRIM))
    # The image's own weight is at infinity.
    total = mass[-1] + weights[len(home) :]
    ranks = np.searchsorted(mass, (1 - _LEVEL) * total - 1e-12)
    limits = np.append(own[order], np.inf)[ranks]
    return judged_draw(
        at_site <= limits[:, None], cohort, cases, calibrating=cohort.require_labels()[cases.reviewed[:0]]
    )


def judged_draw(sets: BoolArray, cohort: Evidence, cases: DrawnCases, *, calibrating: IntArray) -> DrawFigures:
    """Figures of sets on the test images of a draw; `calibrating` holds the labels for the ideal worst class."""
    counts = np.bincount(calibrating, minlength=cohort.n_classes).tolist()
    thresholds = {
        name: (conformal_rank(n, miscoverage=_LEVEL), n) for name, n in zip(cohort.classes, counts, strict=True)
    }
    return judged(sets, cohort.require_labels()[cases.test], thresholds=thresholds)


#: The alternatives, in the order of the tables.
ALTERNATIVES: dict[str, Alternative] = {
    "zero-shot APS per class": _zero_shot(aps_scores),
    "zero-shot LAC per class": _zero_shot(lac_scores),
    "logistic regression, halves, per class": _logistic(per_class=True),
    "logistic regression, halves, one threshold": _logistic(per_class=False),
    "label-free weighted conformal": _label_free,
}
