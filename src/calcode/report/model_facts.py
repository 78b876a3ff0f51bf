"""A fitted model as facts for machines and as sentences for people, for commands and pages."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from calcode.cohorts import ROLES
from calcode.method.audit import DIAGNOSTICS
from calcode.method.model import Calcode
from calcode.method.quantiles import smallest_finite_count
from calcode.metrics.wording import counted, number, percent, short_percent


def model_facts(model: Calcode) -> dict[str, Any]:
    """All values that `calcode inspect --json` prints about a model."""
    expected = model.evidence_format_
    return {
        "classes": list(model.classes_),
        **{name: getattr(expected, name) for name in ("n_prompts", "dimension", "backbone", "prompt_digest")},
        "model_digest": model.digest_,
        "images": fitted_images(model),
        "audit": None
        if model.audit_name_ is None
        else {
            "name": model.audit_name_,
            "auroc": model.audit_auroc_,
            "candidates": audit_candidates(model),
            "deferral_level": model.settings_.deferral_level,
            "search": None if model.audit_ is None else model.audit_.facts["search"],
        },
        "bandwidth": model.bandwidth_,
        "bandwidth_trace": [asdict(trial) for trial in model.bandwidth_trace_],
        "level": model.settings_.level,
        "local_level": model.local_level_,
        "protected": [
            {
                "name": guard.name,
                "why": model.tail_reasons_[guard.name].kind,
                "reason": str(model.tail_reasons_[guard.name]),
                "miscoverage": guard.miscoverage,
                "n": guard.n,
                "n_needed": smallest_finite_count(miscoverage=guard.miscoverage),
                "threshold": guard.quantile,
                "infinite": math.isinf(guard.quantile),
                "class_local": guard.local is not None,
            }
            for guard in model.guards_
        ],
        "validation": [asdict(row) for row in model.tail_evidence_],
        "n_accepted_per_class": model.n_accepted_per_class_,
        "promises": list(model.promises_),
        "settings": model.settings_.get_params(),
        "in_every_set": dict(model.in_every_set_),
        "notice": "Research software, not a medical device.",
    }


def fitted_images(model: Calcode) -> dict[str, int]:
    """Images per role, in the order of their use in a fit."""
    return {role: int(model.manifest_[role]["n"]) for role in ROLES if role in model.manifest_}


def audit_candidates(model: Calcode) -> dict[str, float]:
    """AUROC of the candidate diagnostics, in their fixed order."""
    return {name: model.audit_aurocs_[name] for name in DIAGNOSTICS if name in model.audit_aurocs_}


def images_text(model: Calcode) -> str:
    """Images per role in words."""
    return ", ".join(f"{role} {n:,}" for role, n in fitted_images(model).items())


def audit_sentence(model: Calcode) -> str:
    """Sentence on which images are deferred before any set is considered."""
    if model.audit_name_ is None or model.audit_auroc_ is None:
        return "There is no audit: every image is accepted, however unlike the calibration images it is."
    level = model.settings_.deferral_level
    chosen = "was given as the only candidate"
    if len(model.audit_aurocs_) > 1:
        chosen = f"was the best of {len(model.audit_aurocs_)} candidates"
    graph = None if model.audit_ is None else model.audit_.graph
    search = ""
    if graph is not None:
        search = (
            f" Neighbours in the reference are found by a graph: on {graph.n_sample:,} validation images it found "
            f"{percent(graph.recall)} of the true ones, and for 95 % of them it changed the distance by at most "
            f"{graph.error:.2g}."
        )
    return (
        f"The diagnostic '{model.audit_name_}' {chosen}: on validation it tells wrong first labels from right ones "
        f"with an AUROC of {number(model.audit_auroc_, digits=3)} (0.5 is chance). An image whose support p-value is "
        f"below {level:g} is deferred: of images like those of the gate that is about one in "
        f"{'infinitely many' if level <= 0 else f'{1 / level:.3g}'}.{search}"
    )


def bandwidth_sentence(model: Calcode) -> str:
    """Sentence on the bandwidth and the reason for it."""
    if math.isinf(model.bandwidth_):
        return "Localization is switched off (infinite bandwidth): one threshold serves every image."
    if not model.bandwidth_trace_:
        return f"The bandwidth was given: h = {model.bandwidth_:.4g}."
    chosen, tried = model.bandwidth_trace_[-1], counted(len(model.bandwidth_trace_), "candidate")
    if not chosen.accepted:
        return (
            f"Of {tried} none met both bounds on held-out validation images, so the widest is used: "
            f"h = {chosen.bandwidth:.4g}."
        )
    return (
        f"h = {chosen.bandwidth:.4g}, the most local of the candidates that met both bounds on held-out validation "
        f"images ({tried} tried): a median neighbourhood holds {short_percent(chosen.share)} of the others."
    )


def level_sentence(model: Calcode) -> str:
    """Sentence on how the local level was found, and its value."""
    level = model.settings_.level
    if model.local_level_ is None:
        return f"The level rule is '{level}': it finds a level for every image."
    if math.isinf(model.local_level_):
        return f"The level rule is '{level}'; there are too few calibration images for it, so every set is full."
    return f"The level rule is '{level}'; it gave the level {number(model.local_level_, digits=3)}."


def guard_sentences(model: Calcode) -> list[str]:
    """Sentences on why each class is protected and what its threshold means, or on why there is no guard."""
    sentences = []
    for guard in model.guards_:
        images = counted(guard.n, "calibration image")
        if math.isinf(guard.quantile):
            needed = smallest_finite_count(miscoverage=guard.miscoverage)
            level = 1 - guard.miscoverage
            meaning = f"It is in every set: {images} accepted, {needed} needed at {level:g} to rule it out."
        elif guard.quantile >= 1.0:  # No APS score exceeds 1.
            meaning = f"It is in every set: its threshold is 1, from {images} accepted."
        else:
            further = ", or further where its own neighbours ask for it" if guard.local is not None else ""
            meaning = f"From {images} accepted: it is in a set up to an APS score of {guard.quantile:.4f}{further}."
        sentences.append(f"{guard.name}: {model.tail_reasons_[guard.name]}. {meaning}")
    return sentences or ["No class is protected, so CALCoDe gives the sets of its localized rule."]


def changed_settings(model: Calcode) -> dict[str, Any]:
    """The settings that are not the defaults."""
    usual = Calcode().get_params()
    changed = {}
    for name, value in model.settings_.get_params().items():
        # A list and a tuple with the same entries are the same setting.
        listed = tuple(value) == tuple(usual[name] or ()) if isinstance(value, tuple | list) else False
        if not (value == usual[name] or listed):
            changed[name] = value
    return changed
