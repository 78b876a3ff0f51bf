from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from calcode.method.decisions import COST_REGIMES
from calcode.study import TABLES, read_table
from calcode.study.docs_page import tables_page

ROOT = Path(__file__).parents[2]
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


def rows_of(whole_study, name, **wanted):
    rows = read_table(whole_study.tables, TABLES[name])
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def decisions_of(whole_study, setting, backbone, method):
    """Straight from the Parquet file, without the study's own reader."""
    folder = whole_study.outcome.folder / "work" / "method-decisions"
    (path,) = [p for p in folder.glob(f"{setting}.{backbone}.{method}.*.parquet") if ".split-" not in p.name]
    return pq.read_table(path).to_pylist()


def test_the_package_is_complete() -> None:
    assert len(PACKAGE) == 20
    assert set(PACKAGE) <= set(TABLES)


@pytest.mark.parametrize("name", list(TABLES))
def test_every_table_fits_its_schema_and_has_rows(whole_study, name) -> None:
    rows = read_table(whole_study.tables, TABLES[name])
    assert TABLES[name].checked(rows) == rows
    assert rows


def test_tables_describe_themselves(whole_study) -> None:
    described = json.loads((whole_study.tables / "schemas.json").read_text())
    assert set(described) == {path.name for path in whole_study.tables.glob("*.csv")}
    for schema in TABLES.values():
        assert all(column.about.endswith(".") for column in schema.columns), schema.name


def test_the_docs_page_is_written_from_the_schemas() -> None:
    page = (ROOT / "docs" / "study-tables.md").read_text()
    assert page == tables_page(), "run: python -m calcode.study.docs_page > docs/study-tables.md"


@pytest.mark.parametrize("method", ["aps", "calcode", "global-calibration"])
@pytest.mark.parametrize("setting", ["HOME", "AWAY"])
def test_the_summary_is_what_the_decisions_say(whole_study, setting, method) -> None:
    (row,) = rows_of(
        whole_study, "recent_baselines_summary", setting=setting, backbone="second", method=method
    )
    decided = decisions_of(whole_study, setting, "second", method)
    n_classes = 4 if setting == "HOME" else 3
    answered = [entry for entry in decided if not entry["deferred"]]
    covered = [entry["label"] in entry["set"] for entry in answered]
    assert row["n"] == len(decided)
    assert row["coverage"] == pytest.approx(np.mean(covered), abs=1e-15)
    assert row["set_size"] == pytest.approx(np.mean([len(entry["set"]) for entry in answered]), abs=1e-12)
    assert row["full_set_rate"] == pytest.approx(
        np.mean([len(entry["set"]) == n_classes for entry in answered])
    )
    assert row["deferral"] == pytest.approx(np.mean([entry["deferred"] for entry in decided]))
    right = [entry["top_label"] == entry["label"] for entry in answered]
    assert row["selective_accuracy"] == pytest.approx(np.mean(right))
    informative = [entry["accepted"] and 0 < len(entry["set"]) < n_classes for entry in decided]
    assert row["informative_rate"] == pytest.approx(np.mean(informative))
    assert row["coverage_hit"] == (np.mean(covered) >= 0.95)
    by_class = {
        name: np.mean([entry["label"] in entry["set"] for entry in answered if entry["label"] == name])
        for name in {entry["label"] for entry in answered}
        if sum(entry["label"] == name for entry in answered) >= (5 if setting == "AWAY" else 20)
    }
    assert row["worst_class_coverage"] == pytest.approx(min(by_class.values()))
    assert by_class[row["worst_class"]] == min(by_class.values())


def test_an_empty_set_is_deferred(whole_study) -> None:
    for setting in ("HOME", "AWAY", "PAIR"):
        for entry in decisions_of(whole_study, setting, "first", "calcode"):
            assert entry["deferred"] is (not entry["accepted"] or not entry["set"])
        for entry in decisions_of(whole_study, setting, "first", "aps"):
            assert entry["accepted"]
            assert not entry["deferred"]


def test_out_of_space_images_enter_no_figure_of_the_comparison(whole_study) -> None:
    assert all(entry["label"] is not None for entry in decisions_of(whole_study, "AWAY", "first", "calcode"))
    (row,) = rows_of(
        whole_study, "recent_baselines_summary", setting="AWAY", backbone="first", method="calcode"
    )
    assert row["out_of_space_deferral"] is None
    beyond = rows_of(whole_study, "out_of_space_detection", setting="AWAY", backbone="first")
    assert {entry["n_in_space"] for entry in beyond} == {row["n"]}
    assert {entry["n_in_space"] + entry["n_out_of_space"] for entry in beyond} == {90}


def test_means_are_means_and_hits_are_counted(whole_study) -> None:
    for scope, settings in (
        ("HOME", ["HOME"]),
        ("shifted", ["AWAY", "PAIR"]),
        ("all", ["HOME", "AWAY", "PAIR"]),
    ):
        behind = [
            row
            for row in rows_of(whole_study, "recent_baselines_summary", method="mondrian")
            if row["setting"] in settings
        ]
        (mean,) = rows_of(whole_study, "recent_baselines_dataset_means", scope=scope, method="mondrian")
        assert mean["n_combinations"] == len(behind) == 2 * len(settings)
        assert mean["coverage"] == pytest.approx(np.mean([row["coverage"] for row in behind]))
        assert mean["worst_class_hits"] == sum(row["worst_class_hit"] for row in behind)


def test_the_ablations_complete_rows_are_those_of_the_comparison(whole_study) -> None:
    checks = rows_of(whole_study, "calcode_matched_ablation_reference_check")
    assert {(row["setting"], row["backbone"]) for row in checks} == {
        (setting, backbone) for setting in ("HOME", "AWAY", "PAIR") for backbone in ("first", "second")
    }
    assert all(row["equal"] and row["images_that_differ"] == 0 for row in checks)
    for row in rows_of(whole_study, "calcode_matched_ablation_summary", method="calcode"):
        (main,) = rows_of(
            whole_study,
            "recent_baselines_summary",
            setting=row["setting"],
            backbone=row["backbone"],
            method="calcode",
        )
        shared = set(row) & set(main)
        assert len(shared) > 20
        assert {name: row[name] for name in shared} == {name: main[name] for name in shared}


def test_the_paired_difference_is_the_difference_of_the_means(whole_study) -> None:
    for setting in ("HOME", "PAIR"):
        (row,) = rows_of(
            whole_study,
            "recent_baselines_paired_bootstrap",
            setting=setting,
            comparator="aps",
            metric="set_size",
        )
        ours, theirs = (
            np.mean(
                [
                    r["set_size"]
                    for r in rows_of(whole_study, "recent_baselines_summary", setting=setting, method=m)
                ]
            )
            for m in ("calcode", "aps")
        )
        assert row["difference"] == pytest.approx(ours - theirs)
        assert row["low"] <= row["difference"] <= row["high"]
        assert row["n_backbones"] == 2


def test_risks_follow_from_the_decisions(whole_study) -> None:
    (row,) = rows_of(
        whole_study,
        "cost_sensitive_risk",
        setting="AWAY",
        backbone="first",
        method="calcode",
        regime="safety-heavy",
    )
    decided = decisions_of(whole_study, "AWAY", "first", "calcode")
    (main,) = rows_of(
        whole_study, "recent_baselines_summary", setting="AWAY", backbone="first", method="calcode"
    )
    d = 1 - np.mean([entry["accepted"] for entry in decided])
    costs = COST_REGIMES["safety-heavy"]
    answered = (
        costs.error * (1 - main["coverage"])
        + costs.error / 2 * (1 - main["worst_class_coverage"])
        + costs.set_size * (main["set_size"] - 1) / 2
    )
    assert row["risk"] == pytest.approx((1 - d) * answered + costs.deferral * d)


def test_the_chosen_operating_points_are_counted(whole_study) -> None:
    points = rows_of(whole_study, "validation_selected_operating_points", regime="balanced")
    (total,) = rows_of(whole_study, "validation_selected_risk_delta_summary", scope="all", regime="balanced")
    assert total["n_combinations"] == len(points) == 6
    assert total["n_relaxed"] == sum(not row["feasible"] for row in points)
    assert total["delta_risk"] == pytest.approx(np.mean([row["delta_risk"] for row in points]))
    assert {row["target_coverage"] for row in points} <= {0.9, 0.925, 0.95}


def test_sensitivities_vary_what_they_say(whole_study) -> None:
    rows = rows_of(whole_study, "sensitivity_summary", setting="HOME", backbone="first")
    main = rows_of(
        whole_study, "recent_baselines_summary", setting="HOME", backbone="first", method="calcode"
    )[0]
    usual = [
        row
        for row in rows
        if (row["parameter"], row["value"])
        in {("deferral_level", "0.05"), ("support_budget", "0.25"), ("trim", "1"), ("n_neighbors", "10")}
        | {("n_folds", "5"), ("level", "loo"), ("guard_level", "0.95")}
    ]
    assert len(usual) == 7
    for row in usual:
        assert {name: row[name] for name in ("coverage", "set_size", "deferral", "worst_class_coverage")} == {
            name: main[name] for name in ("coverage", "set_size", "deferral", "worst_class_coverage")
        }
    # Three prompts leave nothing when two are trimmed at each end: said, not failed.
    assert {row["value"] for row in rows if row["parameter"] == "trim"} == {"0", "1"}
    margins = {
        row["value"]: set((row["protected"] or "").split())
        for row in rows
        if row["parameter"] == "discovery_margin" and row["guard_level"] == 0.95
    }
    assert margins["0.05"] <= margins["0.0"]


def test_guard_levels_share_the_discovered_classes(whole_study) -> None:
    for setting in ("HOME", "AWAY"):
        rows = rows_of(
            whole_study, "sensitivity_summary", setting=setting, backbone="first", parameter="guard_level"
        )
        assert {row["guard_level"] for row in rows} == {0.9, 0.95}
        assert len({row["protected"] for row in rows}) == 1
        low, high = sorted(rows, key=lambda row: row["guard_level"])
        assert low["set_size"] <= high["set_size"]
        assert low["deferral"] == high["deferral"]


def test_binary_rows_follow_from_the_decisions(whole_study) -> None:
    rows = rows_of(whole_study, "camelyon_binary_informative_utility_cov0.95_def0.05")
    assert {row["setting"] for row in rows} == {"PAIR"}
    assert len(rows) == 2 * 4
    for row in rows:
        decided = decisions_of(whole_study, "PAIR", row["backbone"], row["method"])
        single = [entry for entry in decided if entry["accepted"] and len(entry["set"]) == 1]
        assert row["original_informative"] == pytest.approx(len(single) / len(decided))
        assert row["utility_deferral"] == pytest.approx(1 - len(single) / len(decided))
        assert row["n_singletons"] == len(single)
        if single:
            right = np.mean([entry["label"] in entry["set"] for entry in single])
            assert row["singleton_coverage"] == pytest.approx(right)


def test_subgroups_add_up(whole_study) -> None:
    rows = rows_of(whole_study, "subgroup_coverage", setting="HOME", backbone="first")
    assert {row["column"] for row in rows} == {"site", "age"}
    for column in ("site", "age"):
        assert sum(row["n"] for row in rows if row["column"] == column) == 110
    ages = [row["value"] for row in rows if row["column"] == "age"]
    assert ages == ["20 to 39", "40 to 59", "60 to 79", "80 to 99"]


def test_without_a_shift_the_target_is_as_near_as_the_source(whole_study) -> None:
    (row,) = rows_of(whole_study, "geometry_summary", setting="HOME", backbone="first")
    assert row["shift_ratio"] == 1.0
    assert row["probe_source"] == "reference"
    (away,) = rows_of(whole_study, "geometry_summary", setting="AWAY", backbone="first")
    assert away["probe_source"] == "test"
    assert 1 < away["effective_rank"] <= away["dimension"] == 8


def test_the_motivating_image_shows_the_difference(whole_study) -> None:
    rows = rows_of(whole_study, "motivating_case", chosen_class=True)
    assert {row["method"] for row in rows} == {"aps", "calcode"}
    (class_name,) = {row["class_name"] for row in rows}
    by_method = {row["method"]: row for row in rows}
    if by_method["calcode"]["n_candidates"]:
        assert class_name not in (by_method["aps"]["image_set"] or "").split()
        assert class_name in by_method["calcode"]["image_set"].split()
        (case,) = [
            entry
            for entry in decisions_of(whole_study, "AWAY", "first", "aps")
            if entry["id"] == by_method["aps"]["image_id"]
        ]
        assert case["label"] == class_name


def test_resplits_keep_the_sizes_and_change_the_roles(whole_study) -> None:
    rows = rows_of(whole_study, "resplit_summary", setting="HOME", backbone="first", method="aps")
    assert [row["split"] for row in rows] == ["given", "1", "2"]
    assert {row["n"] for row in rows} == {110}
    assert len({row["coverage"] for row in rows} | {row["set_size"] for row in rows}) > 2
    (spread,) = rows_of(
        whole_study, "resplit_spread", setting="HOME", backbone="first", method="aps", metric="set_size"
    )
    values = [row["set_size"] for row in rows if row["split"] != "given"]
    assert spread["mean"] == pytest.approx(np.mean(values))
    assert spread["standard_deviation"] == pytest.approx(np.std(values, ddof=1))
    assert spread["worst"] == max(values)
    assert spread["given"] == rows[0]["set_size"]


def test_neighbours_say_when_nothing_was_measured(whole_study) -> None:
    rows = rows_of(whole_study, "ann_knn_scaling", setting="HOME", backbone="first")
    exact, approximate = rows
    assert exact["recall_at_10"] == 1.0
    assert exact["cache_bytes"] == 5 * 110 * 8 * 4
    assert (approximate["note"] is None) is (approximate["recall_at_10"] is not None)


def test_only_durations_may_differ_between_runs() -> None:
    varying = {schema.name for schema in TABLES.values() if any(column.varies for column in schema.columns)}
    assert varying == {"ann_knn_scaling"}
