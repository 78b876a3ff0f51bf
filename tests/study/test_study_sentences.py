"""Sentences of a study's report: true of the data they were given, and absent where they would not be."""

from __future__ import annotations

from typing import Any

import pytest

from calcode.study.page.ablations import ablation_sentences, check_sentence
from calcode.study.page.audit import geometry_sentence, stability_sentence
from calcode.study.page.comparison import hits_sentence, setting_sentences
from calcode.study.page.costs import chosen_sentence, modal_sentence, risk_sentence
from calcode.study.page.figure_words import cost_words, figure_entries
from calcode.study.page.neighbours import neighbours_sentence
from calcode.study.page.output import StudyOutput
from calcode.study.page.outside import auroc_sentence, deferral_sentence
from calcode.study.page.paired import difference_entry, paired_sentence
from calcode.study.page.resplits import spread_sentence
from calcode.study.page.sensitivity import gamma_sentence, guard_sentence, sensitivity_sentences
from calcode.study.schema import Row


def plain(text: str) -> str:
    return text.replace("\u00a0", " ").replace("\u2212", "-")


def figures(**changed: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "method": "calcode",
        "title": "CALCoDe",
        "coverage": 0.96,
        "coverage_low": 0.95,
        "coverage_high": 0.97,
        "worst_class_coverage": 0.9,
        "set_size": 2.5,
        "full_set_rate": 0.25,
        "deferral": 0.1,
        "informative_rate": 0.6,
        "worst_class": "mel",
        "worst_class_n": 40,
        "n_accepted": 200,
        "coverage_hit": True,
        "worst_class_hit": False,
        "n_combinations": 4,
        "coverage_hits": 3,
        "worst_class_hits": 0,
    }
    return row | changed


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, "2.50 of 7 labels per set, 25.0 % full sets, 10.0 % deferred"),
        ({"full_set_rate": 0.0, "deferral": 0.0}, "2.50 of 7 labels per set, no full set, none deferred"),
    ],
)
def test_costs_are_told_as_they_are(changed: dict[str, float], expected: str) -> None:
    assert plain(cost_words(figures(**changed), n_classes=7)) == expected


def test_a_method_that_cannot_defer_has_no_rate_of_deferral() -> None:
    assert figure_entries(figures(defers=False, deferral=0.0))[-1].text == "cannot"
    assert plain(figure_entries(figures(defers=True, deferral=0.0))[-1].text) == "0.0 %"


def test_the_setting_names_the_methods_that_reach_the_target(output: StudyOutput) -> None:
    own, other = figures(), figures(method="aps", title="Split APS")
    nobody = plain(" ".join(setting_sentences(output, [own, other], n_classes=7)))
    assert "mel with 90.0 % of 40 images, stays below the target of 95 %" in nobody
    assert "None of the 1 other method reaches 95 %" in nobody
    somebody = plain(
        " ".join(setting_sentences(output, [own, other | {"worst_class_hit": True}], n_classes=7))
    )
    assert "these reach 95 % for the least covered class: Split APS (2.50 labels per set" in somebody
    assert "None of" not in somebody
    reached = plain(" ".join(setting_sentences(output, [own | {"worst_class_hit": True}], n_classes=7)))
    assert "reaches the target of 95 %" in reached


def test_nothing_accepted_is_said() -> None:
    row = figures(coverage=None, coverage_low=None, coverage_high=None, n_accepted=0, set_size=None)
    assert plain(figure_entries(row)[0].text) == "undefined"


def test_hits_name_all_who_share_the_first_place() -> None:
    rows: list[Row] = [
        figures(),
        figures(method="aps", title="Split APS"),
        figures(title="Third", coverage_hits=1),
    ]
    sentence = plain(hits_sentence(rows))
    assert "in 3 of 4, by CALCoDe (" in sentence
    assert "and Split APS (" in sentence
    assert "Third" not in sentence
    assert sentence.endswith("With its least covered class no method reaches it anywhere.")
    assert "most often, in 2 of 4, by CALCoDe" in plain(hits_sentence([figures(worst_class_hits=2)]))
    assert "No method reaches the target in any of the 4 combinations." in plain(
        hits_sentence([figures(coverage_hits=0)])
    )


def difference(low: float, high: float, **changed: Any) -> dict[str, Any]:
    row = {
        "setting": "AWAY",
        "comparator_title": "Split APS",
        "difference": (low + high) / 2,
        "low": low,
        "high": high,
        "excludes_zero": low > 0 or high < 0,
        "n_resamples": 1000,
    }
    return row | changed


def test_differences_are_counted_by_their_direction() -> None:
    rows = [
        difference(0.01, 0.02),
        difference(-0.02, -0.01, setting="HOME"),
        difference(-0.01, 0.01, setting="PAIR"),
    ]
    sentence = paired_sentence(rows, what="coverage")
    assert "clearly higher than the comparator's in 1 of 3 comparisons" in sentence
    assert "clearly lower in 1 (Split APS on HOME)" in sentence
    assert "includes zero in 1 (Split APS on PAIR)" in sentence
    clear = paired_sentence(rows[:1], what="coverage")
    assert "lower" not in clear
    assert "zero" not in clear


def test_a_difference_of_shares_is_in_points_and_one_of_sizes_is_not() -> None:
    shares = difference_entry(difference(-0.0126, 0.0071), "worst_class_coverage")
    assert (plain(shares.text), plain(shares.below)) == ("-0.3", "-1.3 to +0.7")
    assert plain(difference_entry(difference(0.5, 0.7), "set_size").text) == "+0.60"


def test_ablations_are_ordered_by_what_they_lose() -> None:
    rows = [
        figures(),
        figures(method="a", title="no guard", worst_class_coverage=0.85),
        figures(method="b", title="no localization", worst_class_coverage=0.7),
        figures(method="c", title="guard all", worst_class_coverage=0.95),
        figures(method="d", title="no trimming"),
    ]
    text = plain(" ".join(ablation_sentences(rows)))
    assert text.index("no localization -20.0 points") < text.index("no guard -5.0 points")
    assert "Better for it: guard all +5.0 points" in text
    assert "Without effect on it: no trimming." in text
    assert "Better" not in " ".join(ablation_sentences(rows[:2]))


def test_the_reference_check_speaks_up_when_rows_differ(output: StudyOutput) -> None:
    assert check_sentence(output).startswith(
        "The complete method's rows equal those of the main comparison in all"
    )

    class Broken(StudyOutput):
        def rows(self, table: str) -> list[Row]:  # type: ignore[override]
            found = [dict(row) for row in output.rows(table)]
            found[0] |= {"equal": False}
            return found  # type: ignore[return-value]

    sentence = check_sentence(Broken(folder=output.folder, manifest=output.manifest))
    assert "differs from its rows in the main comparison" in sentence
    assert "not comparable" in sentence


def test_sensitivities_tell_ranges() -> None:
    rows = [
        figures(guard_level=0.9, discovery_margin=0.0, parameter="trim"),
        figures(
            guard_level=0.9, discovery_margin=0.1, worst_class_coverage=0.8, set_size=2.0, parameter="trim"
        ),
        figures(guard_level=0.95, discovery_margin=0.1, worst_class_coverage=None, parameter="n_folds"),
    ]
    sentence = plain(gamma_sentence(rows))
    assert (
        "at guard level 90 % worst-class coverage lies between 80.0 % and 90.0 %, with 2.00 to 2.50 labels"
        in sentence
    )
    assert "at guard level 95 % worst-class coverage lies between undefined" in sentence
    first, second = sensitivity_sentences(rows)
    assert "trimmed prompts (10.0 points) and folds (0.0 points)" in first
    assert "the trimmed prompts: by 0.50 labels" in second
    guard = plain(guard_sentence([figures(guard_level=0.9), figures(guard_level=0.95, set_size=2.75)]))
    assert "changes by 0.0 points and the set size by +0.25 labels" in guard


def test_stability_names_the_least_stable() -> None:
    def row(frequency: float, setting: str) -> dict[str, Any]:
        return {
            "setting": setting,
            "backbone": "first",
            "selected": "msp",
            "runner_up": "energy",
            "margin": 0.01,
            "frequency": frequency,
        }

    sentence = plain(stability_sentence([row(0.99, "HOME"), row(0.6, "AWAY")]))
    assert "for 1 of 2 combinations" in sentence
    assert "least often on AWAY with first (msp in 60.0 %" in sentence


def test_geometry_says_where_the_target_is_the_source() -> None:
    def row(shift: float) -> dict[str, Any]:
        names = ("class_shift_ratio", "probe_balanced_accuracy", "median_p_audit", "deferral")
        return {"setting": "HOME", "backbone": "first", "shift_ratio": shift} | dict.fromkeys(names, 0.5)

    assert "the target itself" in geometry_sentence([row(1.0), row(2.0)])
    assert "the target itself" not in geometry_sentence([row(2.0)])


def test_risk_names_the_winner_and_the_place_of_the_method() -> None:
    def row(method: str, title: str, risk: float, lowest: bool) -> dict[str, Any]:
        return {"method": method, "title": title, "regime": "balanced", "risk": risk, "lowest": lowest}

    wins = [row("calcode", "CALCoDe", 1.0, True), row("aps", "Split APS", 2.0, False)]
    assert risk_sentence(wins, "balanced") == (
        "Balanced: the lowest average risk is that of CALCoDe (1.000), then Split APS with 2.000."
    )
    loses = [row("calcode", "CALCoDe", 3.0, False), row("aps", "Split APS", 2.0, True)]
    assert "CALCoDe stands at place 2 of 2 with 3.000" in risk_sentence(loses, "balanced")
    # Where the winner is not among the rows, nobody is called one.
    assert risk_sentence(loses[:1], "balanced") == ""


@pytest.mark.parametrize(
    ("delta", "words"), [(-0.2, "lowers the risk on the target by 0.200"), (0.2, "raises"), (0.0, "leaves")]
)
def test_chosen_points_tell_their_direction(delta: float, words: str) -> None:
    names = (
        "delta_coverage",
        "delta_worst_class_coverage",
        "delta_set_size",
        "delta_rejected",
        "chosen_rejected",
    )
    row = {"regime": "balanced", "delta_risk": delta, "n_relaxed": 3, "n_combinations": 8} | dict.fromkeys(
        names, 0.01
    )
    sentence = chosen_sentence(row)
    assert words in sentence
    assert "relaxed in 3 of 8 combinations" in sentence


def test_switches_are_only_told_where_there_are_some() -> None:
    names = ("delta_worst_class_coverage", "delta_set_size", "delta_deferral")
    row = {"setting": "AWAY", "backbone": "first", "switched": False} | dict.fromkeys(names)
    assert "in none of 1 combination." in modal_sentence([row])
    switched = row | dict.fromkeys(names, 0.1) | {"switched": True}
    assert "in 1 of 2 combinations: AWAY with first (worst class +10.0" in modal_sentence([row, switched])


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.3, 0.5, "clearly more than"),
        (0.05, 0.1, "clearly fewer than"),
        (0.1, 0.4, "not clearly different from"),
    ],
)
def test_deferral_outside_is_compared_with_inside(low: float, high: float, verdict: str) -> None:
    row = {
        "score": "calcode",
        "backbone": "first",
        "auroc": 0.6,
        "in_space_deferral": 0.2,
        "out_of_space_deferral": (low + high) / 2,
        "out_of_space_deferral_low": low,
        "out_of_space_deferral_high": high,
        "n_out_of_space": 50,
    }
    assert f"{verdict} the" in deferral_sentence([row])
    assert "cannot be right" in deferral_sentence([row])
    assert "cannot be right" not in deferral_sentence([row | {"out_of_space_deferral": 1.0}])
    assert "the p-value that CALCoDe decides by has 0.600 with first" in auroc_sentence([row])


def test_an_index_that_was_not_measured_says_why() -> None:
    row = {
        "setting": "A",
        "backbone": "b",
        "index": "hnsw",
        "note": "not measured: install it",
        "recall_at_10": None,
    }
    assert neighbours_sentence([row]) == "HNSW: not measured: install it."
    exact = row | {"index": "exact", "note": None, "query_milliseconds": 1.0}
    found = row | {"note": None, "recall_at_10": 0.99, "support_error_p95": 1e-6, "query_milliseconds": 0.25}
    assert "takes 1/4.0 to 1/4.0 of the exact time" in neighbours_sentence([exact, found])


def test_few_splits_are_called_few_and_unusual_ones_are_named() -> None:
    row = {
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
    assert (
        "2 standard deviations or more from the mean of the others for CALCoDe on HOME with first (+2.8)"
        in (spread_sentence([row], words="coverage"))
    )
    assert "within 2 standard deviations" in spread_sentence(
        [row | {"given_deviation": 0.5}], words="coverage"
    )
    few = spread_sentence([row | {"n_splits": 2}], words="coverage")
    assert "Fewer than 5 splits" in few
    assert "standard deviations" not in few
