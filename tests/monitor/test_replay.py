from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta
from worlds import World, fit_quietly

from calcode import Calcode, Evidence, SupportAudit
from calcode.errors import CalcodeError, CalcodeWarning, RoleError
from calcode.method import audit as audit_module
from calcode.method.evidence import robust_probabilities
from calcode.monitor import miss_line, miss_lines, replay, watch_model
from calcode.site import SiteModel

WORLD = World()
ROLES = WORLD.roles(named=True)


@pytest.fixture(scope="module")
def model() -> Calcode:
    return fit_quietly(Calcode(), ROLES)


def clinic(n: int = 60, *, seed: int = 50, name: str = "clinic") -> Evidence:
    return WORLD.draw(n, seed=seed, name=name)  # two images to a group


def waiting(watch: Any, evidence: Evidence) -> list[str]:
    """Ids of the images that stand for their groups."""
    assert evidence.ids is not None
    return [name for name in evidence.ids.tolist() if watch.review(name, label=None)]


def test_a_home_model_is_watched_against_its_own_gate(model: Calcode) -> None:
    watch = watch_model(model, false_alarm=0.03)
    assert watch.support is not None
    assert model.audit_ is not None
    np.testing.assert_array_equal(watch.support.to_state()["values"], model.audit_.gate_distances.round(12))
    assert watch.support.alpha == pytest.approx(0.01)
    expected = {name: miss_line(n, miscoverage=0.05, margin=0.05) for name, n in model.n_accepted_per_class_.items()}
    assert miss_lines(model) == expected


def test_every_group_votes_with_one_image_and_never_again(model: Calcode) -> None:
    watch = watch_model(model)
    first = replay(watch, model, clinic())
    assert tuple(first) == (60, 0, 30, 0)
    assert tuple(replay(watch, model, clinic())) == (60, 60, 0, 0)
    # New images of the same patients are seen, and have no vote.
    visit = clinic(seed=51)
    assert visit.ids is not None
    again = Evidence(
        embeddings=visit.embeddings,
        prompt_logits=visit.prompt_logits,
        classes=visit.classes,
        ids=[f"later-{i}" for i in range(60)],
        groups=visit.groups,
    )
    assert tuple(replay(watch, model, again)) == (60, 0, 0, 0)
    assert watch.support is not None
    assert watch.support.reading.n == watch.answers.n == 30


def test_images_without_groups_vote_each_with_a_warning(model: Calcode) -> None:
    named = clinic(10)
    alone = Evidence(
        embeddings=named.embeddings, prompt_logits=named.prompt_logits, classes=named.classes, ids=named.ids
    )
    with pytest.warns(CalcodeWarning, match="patient of its own"):
        assert replay(watch_model(model), model, alone).votes == 10


def test_distances_and_sets_are_computed_for_representatives_alone(
    model: Calcode, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, int] = {}
    distances, decide = SupportAudit.distances, Calcode.decide

    def counted_distances(self: SupportAudit, evidence: Evidence) -> Any:
        seen["distances"] = len(evidence)
        return distances(self, evidence)

    def counted_decide(self: Calcode, evidence: Evidence) -> Any:
        seen["decide"] = len(evidence)
        return decide(self, evidence)

    monkeypatch.setattr(SupportAudit, "distances", counted_distances)
    monkeypatch.setattr(Calcode, "decide", counted_decide)
    replay(watch_model(model), model, clinic())
    assert seen == {"distances": 30, "decide": 30}


def test_a_decision_that_needs_no_distances_does_not_pay_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fit_quietly(Calcode(audit=("msp",)), ROLES)
    assert model.audit_ is not None
    assert model.audit_.gate_distances is not None

    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("distances were computed")

    monkeypatch.setattr(audit_module, "nearest_distances", forbidden)
    monkeypatch.setattr(audit_module, "ScreenedAnchors", forbidden)
    model.decide(clinic())
    with pytest.raises(AssertionError, match="distances"):
        replay(watch_model(model), model, clinic())


def test_what_was_decided_is_what_counts(model: Calcode) -> None:
    evidence = clinic()
    decided = model.decide(evidence)
    full = np.ones_like(decided.sets)
    given = replace(decided, sets=full, reason=np.zeros_like(decided.reason), action=np.ones_like(decided.action))
    watch = watch_model(model)
    replay(watch, model, evidence, decisions=given)
    assert tuple(watch.answers) == (30, 0, 30, 120)
    own = watch_model(model)
    replay(own, model, evidence)
    assert own.answers != watch.answers


def test_scores_are_one_minus_the_robust_probability_of_the_label(model: Calcode) -> None:
    evidence = clinic()
    watch = watch_model(model)
    replay(watch, model, evidence)
    robust = robust_probabilities(evidence.prompt_logits, trim=1)
    assert evidence.ids is not None
    row = next(i for i, name in enumerate(evidence.ids.tolist()) if watch.review(name, label=2))
    if watch.classes["c2"].counts.n:
        (value,) = watch.classes["c2"].scores.to_state()["values"]
        assert value == pytest.approx(1 - robust[row, 2], abs=1e-11)


def test_the_representative_comes_from_the_first_visit(model: Calcode) -> None:
    evidence = clinic()
    visits = np.arange(60) // 2  # the two images of a patient on the same day
    days = [f"day {visit:02d}" for visit in visits]
    apart = [f"day {i:02d}" for i in range(60)]  # on two days
    watches = [watch_model(model) for _ in range(3)]
    replay(watches[0], model, evidence, times=days, secret=b"a")
    replay(watches[1], model, evidence, times=days, secret=b"b")
    replay(watches[2], model, evidence, times=apart, secret=b"b")
    drawn = [waiting(watch, evidence) for watch in watches]
    assert drawn[0] != drawn[1]
    assert evidence.ids is not None
    assert drawn[2] == evidence.ids[::2].tolist()
    assert watches[2].seen_until == "day 59"


def test_images_of_another_model_or_of_the_fitted_roles_are_refused(model: Calcode) -> None:
    other = fit_quietly(Calcode(deferral_level=0.1), ROLES)
    with pytest.raises(CalcodeError, match="not the one whose monitors"):
        replay(watch_model(model), other, clinic())
    with pytest.raises(CalcodeError, match="made by another model"):
        replay(watch_model(model), model, clinic(), decisions=other.decide(clinic()))
    with pytest.raises(RoleError, match="gate"):
        replay(watch_model(model), model, ROLES["gate"])
    with pytest.raises(CalcodeError, match="ids"):
        replay(watch_model(model), model, WORLD.draw(5, seed=3))


def test_a_refused_replay_leaves_no_trace(model: Calcode) -> None:
    watch = watch_model(model)
    before = watch.to_state()
    with pytest.raises(RoleError):
        replay(watch, model, ROLES["gate"])
    assert watch.to_state() == before


@pytest.fixture(scope="module")
def site(model: Calcode) -> SiteModel:
    reviewed, gate = clinic(300, seed=60, name="reviewed"), clinic(120, seed=61, name="gate-of-site")[::2]
    return SiteModel(model, sampling={"c0": "coin", "c1": "consecutive", "c2": "archive", "c3": "coin"}).fit(
        reviewed=reviewed, gate=gate
    )


def test_a_site_model_is_watched_against_the_gate_and_the_bag_of_the_site(site: SiteModel) -> None:
    watch = watch_model(site)
    assert watch.support is not None
    assert site.gate_distances_ is not None
    np.testing.assert_array_equal(watch.support.to_state()["values"], site.gate_distances_.round(12))
    # The first calibration of a site is a recalibration: M3 begins with half of its share.
    for name, entry in watch.classes.items():
        assert entry.scores.alpha == pytest.approx(0.01 / 3 / 4)
        assert entry.coverage.alpha == pytest.approx(0.01 / 3 / 4 / 2)
        assert entry.coverage.line == miss_line(site.counts_[name], miscoverage=0.05)
        reference = [] if name == "c2" else sorted(site.bag_scores_[name].round(12).tolist())
        state = entry.scores.to_state()
        assert state["values"] == reference
        assert state["n_first"] == (20 if name == "c2" else 0)


def test_the_line_is_that_of_the_labels_that_calibrate(model: Calcode) -> None:
    thinned = SiteModel(model, sampling="coin", slack="thin").fit(reviewed=clinic(300, seed=60, name="reviewed"))
    # At 0.05 thinning leaves 19, 39, 59, ... labels, and the miss rate of one bag is wider than with all of them.
    calibrating = {name: 20 * ((n + 1) // 20) - 1 if n >= 19 else n for name, n in thinned.counts_.items()}
    assert 19 in calibrating.values()
    assert calibrating != thinned.counts_
    assert miss_lines(thinned) == {name: miss_line(n, miscoverage=0.05) for name, n in calibrating.items()}


def test_the_line_of_the_assured_form_follows_its_own_rank(model: Calcode) -> None:
    assured = SiteModel(model, sampling="coin", assurance=0.5).fit(reviewed=clinic(600, seed=60, name="reviewed"))
    labels = assured.bag_.labels
    calibrating = np.random.default_rng(0).permutation(len(labels))[round(0.4 * len(labels)) :]
    expected = {}
    for k, name in enumerate(assured.classes_):
        n = int((labels[calibrating] == k).sum())
        # Half of the failure probability is spent at the first look: 1 - failure = 0.75.
        ranks = [r for r in range(1, n + 1) if beta.sf(0.95, r, n + 1 - r) >= 0.75]
        expected[name] = max(0.1, 1 - beta.ppf(0.005, ranks[0], n + 1 - ranks[0])) if ranks else 0.1
    assert miss_lines(assured) == pytest.approx(expected)
    assert 0.1 < max(expected.values()) < 0.17


def test_groups_of_the_bag_and_the_gate_have_no_vote(site: SiteModel) -> None:
    watch = watch_model(site)
    new = clinic(20, seed=70, name="new")
    assert tuple(replay(watch, site, new)) == (20, 0, 10, 0)
    # Reviewed cases that the audit rejected are in no reference.
    bag = replay(watch, site, clinic(300, seed=60, name="reviewed"))
    assert (bag.votes, bag.in_model) == (site.n_rejected_, len(site.bag_ids_ or ()))
    gate = replay(watch, site, clinic(120, seed=61, name="gate-of-site"))
    assert (gate.votes, gate.in_model) == (0, 60)


def test_a_site_model_without_a_gate_has_support_off(model: Calcode) -> None:
    bare = SiteModel(model, sampling="coin").fit(reviewed=clinic(300, seed=60, name="reviewed"))
    watch = watch_model(bare)
    assert watch.support is None
    assert replay(watch, bare, clinic(20, seed=70, name="new")).votes == 10


def test_the_home_gate_alarms_at_a_new_site_and_the_site_gate_does_not(model: Calcode) -> None:
    def elsewhere(n: int, *, seed: int, name: str) -> Evidence:
        return WORLD.draw(n, seed=seed, shift=-3.0, name=name)

    site = SiteModel(model, sampling="coin").fit(
        reviewed=elsewhere(400, seed=80, name="reviewed"), gate=elsewhere(200, seed=81, name="gate-of-site")[::2]
    )
    stream = elsewhere(400, seed=82, name="stream")
    home_watch, site_watch = watch_model(model), watch_model(site)
    replay(home_watch, model, stream)
    replay(site_watch, site, stream)
    assert [alarm.monitor for alarm in home_watch.alarms] == ["M1"]
    assert site_watch.alarms == []
