from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import World, fit_quietly

from calcode import Action, Calcode, CalcodeWarning, Evidence, Reason
from calcode.cohorts import Cohort
from calcode.errors import EvidenceError, MismatchError, NotFittedError, RoleError, SettingsError
from calcode.method.evidence import robust_probabilities
from calcode.method.localized import LEVELS
from calcode.method.quantiles import conformal_quantile
from calcode.method.scores import aps_scores, true_label_scores

WORLD = World()
ROLES = WORLD.roles()

settings_drawn = st.fixed_dictionaries(
    {
        "level": st.sampled_from(LEVELS),
        "level_grid": st.sampled_from([None, 101, 1001]),
        "bandwidth": st.sampled_from(["auto", 0.1, 0.5, math.inf]),
        "protect": st.sampled_from(["discovered", "all", "none"]),
        "audit": st.sampled_from([None, ("distance",), ("msp", "fused")]),
        "fused": st.sampled_from(["paper", "split"]),
        "miscoverage": st.sampled_from([0.05, 0.2]),
        "guard_miscoverage": st.sampled_from([0.05, 0.3]),
    }
)


@given(settings=settings_drawn, seed=st.integers(0, 50))
def test_localized_set_is_inside_the_guarded_set_on_every_input(settings: dict, seed: int) -> None:
    world = World(seed=seed, prior=(0.7, 0.2, 0.08, 0.02))
    roles = world.roles(seed=seed)
    decisions = fit_quietly(Calcode(**settings), roles).decide(roles["test"])
    assert (decisions.localized_sets <= decisions.sets).all()
    deferred = decisions.action == Action.DEFER
    assert not decisions.released_sets[deferred].any()
    np.testing.assert_array_equal(decisions.released_sets[~deferred], decisions.sets[~deferred])


@given(settings=settings_drawn)
def test_one_image_alone_gets_the_decision_it_gets_in_company(settings: dict) -> None:
    model = fit_quietly(Calcode(**settings), ROLES)
    # Calibration and gate images again, where exact ties are the rule.
    images = [ROLES["test"][:6], ROLES["calibration"][:6], ROLES["gate"][:6]]
    for evidence in images:
        together = model.decide(evidence)
        for i in range(len(evidence)):
            alone = model.decide(evidence[i])
            for name in ("action", "reason", "label", "sets", "localized_sets", "p_audit", "threshold"):
                np.testing.assert_array_equal(getattr(alone, name)[0], getattr(together, name)[i], err_msg=name)


def test_images_shared_out_to_threads_get_the_decisions_they_get_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fit_quietly(Calcode(protect="all", class_local_min=30), World().roles())
    images = World().draw(1700, seed=77, name="new")
    parts = [model.decide(images[start : start + 100]) for start in range(0, 1700, 100)]
    monkeypatch.setattr("calcode.kernels.threads.available_cores", lambda: 3)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    shared = model.decide(images)
    for name in ("action", "reason", "label", "sets", "localized_sets", "p_audit", "threshold", "scores", "ids"):
        expected = np.concatenate([getattr(part, name) for part in parts])
        if name == "scores":  # one label's probability may be rounded differently in another batch
            np.testing.assert_allclose(shared.scores, expected, atol=1e-12)
        else:
            np.testing.assert_array_equal(getattr(shared, name), expected)


@given(seed=st.integers(0, 30), level=st.sampled_from(LEVELS))
def test_permuting_classes_permutes_columns(seed: int, level: str) -> None:
    order = np.random.default_rng(seed).permutation(WORLD.n_classes)
    names = [WORLD.classes[i] for i in order]
    permuted = {role: evidence.restrict(names) for role, evidence in ROLES.items()}
    first = fit_quietly(Calcode(level=level, protect="all"), ROLES).decide(ROLES["test"])
    second = fit_quietly(Calcode(level=level, protect="all"), permuted).decide(permuted["test"])
    np.testing.assert_array_equal(first.sets[:, order], second.sets)
    np.testing.assert_array_equal(first.localized_sets[:, order], second.localized_sets)
    np.testing.assert_array_equal(first.action, second.action)


@given(seed=st.integers(0, 30), level=st.sampled_from(LEVELS))
def test_permuting_calibration_rows_changes_nothing(seed: int, level: str) -> None:
    order = np.random.default_rng(seed).permutation(len(ROLES["calibration"]))
    first = fit_quietly(Calcode(level=level, protect="all"), ROLES).decide(ROLES["test"])
    second = fit_quietly(
        Calcode(level=level, protect="all"), ROLES | {"calibration": ROLES["calibration"][order]}
    ).decide(ROLES["test"])
    np.testing.assert_array_equal(first.threshold, second.threshold)
    np.testing.assert_array_equal(first.sets, second.sets)


@given(settings=settings_drawn)
def test_the_last_ranked_label_is_in_exactly_if_the_threshold_reaches_one(settings: dict) -> None:
    decisions = fit_quietly(Calcode(**settings), ROLES).decide(ROLES["test"])
    robust = robust_probabilities(ROLES["test"].prompt_logits, trim=1)
    last = np.argsort(-robust, axis=1, kind="stable")[:, -1]
    rows = np.arange(len(last))
    np.testing.assert_array_equal(decisions.sets[rows, last], decisions.threshold[rows, last] >= 1.0)


def test_no_localization_no_audit_no_guard_is_split_conformal() -> None:
    model = fit_quietly(Calcode(audit=None, bandwidth=math.inf, level_grid=None, protect="none", keep_top=False), ROLES)
    calibration = ROLES["calibration"]
    scores = aps_scores(robust_probabilities(calibration.prompt_logits, trim=1))
    quantile = conformal_quantile(true_label_scores(scores, calibration.require_labels()), miscoverage=0.05)
    assert (model.decide(ROLES["test"]).threshold == quantile).all()


def test_protected_classes_and_only_these_get_their_own_threshold() -> None:
    settings = {"always_protect": ["c2"], "min_class_count": 0, "discovery_margin": 0.9, "keep_top": False}
    model = fit_quietly(Calcode(**settings), ROLES)
    assert model.tail_classes_ == ("c2",)
    decisions = model.decide(ROLES["test"])
    np.testing.assert_array_equal(decisions.threshold[:, 0], decisions.threshold[:, 1])
    assert (decisions.threshold[:, 2] >= decisions.threshold[:, 0]).all()
    assert (decisions.threshold[:, 2] >= model.tail_thresholds_["c2"]).all()


def test_no_protected_class_is_an_ordinary_case() -> None:
    model = fit_quietly(Calcode(protect="none"), ROLES)
    decisions = model.decide(ROLES["test"])
    assert model.tail_classes_ == ()
    assert model.tail_thresholds_ == {}
    np.testing.assert_array_equal(decisions.sets, decisions.localized_sets)


def test_guard_levels_per_class() -> None:
    model = fit_quietly(Calcode(protect="all", guard_miscoverage={"c0": 0.3}), ROLES)
    levels = {guard.name: guard.miscoverage for guard in model.guards_}
    assert levels == {"c0": 0.3, "c1": 0.05, "c2": 0.05, "c3": 0.05}


@pytest.mark.parametrize("role", ["validation", "calibration"])
def test_a_class_absent_from_a_role_is_protected_or_infinite_but_no_error(role: str) -> None:
    without = ROLES[role][ROLES[role].labels != 3]
    with pytest.warns(CalcodeWarning) if role == "calibration" else warnings.catch_warnings():
        model = Calcode(protect="all" if role == "calibration" else "discovered").fit(
            **{name: ev for name, ev in (ROLES | {role: without}).items() if name != "test"}
        )
    if role == "validation":
        assert model.tail_reasons_["c3"].kind == "too few"
    else:
        assert model.tail_thresholds_["c3"] == math.inf
        assert model.n_accepted_per_class_["c3"] == 0
        assert model.decide(ROLES["test"]).sets[:, 3].all()


def test_an_infinite_guard_warns_with_name_count_and_need() -> None:
    calibration = ROLES["calibration"]
    few = np.flatnonzero(calibration.labels == 3)[:7]
    kept = np.concatenate([np.flatnonzero(calibration.labels != 3), few])
    roles = {n: e for n, e in (ROLES | {"calibration": calibration[kept]}).items() if n != "test"}
    with pytest.warns(CalcodeWarning) as warned:
        model = Calcode(always_protect=["c3"], min_class_count=0, discovery_margin=0.9).fit(**roles)
    (message,) = [str(entry.message) for entry in warned]
    n = model.n_accepted_per_class_["c3"]
    assert "in every set, because there are too few accepted calibration images" in message
    assert f"'c3' ({n} of 19 needed at 0.95)" in message
    assert model.in_every_set_ == {"c3": n}
    decisions = model.decide(ROLES["test"])
    assert decisions.in_every_set == {"c3": n}
    assert decisions.sets[:, 3].all()
    rows = {row.name: row.in_every_set for row in decisions.summary(ROLES["test"].labels).classwise}
    assert rows == {"c0": None, "c1": None, "c2": None, "c3": n}


def test_many_classes_in_every_set_are_one_warning() -> None:
    calibration = ROLES["calibration"]
    kept = np.flatnonzero(calibration.labels != 2)[:40]
    roles = {n: e for n, e in (ROLES | {"calibration": calibration[kept]}).items() if n != "test"}
    with pytest.warns(CalcodeWarning) as warned:
        model = Calcode(protect="all").fit(**roles)
    (message,) = [str(entry.message) for entry in warned if "in every set" in str(entry.message)]
    assert len(model.in_every_set_) > 1
    for name in model.in_every_set_:
        assert f"'{name}'" in message
    assert model.in_every_set_["c2"] == 0


def test_the_first_label_is_kept_and_nothing_else_changes() -> None:
    """METHOD.md 9 on a world whose paper sets lack their own first label now and then."""
    paper = fit_quietly(Calcode(keep_top=False, miscoverage=0.3, guard_miscoverage=0.3), ROLES)
    kept = fit_quietly(Calcode(miscoverage=0.3, guard_miscoverage=0.3), ROLES)
    for name in ("bandwidth_", "bandwidth_trace_", "local_level_", "tail_classes_", "tail_thresholds_"):
        assert getattr(paper, name) == getattr(kept, name), name
    before, after = paper.decide(ROLES["test"]), kept.decide(ROLES["test"])
    first = np.zeros_like(before.sets)
    first[np.arange(len(before)), before.top_label] = True
    assert (first & ~before.sets).any()
    assert (before.reason == Reason.EMPTY_SET).any()
    np.testing.assert_array_equal(after.sets, before.sets | first)
    np.testing.assert_array_equal(after.localized_sets, before.localized_sets | first)
    np.testing.assert_array_equal(after.sets, after.scores <= after.threshold)
    np.testing.assert_array_equal(after.threshold[~first], before.threshold[~first])
    np.testing.assert_array_equal(after.threshold[first], np.maximum(before.threshold[first], before.scores[first]))
    np.testing.assert_array_equal(after.p_audit, before.p_audit)
    np.testing.assert_array_equal(after.answered, after.p_audit >= kept.settings_.deferral_level)
    np.testing.assert_array_equal(before.answered, before.accepted & before.sets.any(axis=1))


def test_without_protected_classes_the_promises_say_that_the_two_rules_are_one() -> None:
    same = "No class is protected here, so the two are the same."
    assert same in fit_quietly(Calcode(protect="none"), ROLES).promises_[0]
    assert same not in fit_quietly(Calcode(protect="all"), ROLES).promises_[0]


def test_a_p_value_at_the_deferral_level_is_accepted_in_every_role() -> None:
    """With 19 gate images the smallest p-value is 1/20: exactly the level, so nothing is rejected."""
    roles = ROLES | {"gate": ROLES["gate"][:19]}
    model = fit_quietly(Calcode(audit=("distance",)), roles)
    for role in ("validation", "calibration", "test"):
        assert model.audit_p_values(roles[role]).min() == model.deferral_level == 0.05, role
    assert sum(row.n for row in model.tail_evidence_) == len(roles["validation"])
    assert sum(model.n_accepted_per_class_.values()) == len(roles["calibration"])
    assert model.decide(roles["test"]).accepted.all()


def test_audit_none_accepts_everything() -> None:
    model = fit_quietly(Calcode(audit=None), ROLES)
    decisions = model.decide(WORLD.draw(20, seed=5, shift=50.0))
    assert (decisions.p_audit == 1.0).all()
    assert (decisions.reason != Reason.LOW_SUPPORT).all()
    assert model.audit_name_ is None
    assert model.audit_auroc_ is None


def test_a_cohort_far_away_is_deferred_as_a_whole() -> None:
    model = fit_quietly(Calcode(audit=("distance",)), ROLES)
    far = _opposite(np.random.default_rng(0))
    decisions = model.decide(far)
    assert (decisions.action == Action.DEFER).all()
    assert (decisions.reason == Reason.LOW_SUPPORT).all()
    assert (decisions.label == -1).all()
    assert not decisions.released_sets.any()
    assert decisions.sets.shape == (9, WORLD.n_classes)
    assert "1.000" in str(decisions.summary(far.require_labels()))


def _opposite(rng: np.random.Generator) -> Evidence:
    direction = -ROLES["reference"].embeddings.mean(axis=0)
    rows = direction / np.linalg.norm(direction) + 0.01 * rng.normal(size=(9, WORLD.dimension))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return Evidence(
        embeddings=rows,
        prompt_logits=rng.normal(size=(9, WORLD.n_prompts, WORLD.n_classes)),
        labels=np.zeros(9, dtype=int),
        classes=WORLD.classes,
    )


def test_a_level_that_defers_all_of_validation_is_an_error_with_the_remedy() -> None:
    far = {"validation": World(seed=77).draw(40, seed=1, shift=-30.0)}
    with pytest.raises(
        RoleError, match="deferral_level: fewer than 2 validation images reach 0.9.*lower deferral_level"
    ):
        fit_quietly(Calcode(audit=("distance",), deferral_level=0.9), ROLES | far)


def test_too_few_accepted_calibration_images_fill_every_set_with_a_warning() -> None:
    with pytest.warns(CalcodeWarning, match="calibration: 10 accepted images and 19 needed"):
        model = Calcode(audit=None, protect="none").fit(
            **{n: e for n, e in (ROLES | {"calibration": ROLES["calibration"][:10]}).items() if n != "test"}
        )
    assert model.local_level_ == math.inf
    assert model.decide(ROLES["test"]).sets.all()


def test_binary_utility_defers_full_sets() -> None:
    world = World(n_classes=2)
    roles = world.roles()
    plain = fit_quietly(Calcode(), roles).decide(roles["test"])
    useful = fit_quietly(Calcode(binary_utility=True), roles).decide(roles["test"])
    full = plain.sets.all(axis=1) & plain.accepted
    assert full.any()
    assert (useful.reason[full] == Reason.FULL_SET).all()
    np.testing.assert_array_equal(useful.sets, plain.sets)
    np.testing.assert_array_equal(useful.action[~full], plain.action[~full])
    with pytest.raises(SettingsError, match="binary_utility: needs exactly two classes and there are 4"):
        fit_quietly(Calcode(binary_utility=True), ROLES)


def test_staged_fitting_equals_fit_and_keeps_its_order() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        staged = Calcode()
        with pytest.raises(NotFittedError, match="call fit_audit first"):
            staged.discover_tail(validation=ROLES["validation"])
        staged.fit_audit(**{name: ROLES[name] for name in ("reference", "validation", "gate")})
        with pytest.raises(NotFittedError, match="call discover_tail first"):
            staged.calibrate(calibration=ROLES["calibration"])
        with pytest.raises(RoleError, match="validation: not the images that fit_audit was given"):
            staged.discover_tail(validation=ROLES["gate"])
        staged.discover_tail(validation=ROLES["validation"])
        with pytest.raises(NotFittedError, match="call fit first"):
            staged.decide(ROLES["test"])
        staged.calibrate(calibration=ROLES["calibration"])
    whole = fit_quietly(Calcode(), ROLES)
    assert staged.digest_ == whole.digest_
    with pytest.raises(NotFittedError, match="call fit first"):  # a new audit makes the rest stale
        staged.fit_audit(**{n: ROLES[n] for n in ("reference", "validation", "gate")}).decide(ROLES["test"])


def test_calibration_labels_do_not_reach_what_is_frozen_before_them() -> None:
    calibration = ROLES["calibration"]
    other = Evidence(
        embeddings=calibration.embeddings,
        prompt_logits=calibration.prompt_logits,
        labels=np.roll(calibration.require_labels(), 1),
        classes=calibration.classes,
    )
    first, second = (fit_quietly(Calcode(), ROLES | {"calibration": ev}) for ev in (calibration, other))
    assert first.audit_name_ == second.audit_name_
    assert first.bandwidth_trace_ == second.bandwidth_trace_
    assert first.tail_reasons_ == second.tail_reasons_


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: e.restrict(["c1", "c0", "c2", "c3"]), "classes or their order"),
        (lambda e: e.restrict(["c0", "c1", "c2"]), "classes or their order"),
        (lambda e: e._replace(prompt_logits=e.prompt_logits[:, :4]), "number of prompts 4 differs from 5"),
        (lambda e: e._replace(embeddings=e.embeddings[:, :7]), "embedding dimension 7 differs from 8"),
        (lambda e: e._replace(prompt_digest="other"), r"prompt digest 'other' differs from \(none\)"),
        (lambda e: e._replace(backbone="other"), "backbone 'other' differs"),
    ],
)
def test_decide_refuses_evidence_of_another_kind(change, message: str) -> None:  # type: ignore[no-untyped-def]
    model = fit_quietly(Calcode(), ROLES)
    with pytest.raises(MismatchError, match=message):
        model.decide(change(ROLES["test"]))
    with pytest.raises(MismatchError, match=message):
        fit_quietly(Calcode(), ROLES | {"gate": change(ROLES["gate"])})


def test_labels_outside_the_space_are_for_reference_gate_and_test_only() -> None:
    def outside(evidence: Evidence) -> Evidence:
        return evidence._replace(labels=np.where(np.arange(len(evidence)) == 3, -1, evidence.labels))

    model = fit_quietly(Calcode(), ROLES | {r: outside(ROLES[r]) for r in ("reference", "gate", "test")})
    model.decide(outside(ROLES["test"]))
    for role in ("validation", "calibration"):
        with pytest.raises(RoleError, match=rf"{role}: 1 labels of -1 \(first: row 3\)"):
            fit_quietly(Calcode(), ROLES | {role: outside(ROLES[role])})


@pytest.mark.parametrize("role", ["validation", "calibration"])
def test_missing_labels_are_named(role: str) -> None:
    with pytest.raises(RoleError, match=f"{role}: labels are needed"):
        fit_quietly(Calcode(), ROLES | {role: ROLES[role]._replace(labels=None)})


@pytest.mark.parametrize("role", ["reference", "validation", "gate", "calibration"])
def test_an_empty_role_is_refused(role: str) -> None:
    with pytest.raises(RoleError, match=f"{role}: the role is empty"):
        fit_quietly(Calcode(), ROLES | {role: ROLES[role][:0]})


def test_no_image_gives_no_decision() -> None:
    assert len(fit_quietly(Calcode(), ROLES).decide(ROLES["test"][:0])) == 0


def test_overlapping_ids_or_groups_are_an_error_that_names_them() -> None:
    named = WORLD.roles(named=True)
    gate = named["gate"]
    ids = gate.ids.astype("U30")  # type: ignore[union-attr]
    ids[4] = "validation-7"
    with pytest.raises(RoleError, match=r"ids: 1 of the gate role are in the validation role too \(validation-7\)"):
        fit_quietly(Calcode(), named | {"gate": gate._replace(ids=ids)})
    calibration = named["calibration"]
    groups = calibration.groups.astype("U30")  # type: ignore[union-attr]
    groups[:2] = "reference-group-3"
    with pytest.raises(RoleError, match="groups: 1 of the calibration role are in the reference role too"):
        fit_quietly(Calcode(), named | {"calibration": calibration._replace(groups=groups)})
    model = fit_quietly(Calcode(), named)
    with pytest.raises(RoleError, match="evidence: .* of these images were used to fit the model as calibration"):
        model.decide(calibration)
    assert len(model.decide(calibration.without_identity())) == len(calibration)


def test_overlap_is_found_before_any_work_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    named = WORLD.roles(named=True)

    def working(**_: object) -> None:
        raise AssertionError("the audit was fitted although the roles overlap")

    monkeypatch.setattr("calcode.method.model.SupportAudit.fit", working)
    with pytest.raises(RoleError):
        fit_quietly(Calcode(), named | {"calibration": named["reference"]})


def test_trim_is_checked_before_fitting() -> None:
    with pytest.raises(SettingsError, match="trim: 3 values at each end leave nothing of 5 prompts; use 0 to 2"):
        fit_quietly(Calcode(trim=3), ROLES)
    one = World(n_prompts=1)
    fit_quietly(Calcode(trim=1), one.roles())


def test_fitting_again_overwrites() -> None:
    model = fit_quietly(Calcode(protect="all"), ROLES)
    assert model.tail_classes_
    model.protect = "none"
    assert fit_quietly(model, ROLES).tail_classes_ == ()


def test_repr_tells_the_fitted_state() -> None:
    assert "not fitted" in repr(Calcode())
    assert "protected ['c0', 'c1', 'c2', 'c3']" in repr(fit_quietly(Calcode(protect="all"), ROLES))


def test_learned_attributes_are_absent_before_fit() -> None:
    for name in ("classes_", "audit_name_", "bandwidth_", "local_level_", "tail_classes_", "tail_thresholds_"):
        assert not hasattr(Calcode(), name)


def test_what_is_not_evidence_is_told_what_to_pass() -> None:
    """A feature file gives cohorts, which hold evidence: the likeliest first mistake."""
    roles = World().roles()
    cohort = Cohort(evidence=roles["test"], metadata={}, roles=None)
    with pytest.raises(EvidenceError, match="evidence: Cohort given, Evidence needed; pass cohort.evidence"):
        fit_quietly(Calcode(), roles).decide(cohort)  # type: ignore[arg-type]
    with pytest.raises(EvidenceError, match="gate: Cohort given"):
        fit_quietly(Calcode(), roles | {"gate": cohort})  # type: ignore[dict-item]
    with pytest.raises(EvidenceError, match=r"reference: ndarray given, .*Evidence.from_text"):
        fit_quietly(Calcode(), roles | {"reference": np.eye(3)})  # type: ignore[dict-item]


@pytest.mark.parametrize(("level", "needed"), [(0.05, 20), (0.1, 10), (0.3, 3)])
@pytest.mark.parametrize("fused", ["paper", "split"])
def test_a_gate_too_small_for_any_deferral_is_a_warning(level: float, needed: int, fused: str) -> None:
    """With one image more the smallest p-value is below the level."""
    halves = 2 if fused == "split" else 1
    for n in (needed - 1, needed):
        roles = {**ROLES, "gate": ROLES["gate"][: n * halves]}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = Calcode(deferral_level=level, fused=fused, bandwidth=0.5, audit=("msp",)).fit(
                **{name: roles[name] for name in ("reference", "validation", "gate", "calibration")}
            )
        said = [str(entry.message) for entry in caught if str(entry.message).startswith("gate: its ")]
        assert len(said) == (n < needed)
        assert all(f"{needed} needed" in sentence for sentence in said)
        assert model.audit_ is not None
        least = 1 / (len(model.audit_.gate_values) + 1)
        assert (least < level) == (n >= needed)
