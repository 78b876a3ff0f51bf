"""Small fitted models and hand-made decisions, so that a test knows what the page must say."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from calcode import Calcode, Decisions, Evidence
from calcode.errors import CalcodeWarning
from calcode.method.decisions import choose_actions
from calcode.report import ReportCohort

THREE = ("a", "b", "c")


def evidence(n: int, *, classes: Sequence[str], seed: int) -> Evidence:
    """Images scattered around one direction per class."""
    rng = np.random.default_rng(seed)
    k = len(classes)
    labels = rng.integers(k, size=n)
    images = np.eye(k, 8)[labels] + rng.normal(scale=0.5, size=(n, 8))
    images /= np.linalg.norm(images, axis=1, keepdims=True)
    return Evidence.from_text(
        embeddings=images,
        text=np.eye(k, 8)[:, None],
        temperature=0.2,
        labels=labels,
        classes=list(classes),
        ids=[f"image-{seed}-{i}" for i in range(n)],
    )


@cache
def fitted(classes: tuple[str, ...] = THREE, settings: tuple[tuple[str, Any], ...] = ()) -> Calcode:
    """A model fitted on generated roles; the warnings of small classes are not what is tested here."""
    roles = ("reference", "validation", "gate", "calibration")
    parts = {role: evidence(150, classes=classes, seed=i) for i, role in enumerate(roles)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        return Calcode(**dict(settings)).fit(**parts)


def model_with(classes: tuple[str, ...] = THREE, **settings: Any) -> Calcode:
    """`fitted` with its settings as keywords."""
    return fitted(classes, tuple(sorted(settings.items())))


def decisions_of(
    model: Calcode, *, sets: Any, localized: Any = None, p_audit: Any = None, ids: Sequence[str] | None = None
) -> Decisions:
    """Decisions of a model with given sets; accepted where the p-value reaches its deferral level."""
    members = np.asarray(sets, dtype=bool)
    n = len(members)
    p_values = np.ones(n) if p_audit is None else np.asarray(p_audit, dtype=float)
    action, reason, label = choose_actions(
        members, supported=p_values >= model.settings_.deferral_level, binary_utility=model.settings_.binary_utility
    )
    return Decisions(
        action=action,
        reason=reason,
        label=label,
        sets=members,
        localized_sets=members.copy() if localized is None else np.asarray(localized, dtype=bool),
        p_audit=p_values,
        threshold=np.ones(members.shape),
        scores=np.full(members.shape, 0.5),
        top_label=np.zeros(n, dtype=np.int64),
        top_probability=np.full(n, 0.75),
        ids=None if ids is None else np.asarray(ids),
        classes=model.classes_,
        model_digest=model.digest_,
        promises=model.promises_,
        in_every_set=model.in_every_set_,
    )


def cohort_of(
    model: Calcode,
    *,
    labels: Any,
    sets: Any,
    localized: Any = None,
    ordinary: Any = None,
    p_audit: Any = None,
    ids: Sequence[str] | None = None,
    shifted: bool = False,
    metadata: Mapping[str, Any] | None = None,
    class_titles: Mapping[str, str] | None = None,
    name: str = "COHORT",
) -> ReportCohort:
    """A cohort whose every answer is given."""
    decisions = decisions_of(model, sets=sets, localized=localized, p_audit=p_audit, ids=ids)
    plain = None
    if ordinary is not None:
        plain = ("Split APS", np.asarray(ordinary, dtype=bool))
    return ReportCohort(
        name=name,
        title=f"Title of {name}",
        description="",
        shifted=shifted,
        labels=np.asarray(labels, dtype=np.int64),
        model=model,
        decisions=decisions,
        ordinary=plain,
        metadata=metadata or {},
        class_titles=class_titles or {},
    )


def real_cohort(model: Calcode, *, n: int = 200, seed: int = 9, outside: int = 0, **changes: Any) -> ReportCohort:
    """A cohort that the model itself decided on, with split conformal sets of a fixed threshold to compare with."""
    images = evidence(n, classes=model.classes_, seed=seed)
    labels = images.require_labels().copy()
    labels[:outside] = -1
    decisions = model.decide(images)
    values: dict[str, Any] = {
        "name": "REAL",
        "title": "Generated images",
        "description": "Drawn from the same distribution as the calibration images.",
        "shifted": False,
        "labels": labels,
        "model": model,
        "decisions": decisions,
        "ordinary": ("Split APS", decisions.scores <= 0.8),
        "metadata": {
            "sex": np.where(np.arange(n) % 2, "female", "male"),
            "fitzpatrick": np.where(np.arange(n) % 3, 2.0, np.nan),
            "site": np.full(n, "one"),
        },
    }
    return ReportCohort(**(values | changes))


def repeated(row: Sequence[int], n: int) -> list[list[int]]:
    """The same set n times."""
    return [list(row)] * n
