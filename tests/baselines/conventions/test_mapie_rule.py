"""MAPIE 1.6.0: scores, quantiles, its three ways with the crossing label, and its RAPS tuning."""

from __future__ import annotations

import numpy as np
import pytest
from baselines.conventions import mapie_rule
from sklearn.model_selection import StratifiedShuffleSplit

from calcode.method.quantiles import conformal_quantile
from calcode.method.scores import (
    aps_scores,
    label_ranks,
    lac_scores,
    randomised_aps_scores,
    rank_penalty,
    true_label_scores,
)

LEVELS = {0.05: "0.95", 0.1: "0.9"}


def stream(n):
    # The published code restarts an integer seed, so that calibration and test draws are one stream.
    return np.random.RandomState(7).uniform(size=n)


def sets_with(rule, test, scores, limit, **settings):
    if rule == "True":
        return mapie_rule.including_last(test, scores, limit)
    if rule == "False":
        return mapie_rule.excluding_last(test, scores, limit)
    return mapie_rule.randomised_last(test, scores, limit, stream(len(test)), **settings)


@pytest.mark.parametrize("ties", ["", "_ties"])
@pytest.mark.parametrize("level", range(2))
def test_lac(ties, level, vectors):
    golden = vectors(f"golden/mapie/public{ties}.npz")
    data = vectors(f"golden/inputs/public{ties}_inputs.npz")
    miscoverage = list(LEVELS)[level]
    scores = true_label_scores(lac_scores(data["probs_cal"]), data["y_cal"])
    np.testing.assert_allclose(scores, golden["lac_illTrue__cal_scores"][:, 0], rtol=0, atol=1e-12)
    limit = conformal_quantile(scores, miscoverage=miscoverage)
    np.testing.assert_allclose(limit, golden["lac_illTrue__quantiles"][level], rtol=0, atol=1e-12)
    sets = mapie_rule.slack_sets(lac_scores(data["probs_test"]), limit)
    np.testing.assert_array_equal(sets, golden[f"lac_illTrue__sets_conf{LEVELS[miscoverage]}"])


@pytest.mark.parametrize("rule", ["True", "False", "randomized"])
@pytest.mark.parametrize("level", range(2))
def test_aps(rule, level, vectors, inputs):
    golden = vectors("golden/mapie/public.npz")
    miscoverage, key = list(LEVELS)[level], f"aps_ill{rule}"
    probabilities, test = inputs["probs_cal"], inputs["probs_test"]
    scores = true_label_scores(randomised_aps_scores(probabilities, stream(200)), inputs["y_cal"])
    np.testing.assert_allclose(scores, golden[f"{key}__cal_scores"][:, 0], rtol=0, atol=1e-12)
    limit = conformal_quantile(scores, miscoverage=miscoverage)
    np.testing.assert_allclose(limit, golden[f"{key}__quantiles"][level], rtol=0, atol=1e-12)
    sets = sets_with(rule, test, aps_scores(test), limit)
    np.testing.assert_array_equal(sets, golden[f"{key}__sets_conf{LEVELS[miscoverage]}"])


@pytest.mark.parametrize("level", range(2))
def test_aps_on_ties(level, vectors, tied_inputs, assert_same_up_to_ties):
    """Without randomisation tied labels enter together, so that sets do not depend on their order."""
    golden = vectors("golden/mapie/public_ties.npz")
    miscoverage = list(LEVELS)[level]
    probabilities, labels = tied_inputs["probs_cal"], tied_inputs["y_cal"]
    scores = true_label_scores(randomised_aps_scores(probabilities, stream(200)), labels)
    theirs = golden["aps_illTrue__cal_scores"][:, 0]
    assert_same_up_to_ties(scores, theirs, probabilities, labels)
    limit = conformal_quantile(theirs, miscoverage=miscoverage)
    assert limit == golden["aps_illTrue__quantiles"][level]
    test = tied_inputs["probs_test"]
    for rule in ("True", "False"):
        sets = sets_with(rule, test, aps_scores(test), limit)
        np.testing.assert_array_equal(sets, golden[f"aps_ill{rule}__sets_conf{LEVELS[miscoverage]}"], err_msg=rule)


@pytest.mark.parametrize("rule", ["True", "False", "randomized"])
@pytest.mark.parametrize("level", range(2))
def test_raps(rule, level, vectors, inputs):
    golden = vectors("golden/mapie/public.npz")
    miscoverage, key = list(LEVELS)[level], f"raps_ill{rule}"
    probabilities, labels, test = inputs["probs_cal"], inputs["y_cal"], inputs["probs_test"]
    splitter = StratifiedShuffleSplit(n_splits=1, test_size=0.1, random_state=7)
    rest, tuning = next(splitter.split(probabilities, labels))
    free_ranks = mapie_rule.tuned_free_ranks(probabilities[tuning], labels[tuning], miscoverage=miscoverage)
    assert free_ranks == golden[f"{key}__k_star"][level]
    penalty = mapie_rule.tuned_penalty(
        probabilities[tuning],
        labels[tuning],
        free_ranks=free_ranks,
        miscoverage=miscoverage,
        sets=mapie_rule.excluding_last if rule == "False" else mapie_rule.including_last,
    )
    assert penalty == golden[f"{key}__lambda_star"][level]
    settings = {"penalty": penalty, "free_ranks": free_ranks}
    base = randomised_aps_scores(probabilities[rest], stream(len(rest)))
    own = true_label_scores(base, labels[rest])
    np.testing.assert_allclose(own, golden[f"{key}__cal_scores"][:, 0], rtol=0, atol=1e-12)
    limit = conformal_quantile(
        true_label_scores(base + rank_penalty(probabilities[rest], **settings), labels[rest]), miscoverage=miscoverage
    )
    np.testing.assert_allclose(limit, golden[f"{key}__quantiles"][level], rtol=0, atol=1e-12)
    scores = aps_scores(test) + rank_penalty(test, **settings)
    sets = sets_with(rule, test, scores, limit, **settings)
    np.testing.assert_array_equal(sets, golden[f"{key}__sets_conf{LEVELS[miscoverage]}"])


@pytest.mark.parametrize("level", range(2))
def test_top_k(level, vectors, inputs):
    golden = vectors("golden/mapie/public.npz")
    miscoverage = list(LEVELS)[level]
    ranks = label_ranks(inputs["probs_cal"]) - 1.0
    own = true_label_scores(ranks, inputs["y_cal"])
    np.testing.assert_array_equal(own, golden["top_k_illTrue__cal_scores"][:, 0])
    limit = conformal_quantile(own, miscoverage=miscoverage)
    assert limit == golden["top_k_illTrue__quantiles"][level]
    sets = mapie_rule.slack_sets(label_ranks(inputs["probs_test"]) - 1.0, limit)
    np.testing.assert_array_equal(sets, golden[f"top_k_illTrue__sets_conf{LEVELS[miscoverage]}"])
