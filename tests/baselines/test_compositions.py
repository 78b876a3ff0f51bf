"""The supporting tables' methods and the ablations: each is what its name says, built from the same parts."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from worlds import World, fit_quietly

from calcode import Calcode, CalcodeError, CalcodeWarning, Evidence
from calcode.baselines import METHODS, Roles
from calcode.baselines.split import robust
from calcode.baselines.support import accepted_by, fitted_audit
from calcode.kernels import nearest_distances
from calcode.method.audit import neighbour_distance, rank_p_values
from calcode.method.quantiles import conformal_quantile
from calcode.method.scores import aps_scores, label_sets, true_label_scores

MISCOVERAGE = 0.1


@pytest.fixture(scope="module")
def drawn():
    world = World(spread=0.9, prior=(0.55, 0.3, 0.1, 0.05))
    everything = world.roles(n=250, n_test=150, seed=1)
    test = everything.pop("test")
    return everything, test


def predicted(name, drawn):
    everything, test = drawn
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)  # small guarded classes are not the subject
        return METHODS[name].predict(Roles(**everything), test, miscoverage=MISCOVERAGE, random_state=0)


def decided(drawn, **changes):
    everything, test = drawn
    model = Calcode(miscoverage=MISCOVERAGE, guard_miscoverage=MISCOVERAGE, **changes)
    return fit_quietly(model, everything).decide(test)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("calcode", {}),
        ("calcode-paper-sets", {"keep_top": False}),
        ("calcode-no-guard", {"protect": "none"}),
        ("calcode-guard-all", {"protect": "all"}),
        ("calcode-no-audit", {"audit": None}),
        ("calcode-no-localization", {"bandwidth": math.inf}),
        ("calcode-no-trimming", {"trim": 0}),
        ("localized-calibration", {"protect": "none", "keep_top": False}),
    ],
)
def test_is_the_model_without_that_part(name, changes, drawn):
    found, wanted = predicted(name, drawn), decided(drawn, **changes)
    np.testing.assert_array_equal(found.sets, wanted.sets)
    np.testing.assert_array_equal(found.accepted, wanted.accepted)
    np.testing.assert_array_equal(found.p_values, wanted.p_audit)
    np.testing.assert_array_equal(found.top_label, wanted.top_label)


def test_the_parts_matter(drawn):
    """Otherwise the comparisons above would hold for any composition."""
    whole = predicted("calcode", drawn)
    for name in ("no-guard", "guard-all", "no-localization", "no-trimming"):
        assert (predicted(f"calcode-{name}", drawn).sets != whole.sets).any(), name
    assert whole.deferred.any()
    assert not predicted("calcode-no-audit", drawn).deferred.any()


def test_global_calibration_is_split_aps_on_accepted_images(drawn):
    everything, test = drawn
    found = predicted("global-calibration", drawn)
    audit = fitted_audit(Roles(**everything), random_state=0)
    calibration = everything["calibration"]
    kept = accepted_by(audit.p_values(calibration))
    assert 0 < kept.sum() < len(kept)
    own = true_label_scores(aps_scores(robust(calibration)), calibration.labels)[kept]
    threshold = conformal_quantile(own, miscoverage=MISCOVERAGE)
    np.testing.assert_array_equal(found.sets, label_sets(aps_scores(robust(test)), threshold))
    np.testing.assert_array_equal(found.deferred, audit.p_values(test) < 0.05)


def far_images_wrong(everything):
    """The same roles with validation labels that are wrong for images far from the reference, and right for others."""
    validation = everything["validation"]
    right = robust(validation).argmax(axis=1)
    distances = neighbour_distance(validation.embeddings, reference=everything["reference"].embeddings, n_neighbors=10)
    labels = np.where(distances > np.quantile(distances, 0.8), (right + 1) % 4, right)
    relabelled = Evidence(
        embeddings=validation.embeddings,
        prompt_logits=validation.prompt_logits,
        labels=labels,
        classes=validation.classes,
    )
    return everything | {"validation": relabelled}


def test_mean_support_differs_in_the_audit_alone(drawn):
    everything, test = far_images_wrong(drawn[0]), drawn[1]
    found, median = (predicted(name, (everything, test)) for name in ("mean-support", "localized-calibration"))
    assert found.details["diagnostic"] == median.details["diagnostic"] == "distance"
    nearest = {
        role: nearest_distances(evidence.embeddings, everything["reference"].embeddings, n_neighbors=10)
        for role, evidence in (("gate", everything["gate"]), ("test", test))
    }
    for prediction, average in ((found, np.mean), (median, np.median)):
        gate = np.sort(average(nearest["gate"], axis=1))
        p_values = rank_p_values(average(nearest["test"], axis=1), sorted_gate=gate)
        np.testing.assert_array_equal(prediction.p_values, p_values)
    assert (found.p_values != median.p_values).any()
    np.testing.assert_array_equal(found.top_label, median.top_label)


def test_what_the_paper_does_not_define_is_on_record_and_does_not_run(drawn):
    everything, test = drawn
    method = METHODS["no-semantic-term"]
    assert not method.record.reproducible
    assert "not reproducible" in method.record.title
    with pytest.raises(CalcodeError, match="methods: 'no-semantic-term' cannot be run"):
        method.predict(Roles(**everything), test, miscoverage=0.1, random_state=0)
