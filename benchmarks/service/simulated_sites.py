"""Simulated sites through the running loop: is the promoted model's class coverage what it promised?

    python benchmarks/service/simulated_sites.py [--seeds 20]

Every seed is a site of its own (patients, coins, labels): decisions, readings, recalibration, shadow, two accounts,
promotion. The promoted model is then judged on 4,000 patients that it never saw. With biased review, whatever looks
like one class is read on a doctor's wish, nobody can tell the hardest 5 %, and the labels of the next 5 % come late;
"uncorrected" takes every label that is there. The results replace benchmarks/results/simulated-sites.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from scipy import stats
from service.simulation import DELTA, FALSE_ALARM, N_BAG, Outcome, coverage_by_chance, simulate

#: New patients of each site that the promoted model is judged on.
N_TEST = 4000
RESULTS = Path(__file__).parents[1] / "results" / "simulated-sites.json"


def summary(outcomes: list[Outcome]) -> dict[str, object]:
    """Mean class coverages with their standard errors, worst classes, alarms."""

    def figures(name: str, labels: str, *, hard: bool) -> dict[str, object]:
        """`hard`: the model says that it promises nothing of cases that nobody can tell."""
        table = np.array([list(getattr(outcome, name).values()) for outcome in outcomes])
        classes = list(getattr(outcomes[0], name))
        # What a valid method shows in all but one of a hundred such runs, for all classes together.
        chance = {
            own: coverage_by_chance(
                [getattr(outcome, labels)[own] for outcome in outcomes],
                hard=[hard * outcome.hard[own] for outcome in outcomes],
                n_test=N_TEST // len(classes),
                level=0.005 / len(classes),
            )
            for own in classes
        }
        error = table.std(axis=0, ddof=1) / np.sqrt(len(table)) if len(table) > 1 else np.zeros(len(classes))
        return {
            "mean": dict(zip(classes, table.mean(axis=0).round(4).tolist(), strict=True)),
            "standard_error": dict(zip(classes, error.round(4).tolist(), strict=True)),
            "by_chance": {own: [round(low, 4), round(high, 4)] for own, (low, high) in chance.items()},
            "below": [own for own, mean in zip(classes, table.mean(axis=0), strict=True) if mean < chance[own][0]],
            "all_classes": round(float(table.mean()), 4),
        }

    return {
        "sites": len(outcomes),
        "promised": 1.0 - DELTA,
        "stated": round(float(np.mean([outcome.stated for outcome in outcomes])), 4),
        "promoted": figures("coverage", "labels", hard=True),
        "uncorrected": figures("uncorrected", "uncorrected_labels", hard=False),
        "informative": round(float(np.mean([outcome.informative for outcome in outcomes])), 4),
        "sites_with_a_false_alarm": sum(outcome.alarms > 0 for outcome in outcomes),
        "false_alarm_level": FALSE_ALARM,
        "most_by_chance": int(stats.binom.ppf(0.99, len(outcomes), FALSE_ALARM)),
        "home_alarms": sum(outcome.home_alarm for outcome in outcomes),
        "refused_while_labels_were_late": sum(outcome.refused_early for outcome in outcomes),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=20)
    seeds = parser.parse_args().seeds
    found: dict[str, object] = {"bag": N_BAG}
    for name, biased in (("every label comes", False), ("biased review", True)):
        outcomes = []
        for seed in range(seeds):
            with tempfile.TemporaryDirectory() as folder:
                outcomes.append(simulate(Path(folder) / "site", seed, biased=biased, n_test=N_TEST))
        found[name] = summary(outcomes)
        print(json.dumps({name: found[name]}, indent=2), flush=True)
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
