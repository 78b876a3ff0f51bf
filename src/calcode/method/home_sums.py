"""What home passes to a new site: two sums and the out-of-fold scores of home images (SITE.md S2 and S16)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from calcode.arrays import FloatArray, IntArray
from calcode.kernels.threads import slices
from calcode.method.evidence import Evidence, robust_probabilities

#: Number of images that home counts as (m0), the prior's diagonal (lambda) and the softmax's factor (b).
HOME_WEIGHT = 200.0
RIDGE = 3.0
SHARPNESS = 2.0
#: Folds of the out-of-fold scores.
N_FOLDS = 4

EMBEDDING_SCALE = 4.0
LOG_SCALE = 0.5
LOG_OFFSET = 1e-6
_BLOCK_ROWS = 4096
#: Number of values of phi that are kept between sums and scores (64 MiB).
_KEPT_NUMBERS = 1 << 23


def site_features(evidence: Evidence, *, trim: int) -> FloatArray:
    """phi(x) = [1, 4 z, 0.5 clr(log(p_rob + 1e-6))] of SITE.md S2.

    Parameters
    ----------
    evidence : Evidence
        n images of dimension d, K classes.
    trim : int
        Values dropped at each end, as in METHOD.md 2.

    Returns
    -------
    ndarray of shape (n, 1 + d + K)

    Examples
    --------
    >>> evidence = Evidence(embeddings=[[1.0, 0.0]], prompt_logits=[[[1.0, 1.0]]], classes=["a", "b"])
    >>> site_features(evidence, trim=0)
    array([[1., 4., 0., 0., 0.]])
    """
    logs = np.log(robust_probabilities(evidence.prompt_logits, trim=trim) + LOG_OFFSET)
    centred = logs - logs.mean(axis=1, keepdims=True)
    ones = np.ones((len(evidence), 1))
    return np.concatenate([ones, EMBEDDING_SCALE * evidence.embeddings, LOG_SCALE * centred], axis=1)


def read_features(features: FloatArray, *, n_classes: int) -> tuple[bool, FloatArray]:
    """Whether rows, shape (n, 1 + d + K), can be `site_features`, and their p_rob, shape (n, K).

    Examples
    --------
    >>> evidence = Evidence(embeddings=[[1.0, 0.0]], prompt_logits=[[[2.0, 1.0]]], classes=["a", "b"])
    >>> sound, robust = read_features(site_features(evidence, trim=0), n_classes=2)
    >>> sound, np.allclose(robust, robust_probabilities(evidence.prompt_logits, trim=0))
    (True, True)
    """
    lengths = np.linalg.norm(features[:, 1:-n_classes], axis=1)
    centred = features[:, -n_classes:] / LOG_SCALE
    shares = adapter_probabilities(centred, sharpness=1.0)
    sound = np.allclose(features[:, 0], 1.0) and np.allclose(lengths, EMBEDDING_SCALE)
    sound = sound and np.allclose(centred.sum(axis=1), 0.0, atol=1e-6)
    return bool(sound), shares * (1.0 + n_classes * LOG_OFFSET) - LOG_OFFSET


def adapter_probabilities(outputs: FloatArray, *, sharpness: float) -> FloatArray:
    """softmax(b f) over the classes; the score of SITE.md S2 is one minus it; shape (n, K) in and out.

    Examples
    --------
    >>> adapter_probabilities(np.array([[1.0, 1.0]]), sharpness=2.0)
    array([[0.5, 0.5]])
    """
    shifted = np.exp(sharpness * (outputs - outputs.max(axis=1, keepdims=True)))
    probabilities: FloatArray = shifted / shifted.sum(axis=1, keepdims=True)
    return probabilities


@dataclass(frozen=True, eq=False, kw_only=True)
class HomeSums:
    """Sums over the labelled home images, from which no single image can be recognised.

    Attributes
    ----------
    outer : ndarray of shape (p, p)
        Sum of phi phi', p = 1 + d + K.
    by_class : ndarray of shape (p, K)
        Sum of phi e_y'.
    n : int
        Number of images in the sums.
    scores : tuple of K ndarrays
        Ascending out-of-fold scores of each class's own images, for the quota of SITE.md S1.
    """

    outer: FloatArray
    by_class: FloatArray
    n: int
    scores: tuple[FloatArray, ...]

    @classmethod
    def fit(cls, roles: Sequence[Evidence], *, trim: int) -> Self:
        """Sum over all labelled images inside the label space, whether the audit accepts them or not.

        Parameters
        ----------
        roles : sequence of Evidence
            Reference, validation and calibration. A role without labels is left out.
        trim : int
        """
        from sklearn.model_selection import GroupKFold

        labelled = [role[role.in_space] for role in roles if role.labels is not None]
        n_classes = labelled[0].n_classes
        labels = np.concatenate([role.require_labels() for role in labelled])
        # Folds keep groups whole; an image without a group is its own group.
        names: list[str] = []
        for role in labelled:
            values = [""] * len(role) if role.groups is None else role.groups.tolist()
            names += [f"group {value}" if value else f"row {len(names) + i}" for i, value in enumerate(values)]
        groups = np.unique(names, return_inverse=True)[1]
        folds = np.zeros(len(groups), dtype=np.int64)
        if len(np.unique(groups)) >= N_FOLDS:
            for fold, (_, held_out) in enumerate(GroupKFold(N_FOLDS).split(groups, groups=groups)):
                folds[held_out] = fold
        size = 1 + labelled[0].dimension + n_classes
        starts = np.cumsum([0, *map(len, labelled)])[:-1]
        # Home may be large: phi is computed for part of a fold at a time, and again for the scores if it was not kept.
        parts: list[tuple[int, Evidence, IntArray, IntArray]] = []
        for role, start in zip(labelled, starts, strict=True):
            for block in slices(len(role), step=_BLOCK_ROWS):
                fold_of = folds[start + block.start : start + block.stop]
                chosen = [block.start + np.flatnonzero(fold_of == fold) for fold in range(N_FOLDS)]
                parts += [(fold, role, own, start + own) for fold, own in enumerate(chosen) if len(own)]
        kept: list[FloatArray] = []
        outer, by_class = np.zeros((N_FOLDS, size, size)), np.zeros((N_FOLDS, size, n_classes))
        for fold, role, own, rows in parts:
            features = site_features(role[own], trim=trim)
            outer[fold] += features.T @ features  # one array: the product with itself takes half the work
            by_class[fold] += features.T @ np.eye(n_classes)[labels[rows]]
            if len(labels) * size <= _KEPT_NUMBERS:
                kept.append(features)
        n_others = len(labels) - np.bincount(folds, minlength=N_FOLDS)
        weights = np.zeros((N_FOLDS, size, n_classes))
        whole_outer, whole_by_class = outer.sum(axis=0), by_class.sum(axis=0)
        for fold in np.flatnonzero(n_others).tolist():
            share = HOME_WEIGHT / n_others[fold]
            others = share * (whole_outer - outer[fold]) + RIDGE * np.eye(size)
            weights[fold] = np.linalg.solve(others, share * (whole_by_class - by_class[fold]))
        scores = np.empty(len(labels))
        for number, (fold, role, own, rows) in enumerate(parts):
            features = kept[number] if kept else site_features(role[own], trim=trim)
            probabilities = adapter_probabilities(features @ weights[fold], sharpness=SHARPNESS)
            scores[rows] = 1.0 - probabilities[np.arange(len(own)), labels[rows]]
        return cls(
            outer=whole_outer,
            by_class=whole_by_class,
            n=len(labels),
            scores=tuple(np.sort(scores[labels == k]) for k in range(n_classes)),
        )

    def prior(self, *, home_weight: float, ridge: float) -> tuple[FloatArray, FloatArray]:
        """A0 = (m0 / N) sum phi phi' + lambda I, shape (p, p), and B0 = (m0 / N) sum phi e_y', shape (p, K)."""
        weight = home_weight / self.n
        return weight * self.outer + ridge * np.eye(len(self.outer)), weight * self.by_class
