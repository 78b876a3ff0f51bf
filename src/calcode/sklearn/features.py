"""Tables of features as embeddings that a cosine can compare."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from calcode.arrays import AnyArray, FloatArray

#: Standardised features beyond it count as it: its square is still far from overflow.
_FARTHEST = 1e100


def feature_embedding() -> Any:
    """An unfitted transformer: features standardised, then `with_constant`."""
    pipeline = make_pipeline(StandardScaler(), FunctionTransformer(with_constant))
    return pipeline.set_output(transform="default")


def with_constant(features: AnyArray) -> FloatArray:
    """Unit rows of standardised features and a constant as long as a typical row.

    No row has length zero then, and rows of one direction that differ in length differ still.

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
