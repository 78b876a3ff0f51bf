"""Representatives, the coin and the archive's quota."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
import pytest

from calcode import Calcode, Evidence
from calcode.errors import SettingsError
from calcode.method.home_sums import site_features
from calcode.site import archive_quota, coin, predicted_exclusions, representatives

FOUR = np.full(4, 0.05)


def test_the_coin_is_the_first_53_bits_of_the_keyed_hash() -> None:
    digest = hmac.new(b"secret", b"patient-7", hashlib.sha256).digest()
    bits = "".join(f"{byte:08b}" for byte in digest)[:53]
    assert coin(b"secret", "patient-7") == int(bits, 2) / 2**53
    values = [coin(b"secret", f"patient-{i}") for i in range(2000)]
    assert abs(np.mean(np.array(values) < 0.3) - 0.3) < 0.04
    assert coin(b"other", "patient-7") != coin(b"secret", "patient-7")


def test_a_representative_is_drawn_among_the_first_visit_whatever_the_order_of_the_rows() -> None:
    ids = [f"image-{i}" for i in range(60)]
    groups = [f"patient-{i % 12}" for i in range(60)]
    visits = ["2020-01-02" if i < 12 else "2020-01-01" if i < 36 else "2021" for i in range(60)]
    rows = representatives(ids, groups, secret=b"s", visits=visits)
    assert len(rows) == 12
    assert all(12 <= row < 36 for row in rows)
    order = np.random.default_rng(0).permutation(60)
    again = representatives(
        [ids[i] for i in order], [groups[i] for i in order], secret=b"s", visits=[visits[i] for i in order]
    )
    assert {ids[order[row]] for row in again} == {ids[row] for row in rows}
    assert {ids[row] for row in representatives(ids, groups, secret=b"t", visits=visits)} != {ids[row] for row in rows}
    assert representatives(["a", "b"], ["", ""], secret=b"s").tolist() == [0, 1]


def test_the_quota_serves_the_classes_that_exclude_most_per_label() -> None:
    exclusions = np.zeros((10, 4), dtype=bool)
    exclusions[:8, 2] = True
    exclusions[:8, 1] = True  # adds nothing to class 2
    exclusions[8:, 3] = True
    quota = archive_quota(exclusions, budget=38, miscoverage=FOUR)
    assert quota.labels == {1: 19, 3: 19}
    assert quota.left == 0
    # Class 1 has too few groups: class 2 does the same.
    assert archive_quota(exclusions, budget=38, miscoverage=FOUR, available={1: 18, 2: 50, 3: 50}).labels == {
        2: 19,
        3: 19,
    }
    assert archive_quota(exclusions, budget=45, miscoverage=FOUR, classes=[0]).labels == {0: 39}


def test_a_class_that_needs_few_labels_comes_first_and_ties_go_to_the_one_that_says_more() -> None:
    exclusions = np.zeros((10, 2), dtype=bool)
    exclusions[:6, 0] = True
    exclusions[:5, 1] = True
    # 0.5 for 9 labels is more than 0.6 for 19; what is left is one more step.
    assert archive_quota(exclusions, budget=19, miscoverage=np.array([0.05, 0.1])).labels == {1: 19}
    exclusions = np.zeros((10, 4), dtype=bool)
    exclusions[:8, 0] = True
    exclusions[:2, 1] = True
    exclusions[:6, 3] = True  # neither adds an image to those of class 0
    assert archive_quota(exclusions, budget=38, miscoverage=FOUR).labels == {0: 19, 3: 19}


def test_further_steps_go_to_the_class_with_the_fewest_and_the_rest_trains() -> None:
    exclusions = np.ones((5, 2), dtype=bool)
    delta = np.array([0.05, 0.1])
    quota = archive_quota(exclusions, budget=70, miscoverage=delta)
    # 19 + 9, then 10, 20 and 10 more by turns.
    assert quota.labels == {0: 39, 1: 29}
    assert quota.left == 2
    with pytest.raises(SettingsError, match="the smallest need is 9"):
        archive_quota(exclusions, budget=8, miscoverage=delta)


def test_predicted_exclusions_compare_with_homes_own_quantiles(home: Calcode, images: Evidence) -> None:
    delta = np.array([0.05, 0.2, 0.001])
    found = predicted_exclusions(home, images, miscoverage=delta)
    outer = 200 / home.sums_.n * home.sums_.outer + 3 * np.eye(9)
    logits = 2 * site_features(images, trim=1) @ np.linalg.solve(outer, 200 / home.sums_.n * home.sums_.by_class)
    scores = 1 - np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for k in range(2):
        own = home.sums_.scores[k]
        limit = own[int(np.ceil((len(own) + 1) * (1 - delta[k]) - 1e-9)) - 1]
        np.testing.assert_array_equal(found[:, k], scores[:, k] > limit)
    # Too few home images for a level of 0.001: never excluded.
    assert not found[:, 2].any()
