"""The automatic bandwidth of METHOD.md 6, and the cross-fit of METHOD.md 7 that evaluates it.

For every fold the rule `loo` is fitted on the other folds; it covers or misses the held-out examples (Eq. 13). All
folds share one kernel matrix: only the mass that each fold contributes is needed, so a cross-fit costs one pass over
the pairs. The chosen bandwidth is the most local one that the validation data support.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.errors import CalcodeWarning, RoleError
from calcode.kernels import negative_squares, pair_masses, weights_from_squares
from calcode.method.localized import loo_level
from calcode.method.quantiles import conformal_rank, coverage_floor
from calcode.method.scores import true_label_scores

#: One example to fit on and one to evaluate.
MIN_EXAMPLES = 2
#: Examples from which the starting point of a search is estimated.
_SAMPLE = 64
#: Shares of the other examples that a neighbourhood holds, from the most local to the widest.
NEIGHBOUR_SHARES = (0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.4, 0.8)

_LOWEST, _HIGHEST = math.log(1e-6), math.log(1e6)
#: Accuracy of log h; the method asks for 1e-6.
_ACCURACY = 1e-9
#: d log(mass) / d log(h) of typical embeddings; it only affects where a search starts.
_SLOPE = 4.0
#: Distance beyond the root at which the last check is made; the method asks for 1e-6.
_BEYOND = 5e-7
#: Secant steps before bracketing takes over.
_MOST_SECANTS = 10


@dataclass(frozen=True, eq=False, kw_only=True)
class HeldOut:
    """Results on held-out examples.

    Attributes
    ----------
    sets : ndarray of bool, shape (n, K)
        Held-out localized sets.
    covered : ndarray of bool, shape (n,)
    infinite : ndarray of bool, shape (n,)
        Examples whose held-out threshold was +inf.
    """

    sets: BoolArray
    covered: BoolArray
    infinite: BoolArray


class CrossFit:
    """Accepted validation examples, split into folds once and evaluated at any bandwidth and miscoverage.

    Parameters
    ----------
    embeddings : ndarray of shape (n, d)
        Unit rows.
    scores : ndarray of shape (n, K)
        APS scores of every label.
    labels : ndarray of shape (n,)
        Class indices, none outside the label space.
    n_folds : int
    random_state : int
    device : str, optional
        A torch device for the kernel masses.
    """

    def __init__(
        self,
        *,
        embeddings: FloatArray,
        scores: FloatArray,
        labels: IntArray,
        n_folds: int,
        random_state: int,
        device: str | None = None,
    ) -> None:
        if len(labels) < MIN_EXAMPLES:
            raise RoleError(f"validation: a cross-fit needs at least {MIN_EXAMPLES} accepted images, got {len(labels)}")
        self.labels = labels
        self._folds = fold_numbers(labels, n_folds=n_folds, random_state=random_state)
        self._n_folds = int(self._folds.max()) + 1
        true_scores = true_label_scores(scores, labels)
        # Columns fold by fold, ascending by score inside each, so that a fold's mass is a prefix sum.
        columns = np.lexsort((true_scores, self._folds))
        self._own_column = np.empty(len(labels), dtype=np.int64)
        self._own_column[columns] = np.arange(len(labels))
        self._edges = np.searchsorted(self._folds[columns], np.arange(self._n_folds + 1))
        # Columns before a label's score in every fold, counting the folds before it; (n, K, folds).
        self._positions = np.stack(
            [
                a + np.searchsorted(true_scores[columns[a:b]], scores, side="left")
                for a, b in itertools.pairwise(self._edges.tolist())
            ],
            axis=2,
        )
        self._pairs = pair_masses(embeddings, embeddings[columns], device=device)
        self._sample = negative_squares(embeddings[:_SAMPLE], embeddings)
        self._neighbour_masses: dict[float, float] = {}
        self._judged: tuple[float, tuple[FloatArray, FloatArray]] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def sampled_mass(self, bandwidth: float) -> float:
        """Approximate `neighbour_mass`, from a few examples."""
        weights = weights_from_squares(self._sample, bandwidth=bandwidth)
        return float(np.median(weights.sum(axis=1) - 1.0))

    def neighbour_mass(self, bandwidth: float) -> float:
        """Size of a neighbourhood: the median over examples of the sum of H over the other examples."""
        # Searches for several miscoverages visit the same bandwidths.
        if bandwidth not in self._neighbour_masses:
            masses = self._pairs.totals(bandwidth, own=self._own_column)
            self._neighbour_masses[bandwidth] = float(np.median(masses))
        return self._neighbour_masses[bandwidth]

    def judge(self, *, bandwidth: float, miscoverage: float, grid: int | None) -> HeldOut:
        """For every fold, fit on the other folds and evaluate on this one."""
        # The chosen bandwidth was evaluated last, and is evaluated again for its classes.
        if self._judged is None or self._judged[0] != bandwidth:
            self._judged = bandwidth, self._fold_masses(bandwidth)
        below, total = self._judged[1]
        rows = np.arange(len(self))
        sets = np.empty(below.shape[:2], dtype=np.bool_)
        infinite = np.empty(len(self), dtype=np.bool_)
        for fold in range(self._n_folds):
            held_out = self._folds == fold
            others = np.arange(self._n_folds) != fold
            mass_below = below[:, :, others].sum(axis=2)
            mass = total[:, others].sum(axis=1)
            kept = rows[~held_out]  # a held-out example may have no mass at all among the other folds
            fitted = mass_below[kept, self.labels[kept]] / mass[kept]
            rank = conformal_rank(len(fitted), miscoverage=miscoverage)
            _, cut = loo_level(fitted, rank=rank, grid=grid)
            beyond = 1.0 + mass[held_out]
            sets[held_out] = mass_below[held_out] / beyond[:, None] < cut
            infinite[held_out] = mass[held_out] / beyond < cut
        return HeldOut(sets=sets, covered=sets[rows, self.labels], infinite=infinite)

    def _fold_masses(self, bandwidth: float) -> tuple[FloatArray, FloatArray]:
        """Mass that each fold puts below every label's score, (n, K, folds), and in all, (n, folds)."""
        n, n_classes = self._positions.shape[:2]
        inside = self._positions.reshape(n, n_classes * self._n_folds)
        edges = np.broadcast_to(self._edges, (n, len(self._edges)))
        masses, _ = self._pairs.prefixes(bandwidth, np.concatenate([inside, edges], axis=1))
        at_edges = masses[:, inside.shape[1] :]
        below = masses[:, : inside.shape[1]].reshape(self._positions.shape) - at_edges[:, None, :-1]
        return below, np.diff(at_edges, axis=1)


def fold_numbers(labels: IntArray, *, n_folds: int, random_state: int) -> IntArray:
    """Fold of every example: stratified by class, or plain if every class is too small for that.

    Parameters
    ----------
    labels : ndarray of shape (n,)
    n_folds : int
        Lowered to n if there are fewer examples than folds.
    random_state : int

    Examples
    --------
    >>> np.bincount(fold_numbers(np.repeat([0, 1], [15, 10]), n_folds=5, random_state=0))
    array([5, 5, 5, 5, 5])
    """
    from sklearn.model_selection import KFold, StratifiedKFold

    n_splits = min(n_folds, len(labels))
    stratified = np.bincount(labels).max() >= n_splits
    splitter = (StratifiedKFold if stratified else KFold)(n_splits=n_splits, shuffle=True, random_state=random_state)
    folds = np.empty(len(labels), dtype=np.int64)
    with warnings.catch_warnings():
        # A class with fewer examples than folds is normal here (METHOD.md 7).
        warnings.filterwarnings("ignore", message="The least populated class", category=UserWarning)
        for fold, (_, held_out) in enumerate(splitter.split(np.zeros(len(labels)), labels)):
            folds[held_out] = fold
    return folds


@dataclass(frozen=True, kw_only=True)
class BandwidthTrial:
    """One candidate bandwidth and its cross-fit results.

    Attributes
    ----------
    share : float
        Share of the other examples in a median neighbourhood.
    bandwidth : float
    infinite_share : float
        Held-out examples whose threshold was infinite.
    coverage : float
        Pooled held-out coverage.
    accepted : bool
        Whether both bounds were met.
    """

    share: float
    bandwidth: float
    infinite_share: float
    coverage: float
    accepted: bool


def choose_bandwidth(
    cross_fit: CrossFit, *, miscoverage: float, grid: int | None, support_budget: float
) -> tuple[float, tuple[BandwidthTrial, ...]]:
    """First candidate that the cross-fit supports, and the trace of all candidates tried.

    Parameters
    ----------
    cross_fit : CrossFit
        Accepted validation examples.
    miscoverage : float
    grid : int or None
    support_budget : float
        Largest share of infinite held-out thresholds.

    Returns
    -------
    bandwidth : float
    trace : tuple of BandwidthTrial
        In the order of the trials; the last one is chosen.
    """
    floor = coverage_floor(len(cross_fit), miscoverage=miscoverage)
    trace: list[BandwidthTrial] = []
    for share, bandwidth in candidate_bandwidths(cross_fit):
        outcome = cross_fit.judge(bandwidth=bandwidth, miscoverage=miscoverage, grid=grid)
        infinite_share, coverage = float(outcome.infinite.mean()), float(outcome.covered.mean())
        trial = BandwidthTrial(
            share=share,
            bandwidth=bandwidth,
            infinite_share=infinite_share,
            coverage=coverage,
            accepted=infinite_share <= support_budget and coverage >= floor,
        )
        trace.append(trial)
        if trial.accepted:
            return bandwidth, tuple(trace)
    warnings.warn(
        f"bandwidth: no candidate kept infinite thresholds within support_budget={support_budget} and held-out "
        f"coverage at {floor:.3f}; the widest, h={trace[-1].bandwidth:.4g}, is used",
        CalcodeWarning,
        stacklevel=2,
    )
    return trace[-1].bandwidth, tuple(trace)


def candidate_bandwidths(cross_fit: CrossFit) -> Iterator[tuple[float, float]]:
    """(share, h) with h such that a median neighbourhood holds that share of the other examples."""
    # A few examples give the approximate end of the first search and the slope there.
    sampled = _excess(cross_fit.sampled_mass, target=NEIGHBOUR_SHARES[0] * (len(cross_fit) - 1))
    low, guess = _LOWEST, _by_bracket(sampled, low=_LOWEST, guess=-1.0, accuracy=1e-4)
    slope = (sampled(guess + 0.01) - sampled(guess)) / 0.01
    for i, share in enumerate(NEIGHBOUR_SHARES):
        excess = _excess(cross_fit.neighbour_mass, target=share * (len(cross_fit) - 1))
        # A larger share needs a larger h, so each search starts where the last one ended.
        root, slope = _by_secants(excess, low=low, guess=guess, slope=slope)
        if math.isnan(root):
            root, slope = _by_bracket(excess, low=low, guess=guess, accuracy=_ACCURACY), _SLOPE
        yield share, math.exp(root)
        if i + 1 < len(NEIGHBOUR_SHARES):
            guess = root + math.log(NEIGHBOUR_SHARES[i + 1] / share) / slope
            low = root


def _excess(mass: Callable[[float], float], *, target: float) -> Callable[[float], float]:
    """log(median neighbour mass / target) as a function of log h; almost linear and never decreasing."""

    def excess(log_h: float) -> float:
        return math.log(max(mass(math.exp(log_h)), 1e-300) / target)

    return excess


def _by_secants(excess: Callable[[float], float], *, low: float, guess: float, slope: float) -> tuple[float, float]:
    """Root of a smooth function and its slope there, in few calls; nan if the function is not smooth enough.

    The error of a secant step is about the product of the last two steps. One more call, just beyond the root found,
    must have the other sign.
    """
    at, before, value_before, last_step = min(max(guess, low), _HIGHEST), math.nan, math.nan, 1.0
    for turn in range(_MOST_SECANTS):
        value = excess(at)
        if turn and at != before:
            slope = (value - value_before) / (at - before)
        if not 1e-3 < slope < 1e3:
            break
        step = -value / slope
        if not low < at + step < _HIGHEST:
            break
        if turn and abs(step) * max(abs(step), abs(last_step)) < _ACCURACY:
            beyond = excess(at + step + math.copysign(_BEYOND, step))
            return (at + step if beyond * value <= 0.0 else math.nan), slope
        before, value_before, last_step = at, value, step
        at += step
    return math.nan, slope


def _by_bracket(excess: Callable[[float], float], *, low: float, guess: float, accuracy: float) -> float:
    """Root of any non-decreasing function, by bracketing; the nearer end if there is no root."""
    from scipy.optimize import brentq

    start = min(max(guess, low), _HIGHEST)
    value = excess(start)
    # The bracket grows away from the guess on the side where the root must lie.
    side = 1.0 if value < 0 else -1.0
    step = max(1.5 * abs(value) / _SLOPE, 1e-3)
    while True:
        other = min(max(start + side * step, low), _HIGHEST)
        if other == start:
            return start
        value = excess(other)
        if (value >= 0) == (side > 0):
            return float(brentq(excess, start, other, xtol=accuracy))
        start, step = other, 2.0 * step
