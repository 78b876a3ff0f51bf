"""`SiteModel` against SITE.md read aloud: draws, sums, levels, known groups, audit and decisions."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta
from site_refits import refit, refitted_p_values
from site_refits import score as refitted_score
from worlds import World

from calcode import Action, Calcode, CalcodeWarning, Evidence, Reason
from calcode.errors import EvidenceError, MismatchError, NotFittedError, RoleError, SettingsError
from calcode.method.audit import neighbour_distance
from calcode.method.evidence import one_per_group
from calcode.metrics.wording import percent
from calcode.site import SiteModel
from calcode.site.assured import exclusion_levels
from calcode.site.explain import explain_site


def fitted(
    home: Calcode | None, reviewed: Evidence, *, fit: dict[str, Any] | None = None, **settings: Any
) -> SiteModel:
    """Fit where warnings about small classes are not what is being tested."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        return SiteModel(home, **({"sampling": "consecutive"} | settings)).fit(reviewed=reviewed, **(fit or {}))


def phi(evidence: Evidence) -> np.ndarray:
    """[1, 4 z, 0.5 clr(log(p_rob + 1e-6))], trim 1, written out."""
    rows = []
    for z, logits in zip(evidence.embeddings, evidence.prompt_logits, strict=True):
        per_prompt = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        kept = np.sort(per_prompt, axis=0)[1:-1].mean(axis=0)
        logs = np.log(kept / (kept.sum() + 1e-12) + 1e-6)
        rows.append(np.concatenate([[1.0], 4 * z, 0.5 * (logs - logs.mean())]))
    return np.array(rows)


def home_prior(
    roles: dict[str, Evidence], *, weight: float = 200.0, ridge: float = 3.0
) -> tuple[np.ndarray, np.ndarray]:
    features = np.concatenate([phi(roles[name]) for name in ("reference", "validation", "calibration")])
    labels = np.concatenate([roles[name].labels for name in ("reference", "validation", "calibration")])
    outer = weight / len(labels) * sum(np.outer(row, row) for row in features) + ridge * np.eye(features.shape[1])
    return outer, weight / len(labels) * features.T @ np.eye(3)[labels]


def drawn_rows(reviewed: Evidence, *, seed: int = 0) -> list[int]:
    """One row per group, as SITE.md S1 says, label -1 left out afterwards."""
    rng = np.random.default_rng(seed)
    rows = []
    for group in sorted(set(reviewed.groups.tolist())):
        own = [i for i, name in enumerate(reviewed.groups) if name == group]
        rows.append(own[rng.integers(len(own))])
    return [row for row in rows if reviewed.labels[row] >= 0]


def test_p_values_are_those_of_the_page(
    home: Calcode, roles: dict[str, Evidence], reviewed: Evidence, images: Evidence
) -> None:
    few = reviewed[:80]
    site = fitted(home, few, miscoverage=0.2)
    rows = drawn_rows(few)
    expected = refitted_p_values(
        home_prior(roles), phi(few)[rows], few.labels[rows], phi(images)[:6], delta=np.full(3, 0.2)
    )
    np.testing.assert_allclose(site.p_values(images[:6]), expected, atol=1e-9)
    assert site.bag_ids_ == tuple(few.ids[rows])
    assert site.counts_ == dict(zip(few.classes, np.bincount(few.labels[rows]).tolist(), strict=True))


def test_trainers_join_the_prior_with_weight_one(
    home: Calcode, roles: dict[str, Evidence], reviewed: Evidence, images: Evidence
) -> None:
    few, trainers = reviewed[:60], reviewed[100:140]
    outside = trainers._replace(labels=np.where(np.arange(40) < 5, -1, trainers.labels))
    site = fitted(home, few, fit={"trainers": outside}, miscoverage=0.2, home_weight=50.0, ridge=1.0)
    trainers = trainers[5:]  # labels of -1 do not train
    assert site.n_trainers_ == 35
    outer, by_class = home_prior(roles, weight=50.0, ridge=1.0)
    more = phi(trainers)
    prior = outer + more.T @ more, by_class + more.T @ np.eye(3)[trainers.labels]
    rows = drawn_rows(few)
    expected = refitted_p_values(prior, phi(few)[rows], few.labels[rows], phi(images)[:4], delta=np.full(3, 0.2))
    np.testing.assert_allclose(site.p_values(images[:4]), expected, atol=1e-9)
    with pytest.raises(RoleError, match="trainers: .* belong to groups of the reviewed cases"):
        fitted(home, few, fit={"trainers": few[:4]})


def test_the_drawn_row_decides_about_its_group_alone(home: Calcode, reviewed: Evidence) -> None:
    labels = reviewed.labels.copy()
    labels[::4] = -1
    marked = Evidence(
        embeddings=reviewed.embeddings,
        prompt_logits=reviewed.prompt_logits,
        labels=labels,
        classes=reviewed.classes,
        ids=reviewed.ids,
        groups=reviewed.groups,
    )
    site = fitted(home, marked, random_state=5)
    rows = drawn_rows(marked, seed=5)
    assert site.bag_ids_ == tuple(marked.ids[rows])
    # Where the draw fell on a row outside the label space, the group's other row does not stand in.
    assert len(rows) < 150
    assert site.n_outside_ == 150 - len(rows)


def test_the_same_image_alone_and_among_others(home: Calcode, reviewed: Evidence, images: Evidence) -> None:
    site = fitted(home, reviewed)
    together = site.p_values(images)
    alone = np.concatenate([site.p_values(images[[i]]) for i in range(len(images))])
    np.testing.assert_array_equal(together, alone)


def test_a_patient_of_the_bag_is_judged_without_his_row(home: Calcode, reviewed: Evidence) -> None:
    site = fitted(home, reviewed[:200], miscoverage=0.1)
    returning = reviewed[6:8]
    decisions = site.decide(returning)
    assert decisions.known_group.tolist() == [True, True]
    others = [i for i in range(200) if reviewed.groups[i] != returning.groups[0]]
    drawn = set(site.bag_ids_)
    kept = [i for i in others if reviewed.ids[i] in drawn]
    without = fitted(home, reviewed[kept], miscoverage=0.1)
    np.testing.assert_allclose(site.p_values(returning), without.p_values(returning), atol=1e-12)


def test_groups_of_trainers_and_gate_are_known_and_not_taken_out(
    home: Calcode, reviewed: Evidence, images: Evidence
) -> None:
    site = fitted(home, reviewed[:100], fit={"trainers": reviewed[100:120], "gate": reviewed[120:180]}, audit="off")
    decisions = site.decide(reviewed[[100, 120, 200]])
    assert decisions.known_group.tolist() == [True, True, False]
    assert not site.decide(images).known_group.any()


def test_a_patient_who_returns_is_told_that_too_few_cases_are_left(home: Calcode, reviewed: Evidence) -> None:
    one_each = reviewed[one_per_group(reviewed, random_state=0)]
    labels = one_each.require_labels()
    rows = np.concatenate([np.flatnonzero(labels == k)[:count] for k, count in enumerate((30, 25, 19))])
    site = SiteModel(home, sampling="archive").fit(reviewed=one_each[rows])
    assert site.silenced_classes_ == ()
    explained = explain_site(one_each[rows[-1:]], model=site)
    because = {verdict.name: verdict.because for verdict in explained.verdicts}
    assert [name for name, text in because.items() if "own case" in text] == [site.classes_[2]]
    # The class is kept by rule and not for its fit: it is not shown as the best one.
    assert explained.verdicts[-1].name == site.classes_[2]
    assert "own case" not in str(explain_site(one_each[rows[:1]], model=site).verdicts)


def test_a_class_in_every_set_is_explained_last_and_called_so(
    home: Calcode, reviewed: Evidence, images: Evidence
) -> None:
    one_each = reviewed[one_per_group(reviewed, random_state=0)]
    labels = one_each.require_labels()
    rows = np.concatenate([np.flatnonzero(labels == k)[:count] for k, count in enumerate((30, 25, 4))])
    with pytest.warns(CalcodeWarning):
        site = SiteModel(home, sampling="archive", audit="off").fit(reviewed=one_each[rows])
    assert site.silenced_classes_ == ("c2",)
    said = set()
    for i in range(len(images)):
        found = explain_site(images[i : i + 1], model=site)
        assert found.verdicts[-1].name == "c2"
        assert "in every set: 4 reviewed cases are too few" in found.verdicts[-1].because
        said.add(found.answer)
    assert "2 of 3 diagnoses remain possible: c0 (and c2, which is in every set)." in said
    assert not {"One diagnosis: c2."} & said


def test_decisions_say_what_the_p_values_say(home: Calcode, reviewed: Evidence, images: Evidence) -> None:
    site = fitted(home, reviewed, miscoverage={"c0": 0.05, "c1": 0.1})
    decisions = site.decide(images)
    p_values = site.p_values(images)
    delta = np.array([0.05, 0.1, 0.05])
    np.testing.assert_array_equal(decisions.sets, p_values > delta + 1e-12)
    np.testing.assert_array_equal(decisions.sets, decisions.scores <= decisions.threshold)
    np.testing.assert_array_equal(decisions.sets, decisions.localized_sets)
    np.testing.assert_array_equal(decisions.scores, 1 - p_values)
    np.testing.assert_allclose(decisions.threshold, np.tile(1 - delta - 1e-12, (40, 1)))
    size = decisions.sets.sum(axis=1)
    assert ((decisions.action == Action.DEFER) == (size == 0)).all()
    assert (decisions.reason[size == 0] == Reason.EMPTY_SET).all()
    weights = refit(site.prior_outer_, site.prior_by_class_, site.bag_.features, site.bag_.labels)
    np.testing.assert_array_equal(decisions.top_label, (phi(images) @ weights).argmax(axis=1))
    assert decisions.model_digest == site.digest_
    assert (decisions.p_audit == 1).all()


@pytest.mark.parametrize(("n", "silenced"), [(18, True), (19, False)])
def test_a_class_with_18_and_with_19_labels(home: Calcode, reviewed: Evidence, n: int, silenced: bool) -> None:
    one_each = reviewed[::2]
    rows = np.concatenate([np.flatnonzero(one_each.labels == 0), np.flatnonzero(one_each.labels == 1)[:n]])
    with pytest.warns(CalcodeWarning) as caught:
        site = SiteModel(home, sampling="consecutive").fit(reviewed=one_each[rows])
    # An empty class is in every set, and said.
    assert site.silenced_classes_ == (("c1", "c2") if silenced else ("c2",))
    texts = [str(warning.message) for warning in caught]
    assert any("c2: 0 reviewed labels and 19 needed at 0.95" in text for text in texts)
    assert any(f"c1: {n} reviewed labels" in text for text in texts) == silenced
    assert f"c1 {n}" in repr(site)
    assert any("In every set: 'c2'" in sentence for sentence in site.promises_)


def test_levels_by_count_and_thinning_together(home: Calcode, reviewed: Evidence, images: Evidence) -> None:
    one_each = reviewed[::2]
    rows = np.concatenate([np.flatnonzero(one_each.labels == k)[:n] for k, n in ((0, 36), (1, 13), (2, 8))])
    chosen = one_each[rows]
    site = fitted(home, chosen, rare="count", slack="thin", random_state=4)
    assert site.levels_ == pytest.approx({"c0": 0.05, "c1": 1 / 14, "c2": 0.05})
    assert site.silenced_classes_ == ("c2",)
    # The bag stands in sorted group order; the first 19 of class 0 in the permutation calibrate.
    order = np.argsort(chosen.groups, kind="stable")
    labels = chosen.labels[order]
    permutation = np.random.default_rng([4, 1]).permutation(57)
    calibrates = np.isin(np.arange(57), [i for i in permutation if labels[i] == 0][:19]) | (labels != 0)
    np.testing.assert_array_equal(site.ranking_.bag.calibrates, calibrates)
    delta = np.array([0.05, 1 / 14, 0.05])
    prior = site.prior_outer_, site.prior_by_class_
    expected = refitted_p_values(prior, phi(chosen)[order], labels, phi(images)[:4], delta=delta, calibrates=calibrates)
    np.testing.assert_allclose(site.p_values(images[:4]), expected, atol=1e-9)
    np.testing.assert_array_equal(site.decide(images[:4]).sets, expected > delta + 1e-12)
    protected = fitted(home, chosen, rare="count", always_protect=["c1"])
    assert protected.silenced_classes_ == ("c1", "c2")


def test_review_probabilities(home: Calcode, reviewed: Evidence, images: Evidence) -> None:
    few = reviewed[:60]
    e = np.random.default_rng(1).uniform(0.1, 1, size=60)
    own = np.random.default_rng(2).uniform(0.1, 1, size=4)
    site = fitted(home, few, fit={"e": e}, sampling="coin", calibrate_with="weighted", miscoverage=0.2)
    rows = drawn_rows(few)
    expected = refitted_p_values(
        (site.prior_outer_, site.prior_by_class_),
        phi(few)[rows],
        few.labels[rows],
        phi(images)[:4],
        delta=np.full(3, 0.2),
        weights=1 / e[rows],
        image_weights=1 / own,
    )
    np.testing.assert_allclose(site.p_values(images[:4], own), expected, atol=1e-9)
    assert (site.p_values(images[:4], np.zeros(4)) == 1).all()
    with pytest.raises(SettingsError, match="e: .* every image to be decided"):
        site.decide(images)
    with pytest.raises(EvidenceError, match="between above 0 and 1"):
        fitted(home, few, fit={"e": np.zeros(60)}, sampling="coin", calibrate_with="weighted")
    with pytest.raises(EvidenceError, match=r"e: shape \(3,\)"):
        site.p_values(images, np.ones(3))


def test_taking_all_reviewed_cases_is_refused_unless_review_was_even(home: Calcode, reviewed: Evidence) -> None:
    for e in (None, np.linspace(0.1, 1, 300)):
        with pytest.raises(SettingsError, match="costs the malignant classes 2 to 7 points"):
            fitted(home, reviewed, fit={"e": e}, sampling="coin", calibrate_with="all")
    fitted(home, reviewed, fit={"e": np.full(300, 0.3)}, sampling="coin", calibrate_with="all")


def test_review_probabilities_that_are_not_used_are_said(home: Calcode, reviewed: Evidence, images: Evidence) -> None:
    with pytest.warns(CalcodeWarning, match="e: not used, because calibrate_with='coin'"):
        given = SiteModel(home, sampling="coin").fit(reviewed=reviewed, e=np.linspace(0.1, 1, 300))
    np.testing.assert_array_equal(given.p_values(images), fitted(home, reviewed, sampling="coin").p_values(images))


def test_the_assured_form_is_a_split(home: Calcode, reviewed: Evidence, images: Evidence) -> None:
    reviewed = reviewed[:264]  # 132 patients: round(52.8) of them train
    site = fitted(home, reviewed, assurance=0.9, random_state=2, fit={"look": 1})
    rows = drawn_rows(reviewed, seed=2)
    features, labels = phi(reviewed)[rows], reviewed.labels[rows]
    order = np.random.default_rng(2).permutation(len(rows))
    training, calibrating = order[: round(0.4 * len(rows))], order[round(0.4 * len(rows)) :]
    weights = refit(site.prior_outer_, site.prior_by_class_, features[training], labels[training])
    sets = site.decide(images).sets
    for k in range(3):
        own = [refitted_score(weights, features[i], k, 2.0) for i in calibrating if labels[i] == k]
        n = len(own)
        enough = [r for r in range(1, n + 1) if beta.sf(0.95, r, n + 1 - r) >= 1 - 0.05]
        threshold = sorted(own)[enough[0] - 1] if enough else np.inf
        expected = [refitted_score(weights, row, k, 2.0) <= threshold for row in phi(images)]
        np.testing.assert_array_equal(sets[:, k], expected)
        # The p-value is the smallest level at which the label would leave the set.
        image_scores = np.array([refitted_score(weights, row, k, 2.0) for row in phi(images)[:5]])
        levels = site.p_values(images[:5])[:, k]
        for image_score, level in zip(image_scores, levels, strict=True):
            below = int(np.sum(np.array(own) < image_score - 1e-12))
            if below:
                assert beta.sf(1 - level - 1e-9, below, n + 1 - below) >= 0.95
                assert beta.sf(1 - level + 1e-9, below, n + 1 - below) <= 0.95
            else:
                assert level == 1.0


def test_the_assured_form_takes_a_returning_patient_out(home: Calcode, reviewed: Evidence) -> None:
    site = fitted(home, reviewed, assurance=0.9)
    returning = reviewed[:40]
    rows, known = site.known_.find(len(returning), ids=returning.ids, groups=returning.groups)
    assert known.all()
    calibrates = site.ranking_.bag.calibrates
    p_values = site.p_values(returning)
    for image, row in enumerate(rows):
        training = ~calibrates & (np.arange(len(calibrates)) != row)
        weights = refit(
            site.prior_outer_, site.prior_by_class_, site.bag_.features[training], site.bag_.labels[training]
        )
        own = phi(returning)[image]
        for k in range(3):
            kept = calibrates & (site.bag_.labels == k) & (np.arange(len(calibrates)) != row)
            scores = [refitted_score(weights, x, k, 2.0) for x in site.bag_.features[kept]]
            below = int(np.sum(np.array(scores) < refitted_score(weights, own, k, 2.0) - 1e-12))
            assert p_values[image, k] == pytest.approx(exclusion_levels(len(scores), failure=0.05)[below])


def test_a_later_look_needs_more_labels(home: Calcode, reviewed: Evidence, images: Evidence) -> None:
    first = fitted(home, reviewed, assurance=0.9, fit={"look": 1}).p_values(images)
    second = fitted(home, reviewed, assurance=0.9, fit={"look": 2}).p_values(images)
    assert (second >= first).all()
    assert (second > first).any()
    # It is the calibrating labels that are too few, not all of them.
    with pytest.warns(CalcodeWarning) as caught:
        site = SiteModel(home, sampling="consecutive", assurance=0.9).fit(reviewed=reviewed)
    n = int((site.bag_.labels[site.ranking_.bag.calibrates] == 0).sum())
    assert f"c0: {n} of {site.counts_['c0']} reviewed labels calibrate and 59 needed" in str(caught[0].message)
    assert not any("average over reviewed samples" in sentence for sentence in site.promises_)
    needed = [fitted(home, reviewed, assurance=0.9, fit={"look": j}).ranking_.labels_needed(0.05) for j in (1, 2)]
    assert needed == [59, 80]


def test_the_site_audit_ranks_in_the_site_gate(home: Calcode, reviewed: Evidence, images: Evidence) -> None:
    gate = reviewed[200:300:2]
    bag = reviewed[:200]
    site = fitted(home, bag, fit={"gate": gate})
    statistic = home.audit_.statistic
    values = statistic(gate)

    def p_audit(evidence: Evidence) -> np.ndarray:
        return np.array([(1 + (values >= v - 1e-9).sum()) / 51 for v in statistic(evidence)])

    decisions = site.decide(images)
    np.testing.assert_allclose(decisions.p_audit, p_audit(images))
    rejected = p_audit(images) < 0.05
    assert (decisions.reason[rejected] == Reason.LOW_SUPPORT).all()
    rows = [row for row in drawn_rows(bag) if p_audit(bag[[row]])[0] >= 0.05]
    assert site.bag_ids_ == tuple(bag.ids[rows])
    assert site.audit_kind_ == "site"
    assert fitted(home, bag).audit_kind_ == "off"
    np.testing.assert_allclose(fitted(home, bag, audit="home").decide(images).p_audit, home.audit_p_values(images))
    with pytest.raises(RoleError, match="gate: images of 18 patients and 19 needed"):
        fitted(home, bag, fit={"gate": gate[:18]})
    # Two images of a patient do not make two representatives.
    with pytest.raises(RoleError, match="gate: images of 18 patients and 19 needed"):
        fitted(home, bag, fit={"gate": reviewed[200:236]})
    with pytest.raises(SettingsError, match="'site' needs a gate"):
        fitted(home, bag, audit="site")
    with pytest.raises(RoleError, match="gate: .* belong to groups of the reviewed cases"):
        fitted(home, bag, fit={"gate": bag[:40]})


def test_reference_images_leave_the_bag_in_sharp_mode(roles: dict[str, Evidence]) -> None:
    with pytest.raises(RoleError, match="reviewed: .* used to fit the model as reference"):
        fitted(None, roles["reference"], reference=roles["reference"], trim=1, fit={"gate": roles["gate"]})


def test_sharp_mode_has_ridge_alone_for_a_prior(roles: dict[str, Evidence]) -> None:
    bag, gate = roles["calibration"], roles["gate"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        site = SiteModel(None, sampling="consecutive", reference=roles["reference"], miscoverage=0.2).fit(
            reviewed=bag, gate=gate
        )

    def distance(evidence: Evidence) -> np.ndarray:
        return neighbour_distance(evidence.embeddings, reference=roles["reference"].embeddings, n_neighbors=10)

    values = distance(gate)
    accepted = [row for row in drawn_rows(bag) if (1 + (values >= distance(bag[[row]])[0] - 1e-9).sum()) / 161 >= 0.05]
    assert site.bag_ids_ == tuple(bag.ids[accepted])
    size = phi(bag).shape[1]
    expected = refitted_p_values(
        (3.0 * np.eye(size), np.zeros((size, 3))),
        phi(bag)[accepted],
        bag.labels[accepted],
        phi(roles["test"])[:3],
        delta=np.full(3, 0.2),
    )
    np.testing.assert_allclose(site.p_values(roles["test"][:3]), expected, atol=1e-9)
    assert any("Sharp mode" in sentence for sentence in site.promises_)
    # Reference images certify single answers; the audit leaves an image's own row out.
    reference = roles["reference"]
    rows = one_per_group(reference, random_state=0)
    own = [
        neighbour_distance(
            reference.embeddings[[row]], reference=np.delete(reference.embeddings, row, axis=0), n_neighbors=10
        )[0]
        for row in rows
    ]
    accepted = np.array([(1 + (values >= value - 1e-9).sum()) / 161 >= 0.05 for value in own])
    sets = site.p_values(reference[rows]) > 0.2 + 1e-12
    assert not accepted.all()
    assert site.certify_singles(reference).n == int((accepted & (sets.sum(axis=1) == 1)).sum())
    np.testing.assert_array_equal(site.gate_distances_, np.sort(site.gate_distances_))


def test_cases_without_a_label_are_counted_and_said(home: Calcode, reviewed: Evidence, images: Evidence) -> None:
    missing = np.zeros(300, dtype=bool)
    missing[::10] = True
    site = fitted(home, reviewed, fit={"without_label": missing})
    assert site.n_unlabelled_ > 0
    assert site.unlabelled_share_ == pytest.approx(site.n_unlabelled_ / 150)
    assert any(f"Unlabelled: {percent(site.unlabelled_share_)}" in sentence for sentence in site.promises_)
    # Both figures: for cases that get a label, and for all.
    both = f"at 0.95 for .* labels; about {0.95 * (1 - site.unlabelled_share_):.3f} for all cases"
    assert re.search(both, site.promises_[0])
    dear = fitted(home, reviewed, fit={"without_label": missing}, unlabelled="inf")
    assert (dear.p_values(images) >= site.p_values(images) - 1e-12).all()
    assert dear.decide(images).sets.mean() > site.decide(images).sets.mean()


def test_without_groups_every_image_is_a_patient_and_it_is_said(home: Calcode, reviewed: Evidence) -> None:
    with pytest.warns(CalcodeWarning, match="groups: the reviewed cases have none"):
        site = SiteModel(home, sampling="consecutive").fit(reviewed=reviewed.without_identity())
    assert len(site.bag_) == 300
    image = fitted(home, reviewed, unit="image")
    assert len(image.bag_) == 300
    # By its id an image is still known.
    assert image.decide(reviewed[:3]).known_group.all()
    assert any("approximate" in sentence for sentence in image.promises_)


def test_leave_one_out_is_every_case_against_the_others(home: Calcode, reviewed: Evidence) -> None:
    site = fitted(home, reviewed[:200])
    bag = reviewed[[list(reviewed.ids).index(name) for name in site.bag_ids_]]
    np.testing.assert_array_equal(site.leave_one_out(), site.decide(bag).sets)


def test_foreign_evidence_and_models_are_refused(home: Calcode, reviewed: Evidence, images: Evidence) -> None:
    site = fitted(home, reviewed)
    foreign = Evidence(
        embeddings=images.embeddings, prompt_logits=images.prompt_logits, classes=images.classes, backbone="another"
    )
    with pytest.raises(MismatchError, match="backbone"):
        site.decide(foreign)
    with pytest.raises(NotFittedError, match="call fit first"):
        SiteModel(home, sampling="coin").decide(images)
    with pytest.raises(NotFittedError, match="not fitted"):
        SiteModel(Calcode(), sampling="coin").fit(reviewed=reviewed)
    # As loaded from a file of before the sums were kept.
    bare = Calcode()
    vars(bare).update({name: value for name, value in vars(home).items() if name != "sums_"})
    with pytest.raises(NotFittedError, match="fit it again"):
        SiteModel(bare, sampling="coin").fit(reviewed=reviewed)
    calibration = reviewed[:2]._replace(ids=np.array(["calibration-0", "x"]))
    with pytest.raises(RoleError, match="reviewed: 1 of these images was used to fit the model as calibration"):
        SiteModel(home, sampling="coin").fit(reviewed=calibration)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sampling": "convenience"}, "sampling: 'convenience'"),
        ({"sampling": {"c0": "coin"}}, r"no entry for \['c1', 'c2'\]"),
        ({"sampling": {"c9": "coin"}}, r"sampling: \['c9'\] not among"),
        ({"miscoverage": 0.0}, "miscoverage: 0.0"),
        ({"ridge": 0.5}, "ridge: 0.5 is not between 1"),
        ({"rare": "drop"}, "rare: 'drop' is none of"),
        ({"rare": "pool", "sampling": "archive"}, "pool' with archive"),
        ({"rare": "pool", "calibrate_with": "weighted", "sampling": "coin"}, "rare='pool' with calibrate_with"),
        ({"calibrate_with": "weighted", "sampling": "archive"}, "archive cases: they have no review"),
        ({"slack": "thin", "rare": "pool"}, "slack='thin' with rare='pool'"),
        ({"assurance": 0.9, "slack": "thin"}, "assurance with"),
        ({"assurance": 0.9, "calibrate_with": "weighted", "sampling": "coin"}, "assurance with calibrate_with"),
        ({"slack": "thin", "calibrate_with": "weighted", "sampling": "coin"}, "slack='thin' with calibrate_with"),
        ({"unlabelled": "inf", "calibrate_with": "weighted", "sampling": "coin"}, "unlabelled='inf' with calibrate"),
        ({"assurance": 1.5}, "assurance: 1.5"),
        ({"always_protect": "c0"}, r"write \('c0',\)"),
        ({"always_protect": ["c9"]}, "always_protect"),
    ],
)
def test_settings_that_promise_nothing_are_refused(
    home: Calcode, reviewed: Evidence, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        fitted(home, reviewed, **settings)


def test_rare_classes_are_promised_together_and_not_each(home: Calcode, reviewed: Evidence) -> None:
    one_each = reviewed[::2]
    rows = np.concatenate([np.flatnonzero(one_each.labels == k)[:n] for k, n in ((0, 30), (1, 12), (2, 9))])
    promised = [text for text in fitted(home, one_each[rows], rare="pool").promises_ if text.startswith("Promised")]
    assert len(promised) == 2
    assert "coverage of 'c0' at 0.95" in promised[0]
    assert "the rare classes 'c1' and 'c2' together, not of each, at 0.95" in promised[1]
    assert "(21 labels)" in promised[1]


def test_a_pool_needs_one_level(home: Calcode, reviewed: Evidence) -> None:
    few = reviewed[:40]
    with pytest.raises(SettingsError, match="one level for the pool"):
        fitted(home, few, rare="pool", miscoverage={"c1": 0.1})


@pytest.mark.parametrize(
    ("settings", "fit"),
    [
        ({}, {}),
        ({"rare": "count"}, {"trainers": slice(200, 240)}),
        ({"rare": "pool", "miscoverage": 0.02}, {}),
        ({"calibrate_with": "weighted", "sampling": "coin"}, {"e": True}),
        ({"unlabelled": "inf"}, {"gate": slice(240, 300)}),
        ({"unit": "image"}, {}),
    ],
)
def test_cases_that_are_added_later_count_like_the_others(
    home: Calcode, reviewed: Evidence, images: Evidence, tmp_path: Path, settings: dict[str, Any], fit: dict[str, Any]
) -> None:
    """Rank-one updates give the model of a new fit with all cases (SITE.md S6), before and after a file."""
    e = np.linspace(0.2, 1.0, 100) if fit.pop("e", False) else None
    others = {role: reviewed[rows] for role, rows in fit.items()}
    bag, missing = reviewed[:200:2], np.arange(100) % 9 == 0
    whole = fitted(home, bag, fit=others | {"e": e, "without_label": missing}, **settings)
    parts = [np.arange(100)[start:stop] for start, stop in ((0, 60), (60, 61), (61, 100))]
    cut = [{"e": None if e is None else e[rows], "without_label": missing[rows]} for rows in parts]
    site = fitted(home, bag[parts[0]], fit=others | cut[0], **settings)
    site.add(bag[parts[1]], **cut[1])
    site.save(tmp_path / "site.safetensors")
    for model in (site, SiteModel.load(tmp_path / "site.safetensors")):
        model.add(bag[parts[2]], **cut[2])
        assert (model.counts_, model.silenced_classes_) == (whole.counts_, whole.silenced_classes_)
        assert model.unlabelled_share_ == whole.unlabelled_share_
        own = None if e is None else np.linspace(0.1, 1.0, len(images))
        np.testing.assert_allclose(model.p_values(images, own), whole.p_values(images, own), atol=1e-12)
        known = reviewed[[2, 120, 130]]
        np.testing.assert_allclose(
            model.p_values(known, None if own is None else own[:3]),
            whole.p_values(known, None if own is None else own[:3]),
            atol=1e-12,
        )
        assert model.decide(known, None if own is None else own[:3]).known_group.all()  # type: ignore[union-attr]
        model.save(tmp_path / "again.safetensors")
        assert SiteModel.load(tmp_path / "again.safetensors").digest_ == model.digest_


def test_what_fails_leaves_the_model_as_it_was(home: Calcode, reviewed: Evidence, images: Evidence) -> None:
    site = SiteModel(home, sampling="consecutive", rare="pool", miscoverage={"c2": 0.1})
    with pytest.raises(RoleError, match="trainers"):
        site.fit(reviewed=reviewed[:100], trainers=reviewed[:4])
    with pytest.raises(NotFittedError, match="call fit first"):
        site.decide(images)
    site.fit(reviewed=reviewed[:200])
    sample = World(n_classes=3, dimension=5, seed=3).draw(40, seed=5, shift=0.6)
    site.certify_singles(sample, risk=1e-6)
    before, state = site.decide(images), dict(vars(site))
    failures: list[tuple[type[Exception], Any]] = [
        (RoleError, lambda: site.fit(reviewed=reviewed[:100], trainers=reviewed[:4])),
        (SettingsError, lambda: site.fit(reviewed=reviewed[:40])),  # no level for the pool
        (RoleError, lambda: site.add(reviewed[198:204], without_label=[False] * 3 + [True] * 3)),
        (SettingsError, lambda: site.certify_singles(sample, risk=2.0)),
        (EvidenceError, lambda: site.certify_singles(sample._replace(labels=None))),
    ]
    for error, attempt in failures:
        with pytest.raises(error):
            attempt()
        assert vars(site) == state
    np.testing.assert_array_equal(site.decide(images).sets, before.sets)


def test_certified_singles_are_checked_on_other_patients_one_image_each(
    home: Calcode, reviewed: Evidence, roles: dict[str, Evidence]
) -> None:
    site = fitted(home, reviewed[:200], fit={"trainers": reviewed[200:210], "gate": reviewed[210:260]})
    for seen in (reviewed[:20], reviewed[200:204], reviewed[210:214]):
        with pytest.raises(RoleError, match="groups that the model has seen"):
            site.certify_singles(seen)
    for role in ("reference", "validation", "calibration"):
        with pytest.raises(RoleError, match=f"used to fit the model as {role} "):
            site.certify_singles(roles[role])
    sample = reviewed[260:]
    decisions = site.decide(sample)
    rows = one_per_group(sample, random_state=0)
    single = np.isin(np.arange(40), rows) & (decisions.action == Action.LABEL)
    certificate = site.certify_singles(sample, risk=1e-6)
    assert (certificate.n, certificate.certified) == (int(single.sum()), False)
    assert certificate.n > 0
    assert certificate.wrong == int((single & (decisions.label != sample.labels)).sum())
    # The excluded label with the largest p joins; nothing else changes.
    wider, p_values = site.decide(sample).sets, site.p_values(sample)
    for row in range(40):
        expected = decisions.sets[row].copy()
        if decisions.action[row] == Action.LABEL:
            expected[np.where(expected, -1.0, p_values[row]).argmax()] = True
        np.testing.assert_array_equal(wider[row], expected)
    # A new check looks at the answers before they were widened.
    assert site.certify_singles(sample, risk=1e-6) == certificate


def test_what_cannot_be_added_is_refused(home: Calcode, reviewed: Evidence) -> None:
    site = fitted(home, reviewed[:200], fit={"gate": reviewed[240:]})
    for seen in (reviewed[:2], reviewed[240:242]):
        with pytest.raises(RoleError, match="groups that the model has seen"):
            site.add(seen)
    for settings in ({"assurance": 0.9}, {"slack": "thin"}):
        with pytest.raises(SettingsError, match="call fit with all of them"):
            fitted(home, reviewed[:200], **settings).add(reviewed[200:202])
    sample = World(n_classes=3, dimension=5, seed=3).draw(40, seed=5, shift=0.6)
    site.certify_singles(sample)
    assert site.add(reviewed[200:204]).certificate_ is None
