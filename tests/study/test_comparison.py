"""Compared methods on one cohort: rows, hits, subgroups, and that one failure costs one row."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from worlds import World, fit_quietly

from calcode import Calcode, CalcodeWarning, Evidence
from calcode.baselines import METHODS, Prediction, Roles
from calcode.errors import EvidenceError, MismatchError, RoleError, SettingsError, StudyError
from calcode.metrics import Outcome, summarize, summarize_sets
from calcode.study.comparison import (
    MethodRow,
    Terms,
    chosen_methods,
    compare_methods,
    comparison_frame,
    comparison_notes,
    comparison_table,
    rows_by,
)
from calcode.study.methods import GROUPS

FITTED = ("reference", "validation", "gate", "calibration")


@pytest.fixture(scope="module")
def world() -> dict[str, Evidence]:
    return World().roles(n=120, n_test=80, named=True)


@pytest.fixture(scope="module")
def roles(world: dict[str, Evidence]) -> Roles:
    return Roles(**{name: world[name] for name in FITTED})


class Stub:
    """A method with another's record that does what it is told."""

    def __init__(self, answer, like="aps"):
        self.record = METHODS[like].record
        self._answer = answer

    def predict(self, roles, test, *, miscoverage, random_state):
        return self._answer(test)


def fixed(sets: np.ndarray, deferred: np.ndarray | None = None) -> Stub:
    return Stub(
        lambda test: Prediction(
            sets=sets.copy(),
            top_label=np.zeros(len(test), dtype=np.int64),
            top_probability=np.ones(len(test)),
            deferred=deferred,
        )
    )


def only(rows) -> MethodRow:
    (row,) = rows
    return row


def test_every_method_that_can_be_run_gives_a_row(world, roles):
    rows = list(compare_methods(roles, world["test"], methods=chosen_methods(["all"])))
    assert [row.record.name for row in rows] == list(GROUPS["all"])
    frame = comparison_frame(rows)
    assert frame["method"].tolist() == list(GROUPS["all"])
    assert frame["coverage"].between(0.0, 1.0).all()
    assert (frame["seconds"] > 0).all()
    # Marked where its numbers appear.
    assert (frame["title"].str.contains("reconstruction") == frame["reconstruction"]).all()


def test_a_method_that_no_paper_defines_is_refused_with_the_reason():
    with pytest.raises(StudyError, match="'no-semantic-term' cannot be run, because no paper defines it"):
        chosen_methods(["no-semantic-term"])


def test_the_row_of_calcode_is_what_its_decisions_say(world, roles):
    row = only(compare_methods(roles, world["test"], methods=chosen_methods(["calcode"])))
    model = fit_quietly(Calcode(guard_miscoverage=0.05), world)
    decisions = model.decide(world["test"])
    expected = summarize(decisions, world["test"].labels)
    assert row.defers
    assert row.summary.to_dict() == replace(expected, promises=()).to_dict()


def test_methods_that_cannot_defer_have_no_deferral_rather_than_none_deferred(world, roles):
    aps, calcode = compare_methods(roles, world["test"], methods=chosen_methods(["aps", "calcode"]))
    assert not aps.defers
    assert aps.cells()["deferral"] is None
    assert aps.to_dict()["summary"]["deferral"] is None
    assert calcode.cells()["deferral"] == calcode.summary.deferral.value


def test_an_empty_set_is_a_deferral_only_where_someone_is_there_to_take_it(world, roles):
    test = world["test"]
    empty = np.zeros((len(test), 4), dtype=bool)
    nobody = np.zeros(len(test), dtype=bool)
    alone, attended = compare_methods(roles, test, methods=[fixed(empty), fixed(empty, nobody)])
    assert alone.summary.deferral.value == 0.0
    assert attended.summary.deferral.value == 1.0
    assert alone.summary.coverage.value == 0.0
    assert np.isnan(attended.summary.coverage.value)
    assert attended.summary.audit_coverage.value == 0.0


def test_rows_are_those_of_the_metric_code(world, roles):
    test = world["test"]
    row = only(compare_methods(roles, test, methods=chosen_methods(["lac"]), terms=Terms(miscoverage=0.2)))
    prediction = METHODS["lac"].predict(roles, test, miscoverage=0.2, random_state=0)
    expected = summarize_sets(
        Outcome.from_arrays(sets=prediction.sets, answered=np.ones(len(test), dtype=bool)),
        test.labels,
        classes=test.classes,
        top_label=prediction.top_label,
        top_probability=prediction.top_probability,
    )
    assert row.summary.to_dict() == expected.to_dict()


@pytest.mark.parametrize(("missed", "marginal", "worst"), [(0, True, True), (20, True, False), (21, False, False)])
def test_hits_count_exact_equality_as_reached(world, roles, missed, marginal, worst):
    """80 images at target 0.75: twenty misses are exactly allowed, and all of them in one class sink it."""
    test = world["test"]
    labels = np.sort(test.labels)
    test = Evidence(
        embeddings=test.embeddings,
        prompt_logits=test.prompt_logits,
        labels=labels,
        classes=test.classes,
        ids=test.ids,
        groups=test.groups,
    )
    sets = np.ones((80, 4), dtype=bool)
    sets[np.arange(missed), labels[:missed]] = False
    row = only(compare_methods(roles, test, methods=[fixed(sets)], terms=Terms(miscoverage=0.25, min_n=1)))
    assert row.reached == {"coverage_hit": marginal, "worst_class_hit": worst}
    both = int(marginal and worst)
    assert f"Overall {int(marginal)} of 1 method reach it, {both} also" in comparison_notes([row])[0]


def test_one_failing_method_costs_one_row(world, roles):
    def known(test):
        raise RoleError("roles: something is missing")

    def unknown(test):
        warnings.warn("look here", CalcodeWarning, stacklevel=1)
        warnings.warn("look here", CalcodeWarning, stacklevel=1)
        return 1 / 0

    rows = list(
        compare_methods(
            roles, world["test"], methods=[Stub(known, "lac"), Stub(unknown, "raps"), *chosen_methods(["aps"])]
        )
    )
    assert rows[0].problem == "failed: roles: something is missing"
    assert rows[1].problem == "failed: ZeroDivisionError: division by zero"
    assert rows[1].warnings == ("look here",)
    assert rows[1].reached["coverage_hit"] is rows[1].cells()["coverage"] is None
    assert rows[2].summary is not None
    first, second, *_ = comparison_notes(rows)
    assert first == "(1) Split LAC: failed: roles: something is missing"
    assert second.startswith("(2) RAPS: failed: ZeroDivisionError")
    shown = comparison_table(rows, ("method", "coverage", "full"))
    assert [line[1].text for line in shown.cells][:2] == ["none (1)", "none (2)"]
    assert shown.cells[2][1].text == f"{rows[2].summary.coverage.value:.3f}"


def test_what_would_spoil_every_row_is_said_before_any_method_runs(world, roles):
    def never(test):
        raise AssertionError("a method was run")

    methods = [Stub(never)]
    with pytest.raises(RoleError, match="ids: 120 of the test role are in the calibration role"):
        compare_methods(roles, world["calibration"], methods=methods)
    plain = World().draw(10, seed=3)
    with pytest.raises(EvidenceError, match="test: its images have no ids"):
        compare_methods(roles, plain, methods=methods)
    fewer = world["test"].restrict(["c0", "c1"])
    with pytest.raises(MismatchError):
        compare_methods(roles, fewer, methods=methods)
    outside = Evidence(
        embeddings=plain.embeddings,
        prompt_logits=plain.prompt_logits,
        labels=np.full(10, -1),
        classes=plain.classes,
        ids=[f"new-{i}" for i in range(10)],
    )
    with pytest.raises(EvidenceError, match="test: no image has a diagnosis among the classes"):
        compare_methods(roles, outside, methods=methods)


def test_subgroups_are_the_same_decisions_on_fewer_images(world, roles):
    test = world["test"]
    site = np.where(np.arange(len(test)) % 3 == 0, "west", "east").astype(object)
    site[:5] = None
    rows = list(compare_methods(roles, test, methods=chosen_methods(["aps", "lac", "calcode"])))
    groups = rows_by(rows, site)
    assert list(groups) == ["east", "west", "unknown"]
    for value, members in groups.items():
        assert [row.record.name for row in members] == ["lac", "aps", "calcode"]
        chosen = site == (None if value == "unknown" else value)
        for row, whole in zip(members, rows, strict=True):
            np.testing.assert_array_equal(row.decided.sets, whole.decided.sets[chosen])
            assert row.summary.n == chosen.sum()
            assert math.isnan(row.seconds)
    # The whole is the sum of its parts.
    covered = sum(members[0].summary.coverage.value * members[0].summary.coverage.n for members in groups.values())
    assert math.isclose(covered / len(test), rows[0].summary.coverage.value)
    with pytest.raises(EvidenceError, match="column: 3 values for 80 images"):
        rows_by(rows, ["a", "b", "c"])


def test_classes_with_few_test_images_are_not_called_the_worst(world, roles):
    test = world["test"]
    order = np.concatenate([np.flatnonzero(test.labels != 2), np.flatnonzero(test.labels == 2)[:3]])
    few = test[order]
    sets = np.ones((len(few), 4), dtype=bool)
    sets[few.labels == 2] = False
    sets[np.flatnonzero(few.labels == 0)[0]] = False
    all_classes = only(compare_methods(roles, few, methods=[fixed(sets)], terms=Terms(min_n=1)))
    large = only(compare_methods(roles, few, methods=[fixed(sets)], terms=Terms(min_n=4)))
    assert all_classes.summary.worst_class == "c2"
    assert large.summary.worst_class == "c0"


def test_groups_name_methods_of_the_registry_and_together_with_names_keep_table_order():
    for name, members in GROUPS.items():
        assert name not in METHODS
        assert members, name
        assert set(members) <= set(METHODS), name
    assert {METHODS[name].record.transductive for name in GROUPS["transductive"]} == {True}
    assert [m.record.name for m in chosen_methods(["calcode", "local", "aps"])] == [
        "aps",
        "local-cp",
        "base-lcp",
        "rlcp",
        "lcp-vlm",
        "calcode",
    ]


def test_unknown_names_and_terms_are_refused():
    with pytest.raises(StudyError, match="no method 'calcod'; did you mean 'calcode'"):
        chosen_methods(["calcod"])
    with pytest.raises(SettingsError, match="methods: none named"):
        chosen_methods([])
    with pytest.raises(SettingsError, match="miscoverage: 1"):
        Terms(miscoverage=1.0)
    with pytest.raises(SettingsError, match="min_n: 0"):
        Terms(min_n=0)
