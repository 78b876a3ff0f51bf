"""Sentences of a study's page: true of the data they were given, and absent where they would not be."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from calcode.study.experiments import (
    ablations,
    audit_stability,
    classwise,
    cost_risk,
    cross_modal,
    geometry,
    main_comparison,
    neighbours,
    operating_points,
    out_of_space,
    paired_bootstrap,
    resplits,
    sensitivity,
)
from calcode.study.output import StudyOutput
from calcode.study.view import FIGURE_COLS, cost_words


def plain(text: str) -> str:
    return text.replace("\u00a0", " ").replace("\u2212", "-")


def row(**cells: Any) -> Any:
    return SimpleNamespace(**cells)


def figures(**changed: Any) -> Any:
    cells: dict[str, Any] = {
        "method": "calcode",
        "title": "CALCoDe",
        "coverage": 0.96,
        "coverage_low": 0.95,
        "coverage_high": 0.97,
        "worst_class_coverage": 0.9,
        "worst_class_coverage_low": 0.75,
        "worst_class_coverage_high": 0.975,
        "set_size": 2.5,
        "full_set_rate": 0.25,
        "deferral": 0.1,
        "informative_rate": 0.6,
        "n_single": 19,
        "n_single_right": 13,
        "worst_class": "mel",
        "worst_class_n": 40,
        "n_answered": 200,
        "coverage_hit": True,
        "worst_class_hit": False,
        "n_combinations": 4,
        "coverage_hits": 3,
        "worst_class_hits": 0,
        "diagnostic": "msp",
        "bandwidth": "0.25",
        "protected": "mel bcc",
        "in_every_set": "",
    }
    return row(**(cells | changed))


def cell(heading: str, shown: Any) -> Any:
    (col,) = [col for col in FIGURE_COLS if col.heading == heading]
    return col.cell(shown)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, "2.50 of 7 labels per set, 25.0 % full sets, 10.0 % deferred"),
        ({"full_set_rate": 0.0, "deferral": 0.0}, "2.50 of 7 labels per set, no full set, none deferred"),
    ],
)
def test_costs_are_said_as_they_are(changed: dict[str, float], expected: str) -> None:
    assert plain(cost_words(figures(**changed), n_classes=7)) == expected


def test_cells_of_methods() -> None:
    assert cell("deferred", figures(defers=False, deferral=0.0)).text == "cannot"
    assert plain(cell("deferred", figures(defers=True, deferral=0.0)).text) == "0.0 %"
    assert cell("single answers", figures()) == "13 of 19 right"
    assert cell("single answers", figures(n_single=0, n_single_right=0)) == "none"
    nothing = figures(coverage=math.nan, coverage_low=math.nan, coverage_high=math.nan)
    assert plain(cell("coverage", nothing).text) == "undefined"


def test_a_setting_names_choices_and_the_methods_that_reach_the_target(output: StudyOutput) -> None:
    own, other = figures(), figures(method="aps", title="Split APS")

    def said(*rows: Any) -> str:
        return plain(" ".join(main_comparison.setting_sentences(output, rows, n_classes=7)))

    nobody = said(own, other)
    assert "mel with 90.0 % (75.0 to 97.5) of 40 images, stays below the target of 95 %" in nobody
    assert "No other method (1 in all) reaches 95 %" in nobody
    assert "the audit msp, bandwidth 0.250; it protects mel and bcc." in nobody
    somebody = said(own, figures(method="aps", title="Split APS", worst_class_hit=True))
    assert "reach 95 % with their least covered class: Split APS (2.50 labels per set" in somebody
    assert "No other" not in somebody
    assert "reaches the target of 95 %" in said(figures(worst_class_hit=True))
    bare = said(figures(protected="", in_every_set="vasc"))
    assert "it protects no class, so its sets are those of the localized rule" in bare
    assert "in every set, for lack of calibration images: vasc" in bare


def test_hits_name_all_who_share_the_first_place() -> None:
    rows = [figures(), figures(method="aps", title="Split APS"), figures(title="Third", coverage_hits=1)]
    sentence = plain(main_comparison.hits_sentence(rows))
    assert "in 3 of 4 combinations, by CALCoDe (" in sentence
    assert "and Split APS (" in sentence
    assert "Third" not in sentence
    assert sentence.endswith("no method reaches the target in any of the 4 combinations.")


def test_small_classes_are_not_called_clearly_below(output: StudyOutput) -> None:
    rows = pd.DataFrame(
        {
            "backbone": "first",
            "method": "calcode",
            "class_name": ["mel", "vasc", "nv"],
            "n_answered": [60, 3, 90],
            "coverage": [0.5, 0.0, 0.99],
            "coverage_high": [0.6, 0.5, 1.0],
        }
    )
    sentence = plain(classwise.class_sentence(output, rows, min_n=20))
    assert "CALCoDe with first 1 of 2 (mel 50.0 %)" in sentence
    assert "with fewer than 20 answered images: vasc" in sentence


def difference(low: float, high: float, **changed: Any) -> Any:
    cells = {
        "setting": "AWAY",
        "comparator_title": "Split APS",
        "metric": "coverage",
        "difference": (low + high) / 2,
        "low": low,
        "high": high,
        "excludes_zero": low > 0 or high < 0,
        "n_resamples": 1000,
    }
    return row(**(cells | changed))


def test_differences_are_counted_by_their_direction() -> None:
    rows = [difference(0.01, 0.02), difference(-0.02, -0.01, setting="HOME"), difference(-0.01, 0.01, setting="PAIR")]
    sentence = paired_bootstrap.paired_sentence(rows, what="coverage")
    assert "clearly higher than the comparator's in 1 of 3 comparisons" in sentence
    assert "clearly lower in 1 (Split APS on HOME)" in sentence
    assert "includes zero in 1 (Split APS on PAIR)" in sentence
    shares = paired_bootstrap.difference_cell(difference(-0.0126, 0.0071))
    assert (plain(shares.text), plain(shares.below)) == ("-0.3", "-1.3 to +0.7")
    assert plain(paired_bootstrap.difference_cell(difference(0.5, 0.7, metric="set_size")).text) == "+0.60"


def test_ablations_are_ordered_by_what_they_lose() -> None:
    rows = [
        figures(),
        figures(method="a", title="no guard", worst_class_coverage=0.85),
        figures(method="b", title="no localization", worst_class_coverage=0.7),
        figures(method="c", title="guard all", worst_class_coverage=0.95),
        figures(method="d", title="no trimming"),
    ]
    text = plain(" ".join(ablations.ablation_sentences(rows)))
    assert text.index("no localization -20.0 points") < text.index("no guard -5.0 points")
    assert "Better for it: guard all +5.0 points" in text
    assert "Without effect on it: no trimming." in text


def test_the_reference_check_speaks_up_when_rows_differ(output: StudyOutput) -> None:
    rows = output.table("calcode_matched_ablation_reference_check").copy()
    assert "rows equal the main comparison's in all" in ablations.check_sentence(rows)
    rows.loc[rows.index[0], "equal"] = False
    assert "not comparable" in ablations.check_sentence(rows)


def test_sensitivities_give_ranges() -> None:
    def line(**changed: Any) -> dict[str, Any]:
        return vars(figures(**changed))

    rows = pd.DataFrame(
        [
            line(guard_level=0.9, discovery_margin=0.0, parameter="trim"),
            line(guard_level=0.9, discovery_margin=0.1, worst_class_coverage=0.8, set_size=2.0, parameter="trim"),
            line(guard_level=0.95, discovery_margin=0.1, worst_class_coverage=math.nan, parameter="n_folds"),
        ]
    )
    sentence = plain(sensitivity.gamma_sentence(rows, "all settings"))
    assert "at guard level 90 % worst-class coverage is 80.0 % to 90.0 %, with 2.00 to 2.50" in sentence
    assert "at guard level 95 % worst-class coverage is undefined, with 2.50 labels per set" in sentence
    first, second = sensitivity.sensitivity_sentences(rows)
    assert "trimmed prompts (10.0 points) and folds (0.0 points)" in first
    assert "the trimmed prompts: by 0.50 labels" in second
    levels = [figures(guard_level=0.9), figures(guard_level=0.95, set_size=2.75)]
    assert "by 0.0 points and the set size by +0.25 labels" in plain(sensitivity.guard_sentence(levels))


def test_stability_and_geometry_name_the_extremes() -> None:
    def stable(frequency: float, setting: str) -> Any:
        return row(
            setting=setting, backbone="first", selected="msp", runner_up="energy", margin=0.01, frequency=frequency
        )

    sentence = plain(audit_stability.stability_sentence([stable(0.99, "HOME"), stable(0.6, "AWAY")]))
    assert sentence.startswith("In 1 of 2 combinations")
    assert "on AWAY with first: msp in 60.0 %" in sentence

    def shifted(ratio: float) -> Any:
        names = ("class_shift_ratio", "probe_balanced_accuracy", "median_p_audit", "deferral")
        return row(setting="HOME", backbone="first", shift_ratio=ratio, **dict.fromkeys(names, 0.5))

    assert "the target itself" in geometry.geometry_sentence([shifted(1.0), shifted(2.0)])
    assert "the target itself" not in geometry.geometry_sentence([shifted(2.0)])


def test_risk_names_the_winner_and_the_rank_of_the_method() -> None:
    def risks(**cells: tuple[float, bool]) -> pd.DataFrame:
        titles = {"calcode": "CALCoDe", "aps": "Split APS"}
        return pd.DataFrame(
            [{"method": m, "title": titles[m], "risk": r, "lowest": low} for m, (r, low) in cells.items()]
        )

    wins = cost_risk.risk_sentence(risks(calcode=(1.0, True), aps=(2.0, False)), "balanced")
    assert wins == "Balanced: CALCoDe has the lowest average risk (1.000), then Split APS with 2.000."
    loses = cost_risk.risk_sentence(risks(calcode=(3.0, False), aps=(2.0, True)), "balanced")
    assert "CALCoDe ranks 2 of 2 with 3.000" in loses
    # Where the winner is not among the rows, nobody is called one.
    assert cost_risk.risk_sentence(risks(calcode=(3.0, False)), "balanced") == ""


@pytest.mark.parametrize(
    ("delta", "words"), [(-0.2, "lowers the risk on the target by 0.200"), (0.2, "raises"), (0.0, "leaves")]
)
def test_chosen_points_give_their_direction_and_level(delta: float, words: str) -> None:
    names = ("delta_coverage", "delta_worst_class_coverage", "delta_set_size", "delta_rejected", "chosen_rejected")
    cells = dict.fromkeys(names, 0.01) | {"n_relaxed": 3, "n_combinations": 8, "chosen_deferral_level": 0.05}
    sentence = plain(operating_points.chosen_sentence(row(regime="balanced", delta_risk=delta, **cells)))
    assert words in sentence
    assert "The chosen deferral level is 5 % on average" in sentence
    assert "relaxed in 3 of 8 combinations" in sentence


def test_switches_are_only_named_where_there_are_some() -> None:
    names = ("delta_worst_class_coverage", "delta_set_size", "delta_deferral", "delta_selective_accuracy")
    still = row(setting="AWAY", backbone="first", switched=False, **dict.fromkeys(names, math.nan))
    moved = row(setting="AWAY", backbone="first", switched=True, **dict.fromkeys(names, 0.1))
    assert "never lets the disagreement replace" in cross_modal.switch_sentence([still])
    sentence = plain(cross_modal.switch_sentence([still, moved]))
    assert "in 1 of 2 combinations: AWAY with first (worst class +10.0" in sentence
    assert "selective accuracy +10.0 points" in sentence


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.3, 0.5, "clearly more than"), (0.05, 0.1, "clearly fewer than"), (0.1, 0.4, "not clearly different from")],
)
def test_deferral_beyond_the_label_space_is_compared_with_inside(low: float, high: float, verdict: str) -> None:
    cells = {
        "score": "calcode",
        "backbone": "first",
        "auroc": 0.6,
        "in_space_deferral": 0.2,
        "out_of_space_deferral": (low + high) / 2,
        "out_of_space_deferral_low": low,
        "out_of_space_deferral_high": high,
        "n_out_of_space": 50,
    }
    assert f"{verdict} the" in out_of_space.deferral_sentence([row(**cells)])
    assert "cannot be right" in out_of_space.deferral_sentence([row(**cells)])
    every = row(**(cells | {"out_of_space_deferral": 1.0}))
    assert "cannot be right" not in out_of_space.deferral_sentence([every])
    assert "decides by has 0.600 with first" in out_of_space.auroc_sentence([row(**cells)])


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [(0.25, "faster than the exact search on these references: a query takes 0.25 times"), (4.0, "slower than")],
)
def test_an_index_is_called_faster_or_slower_as_it_was_measured(milliseconds: float, words: str) -> None:
    common = {"setting": "A", "backbone": "b", "note": ""}
    exact = common | {"index": "exact", "query_milliseconds": 1.0, "recall_at_10": 1.0, "support_error_p95": 0.0}
    found = common | {"index": "hnsw", "query_milliseconds": milliseconds, "recall_at_10": 0.99}
    sentence = plain(neighbours.neighbours_sentence(pd.DataFrame([exact, found | {"support_error_p95": 1e-6}])))
    assert words in sentence
    assert "at least 99.0 % of the exact neighbours, with a support error of at most 1.0e-06" in sentence
    whole = pd.DataFrame([exact, found | {"recall_at_10": 1.0, "support_error_p95": 0.0}])
    assert "It finds all exact neighbours, with no support error." in neighbours.neighbours_sentence(whole)
    missing = found | {"recall_at_10": math.nan, "note": "not measured: install it"}
    assert neighbours.neighbours_sentence(pd.DataFrame([exact, missing])) == "HNSW: not measured: install it."


def test_few_splits_are_called_few_and_unusual_ones_are_named() -> None:
    cells = {
        "setting": "HOME",
        "backbone": "first",
        "method": "calcode",
        "title": "CALCoDe",
        "mean": 0.95,
        "lowest": 0.94,
        "highest": 0.96,
        "n_splits": 20,
        "given_deviation": 2.8,
    }

    def said(**changed: Any) -> str:
        return resplits.spread_sentence([row(**(cells | changed))], what="coverage")

    assert "from the mean of the others for CALCoDe on HOME with first (+2.8)" in said()
    assert "within 2 standard deviations" in said(given_deviation=0.5)
    assert "Fewer than 5 splits" in said(n_splits=2)
    assert "standard deviations" not in said(n_splits=2)
