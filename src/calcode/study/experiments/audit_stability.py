"""How often a resampled validation role selects the same audit diagnostic (METHOD.md 12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calcode.arrays import BoolArray, FloatArray
from calcode.baselines.support import single_audits, top_one_errors
from calcode.method.audit import DIAGNOSTICS, auroc
from calcode.metrics.wording import count, counted, number, percent
from calcode.report.parts import Column, Part, Text
from calcode.study.cohorts import SettingCohorts
from calcode.study.experiment import Experiment, Job, Results, Study, StudyOutput, Tables, job
from calcode.study.figures import PLACE
from calcode.study.paper import reported_at
from calcode.study.tables import Row, TableSchema, integer, numeric, share, text
from calcode.study.view import PLACE_COLS, reported_cols, shown, view

_N_RESAMPLES = 1000
#: Bootstraps that must agree before a choice is called stable, as in the paper.
_STABLE = 0.95

SCHEMA = TableSchema(
    name="audit_score_stability",
    about="One row per setting and backbone: the diagnostic selected on validation, and how often bootstraps of "
    "validation select it; gate ranks are fixed.",
    columns=(
        *PLACE,
        text("selected", "Diagnostic selected on the whole validation role."),
        numeric("auroc", "Its AUROC for top-1 error."),
        text("runner_up", "The diagnostic with the next AUROC."),
        numeric("margin", "How far the selected one lies above it."),
        share("frequency", "Bootstraps that select the same diagnostic."),
        integer("n_resamples", "Bootstraps."),
        integer("n_validation", "Validation images."),
        integer("n_errors", "Of which the first-ranked class is wrong."),
        *(numeric(f"auroc_{name}", f"AUROC of `{name}` for top-1 error on validation.") for name in DIAGNOSTICS),
        *(share(f"frequency_{name}", f"Bootstraps that select `{name}`.") for name in DIAGNOSTICS),
    ),
)


def measure(cohorts: SettingCohorts, options: Mapping[str, Any]) -> list[Row]:
    """The row of a combination, without its name."""
    audits = single_audits(cohorts.roles, random_state=options["seed"])
    validation = cohorts.roles.validation
    values = {name: audit.statistic(validation) for name, audit in audits.items()}
    errors = top_one_errors(validation)
    aurocs = {name: auroc(values[name], errors) for name in DIAGNOSTICS}
    selected = chosen(aurocs)
    runner_up = chosen({name: value for name, value in aurocs.items() if name != selected})
    frequency = selection_frequencies(values, errors, n_resamples=options["n_resamples"], seed=options["seed"])
    row = {
        "selected": selected,
        "auroc": aurocs[selected],
        "runner_up": runner_up,
        "margin": aurocs[selected] - aurocs[runner_up],
        "frequency": frequency[selected],
        "n_resamples": options["n_resamples"],
        "n_validation": len(validation),
        "n_errors": int(errors.sum()),
        **{f"auroc_{name}": aurocs[name] for name in DIAGNOSTICS},
        **{f"frequency_{name}": frequency[name] for name in DIAGNOSTICS},
    }
    return [row]


def chosen(aurocs: Mapping[str, float]) -> str:
    """Largest AUROC, the earlier name when equal; the first where it is undefined (METHOD.md 4)."""
    return max(aurocs, key=lambda name: -1.0 if np.isnan(aurocs[name]) else aurocs[name])


def selection_frequencies(
    values: Mapping[str, FloatArray], errors: BoolArray, *, n_resamples: int, seed: int
) -> dict[str, float]:
    """Share of bootstraps of validation in which each diagnostic is selected.

    Parameters
    ----------
    values : mapping of str to ndarray of shape (n,)
        Statistics of the validation images.
    errors : ndarray of bool, shape (n,)
    n_resamples, seed : int
    """
    generator = np.random.default_rng(seed)
    counts = dict.fromkeys(values, 0)
    for _ in range(n_resamples):
        drawn = generator.integers(len(errors), size=len(errors))
        counts[chosen({name: auroc(column[drawn], errors[drawn]) for name, column in values.items()})] += 1
    return {name: n / n_resamples for name, n in counts.items()}


def jobs(study: Study) -> list[Job]:
    """One per combination."""
    options = {"seed": study.seed, "n_resamples": _N_RESAMPLES}
    return [job(f"{__name__}:measure", "stability", where, options) for where in study.combinations()]


def tables(study: Study, results: Results) -> Tables:
    """The measured rows with their names."""
    return {SCHEMA.name: results.measured(jobs(study))}


def section(output: StudyOutput) -> list[Part]:
    """A sentence and a table, next to the paper's where it has the same cells."""
    rows = output.table(SCHEMA.name)
    resamples = count(int(rows["n_resamples"].iloc[0]))
    table = view(
        "audit-stability",
        f"Diagnostic selected on validation, and how often {resamples} bootstraps of the validation images select it "
        "again; gate ranks are fixed. AUROC: top-1 errors on validation.",
        rows,
        (
            *PLACE_COLS,
            *shown(SCHEMA, "selected", ("auroc", "AUROC", 3), ("margin", "margin", 3), ("runner_up", "runner-up")),
            *shown(SCHEMA, ("frequency", "selected again")),
            Column("errors", lambda row: f"{count(row.n_errors)} of {count(row.n_validation)}"),
            *reported_cols(
                "AUROC / margin / frequency",
                rows,
                lambda row: reported_at("audit_stability", row.setting, row.backbone),
                lambda cells: " / ".join(cells[name] for name in ("selected", "auroc", "margin", "frequency")),
            ),
        ),
        layout="stack",
    )
    return [Text(sentences=(stability_sentence(list(rows.itertuples(index=False))),)), table]


def stability_sentence(rows: Sequence[Any]) -> str:
    """How often the choice is the same on bootstraps of validation."""
    stable = sum(row.frequency >= _STABLE for row in rows)
    least = min(rows, key=lambda row: row.frequency)
    return (
        f"In {stable} of {counted(len(rows), 'combination')}, at least {percent(_STABLE, digits=0)} of the "
        f"bootstraps of the validation images select the same diagnostic. The choice is least stable on "
        f"{least.setting} with {least.backbone}: {least.selected} in {percent(least.frequency)}, "
        f"{number(least.margin, digits=3)} AUROC above {least.runner_up}."
    )


EXPERIMENT = Experiment("audit-stability", "Stability of the audit", (SCHEMA,), jobs, tables, section)
