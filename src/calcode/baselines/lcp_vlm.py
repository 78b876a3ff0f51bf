"""LCP-VLM with APS: exact localized thresholds under a sigmoid kernel chosen by cross-validation.

`sigmoid.SigmoidKernel` is the kernel of golden ``lcp_vlm``. Its scores, thresholds and sets follow the published
deviations, which `conventions.lcp_vlm_rule` reproduces; the thresholds here are the exact ones of `sigmoid`.
"""

from __future__ import annotations

import math

import numpy as np

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.baselines.evidence import robust
from calcode.baselines.protocol import Prediction, Record, Roles
from calcode.baselines.sigmoid import MIDPOINTS, STEEPNESSES, SigmoidKernel, SigmoidRule
from calcode.baselines.split import prediction
from calcode.errors import RoleError
from calcode.kernels import PairDistances, prefix_masses
from calcode.method.cross_fit import MIN_EXAMPLES, fold_numbers
from calcode.method.evidence import Evidence
from calcode.method.localized import exact_positions, first_positions
from calcode.method.quantiles import conformal_rank
from calcode.method.scores import aps_scores, label_sets, true_label_scores

RECORD = Record(
    name="lcp-vlm",
    title="LCP-VLM APS",
    paper="Fuchs, Bary, Macq, Localized Conformal Prediction for Image Classification with Vision-Language Models",
    venue="EUVIP",
    year=2025,
    assumes="Calibration and test exchangeable, kernel fixed before calibration: marginal coverage at least "
    "1 - miscoverage (the published thresholds are lower and do not promise it).",
    selects="Steepness and midpoint of the kernel on validation, five folds: least mean set size among pairs whose "
    "pooled coverage is at least 1 - miscoverage, then smaller steepness, then smaller midpoint; without such a pair "
    "the one of largest coverage.",
    differs="Exact thresholds: denominators B + h (published: B + 2h) and +inf where Guan's rule says so (published: "
    "the largest score). Deterministic APS of p_rob at calibration and at test (published: randomised at "
    "calibration only, then one more label is added). The published code stores all 30 kernels and chooses none.",
)

_FOLDS = 5


class KernelTrials:
    """Validation images split into folds once, judged under any kernel with the exact rule.

    Parameters
    ----------
    embeddings : ndarray of shape (n, d)
        Unit rows.
    scores : ndarray of shape (n, K)
    labels : ndarray of shape (n,)
    random_state : int
        Deals out the folds.
    """

    def __init__(self, embeddings: FloatArray, scores: FloatArray, labels: IntArray, *, random_state: int) -> None:
        if len(labels) < MIN_EXAMPLES:
            raise RoleError(f"validation: cross-validation needs at least {MIN_EXAMPLES} images, got {len(labels)}")
        folds = fold_numbers(labels, n_folds=_FOLDS, random_state=random_state)
        own = true_label_scores(scores, labels)
        # Rows and columns fold by fold, ascending by score inside each: a fold's mass is a prefix sum.
        order = np.lexsort((own, folds))
        self._own, self._folds = own[order], folds[order]
        self._scores, self._labels = scores[order], labels[order]
        self._edges = np.searchsorted(self._folds, np.arange(self._folds[-1] + 2))
        self._pairs = PairDistances(embeddings[order], embeddings[order])

    def sets(self, kernel: SigmoidKernel, *, miscoverage: float) -> BoolArray:
        """Held-out sets of every image, in the order of the trials; shape (n, K)."""
        below, total = self._fold_masses(kernel)
        thresholds = np.empty(len(self._own))

        def search(rows: slice, distances: FloatArray) -> None:
            weights = kernel.of_distances(distances)
            for fold in np.unique(self._folds[rows]):
                held_out = np.flatnonzero(self._folds[rows] == fold)
                fitted = np.flatnonzero(self._folds != fold)
                fitted = fitted[np.argsort(self._own[fitted], kind="stable")]
                others = np.arange(below.shape[1]) != fold
                positions = exact_positions(
                    weights[held_out][:, fitted],
                    below=below[fitted][:, others].sum(axis=1),
                    total=total[fitted][:, others].sum(axis=1),
                    first=first_positions(self._own[fitted]),
                    rank=conformal_rank(len(fitted), miscoverage=miscoverage),
                )
                thresholds[rows.start + held_out] = np.append(self._own[fitted], math.inf)[positions]

        self._pairs.each(search)
        return label_sets(self._scores, thresholds[:, None])

    def judge(self, kernel: SigmoidKernel, *, miscoverage: float) -> tuple[int, int]:
        """Images covered and labels given, counted over all held-out images."""
        sets = self.sets(kernel, miscoverage=miscoverage)
        covered = sets[np.arange(len(sets)), self._labels]
        return int(covered.sum()), int(sets.sum())

    def __len__(self) -> int:
        return len(self._own)

    def _fold_masses(self, kernel: SigmoidKernel) -> tuple[FloatArray, FloatArray]:
        """Mass that each fold puts strictly below an image's own score, and in all; (n, folds) each."""
        parts = [slice(int(a), int(b)) for a, b in zip(self._edges[:-1], self._edges[1:], strict=True)]
        below, total = np.empty((len(self), len(parts))), np.empty((len(self), len(parts)))

        def add(rows: slice, distances: FloatArray) -> None:
            weights = kernel.of_distances(distances)
            for fold, part in enumerate(parts):
                positions = np.searchsorted(self._own[part], self._own[rows], side="left")[:, None]
                inside, total[rows, fold] = prefix_masses(weights[:, part], positions)
                below[rows, fold] = inside[:, 0]

        self._pairs.each(add)
        return below, total


def select_kernel(trials: KernelTrials, *, miscoverage: float) -> SigmoidKernel:
    """The kernel of smallest held-out sets among those that reach the target; see `RECORD.selects`."""
    # The fewest images that are a share of at least 1 - miscoverage, without a rounding step upwards.
    needed = math.ceil(len(trials) * (1.0 - miscoverage) - 1e-9)
    best: tuple[tuple[float, ...], SigmoidKernel] | None = None
    for steepness in STEEPNESSES:
        for midpoint in MIDPOINTS:
            kernel = SigmoidKernel(steepness=steepness, midpoint=midpoint)
            covered, given = trials.judge(kernel, miscoverage=miscoverage)
            key = (max(0, needed - covered), given, steepness, midpoint)
            if best is None or key < best[0]:
                best = (key, kernel)
    assert best is not None  # the grid is never empty
    return best[1]


class LcpVlm:
    """A threshold per image from the scores of its neighbours, neighbours weighed by a sigmoid."""

    record = RECORD

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> Prediction:
        """The seed deals out the folds."""
        validation, calibration = roles.validation, roles.calibration
        trials = KernelTrials(
            validation.embeddings,
            aps_scores(robust(validation)),
            validation.require_labels(),
            random_state=random_state,
        )
        kernel = select_kernel(trials, miscoverage=miscoverage)
        rule = SigmoidRule.fit(
            calibration.embeddings,
            true_label_scores(aps_scores(robust(calibration)), calibration.require_labels()),
            kernel=kernel,
            miscoverage=miscoverage,
        )
        thresholds = rule.thresholds(test.embeddings)
        probabilities = robust(test)
        details = {
            "steepness": kernel.steepness,
            "midpoint": kernel.midpoint,
            "infinite_share": float((thresholds == math.inf).mean()),
        }
        return prediction(label_sets(aps_scores(probabilities), thresholds[:, None]), probabilities, details=details)
