"""RLCP and baseLCP: smoothed quantiles with Gaussian weights around a draw near the test image, or around the image.

`gaussian_weights` with the draws of golden ``rlcp`` ``RLCP_*_xtilde`` as centres and `smoothed_thresholds` with its
``_U`` reproduce ``RLCP_h*_a0.1``; with the images themselves as centres ``baseLCP_h*_a0.1`` (thresholds and, with
`half_open_sets`, coverage).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np

from calcode.arrays import BoolArray, FloatArray
from calcode.baselines.protocol import Evidence, Prediction, Record, Roles
from calcode.baselines.split import own_aps_scores, prediction, robust
from calcode.errors import CalcodeWarning
from calcode.kernels import row_blocks
from calcode.method.localized import canonical_order
from calcode.method.scores import aps_scores

#: Published grid of bandwidths (0.02 to 6); its step is its smallest value.
BANDWIDTHS = np.arange(1, 301) / 50.0
#: Published target: the effective number of neighbours of an image.
EFFECTIVE_SIZE = 50.0
#: Bandwidths tried per pass over the pairs, which then share the products.
_PER_PASS = 8


def gaussian_weights(
    centres: FloatArray, own: FloatArray, points: FloatArray, *, bandwidth: float
) -> tuple[FloatArray, FloatArray]:
    """exp(-|c - x|^2 / (2 h^2)) of points and of each centre's own image, up to a factor per row.

    The largest exponent of a row is subtracted. The density's normaliser and the distance common to all points cancel
    in every use, and in 512 dimensions they would overflow.

    Parameters
    ----------
    centres : ndarray of shape (m, d)
        Centres of the kernel.
    own : ndarray of shape (m, d)
        The image of each centre.
    points : ndarray of shape (n, d)
    bandwidth : float

    Returns
    -------
    weights : ndarray of shape (m, n)
    own_weights : ndarray of shape (m,)

    Examples
    --------
    >>> weights, own = gaussian_weights(np.eye(2)[:1], np.eye(2)[:1], np.eye(2), bandwidth=1.0)
    >>> weights.round(4), own
    (array([[1.    , 0.3679]]), array([1.]))
    """
    scale = 1.0 / bandwidth**2
    exponents = (centres @ points.T - 0.5 * (points**2).sum(axis=1)) * scale
    own_exponents = ((centres * own).sum(axis=1) - 0.5 * (own**2).sum(axis=1)) * scale
    largest = np.maximum(exponents.max(axis=1), own_exponents)
    exponents -= largest[:, None]
    return np.exp(exponents, out=exponents), np.exp(own_exponents - largest)


def effective_sizes(embeddings: FloatArray, draws: FloatArray, bandwidths: FloatArray) -> FloatArray:
    """n / |W|_F^2 - 1 with W the row-normalised kernel around x_i + h e_i, one value per bandwidth.

    Parameters
    ----------
    embeddings : ndarray of shape (n, d)
        Unit rows.
    draws : ndarray of shape (n, d)
        e_i: standard normal for RLCP, zeros for baseLCP.
    bandwidths : ndarray of shape (L,)

    Returns
    -------
    ndarray of shape (L,)

    Examples
    --------
    >>> effective_sizes(np.ones((4, 1)), np.zeros((4, 1)), np.array([1.0]))  # everything is equally near
    array([3.])
    """
    squares = np.zeros(len(bandwidths))
    for rows in row_blocks(len(embeddings), n_columns=len(embeddings)):
        cosines = embeddings[rows] @ embeddings.T
        noise = draws[rows] @ embeddings.T
        for index, bandwidth in enumerate(bandwidths):
            weights = (cosines / bandwidth + noise) / bandwidth
            weights -= weights.max(axis=1, keepdims=True)
            np.exp(weights, out=weights)
            squares[index] += ((weights**2).sum(axis=1) / weights.sum(axis=1) ** 2).sum()
    sizes: FloatArray = len(embeddings) / squares - 1.0
    return sizes


def effective_bandwidth(embeddings: FloatArray, draws: FloatArray, *, target: float = EFFECTIVE_SIZE) -> float:
    """First bandwidth of the grid whose effective size reaches the target.

    Parameters
    ----------
    embeddings, draws
        As in `effective_sizes`.
    target : float
        A target that the images cannot reach is replaced by half of their number, with a warning.
    """
    most = len(embeddings) - 1
    wanted = target
    if target >= most:
        wanted = most / 2.0
        warnings.warn(
            f"reference: {len(embeddings)} images cannot give an effective size of {target:g}; {wanted:g} is used",
            CalcodeWarning,
            stacklevel=2,
        )
    for start in range(0, len(BANDWIDTHS), _PER_PASS):
        bandwidths = BANDWIDTHS[start : start + _PER_PASS]
        enough = np.flatnonzero(effective_sizes(embeddings, draws, bandwidths) >= wanted)
        if len(enough):
            return float(bandwidths[enough[0]])
    return float(BANDWIDTHS[-1])


def smoothed_thresholds(
    weights: FloatArray, own_weights: FloatArray, scores: FloatArray, uniforms: FloatArray, *, miscoverage: float
) -> tuple[FloatArray, BoolArray]:
    """Largest score whose smoothed p-value exceeds the miscoverage, and whether that score itself is included.

    p(v) is the normalised weight of the scores above v, plus U times the weight of the scores equal to v and of the
    image itself, whose score is unknown.

    Parameters
    ----------
    weights : ndarray of shape (m, n)
        Columns in ascending order of their scores.
    own_weights : ndarray of shape (m,)
    scores : ndarray of shape (n,)
        Ascending.
    uniforms : ndarray of shape (m,)
        U of each image.
    miscoverage : float

    Returns
    -------
    thresholds : ndarray of shape (m,)
        A score, +inf (every label) or -inf (no label).
    closed : ndarray of bool, shape (m,)
        Whether a label whose score equals the threshold is in the set.

    Examples
    --------
    >>> smoothed_thresholds(np.ones((1, 4)), np.ones(1), np.arange(4.0), np.array([0.5]), miscoverage=0.25)
    (array([3.]), array([False]))
    """
    m, n = weights.shape
    above = np.zeros((m, n + 1))
    np.cumsum(weights[:, ::-1], axis=1, out=above[:, n - 1 :: -1] if n else above[:, :0])
    total = above[:, :1] + own_weights[:, None]
    draws = uniforms[:, None]
    # Between two scores only the image's own weight is smoothed; the p-value falls from left to right.
    position = np.count_nonzero((above + draws * own_weights[:, None]) / total > miscoverage, axis=1) - 1
    thresholds = np.concatenate([scores, [math.inf, -math.inf]])[position]
    first = np.searchsorted(scores, thresholds, side="left")[:, None]
    beyond = np.searchsorted(scores, thresholds, side="right")[:, None]
    higher = np.take_along_axis(above, beyond, axis=1)
    equal = np.take_along_axis(above, first, axis=1) - higher
    at_threshold = (higher + draws * (equal + own_weights[:, None])) / total
    closed = np.isfinite(thresholds) & (at_threshold[:, 0] > miscoverage)
    return thresholds, closed


def half_open_sets(scores: FloatArray, thresholds: FloatArray, closed: BoolArray) -> BoolArray:
    """Labels below the threshold, and those at it if the set is closed.

    Parameters
    ----------
    scores : ndarray of shape (m, K)
    thresholds, closed : ndarray of shape (m,)
    """
    bound = thresholds[:, None]
    return np.asarray((scores < bound) | (closed[:, None] & (scores == bound)))


def smoothed_prediction(
    calibration: Evidence,
    test: Evidence,
    centres: FloatArray,
    uniforms: FloatArray,
    *,
    bandwidth: float,
    miscoverage: float,
) -> Prediction:
    """APS sets with a smoothed threshold around given centres.

    Parameters
    ----------
    calibration, test : Evidence
    centres : ndarray of shape (m, d)
        The test embeddings (baseLCP) or draws around them (RLCP).
    uniforms : ndarray of shape (m,)
    bandwidth, miscoverage : float
    """
    own_scores = own_aps_scores(calibration)
    order = canonical_order(calibration.embeddings, own_scores)
    points, own_scores = calibration.embeddings[order], own_scores[order]
    thresholds = np.empty(len(test))
    closed = np.empty(len(test), dtype=np.bool_)
    for rows in row_blocks(len(test), n_columns=len(points)):
        weights, own = gaussian_weights(centres[rows], test.embeddings[rows], points, bandwidth=bandwidth)
        thresholds[rows], closed[rows] = smoothed_thresholds(
            weights, own, own_scores, uniforms[rows], miscoverage=miscoverage
        )
    probabilities = robust(test)
    sets = half_open_sets(aps_scores(probabilities), thresholds, closed)
    details = {"bandwidth": bandwidth, "infinite_share": float((thresholds == math.inf).mean())}
    return prediction(sets, probabilities, details=details)


BASE = Record(
    name="base-lcp",
    title="baseLCP",
    paper="Hore and Barber, Conformal Prediction with Local Weights: Randomization Enables Robust Guarantees",
    venue="Journal of the Royal Statistical Society B",
    year=2025,
    assumes="Nothing that holds: no marginal guarantee, even under exchangeability.",
    selects="Bandwidth on the reference embeddings: the first of 0.02, 0.04, ..., 6 with effective size 50. One "
    "uniform draw per test image.",
    differs="The kernel's normaliser is left out, which overflows in many dimensions and cancels. The published search "
    "starts where the user says and runs off its grid when nothing reaches the target.",
)


class BaseLcp:
    """Weighted quantile of the neighbours' scores, with the image's own weight at +inf."""

    record = BASE

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> Prediction:
        """The seed gives one uniform draw per test image."""
        reference = roles.reference.embeddings
        bandwidth = effective_bandwidth(reference, np.zeros_like(reference))
        uniforms = np.random.default_rng(random_state).random(len(test))
        return smoothed_prediction(
            roles.calibration, test, test.embeddings, uniforms, bandwidth=bandwidth, miscoverage=miscoverage
        )


RECORD = replace(
    BASE,
    name="rlcp",
    title="RLCP",
    assumes="Calibration and test exchangeable, bandwidth fixed before calibration: marginal coverage at least "
    "1 - miscoverage, over the draws too. Two seeds give two different sets.",
    selects="Bandwidth on the reference embeddings: the first of 0.02, 0.04, ..., 6 with effective size 50 around "
    "draws. One uniform draw and one Gaussian draw per test image.",
    differs="The kernel's normaliser is left out, which overflows in many dimensions and cancels. The search draws "
    "its noise once instead of once per bandwidth.",
)


class Rlcp:
    """Weighted quantile around a draw from the kernel at the test image."""

    record = RECORD

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> Prediction:
        """The seed gives three streams: for the bandwidth, the uniforms and the centres."""
        searching, smoothing, centring = np.random.default_rng(random_state).spawn(3)
        reference = roles.reference.embeddings
        bandwidth = effective_bandwidth(reference, searching.standard_normal(reference.shape))
        uniforms = smoothing.random(len(test))
        centres = test.embeddings + bandwidth * centring.standard_normal(test.embeddings.shape)
        return smoothed_prediction(
            roles.calibration, test, centres, uniforms, bandwidth=bandwidth, miscoverage=miscoverage
        )


METHODS = (BaseLcp(), Rlcp())
