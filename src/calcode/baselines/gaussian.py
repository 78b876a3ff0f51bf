"""The Gaussian kernel of RLCP and baseLCP on unit embeddings, and the bandwidth of a wanted effective size."""

from __future__ import annotations

import warnings

import numpy as np

from calcode.arrays import FloatArray
from calcode.errors import CalcodeWarning
from calcode.kernels import row_blocks

#: Published grid of bandwidths (0.02 to 6), its step being its smallest value here.
BANDWIDTHS = np.arange(1, 301) / 50.0
#: Published target: as many neighbours as an image shall effectively have.
EFFECTIVE_SIZE = 50.0
#: Bandwidths tried per pass over the pairs, so that products are shared.
_PER_PASS = 8


def gaussian_weights(
    centres: FloatArray, own: FloatArray, points: FloatArray, *, bandwidth: float
) -> tuple[FloatArray, FloatArray]:
    """exp(-|c - x|^2 / (2 h^2)) of points and of each centre's own image, up to a factor per row.

    The largest exponent of a row is subtracted: the density's normaliser and the distance that all points
    share cancel in every use, and in 512 dimensions they would overflow.

    Parameters
    ----------
    centres : ndarray of shape (m, d)
        Where the kernel stands.
    own : ndarray of shape (m, d)
        The image that belongs to each centre.
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
        More than the images can give is replaced by half of their number, with a warning.
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
