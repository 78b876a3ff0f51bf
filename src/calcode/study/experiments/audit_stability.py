"""Item 5: how often a resampled validation role selects the same audit diagnostic (METHOD.md 12)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from calcode.arrays import BoolArray, FloatArray
from calcode.method.audit import DIAGNOSTICS, auroc
from calcode.study.diagnostics import single_audits, top_one_errors
from calcode.study.experiment import Experiment, Rows
from calcode.study.jobs import Job, job
from calcode.study.results import Results
from calcode.study.schema import TableSchema, integer, number, share, text
from calcode.study.setting_cohorts import SettingCohorts
from calcode.study.specification import Backbone, Setting, Study
from calcode.study.summary_columns import BACKBONE, SETTING

if TYPE_CHECKING:
    import pyarrow

RUNNER = f"{__name__}:measure"
N_RESAMPLES = 1000

SCHEMA = TableSchema(
    name="audit_score_stability",
    about="One row per setting and backbone: the diagnostic selected on validation, and how often bootstraps of "
    "validation select it; gate ranks are fixed.",
    columns=(
        SETTING,
        BACKBONE,
        text("selected", "Diagnostic selected on the whole validation role."),
        number("auroc", "Its AUROC for top-1 error."),
        text("runner_up", "The diagnostic with the next AUROC."),
        number("margin", "How far the selected one lies above it."),
        share("frequency", "Bootstraps that select the same diagnostic."),
        integer("n_resamples", "Bootstraps."),
        integer("n_validation", "Validation images."),
        integer("n_errors", "Of which the first-ranked class is wrong."),
        *(
            number(f"auroc_{name}", f"AUROC of `{name}` for top-1 error on validation.")
            for name in DIAGNOSTICS
        ),
        *(share(f"frequency_{name}", f"Bootstraps that select `{name}`.") for name in DIAGNOSTICS),
    ),
    key=("setting", "backbone"),
)


def measure(cohorts: SettingCohorts, options: Mapping[str, Any]) -> pyarrow.Table:
    """The row of a combination, without its name."""
    import pyarrow as pa

    audits = single_audits(cohorts.roles, seed=options["seed"])
    validation = cohorts.roles.validation
    values = {name: audit.statistic(validation) for name, audit in audits.items()}
    errors = top_one_errors(validation)
    aurocs = {name: auroc(values[name], errors) for name in DIAGNOSTICS}
    selected = chosen(aurocs)
    others = {name: value for name, value in aurocs.items() if name != selected}
    runner_up = chosen(others)
    frequency = selection_frequencies(
        values, errors, n_resamples=options["n_resamples"], seed=options["seed"]
    )
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
    return pa.Table.from_pylist([row])


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
    return {name: count / n_resamples for name, count in counts.items()}


def _job(study: Study, setting: Setting, backbone: Backbone) -> Job:
    options = {"seed": study.seed, "n_resamples": N_RESAMPLES}
    return job(RUNNER, "stability", setting=setting, backbone=backbone, options=options)


def jobs(study: Study) -> list[Job]:
    """One per combination."""
    return [_job(study, setting, backbone) for setting, backbone in study.combinations()]


def rows(study: Study, results: Results) -> Rows:
    """The measured rows with their names."""
    return {
        SCHEMA.name: [
            {"setting": setting.name, "backbone": backbone.name} | row
            for setting, backbone in study.combinations()
            for row in results.rows(_job(study, setting, backbone))
        ]
    }


EXPERIMENT = Experiment(
    name="audit-stability", title="Audit stability", tables=(SCHEMA,), jobs=jobs, rows=rows
)
