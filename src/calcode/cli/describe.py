"""A fitted model as facts for machines and in words for people."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from rich.table import Table

from calcode.cli.screen import number, plain_table
from calcode.cohorts import ROLES
from calcode.method.audit import DIAGNOSTICS
from calcode.method.model import Calcode
from calcode.method.quantiles import smallest_finite_count
from calcode.method.tail import ClassGuard


def model_facts(model: Calcode) -> dict[str, Any]:
    """Everything that `calcode inspect --json` prints about a model."""
    interface = model.evidence_format_
    return {
        "classes": list(model.classes_),
        "n_prompts": interface.n_prompts,
        "dimension": interface.dimension,
        "backbone": interface.backbone,
        "prompt_digest": interface.prompt_digest,
        "model_digest": model.digest_,
        "images": fitted_images(model),
        "audit": None
        if model.audit_name_ is None
        else {
            "name": model.audit_name_,
            "auroc": model.audit_auroc_,
            "candidates": _candidates(model),
            "deferral_level": model.settings_.deferral_level,
            "search": None if model.audit_ is None else model.audit_.search,
        },
        "bandwidth": model.bandwidth_,
        "bandwidth_trace": [asdict(trial) for trial in model.bandwidth_trace_],
        "level": model.settings_.level,
        "local_level": model.local_level_,
        "protected": [_guard_facts(model, guard) for guard in model.guards_],
        "validation": [asdict(row) for row in model.tail_evidence_],
        "n_accepted_per_class": model.n_accepted_per_class_,
        "promises": list(model.promises_),
        "settings": model.settings_.get_params(),
        "notice": "Research software, not a medical device.",
    }


def fitted_images(model: Calcode) -> dict[str, int]:
    """Images per role, in the order in which a fit uses them."""
    return {role: int(model.manifest_[role]["n"]) for role in ROLES if role in model.manifest_}


def _candidates(model: Calcode) -> dict[str, float]:
    """AUROC of the diagnostics that were looked at, in their fixed order."""
    return {name: model.audit_aurocs_[name] for name in DIAGNOSTICS if name in model.audit_aurocs_}


def images_text(model: Calcode) -> str:
    """The same in words."""
    return ", ".join(f"{role} {n:,}" for role, n in fitted_images(model).items())


def _guard_facts(model: Calcode, guard: ClassGuard) -> dict[str, Any]:
    reason = model.tail_reasons_[guard.name]
    return {
        "name": guard.name,
        "why": reason.kind,
        "reason": str(reason),
        "miscoverage": guard.miscoverage,
        "n": guard.n,
        "n_needed": smallest_finite_count(miscoverage=guard.miscoverage),
        "threshold": guard.quantile,
        "infinite": math.isinf(guard.quantile),
        "class_local": guard.local is not None,
    }


def audit_sentence(model: Calcode) -> str:
    """Which images are deferred before any set is looked at."""
    if model.audit_name_ is None or model.audit_auroc_ is None:
        return "There is no audit: every image is accepted, however unlike the calibration images it is."
    level = model.settings_.deferral_level
    chosen = "was given as the only candidate"
    if len(model.audit_aurocs_) > 1:
        chosen = f"was the best of {len(model.audit_aurocs_)} candidates"
    return (
        f"The diagnostic '{model.audit_name_}' {chosen}: on validation it tells wrong top-1 answers from right ones "
        f"with an AUROC of {number(model.audit_auroc_)} (0.5 is chance). An image whose support p-value is below "
        f"{level:g} is deferred: of images like those of the gate that is about one in {_one_in(level)}."
        f"{_search_sentence(model)}"
    )


def _search_sentence(model: Calcode) -> str:
    """How well neighbours are found, where not all of the reference is looked at."""
    graph = None if model.audit_ is None else model.audit_.graph
    if graph is None:
        return ""
    return (
        f" Neighbours in the reference are found by a graph: on {graph.n_sample:,} validation images it found "
        f"{graph.recall:.1%} of the true ones, and for 95 % of them it changed the distance by at most "
        f"{graph.error:.2g}."
    )


def _one_in(level: float) -> str:
    return "infinitely many" if level <= 0 else f"{1 / level:.3g}"


def audit_table(model: Calcode) -> Table:
    """The candidates and their AUROC."""
    table = plain_table()
    table.add_column("candidate")
    table.add_column("AUROC", justify="right")
    table.add_column("")
    for name, auroc in _candidates(model).items():
        chosen = name == model.audit_name_
        table.add_row(name, number(auroc), "chosen" if chosen else "", style="bold" if chosen else "")
    return table


def trace_table(model: Calcode) -> Table:
    """The bandwidth candidates in the order they were tried."""
    table = plain_table()
    table.add_column("neighbourhood", justify="right")
    table.add_column("h", justify="right")
    table.add_column("infinite thresholds", justify="right")
    table.add_column("held-out coverage", justify="right")
    table.add_column("")
    for trial in model.bandwidth_trace_:
        chosen = trial.bandwidth == model.bandwidth_
        outcome = "chosen" if chosen else "rejected"
        table.add_row(
            f"{trial.share:.2%}",
            f"{trial.bandwidth:.4g}",
            number(trial.infinite_share),
            number(trial.coverage),
            outcome if trial.accepted or not chosen else "chosen, for want of a better one",
            style="bold" if chosen else "",
        )
    return table


def level_sentence(model: Calcode) -> str:
    """How the local level was found, and its value."""
    level = model.settings_.level
    if model.local_level_ is None:
        return f"The level rule is '{level}': it finds a level for every image."
    found = "every set is full, for want of calibration images" if math.isinf(model.local_level_) else ""
    return f"The level rule is '{level}'; it gave the level {found or number(model.local_level_)}."


def class_evidence_table(model: Calcode) -> Table:
    """What validation showed for every class, and the thresholds of the protected ones."""
    table = plain_table()
    table.add_column("class", overflow="fold")
    table.add_column("validation\nimages", justify="right", no_wrap=True)
    table.add_column("held-out\ncoverage", justify="right", no_wrap=True)
    table.add_column("calibration\nimages", justify="right", no_wrap=True)
    table.add_column("protected\nat", justify="right", no_wrap=True)
    table.add_column("needed", justify="right", no_wrap=True)
    table.add_column("threshold", justify="right", no_wrap=True)
    guards = {guard.name: guard for guard in model.guards_}
    for row in model.tail_evidence_:
        guard = guards.get(row.name)
        table.add_row(
            row.name,
            f"{row.n:,}",
            "-" if math.isnan(row.coverage) else number(row.coverage),
            f"{model.n_accepted_per_class_[row.name]:,}",
            *_guard_cells(guard),
            style="" if guard is None else "bold",
        )
    return table


def _guard_cells(guard: ClassGuard | None) -> tuple[str, str, str]:
    if guard is None:
        return "-", "-", "-"
    needed = smallest_finite_count(miscoverage=guard.miscoverage)
    return f"{1 - guard.miscoverage:g}", f"{needed}", number(guard.quantile, digits=4)


def guard_sentences(model: Calcode) -> list[str]:
    """Why each class is protected, and what its threshold means."""
    return [
        f"{guard.name}: {model.tail_reasons_[guard.name]}. {_threshold_meaning(guard)}"
        for guard in model.guards_
    ]


def _threshold_meaning(guard: ClassGuard) -> str:
    if math.isinf(guard.quantile):
        needed = smallest_finite_count(miscoverage=guard.miscoverage)
        return (
            f"Its threshold is infinite ({guard.n} accepted calibration images, {needed} needed at "
            f"{1 - guard.miscoverage:g}), so the label is in every set."
        )
    # No APS score exceeds 1.
    if guard.quantile >= 1.0:
        return f"Its threshold is 1 ({guard.n} accepted calibration images), so the label is in every set."
    further = ", or further where its own neighbours ask for it" if guard.local is not None else ""
    return (
        f"From {guard.n} accepted calibration images: the label is in a set up to an APS score of "
        f"{guard.quantile:.4f}{further}."
    )


def changed_settings(model: Calcode) -> dict[str, Any]:
    """The settings that are not the defaults."""
    given = model.settings_.get_params()
    usual = Calcode().get_params()
    return {name: value for name, value in given.items() if not _same(value, usual[name])}


def _same(value: Any, other: Any) -> bool:
    return bool(value == other or (isinstance(value, tuple | list) and tuple(value) == tuple(other or ())))
