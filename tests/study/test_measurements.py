"""The parts of experiments that compute something of their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from worlds import World

from calcode.baselines.protocol import Roles
from calcode.baselines.support import single_audits, top_one_errors
from calcode.cohorts import Cohort
from calcode.method.audit import DIAGNOSTICS, SupportAudit, auroc
from calcode.method.decisions import COST_REGIMES
from calcode.method.evidence import robust_probabilities
from calcode.method.operating_point import select_operating_point
from calcode.study.cohorts import SettingCohorts
from calcode.study.experiments import audit_stability, cross_modal, geometry, monitoring, neighbours, operating_points
from calcode.study.specification import Setting


@pytest.fixture(scope="module")
def roles() -> Roles:
    drawn = World(spread=0.8).roles(n=120)
    return Roles(**{name: evidence for name, evidence in drawn.items() if name != "test"})


def test_single_audits_are_the_candidates_of_the_audit(roles) -> None:
    whole = SupportAudit.fit(reference=roles.reference, validation=roles.validation, gate=roles.gate)
    errors = top_one_errors(roles.validation)
    audits = single_audits(roles, random_state=0)
    assert list(audits) == list(DIAGNOSTICS)
    found = {name: auroc(audit.statistic(roles.validation), errors) for name, audit in audits.items()}
    assert found == pytest.approx(whole.aurocs)
    assert audit_stability.chosen(found) == whole.name


def test_stability_counts_selections() -> None:
    rng = np.random.default_rng(0)
    errors = rng.random(200) < 0.4
    telling = errors + 0.1 * rng.random(200)
    noise = rng.random(200)
    found = audit_stability.selection_frequencies({"noise": noise, "telling": telling}, errors, n_resamples=50, seed=1)
    assert found == {"noise": 0.0, "telling": 1.0}
    tied = audit_stability.selection_frequencies({"a": noise, "b": noise}, errors, n_resamples=20, seed=1)
    assert tied == {"a": 1.0, "b": 0.0}


def test_the_disagreement_by_hand(roles) -> None:
    audits = cross_modal.disagreement_audits(roles, trim=1, n_neighbors=10)
    plain, fused = audits[cross_modal.DISAGREEMENT], audits[cross_modal.FUSED]
    image = roles.validation[7]
    robust = robust_probabilities(image.prompt_logits, trim=1)[0]
    label = int(robust.argmax())
    own = roles.reference.embeddings[roles.reference.labels == label]
    distances = np.sort(1 - own @ image.embeddings[0])[:10]
    expected = robust.max() * np.median(distances)
    assert plain.statistic(image)[0] == pytest.approx(expected)
    gate = plain.statistic(roles.gate)
    rank = (1 + (gate >= expected - 1e-9).sum()) / (len(gate) + 1)
    assert plain.p_values(image)[0] == pytest.approx(rank)
    four = SupportAudit.fit(
        reference=roles.reference, validation=roles.validation, gate=roles.gate, candidates=("fused",)
    )
    assert fused.statistic(image)[0] == pytest.approx(max(four.statistic(image)[0], 1 - rank))


def test_repriced_points_are_those_of_a_new_selection(roles) -> None:
    given_roles = {"reference": roles.reference, "validation": roles.validation, "gate": roles.gate}
    scored = select_operating_point(**given_roles, costs="balanced")
    for regime, costs in COST_REGIMES.items():
        anew = select_operating_point(**given_roles, costs=regime)
        found = operating_points.repriced(scored, costs, n_classes=4)
        assert (found.chosen, found.relaxed, found.points) == (anew.chosen, anew.relaxed, anew.points)


def test_class_distances_look_at_the_own_class_alone(roles) -> None:
    image = roles.validation[3]
    label = int(image.require_labels()[0])
    own = roles.reference.embeddings[roles.reference.labels == label]
    expected = np.median(np.sort(1 - own @ image.embeddings[0])[:10])
    assert geometry.class_distances(image, reference=roles.reference)[0] == pytest.approx(expected)
    others = roles.reference[roles.reference.require_labels() != label]
    assert np.isnan(geometry.class_distances(image, reference=others)[0])


def test_the_probe_tells_cohorts_apart_only_where_they_differ() -> None:
    rng = np.random.default_rng(0)
    same, other = rng.normal(size=(200, 5)), rng.normal(size=(200, 5))
    assert abs(geometry.domain_probe(same, other, seed=0) - 0.5) < 0.12
    assert geometry.domain_probe(same, other + 5, seed=0) > 0.99
    assert np.isnan(geometry.domain_probe(same[:3], other, seed=0))


def test_neighbours_of_a_library_are_judged_by_the_exact_ones(roles) -> None:
    queries, reference = roles.validation.embeddings, roles.reference.embeddings
    truth = neighbours.exact_neighbours(queries, reference)
    expected = np.argsort(1 - queries @ reference.T, axis=1)[:, :10]
    assert [set(row) for row in truth.tolist()] == [set(row) for row in expected.tolist()]
    assert neighbours.agreement(queries, reference, found=truth, truth=truth) == {
        "recall_at_10": 1.0,
        "support_error_p95": 0.0,
    }
    worse = truth.copy()
    worse[:, 0] = (truth.max(axis=1) + 1) % len(reference)
    hit = (worse[:, :1] == truth).any(axis=1).mean()
    assert neighbours.agreement(queries, reference, found=worse, truth=truth)["recall_at_10"] == pytest.approx(
        0.9 + 0.1 * hit
    )


def test_an_hnsw_graph_finds_most_neighbours(roles) -> None:
    search = neighbours.hnsw_search(roles.reference.embeddings)
    assert (search is not None) is neighbours.library_installed()
    if search is None:
        pytest.skip("calcode[ann] is not installed")
    queries = roles.validation.embeddings
    truth = neighbours.exact_neighbours(queries, roles.reference.embeddings)
    found = neighbours.agreement(queries, roles.reference.embeddings, found=search(queries), truth=truth)
    assert found["recall_at_10"] > 0.95


def test_the_disagreement_without_reference_images_of_the_class(roles) -> None:
    label = int(robust_probabilities(roles.validation[7].prompt_logits, trim=1).argmax())
    without = replace(roles, reference=roles.reference[roles.reference.require_labels() != label])
    audit = cross_modal.disagreement_audits(without, trim=1, n_neighbors=10)[cross_modal.DISAGREEMENT]
    robust = robust_probabilities(roles.validation[7].prompt_logits, trim=1)
    assert audit.statistic(roles.validation[7])[0] == pytest.approx(2.0 * robust.max())


@pytest.mark.parametrize("shifted", [True, False])
def test_monitors_of_a_combination(shifted: bool) -> None:
    world = World(n_classes=3)
    drawn = world.roles(n=160, n_test=160, named=True)
    cohorts = SettingCohorts(
        setting=Setting(name="X", target={"role": "test"}, shifted=shifted),
        roles=Roles(**{name: evidence for name, evidence in drawn.items() if name != "test"}),
        target=Cohort(evidence=world.draw(400, seed=77, shift=-3.0, name="away")),
        out_of_space=None,
        held_out=Cohort(evidence=drawn["test"]),
    )
    rows = monitoring.measure(cohorts, {"seed": 0, "n_streams": 6})
    found = {(row["monitor"], row["statistic"], row["audit_rate"], row["votes"]): row for row in rows}
    assert len(found) == len(rows) == 9
    one = [row for row in rows if row["votes"] == "one image per group"]
    assert sum(row["false_alarms"] for row in one) <= 1 / 6
    distance = found["M1", "distance", 0.0, "one image per group"]
    if shifted:
        assert distance["detected"] == 1.0
        assert 5 <= distance["median_delay"] <= 40
    else:
        assert all(np.isnan(row["detected"]) and np.isnan(row["median_delay"]) for row in rows)


def test_without_held_out_images_there_is_nothing_to_monitor(roles) -> None:
    cohorts = SettingCohorts(
        setting=Setting(name="X", target={"role": "test"}),
        roles=roles,
        target=Cohort(evidence=roles.gate),
        out_of_space=None,
        held_out=None,
    )
    assert monitoring.measure(cohorts, {"seed": 0, "n_streams": 2}) == []
