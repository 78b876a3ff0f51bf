"""SITE.md done the slow way: the adapter refitted for every image, label and row, with nothing shared."""

from __future__ import annotations

import numpy as np


def refit(outer: np.ndarray, by_class: np.ndarray, features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    targets = np.eye(by_class.shape[1])[labels]
    return np.linalg.solve(outer + features.T @ features, by_class + features.T @ targets)


def score(weights: np.ndarray, row: np.ndarray, label: int, sharpness: float) -> float:
    logits = sharpness * (row @ weights)
    exponentials = np.exp(logits - logits.max())
    return float(1.0 - exponentials[label] / exponentials.sum())


def deleted_scores(
    prior: tuple[np.ndarray, np.ndarray], features: np.ndarray, labels: np.ndarray, *, sharpness: float = 2.0
) -> np.ndarray:
    """Score of every row under the adapter trained on all the others."""
    everyone = np.arange(len(labels))
    return np.array(
        [
            score(refit(*prior, features[everyone != i], labels[everyone != i]), features[i], labels[i], sharpness)
            for i in everyone
        ]
    )


def refitted_p_values(
    prior: tuple[np.ndarray, np.ndarray],
    features: np.ndarray,
    labels: np.ndarray,
    images: np.ndarray,
    *,
    delta: np.ndarray,
    sharpness: float = 2.0,
    calibrates: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    image_weights: np.ndarray | None = None,
    pool: bool = False,
    protected: tuple[int, ...] = (),
) -> np.ndarray:
    """p-values of SITE.md S3, S4 ("pool") and S5 ("weighted") by refitting for real."""
    n, n_classes = len(labels), len(delta)
    calibrates = np.ones(n, dtype=bool) if calibrates is None else calibrates
    weights = np.ones(n) if weights is None else weights
    image_weights = np.ones(len(images)) if image_weights is None else image_weights
    p_values = np.ones((len(images), n_classes))
    for t, image in enumerate(images):
        for k in range(n_classes):
            together, given = np.vstack([features, image]), np.append(labels, k)
            scores = deleted_scores(prior, together, given, sharpness=sharpness)
            ranked = calibrates & (labels == k)
            if pool:
                counts = np.bincount(given, minlength=n_classes)
                rare = [j for j in range(n_classes) if counts[j] < np.ceil(1 / delta[j]) and j not in protected]
                if k in rare:
                    ranked = calibrates & np.isin(labels, rare)
                    share = (counts + 1) / (n + 1 + n_classes)
                    scores = 1 - (1 - scores) / share[given]
            if ranked.sum() + 1 < 1 / delta[k]:
                continue
            above = weights[ranked & (scores[:n] >= scores[n] - 1e-12)].sum()
            p_values[t, k] = (image_weights[t] + above) / (image_weights[t] + weights[ranked].sum())
    return p_values
