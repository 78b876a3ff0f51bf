"""One decision explained: what was answered, how well the image is supported, what lies near it, and why."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from calcode.arrays import FloatArray
from calcode.errors import EvidenceError
from calcode.kernels.distances import cosine_distances, row_blocks
from calcode.method.decisions import Action, Decisions, Reason
from calcode.method.evidence import Evidence, robust_probabilities
from calcode.method.model import Calcode

if TYPE_CHECKING:
    from calcode.cohorts import Cohort

#: Reference images whose own neighbourhoods are looked at, for comparison.
_COMPARED = 2000


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """A reference image near the one in question; `distance` is 1 - cosine."""

    id: str
    label_name: str
    distance: float


@dataclass(frozen=True, kw_only=True)
class ClassVerdict:
    """How one class fared.

    Attributes
    ----------
    name, title : str
    probability : float
        Robust probability of Eq. 5.
    score, threshold : float
        In the set if the score does not exceed the threshold.
    kept_by : str
        "neighbourhood" (localized threshold), "guard" (only because the class is protected), "first" (only because
        it is ranked first), or "" if left out.
    """

    name: str
    title: str
    probability: float
    score: float
    threshold: float
    kept_by: str


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """A decision on one image with everything behind it; `verdicts` is empty for a deferred image."""

    action: str
    reason: str
    released: tuple[str, ...]
    p_audit: float
    deferral_level: float
    audit: str | None
    verdicts: tuple[ClassVerdict, ...]
    neighbours: tuple[Neighbour, ...]
    why: tuple[str, ...]
    model_digest: str

    @property
    def answer(self) -> str:
        """The decision as one sentence."""
        if self.action == "defer":
            return f"Deferred to a clinician ({self.reason.replace('_', ' ')})."
        titles = {entry.name: entry.title for entry in self.verdicts}
        names = ", ".join(
            name if titles[name] == name else f"{titles[name]} ({name})" for name in self.released
        )
        if self.action == "label":
            return f"One diagnosis: {names}."
        return f"A set of {len(self.released)} of {len(self.verdicts)} diagnoses: {names}."

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def explain(
    evidence: Evidence,
    *,
    model: Calcode,
    reference: Cohort,
    titles: Mapping[str, str] | None = None,
    n_neighbours: int = 10,
) -> Explanation:
    """Decide on one image and say why.

    Parameters
    ----------
    evidence : Evidence
        Of one image.
    model : Calcode
    reference : Cohort
        The reference images with ids and label names; labels serve this display alone, never the decision.
    titles : mapping of str to str, optional
        What the names of the classes stand for.
    n_neighbours : int
    """
    if len(evidence) != 1:
        raise EvidenceError(f"evidence: {len(evidence)} images, one is explained at a time")
    decisions = model.decide(evidence)
    if not 1 <= n_neighbours < len(reference):
        raise EvidenceError(f"n_neighbours: {n_neighbours} must lie between 1 and {len(reference) - 1}")
    neighbours = nearest(evidence, reference, count=n_neighbours)
    deferred = bool(decisions.deferred[0])
    verdicts = () if deferred else _verdicts(evidence, decisions, model=model, titles=titles or {})
    (decision,) = decisions
    return Explanation(
        action=decision.action.name.lower(),
        reason=decision.reason.name.lower(),
        released=decision.released,
        p_audit=decision.p_audit,
        deferral_level=model.settings_.deferral_level,
        audit=model.audit_name_,
        verdicts=verdicts,
        neighbours=neighbours,
        why=(
            _support_sentence(decisions, model),
            _neighbour_sentence(neighbours, reference),
            *_set_sentences(decisions, verdicts, model),
        ),
        model_digest=decisions.model_digest,
    )


def nearest(evidence: Evidence, reference: Cohort, *, count: int) -> tuple[Neighbour, ...]:
    """The reference images nearest to the first image, nearest first; ties by their order."""
    distances = cosine_distances(evidence.embeddings[:1], reference.evidence.embeddings)[0]
    rows = np.argsort(distances, kind="stable")[:count]
    names, labels = reference.column("id"), reference.column("label_name")
    return tuple(
        Neighbour(id=str(names[row]), label_name=str(labels[row]), distance=max(0.0, float(distances[row])))
        for row in rows
    )


def _verdicts(
    evidence: Evidence, decisions: Decisions, *, model: Calcode, titles: Mapping[str, str]
) -> tuple[ClassVerdict, ...]:
    """Every class, most probable first."""
    (probabilities,) = robust_probabilities(evidence.prompt_logits, trim=model.settings_.trim)
    # The thresholds before the first label was kept.
    localized, guarded = model.thresholds(evidence.embeddings, decisions.scores)
    kept = np.select(
        [decisions.scores[0] <= localized[0], decisions.scores[0] <= guarded[0], decisions.sets[0]],
        ["neighbourhood", "guard", "first"],
        default="",
    )
    return tuple(
        ClassVerdict(
            name=decisions.classes[y],
            title=titles.get(decisions.classes[y], decisions.classes[y]),
            probability=float(probabilities[y]),
            score=float(decisions.scores[0, y]),
            threshold=float(decisions.threshold[0, y]),
            kept_by=str(kept[y]),
        )
        for y in np.argsort(-probabilities, kind="stable")
    )


def _support_sentence(decisions: Decisions, model: Calcode) -> str:
    if model.audit_name_ is None:
        return "Support: the model has no audit, so every image is accepted."
    p, level = float(decisions.p_audit[0]), model.settings_.deferral_level
    share = f"{p:.1%} of the gate images are supported as weakly as this one or more weakly"
    if p < level:
        return (
            f"Support ({model.audit_name_}): p = {p:.4f}, below the deferral level {level:g}: only {share}. "
            "The image goes to a clinician, and no set is shown."
        )
    return f"Support ({model.audit_name_}): p = {p:.4f}, not below the deferral level {level:g}: {share}."


def _neighbour_sentence(neighbours: tuple[Neighbour, ...], reference: Cohort) -> str:
    counts = Counter(entry.label_name for entry in neighbours).most_common()
    found = ", ".join(f"{count} {name or 'without a label'}" for name, count in counts)
    median = float(np.median([entry.distance for entry in neighbours]))
    usual = usual_distances(reference, count=len(neighbours))
    return (
        f"Neighbours: of the {len(neighbours)} nearest reference images {found}; median distance {median:.3f} "
        f"(1 - cosine), more than {(usual < median).mean():.0%} of the reference images have to theirs. They are shown "
        "for orientation; their labels enter no decision."
    )


def usual_distances(reference: Cohort, *, count: int) -> FloatArray:
    """Median distance of reference images to their own nearest neighbours, for comparison; shape (at most 2000,)."""
    vectors = reference.evidence.embeddings
    chosen = np.linspace(0, len(vectors) - 1, min(len(vectors), _COMPARED)).astype(np.int64)
    medians = np.empty(len(chosen))
    for rows in row_blocks(len(chosen), n_columns=len(vectors)):
        distances = cosine_distances(vectors[chosen[rows]], vectors)
        distances[np.arange(len(distances)), chosen[rows]] = np.inf
        medians[rows] = np.median(np.partition(distances, count - 1, axis=1)[:, :count], axis=1)
    return medians


def _set_sentences(
    decisions: Decisions, verdicts: tuple[ClassVerdict, ...], model: Calcode
) -> tuple[str, ...]:
    if decisions.action[0] == Action.DEFER:
        words = {
            Reason.EMPTY_SET: ("Set: no label is plausible enough, so the image goes to a clinician.",),
            Reason.FULL_SET: ("Set: both labels are plausible, so the image goes to a clinician.",),
        }
        return words.get(Reason(int(decisions.reason[0])), ())
    local = [entry for entry in verdicts if entry.kept_by == "neighbourhood"]
    guarded = [entry for entry in verdicts if entry.kept_by == "guard"]
    first = [entry for entry in verdicts if entry.kept_by == "first"]
    left = [entry for entry in verdicts if not entry.kept_by]
    sentences = [_local_sentence(local, n_classes=len(verdicts), coverage=1 - model.settings_.miscoverage)]
    for entry in guarded:
        sentences.append(
            f"Guard: {entry.name} stays in because its class is protected ({model.tail_reasons_[entry.name]})."
        )
    for entry in first:
        sentences.append(f"First: {entry.name} stays in because the model ranks it first.")
    if left:
        sentences.append(f"Left out: {', '.join(entry.name for entry in left)}.")
    return tuple(sentences)


def _local_sentence(local: list[ClassVerdict], *, n_classes: int, coverage: float) -> str:
    names = ", ".join(entry.name for entry in local) or "no label"
    if len(local) == n_classes and any(math.isinf(entry.threshold) for entry in local):
        return (
            "Set: too few calibration images lie near this one to leave any label out, so all of them are in."
        )
    return f"Set: the calibration images near this one, at a target of {coverage:.0%}, keep {names}."
