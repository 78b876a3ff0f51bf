"""Every table is recomputed from the raw decisions, without the study's own reader and averages."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import beta

from calcode.method.decisions import COST_REGIMES
from calcode.study.decisions import MethodDecisions
from calcode.study.experiments import motivating_case
from calcode.study.registry import TABLES

#: The diagnostic package under the paper's names.
PACKAGE = [
    "recent_baselines_summary",
    "recent_baselines_dataset_means",
    "recent_baselines_classwise",
    "recent_baselines_deltas",
    "recent_baselines_paired_bootstrap",
    "calcode_matched_ablation_summary",
    "calcode_matched_ablation_means",
    "calcode_matched_ablation_deltas",
    "calcode_matched_ablation_reference_check",
    "audit_score_stability",
    "geometry_summary",
    "distance_quantiles",
    "pca_domain_projection",
    "gamma_sensitivity_average",
    "utility_calcode_comparison",
    "utility_calcode_dataset_means",
    "validation_selected_risk_delta_summary",
    "conservative_xmodal_budget_summary",
    "camelyon_binary_informative_utility_cov0.95_def0.05",
    "ann_knn_scaling",
]
SETTINGS = {"HOME": (4, 20), "AWAY": (3, 5), "PAIR": (2, 20)}


def only(frame: pd.DataFrame):
    (row,) = frame.itertuples(index=False)
    return row


def wilson(k: int, n: int) -> tuple[float, float]:
    z = 1.959963984540054
    centre, half = (k + z * z / 2) / (n + z * z), z * math.sqrt(k * (n - k) / n + z * z / 4) / (n + z * z)
    return centre - half, centre + half


def exact_interval(k: int, n: int, confidence: float) -> tuple[float, float]:
    tail = (1 - confidence) / 2
    low = 0.0 if k == 0 else beta.ppf(tail, k, n - k + 1)
    return low, 1.0 if k == n else beta.ppf(1 - tail, k + 1, n - k)


def by_class(decided: list[dict], min_n: int) -> dict[str, tuple[int, int]]:
    """Class to covered and answered images, for the classes that compete for the worst (METHOD.md 11)."""
    answered = [entry for entry in decided if not entry["deferred"] and entry["label"] is not None]
    found = {}
    for name in {entry["label"] for entry in answered}:
        own = [entry for entry in answered if entry["label"] == name]
        found[name] = (sum(name in entry["set"] for entry in own), len(own))
    enough = {name: cell for name, cell in found.items() if cell[1] >= min_n}
    return enough or found


def test_the_package_is_complete() -> None:
    assert len(PACKAGE) == 20
    assert set(PACKAGE) <= set(TABLES)


@pytest.mark.parametrize("name", list(TABLES))
def test_every_table_fits_its_schema_and_has_rows(finished, name) -> None:
    # A review by trigger and coin says nothing below 200 patients, and the made-up cohorts have fewer.
    assert len(finished.table(name)) or name == "site_review_bias"


def test_tables_describe_themselves(finished) -> None:
    tables = finished.folder / "tables"
    described = json.loads((tables / "schemas.json").read_text())
    assert set(described) == {path.name for path in tables.glob("*.csv")}
    for schema in TABLES.values():
        assert all(column.about.endswith(".") for column in schema.columns), schema.name


@pytest.mark.parametrize("method", ["aps", "calcode", "calcode-paper-sets", "global-calibration"])
@pytest.mark.parametrize("setting", list(SETTINGS))
def test_the_summary_is_what_the_decisions_say(finished, setting, method) -> None:
    row = only(finished.table("recent_baselines_summary", setting=setting, backbone="second", method=method))
    decided = finished.decisions(setting, "second", method)
    n_classes, min_n = SETTINGS[setting]
    answered = [entry for entry in decided if not entry["deferred"]]
    covered = [entry["label"] in entry["set"] for entry in answered]
    assert (row.n, row.n_answered) == (len(decided), len(answered))
    assert row.coverage == pytest.approx(np.mean(covered), abs=1e-15)
    assert (row.coverage_low, row.coverage_high) == pytest.approx(wilson(sum(covered), len(covered)))
    assert row.set_size == pytest.approx(np.mean([len(entry["set"]) for entry in answered]), abs=1e-12)
    assert row.set_size_low <= row.set_size <= row.set_size_high
    assert row.full_set_rate == pytest.approx(np.mean([len(entry["set"]) == n_classes for entry in answered]))
    deferred = sum(entry["deferred"] for entry in decided)
    assert row.deferral == pytest.approx(deferred / len(decided))
    assert (row.deferral_low, row.deferral_high) == pytest.approx(wilson(deferred, len(decided)), abs=1e-12)
    right = [entry["top_label"] == entry["label"] for entry in answered]
    assert row.selective_accuracy == pytest.approx(np.mean(right))
    assert (row.selective_accuracy_low, row.selective_accuracy_high) == pytest.approx(wilson(sum(right), len(right)))
    informative = [not entry["deferred"] and 0 < len(entry["set"]) < n_classes for entry in decided]
    assert row.informative_rate == pytest.approx(np.mean(informative))
    accepted = [entry["label"] in entry["set"] for entry in decided if entry["accepted"]]
    assert row.audit_coverage == pytest.approx(np.mean(accepted))
    assert row.coverage_hit == (np.mean(covered) >= 0.95)
    classes = by_class(decided, min_n)
    worst = min(k / n for k, n in classes.values())
    assert row.worst_class_coverage == pytest.approx(worst)
    k, n = classes[row.worst_class]
    assert (k / n, n) == (pytest.approx(worst), row.worst_class_n)
    ends = [exact_interval(k, n, 1 - 0.05 / len(classes)) for k, n in classes.values()]
    assert row.worst_class_coverage_low == pytest.approx(min(low for low, _ in ends))
    assert row.worst_class_coverage_high == pytest.approx(min(high for _, high in ends))
    assert row.worst_class_hit == (worst >= 0.95)


@pytest.mark.parametrize("method", ["aps", "calcode", "calcode-paper-sets"])
def test_single_answers_are_counted_and_judged(finished, method) -> None:
    seen = 0
    for setting in SETTINGS:
        row = only(finished.table("recent_baselines_summary", setting=setting, backbone="first", method=method))
        decided = finished.decisions(setting, "first", method)
        single = [entry for entry in decided if not entry["deferred"] and len(entry["set"]) == 1]
        right = sum(entry["set"] == [entry["label"]] for entry in single)
        assert (row.n_single, row.n_single_right) == (len(single), right)
        if single:
            assert (row.single_right_low, row.single_right_high) == pytest.approx(wilson(right, len(single)))
        seen += len(single)
    assert seen


def test_calcode_keeps_its_first_label_and_the_papers_sets_may_lose_it(finished) -> None:
    for setting in SETTINGS:
        for entry in finished.decisions(setting, "first", "calcode"):
            assert entry["top_label"] in entry["set"]
    lost = [
        entry
        for setting in SETTINGS
        for backbone in ("first", "second")
        for entry in finished.decisions(setting, backbone, "calcode-paper-sets")
        if entry["top_label"] not in entry["set"]
    ]
    assert lost


def test_an_empty_set_is_a_deferral_where_the_method_can_defer(finished) -> None:
    for setting in SETTINGS:
        for entry in finished.decisions(setting, "first", "calcode-paper-sets"):
            assert entry["deferred"] is (not entry["accepted"] or not entry["set"])
        for entry in finished.decisions(setting, "first", "aps"):
            assert entry["accepted"]
            assert not entry["deferred"]


def test_out_of_space_images_enter_no_figure_of_the_comparison(finished) -> None:
    assert all(entry["label"] is not None for entry in finished.decisions("AWAY", "first", "calcode"))
    row = only(finished.table("recent_baselines_summary", setting="AWAY", backbone="first", method="calcode"))
    assert math.isnan(row.out_of_space_deferral)
    beyond = finished.table("out_of_space_detection", setting="AWAY", backbone="first")
    assert set(beyond["n_in_space"]) == {row.n}
    assert set(beyond["n_in_space"] + beyond["n_out_of_space"]) == {90}


@pytest.mark.parametrize(
    ("scope", "settings"), [("HOME", ["HOME"]), ("shifted", ["AWAY", "PAIR"]), ("all", ["HOME", "AWAY", "PAIR"])]
)
def test_averages_are_averages_of_the_raw_decisions(finished, scope, settings) -> None:
    combinations = [
        finished.decisions(setting, backbone, "mondrian") for setting in settings for backbone in ("first", "second")
    ]
    coverage = [np.mean([entry["label"] in entry["set"] for entry in decided]) for decided in combinations]
    size = [np.mean([len(entry["set"]) for entry in decided]) for decided in combinations]
    mean = only(finished.table("recent_baselines_dataset_means", scope=scope, method="mondrian"))
    assert mean.n_combinations == len(combinations)
    assert mean.coverage == pytest.approx(np.mean(coverage))
    assert mean.set_size == pytest.approx(np.mean(size))
    assert mean.coverage_hits == sum(value >= 0.95 for value in coverage)
    single = sum(len(entry["set"]) == 1 for decided in combinations for entry in decided)
    assert mean.n_single == single
    same = only(finished.table("utility_calcode_dataset_means", scope=scope, method="mondrian"))
    assert (same.coverage, same.set_size, same.worst_class_hits) == (
        mean.coverage,
        mean.set_size,
        mean.worst_class_hits,
    )


def test_classes_are_counted_from_the_decisions(finished) -> None:
    for row in finished.table("recent_baselines_classwise", setting="AWAY", method="calcode").itertuples():
        own = [e for e in finished.decisions("AWAY", row.backbone, "calcode") if e["label"] == row.class_name]
        answered = [entry for entry in own if not entry["deferred"]]
        covered = sum(row.class_name in entry["set"] for entry in answered)
        assert (row.n, row.n_answered) == (len(own), len(answered))
        assert row.coverage == pytest.approx(covered / len(answered))
        assert (row.coverage_low, row.coverage_high) == pytest.approx(wilson(covered, len(answered)))
        assert row.deferral == pytest.approx(1 - len(answered) / len(own))


def test_the_ablations_complete_rows_are_those_of_the_comparison(finished) -> None:
    checks = finished.table("calcode_matched_ablation_reference_check")
    assert len(checks.drop_duplicates(["setting", "backbone"])) == 6
    assert checks["equal"].all()
    assert not checks["images_that_differ"].any()
    main = finished.table("recent_baselines_summary").set_index(["setting", "backbone", "method"])
    own = finished.table("calcode_matched_ablation_summary").set_index(["setting", "backbone", "method"])
    for method in ("calcode", "calcode-paper-sets"):
        rows = own.xs(method, level="method")
        others = main.xs(method, level="method").loc[rows.index]
        shared = [name for name in rows if name in others]
        assert len(shared) > 25
        pd.testing.assert_frame_equal(rows[shared], others[shared], check_dtype=False)


def test_differences_are_differences_of_the_summaries(finished) -> None:
    main = finished.table("recent_baselines_summary").set_index(["setting", "backbone", "method"])
    for row in finished.table("recent_baselines_deltas").itertuples():
        own, other = (main.loc[(row.setting, row.backbone, name)] for name in ("calcode", row.method))
        assert row.delta_set_size == own["set_size"] - other["set_size"]
        assert row.delta_deferral == own["deferral"] - other["deferral"]


@pytest.mark.parametrize("metric", ["coverage", "set_size", "deferral"])
def test_the_paired_difference_is_the_difference_of_the_means(finished, metric) -> None:
    for setting in ("HOME", "PAIR"):
        row = only(
            finished.table("recent_baselines_paired_bootstrap", setting=setting, comparator="aps", metric=metric)
        )
        ours, theirs = (
            finished.table("recent_baselines_summary", setting=setting, method=name)[metric].mean()
            for name in ("calcode", "aps")
        )
        assert row.difference == pytest.approx(ours - theirs)
        assert row.low <= row.difference <= row.high
        assert row.excludes_zero == (row.low > 0 or row.high < 0)
        assert row.n_backbones == 2


def test_risks_follow_from_the_decisions(finished) -> None:
    where = {"setting": "AWAY", "backbone": "first", "method": "calcode"}
    row = only(finished.table("cost_sensitive_risk", **where, regime="safety-heavy"))
    decided = finished.decisions(*where.values())
    answered = [entry for entry in decided if not entry["deferred"]]
    d = 1 - len(answered) / len(decided)
    coverage = np.mean([entry["label"] in entry["set"] for entry in answered])
    worst = min(k / n for k, n in by_class(decided, 5).values())
    size = np.mean([len(entry["set"]) for entry in answered])
    costs = COST_REGIMES["safety-heavy"]
    expected = (1 - d) * (
        costs.error * (1 - coverage) + costs.error / 2 * (1 - worst) + costs.set_size * (size - 1) / 2
    ) + costs.deferral * d
    assert row.risk == pytest.approx(expected)
    averages = finished.table("cost_sensitive_risk_average", scope="all", regime="safety-heavy")
    lowest = averages[averages["lowest"]]
    assert set(lowest["risk"]) == {averages["risk"].min()}


def test_chosen_points_and_their_averages(finished) -> None:
    points = finished.table("validation_selected_operating_points", regime="balanced")
    mean = only(finished.table("validation_selected_risk_delta_summary", scope="all", regime="balanced"))
    assert mean.n_combinations == len(points) == 6
    assert mean.chosen_deferral_level == pytest.approx(points["deferral_level"].mean())
    assert mean.delta_risk == pytest.approx(points["delta_risk"].mean())
    assert mean.n_relaxed == (~points["feasible"]).sum() == (points["relaxed"] != "").sum()
    assert mean.n_relaxed_coverage == points["relaxed"].str.contains("coverage").sum()


def test_the_usual_values_of_a_sensitivity_are_the_method_itself(finished) -> None:
    rows = finished.table("sensitivity_summary", setting="HOME", backbone="first")
    main = only(finished.table("recent_baselines_summary", setting="HOME", backbone="first", method="calcode"))
    usual = {("deferral_level", "0.05"), ("support_budget", "0.25"), ("trim", "1"), ("n_neighbors", "10")}
    usual |= {("n_folds", "5"), ("level", "loo"), ("guard_level", "0.95")}
    found = [row for row in rows.itertuples() if (row.parameter, row.value) in usual]
    assert len(found) == 7
    for row in found:
        for name in ("coverage", "set_size", "deferral", "worst_class_coverage", "n_single"):
            assert getattr(row, name) == getattr(main, name)
    # Three prompts leave nothing when two are trimmed at each end: said, not failed.
    assert set(rows[rows["parameter"] == "trim"]["value"]) == {"0", "1"}
    margins = rows[(rows["parameter"] == "discovery_margin") & (rows["guard_level"] == 0.95)]
    protected = {row.value: set(row.protected.split()) for row in margins.itertuples()}
    assert protected["0.05"] <= protected["0.0"]


def test_guard_levels_share_the_discovered_classes(finished) -> None:
    for setting in ("HOME", "AWAY"):
        rows = finished.table("sensitivity_summary", setting=setting, backbone="first", parameter="guard_level")
        low, high = rows.sort_values("guard_level").itertuples()
        assert (low.guard_level, high.guard_level) == (0.9, 0.95)
        assert low.protected == high.protected
        assert low.set_size <= high.set_size
        assert low.deferral == high.deferral


def test_binary_rows_follow_from_the_decisions(finished) -> None:
    rows = finished.table("camelyon_binary_informative_utility_cov0.95_def0.05")
    assert set(rows["setting"]) == {"PAIR"}
    assert len(rows) == 2 * 4
    for row in rows.itertuples():
        decided = finished.decisions("PAIR", row.backbone, row.method)
        single = [entry for entry in decided if entry["accepted"] and len(entry["set"]) == 1]
        assert row.original_informative == pytest.approx(len(single) / len(decided))
        assert row.utility_deferral == pytest.approx(1 - len(single) / len(decided))
        assert row.n_singletons == len(single)
        if single:
            right = np.mean([entry["label"] in entry["set"] for entry in single])
            assert row.singleton_coverage == pytest.approx(right)


def test_subgroups_add_up(finished) -> None:
    rows = finished.table("subgroup_coverage", setting="HOME", backbone="first")
    assert set(rows["column"]) == {"site", "age"}
    assert set(rows.groupby("column")["n"].sum()) == {110}
    main = only(finished.table("recent_baselines_summary", setting="HOME", backbone="first", method="calcode"))
    for _, own in rows.groupby("column"):
        assert (own["coverage"] * own["n_answered"]).sum() == pytest.approx(main.coverage * main.n_answered)
    ages = rows[rows["column"] == "age"]["value"].tolist()
    assert ages == ["20 to 39", "40 to 59", "60 to 79", "80 to 99"]


def test_without_a_shift_the_target_is_as_near_as_the_source(finished) -> None:
    row = only(finished.table("geometry_summary", setting="HOME", backbone="first"))
    assert row.shift_ratio == 1.0
    assert row.probe_source == "reference"
    away = only(finished.table("geometry_summary", setting="AWAY", backbone="first"))
    assert away.probe_source == "test"
    assert 1 < away.effective_rank <= away.dimension == 8


def test_the_motivating_image_shows_the_difference(finished) -> None:
    rows = finished.table("motivating_case", chosen_class=True)
    (class_name,) = set(rows["class_name"])
    by_method = {row.method: row for row in rows.itertuples()}
    assert set(by_method) == {"aps", "calcode"}
    if by_method["calcode"].n_candidates:
        assert class_name not in by_method["aps"].image_set.split()
        assert class_name in by_method["calcode"].image_set.split()
        (case,) = [
            entry for entry in finished.decisions("AWAY", "first", "aps") if entry["id"] == by_method["aps"].image_id
        ]
        assert case["label"] == class_name


def test_full_sets_are_motivating_images_too_but_the_last_ones() -> None:
    def decided(sets: list[list[int]]) -> MethodDecisions:
        n = len(sets)
        return MethodDecisions(
            ids=np.array([f"i{i}" for i in range(n)]),
            labels=np.zeros(n, dtype=np.int64),
            sets=np.array(sets, dtype=bool),
            accepted=np.ones(n, dtype=bool),
            deferred=np.zeros(n, dtype=bool),
            p_values=np.full(n, np.nan),
            top_label=np.ones(n, dtype=np.int64),
            top_probability=np.full(n, 0.5),
            classes=("a", "b", "c"),
            defers=False,
        )

    theirs = decided([[0, 1, 0], [0, 1, 0], [1, 1, 0], [0, 1, 0]])
    ours = decided([[1, 1, 1], [1, 1, 0], [1, 1, 1], [0, 1, 0]])
    assert motivating_case.cases(theirs, ours, label=0) == [1, 0]


def test_resplits_keep_the_sizes_and_change_the_roles(finished) -> None:
    rows = finished.table("resplit_summary", setting="HOME", backbone="first", method="aps")
    assert rows["split"].tolist() == ["given", "1", "2"]
    assert set(rows["n"]) == {110}
    assert rows[["coverage", "set_size"]].drop_duplicates().shape[0] > 1
    spread = only(finished.table("resplit_spread", setting="HOME", backbone="first", method="aps", metric="set_size"))
    values = rows[rows["split"] != "given"]["set_size"]
    assert spread.mean == pytest.approx(values.mean())
    assert spread.standard_deviation == pytest.approx(values.std(ddof=1))
    assert spread.worst == values.max()
    assert spread.given == rows["set_size"].iloc[0]


def test_neighbours_say_when_nothing_was_measured(finished) -> None:
    exact, approximate = finished.table("ann_knn_scaling", setting="HOME", backbone="first").itertuples()
    assert exact.recall_at_10 == 1.0
    assert exact.cache_bytes == 5 * 110 * 8 * 4
    assert (approximate.note == "") is not math.isnan(approximate.recall_at_10)


def test_only_durations_may_differ_between_runs() -> None:
    varying = {schema.name for schema in TABLES.values() if any(column.varies for column in schema.columns)}
    assert varying == {"ann_knn_scaling"}


def test_hits_of_the_worst_class_are_its_own(finished) -> None:
    rows = finished.table("recent_baselines_summary")
    assert (rows["worst_class_hit"] == (rows["worst_class_coverage"] >= 0.95)).all()
    assert (rows["coverage_hit"] == (rows["coverage"] >= 0.95)).all()
    assert (rows["worst_class_hit"] != rows["coverage_hit"]).any()
