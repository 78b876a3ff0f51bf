"""LCP-VLM with APS: exact localized thresholds under a sigmoid kernel chosen by cross-validation.

`SigmoidKernel` is the kernel of golden ``lcp_vlm``. Its scores, thresholds and sets follow the published
deviations, which `conventions.lcp_vlm_rule` reproduces; the thresholds here are the exact ones of `SigmoidRule`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Self

import numpy as np

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.baselines.protocol import Evidence, Prediction, Record, Roles
from calcode.baselines.split import aps_sets, own_aps_scores, robust
from calcode.errors import RoleError
from calcode.kernels import PairDistances, prefix_masses, product_blocks, row_blocks, run_blocks
from calcode.method.bandwidth import MIN_EXAMPLES, fold_numbers
from calcode.method.localized import canonical_order, exact_positions, first_positions
from calcode.method.quantiles import conformal_rank
from calcode.method.scores import aps_scores, label_sets, true_label_scores

#: Exponents are limited to this value, as in the published code, before exp overflows.
_LARGEST_EXPONENT = 700.0
#: Published grid, m and tau of the paper.
STEEPNESSES = (1.0, 5.0, 10.0, 15.0, 20.0, 25.0)
MIDPOINTS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, kw_only=True)
class SigmoidKernel:
    """H(S) = (1 + exp(-m (1 - tau))) / (1 + exp(-m (S - tau))), 1 at cosine 1.

    Attributes
    ----------
    steepness : float
        m; zero gives equal weights.
    midpoint : float
        tau.

    Examples
    --------
    >>> SigmoidKernel(steepness=10.0, midpoint=0.5).of_cosines(np.array([1.0, 0.5, 0.0])).round(4)
    array([1.    , 0.5034, 0.0067])
    """

    steepness: float
    midpoint: float

    def of_cosines(self, cosines: FloatArray, *, out: FloatArray | None = None) -> FloatArray:
        """Weights of cosines, an array of the same shape; `out` may be `cosines` itself."""
        weights = np.multiply(cosines, -self.steepness, out=out)
        weights += self.steepness * self.midpoint
        if self.steepness * (1.0 + abs(self.midpoint)) > _LARGEST_EXPONENT:
            np.minimum(weights, _LARGEST_EXPONENT, out=weights)
        np.exp(weights, out=weights)
        weights += 1.0
        return np.divide(1.0 + math.exp(-self.steepness * (1.0 - self.midpoint)), weights, out=weights)

    def of_distances(self, distances: FloatArray) -> FloatArray:
        """Weights of cosine distances 1 - S, an array of the same shape."""
        cosines = np.subtract(1.0, distances)
        return self.of_cosines(cosines, out=cosines)


@dataclass(frozen=True, eq=False, kw_only=True)
class SigmoidRule:
    """Exact localized thresholds: denominators B_i + h_i, and +inf if the neighbourhood is too small.

    Attributes
    ----------
    embeddings : ndarray of shape (n, d)
        Calibration embeddings in ascending order of their scores.
    scores : ndarray of shape (n,)
        Ascending.
    kernel : SigmoidKernel
    miscoverage : float
    below, total : ndarray of shape (n,)
        A_i and B_i of METHOD.md 5 under this kernel.

    Examples
    --------
    >>> points, scores = np.eye(30), np.arange(30.0)
    >>> flat = SigmoidKernel(steepness=0.0, midpoint=0.5)
    >>> rule = SigmoidRule.fit(points, scores, kernel=flat, miscoverage=0.1)
    >>> rule.thresholds(points[:1])  # equal weights: split conformal prediction, the 28th of 30
    array([27.])
    """

    embeddings: FloatArray
    scores: FloatArray
    kernel: SigmoidKernel
    miscoverage: float
    below: FloatArray
    total: FloatArray

    @classmethod
    def fit(cls, embeddings: FloatArray, scores: FloatArray, *, kernel: SigmoidKernel, miscoverage: float) -> Self:
        """Calibrate on n points in any order.

        Parameters
        ----------
        embeddings : ndarray of shape (n, d)
            Unit rows.
        scores : ndarray of shape (n,)
            True-label scores.
        kernel : SigmoidKernel
        miscoverage : float
        """
        order = canonical_order(embeddings, scores)
        embeddings, scores = embeddings[order], scores[order]
        first = first_positions(scores)
        below, total = np.empty(len(scores)), np.empty(len(scores))
        # Multiplied in large blocks, which makes products fast; weighted in small ones.
        for block in product_blocks(len(scores), n_columns=len(scores)):
            cosines = embeddings[block] @ embeddings.T
            for part in row_blocks(len(cosines), n_columns=len(scores)):
                rows = slice(block.start + part.start, block.start + part.stop)
                weights = kernel.of_cosines(cosines[part], out=cosines[part])
                inside, total[rows] = prefix_masses(weights, first[rows, None])
                below[rows] = inside[:, 0]
        return cls(
            embeddings=embeddings, scores=scores, kernel=kernel, miscoverage=miscoverage, below=below, total=total
        )

    def thresholds(self, embeddings: FloatArray) -> FloatArray:
        """Threshold of every image; shape (m, d) in, (m,) out."""
        rank = conformal_rank(len(self.scores), miscoverage=self.miscoverage)
        first = first_positions(self.scores)
        levels = np.append(self.scores, math.inf)
        result = np.empty(len(embeddings))

        def search(block: slice) -> None:
            # Product and search run on the same core: separate BLAS threads would keep spinning during the search.
            cosines = embeddings[block] @ self.embeddings.T
            for part in row_blocks(len(cosines), n_columns=len(self.scores)):
                weights = self.kernel.of_cosines(cosines[part], out=cosines[part])
                positions = exact_positions(weights, below=self.below, total=self.total, first=first, rank=rank)
                result[block.start + part.start : block.start + part.stop] = levels[positions]

        run_blocks(search, product_blocks(len(embeddings), n_columns=len(self.scores)))
        return result


_FOLDS = 5


class KernelTrials:
    """Validation images, split into folds once and evaluated under any kernel with the exact rule.

    Parameters
    ----------
    embeddings : ndarray of shape (n, d)
        Unit rows.
    scores : ndarray of shape (n, K)
    labels : ndarray of shape (n,)
    random_state : int
        Assigns the folds.
    """

    def __init__(self, embeddings: FloatArray, scores: FloatArray, labels: IntArray, *, random_state: int) -> None:
        if len(labels) < MIN_EXAMPLES:
            raise RoleError(f"validation: cross-validation needs at least {MIN_EXAMPLES} images, got {len(labels)}")
        folds = fold_numbers(labels, n_folds=_FOLDS, random_state=random_state)
        own = true_label_scores(scores, labels)
        # Rows and columns by fold, ascending by score within each, so that a fold's mass is a prefix sum.
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
        """Number of images covered and of labels given, over all held-out images."""
        sets = self.sets(kernel, miscoverage=miscoverage)
        covered = sets[np.arange(len(sets)), self._labels]
        return int(covered.sum()), int(sets.sum())

    def __len__(self) -> int:
        return len(self._own)

    def _fold_masses(self, kernel: SigmoidKernel) -> tuple[FloatArray, FloatArray]:
        """Mass that each fold puts strictly below an image's own score, and in total; (n, folds) each."""
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
    """The kernel with the smallest held-out sets among those that reach the target; see `LcpVlm.record.selects`."""
    # Fewest images whose share is at least 1 - miscoverage; the slack prevents rounding up.
    needed = math.ceil(len(trials) * (1.0 - miscoverage) - 1e-9)

    def badness(kernel: SigmoidKernel) -> tuple[int, int]:
        """Number of images missing for the target, and number of labels given."""
        covered, given = trials.judge(kernel, miscoverage=miscoverage)
        return max(0, needed - covered), given

    # Of equal kernels the first: the smaller steepness, then the smaller midpoint.
    kernels = [SigmoidKernel(steepness=m, midpoint=tau) for m, tau in product(STEEPNESSES, MIDPOINTS)]
    return min(kernels, key=badness)


class LcpVlm:
    """A threshold per image from the scores of its neighbours, weighted by a sigmoid."""

    record = Record(
        name="lcp-vlm",
        title="LCP-VLM APS",
        paper="Fuchs, Bary, Macq, Localized Conformal Prediction for Image Classification with Vision-Language Models",
        venue="EUVIP",
        year=2025,
        assumes="Calibration and test exchangeable, kernel fixed before calibration: marginal coverage at least 1 - "
        "miscoverage (the published thresholds are lower and do not promise it).",
        selects="Steepness and midpoint of the kernel on validation, five folds: least mean set size among pairs "
        "whose pooled coverage is at least 1 - miscoverage, then smaller steepness, then smaller midpoint; without "
        "such a pair the one of largest coverage.",
        differs="Exact thresholds: denominators B + h (published: B + 2h) and +inf where Guan's rule says so "
        "(published: the largest score). Deterministic APS of p_rob at calibration and at test (published: randomised "
        "at calibration only, then one more label is added). The published code stores all 30 kernels and chooses "
        "none.",
    )

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> Prediction:
        """The seed assigns the folds."""
        validation, calibration = roles.validation, roles.calibration
        trials = KernelTrials(
            validation.embeddings,
            aps_scores(robust(validation)),
            validation.require_labels(),
            random_state=random_state,
        )
        kernel = select_kernel(trials, miscoverage=miscoverage)
        rule = SigmoidRule.fit(
            calibration.embeddings, own_aps_scores(calibration), kernel=kernel, miscoverage=miscoverage
        )
        thresholds = rule.thresholds(test.embeddings)
        details = {
            "steepness": kernel.steepness,
            "midpoint": kernel.midpoint,
            "infinite_share": float((thresholds == math.inf).mean()),
        }
        return aps_sets(test, thresholds[:, None], details=details)


METHODS = (LcpVlm(),)
