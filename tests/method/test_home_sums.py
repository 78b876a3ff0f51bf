"""The two sums that home carries for a site, and its out-of-fold scores."""

from __future__ import annotations

import numpy as np
from sklearn.model_selection import GroupKFold
from worlds import World, fit_quietly

from calcode import Calcode
from calcode.method.home_sums import HomeSums, adapter_probabilities, site_features

WORLD = World(n_classes=3, dimension=4)


def test_the_sums_are_over_every_labelled_image_in_the_label_space() -> None:
    roles = WORLD.roles(n=80, named=True)
    labels = roles["reference"].labels.copy()
    labels[:5] = -1
    roles["reference"] = roles["reference"]._replace(labels=labels)
    model = fit_quietly(Calcode(), roles)
    features = np.concatenate([site_features(roles[r], trim=1) for r in ("reference", "validation", "calibration")])
    labels = np.concatenate([roles[r].labels for r in ("reference", "validation", "calibration")])
    features, labels = features[labels >= 0], labels[labels >= 0]
    assert model.sums_.n == 235
    np.testing.assert_allclose(model.sums_.outer, features.T @ features, rtol=1e-12)
    np.testing.assert_allclose(model.sums_.by_class, features.T @ np.eye(3)[labels], rtol=1e-12)


def test_a_reference_without_labels_is_left_out() -> None:
    roles = WORLD.roles(n=80, named=True)
    roles["reference"] = roles["reference"]._replace(labels=None)
    assert fit_quietly(Calcode(), roles).sums_.n == 160


def test_an_image_is_scored_by_folds_without_its_group() -> None:
    evidence = WORLD.draw(60, seed=1, name="x")
    sums = HomeSums.fit([evidence], trim=1)
    features = site_features(evidence, trim=1)
    expected: list[list[float]] = [[], [], []]
    for rows, held_out in GroupKFold(4).split(features, groups=np.unique(evidence.groups, return_inverse=True)[1]):
        weight, others = 200 / len(rows), features[rows]
        outer = weight * others.T @ others + 3 * np.eye(8)
        weights = np.linalg.solve(outer, weight * others.T @ np.eye(3)[evidence.labels[rows]])
        for row in held_out:
            exponentials = np.exp(2 * features[row] @ weights)
            label = evidence.labels[row]
            expected[label].append(1 - exponentials[label] / exponentials.sum())
    for found, scores in zip(sums.scores, expected, strict=True):
        np.testing.assert_allclose(found, np.sort(scores), atol=1e-12)
    in_sample = adapter_probabilities(
        features
        @ np.linalg.solve(
            200 / 60 * features.T @ features + 3 * np.eye(8), 200 / 60 * features.T @ np.eye(3)[evidence.labels]
        ),
        sharpness=2.0,
    )
    own = 1 - in_sample[np.arange(60), evidence.labels]
    assert np.concatenate(sums.scores).mean() > own.mean()
    # Copies in one group never score each other.
    doubled = evidence[np.repeat(np.arange(60), 2)]
    apart = doubled._replace(groups=np.array([f"g{i}" for i in range(120)]))
    assert (
        np.concatenate(HomeSums.fit([doubled], trim=1).scores).mean()
        > np.concatenate(HomeSums.fit([apart], trim=1).scores).mean()
    )
