"""Explain one decision: the answer, how unusual the image is, why each diagnosis stays or goes (METHOD.md 4 to 9).

The first sentences are for the person who acts on the answer; scores, thresholds and p-values follow.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from calcode.arrays import FloatArray
from calcode.errors import EvidenceError
from calcode.kernels import cosine_distances, row_blocks
from calcode.method.audit import RANK_TOLERANCE, SupportAudit
from calcode.method.decisions import Action, Decisions, Reason
from calcode.method.evidence import Evidence, robust_probabilities
from calcode.method.model import Calcode
from calcode.method.quantiles import smallest_finite_count

if TYPE_CHECKING:
    from calcode.cohorts import Cohort

#: Reference images whose own neighbours are used for comparison if a model kept no distances.
_COMPARED = 2000
#: An image is called less typical, or very unusual, if at least this share of known images is nearer.
_LESS_TYPICAL = 0.9
VERY_UNUSUAL = 0.99


class SupportWords(NamedTuple):
    """Wording for a diagnostic of the audit (METHOD.md 4): an unsure model does not make an image unusual.

    Attributes
    ----------
    measure : str
        What the diagnostic measures of an image.
    others : str
        What holds for images whose value is as extreme.
    deferred : str
        Why the diagnostic defers an image.
    """

    measure: str
    others: str
    deferred: str


_SUPPORT = {
    "distance": SupportWords(
        "its distance from known images",
        "are at least as far away",
        "the image is unlike those that the model was checked with",
    ),
    "energy": SupportWords(
        "how well any diagnosis fits it", "fit at least as badly", "no diagnosis fits the image as well as is usual"
    ),
    "msp": SupportWords(
        "how sure the model is", "leave it at least as unsure", "the model is unusually unsure about the image"
    ),
    "prompt": SupportWords(
        "how far the wordings of a diagnosis agree",
        "are disagreed about at least as much",
        "the wordings of a diagnosis disagree unusually much about the image",
    ),
    "fused": SupportWords(
        "distance, fit, sureness and wordings together",
        "stand out at least as much",
        "the image stands out by distance, fit, sureness and wordings taken together",
    ),
}
#: Wording if the model that decided can no longer be read.
_UNKNOWN_SUPPORT = SupportWords(
    "the model's check", "stand out at least as much", "the model's check found too little support for an answer"
)
_DEFERRED = {Reason.EMPTY_SET: "no diagnosis is plausible enough", Reason.FULL_SET: "both diagnoses remain possible"}


class Decider(Protocol):
    """A fitted model, at home or at a site."""

    def decide(self, evidence: Evidence) -> Decisions:
        """Decisions on all images."""
        ...


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """A reference image near the explained one; `distance` is 1 - cosine."""

    id: str
    label_name: str
    distance: float


@dataclass(frozen=True, kw_only=True)
class ClassVerdict:
    """The result for one class.

    Attributes
    ----------
    name, title : str
    probability : float
        Robust probability (METHOD.md 2).
    score, threshold : float
        The class is in the set if its score does not exceed the threshold.
    kept_by : str
        "neighbourhood" (localized threshold), "guard" (only because the class is protected), "first" (only because
        it is ranked first), or "" if left out.
    because : str
        The same in words, with the numbers behind it.
    """

    name: str
    title: str
    probability: float
    score: float
    threshold: float
    kept_by: str
    because: str


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """A decision on one image and the evidence behind it; `verdicts` is empty for a deferred image.

    Attributes
    ----------
    answer : str
        What the model says, in one sentence.
    unusual : str
        How unusual the image is, in one sentence; shown with the answer, deferred or not.
    farther_than : float or None
        Share of known images that are nearer to the reference than this one; None without an audit.
    record : str
        How often answers of one diagnosis were right on labelled images; "" if unknown or not requested.
    why : tuple of str
        Reasons for the decision, most important first.
    """

    id: str | None
    action: str
    reason: str
    released: tuple[str, ...]
    answer: str
    unusual: str
    farther_than: float | None
    record: str = ""
    why: tuple[str, ...]
    p_audit: float
    deferral_level: float
    audit: str | None
    verdicts: tuple[ClassVerdict, ...]
    neighbours: tuple[Neighbour, ...]
    model_digest: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def explain(
    evidence: Evidence,
    *,
    model: Calcode,
    reference: Cohort | None = None,
    titles: Mapping[str, str] | None = None,
    n_neighbours: int = 10,
) -> Explanation:
    """Decide on one image and explain why.

    Parameters
    ----------
    evidence : Evidence
        One image.
    model : Calcode
    reference : Cohort, optional
        The model's reference images with ids and, if known, a column `label_name`; the nearest are named.
    titles : mapping of str to str, optional
        Full names of the classes.
    n_neighbours : int
        Number of reference images to name.

    Examples
    --------
    One image of a cohort::

        found = explain(cohort.evidence[0], model=Calcode.load("model.safetensors"))
        found.answer, found.unusual
    """
    if len(evidence) != 1:
        raise EvidenceError(f"evidence: {len(evidence)} images, one is explained at a time")
    if reference is not None and not 1 <= n_neighbours < len(reference):
        raise EvidenceError(f"n_neighbours: {n_neighbours} must lie between 1 and {len(reference) - 1}")
    decisions = model.decide(evidence)
    (decision,) = decisions
    named = {name: (titles or {}).get(name, name) for name in decisions.classes}
    # A class is in the set on its own merit if similar calibration images keep it.
    fits = dict(zip(decisions.classes, decisions.localized_sets[0].tolist(), strict=True))
    always = [name for name in decisions.in_every_set if not fits[name]]
    verdicts = () if decisions.deferred[0] else _verdicts(evidence, decisions, model=model, titles=named)
    neighbours = () if reference is None else nearest(evidence, reference, count=n_neighbours)
    share = None
    if (audit := model.audit_) is not None:
        known = audit.gate_distances
        if known is None:
            # The model kept no distances: use those of reference images to their own neighbours.
            known = usual_distances(audit.reference, count=min(audit.n_neighbors, len(audit.reference) - 1))
        share = share_nearer(evidence, audit=audit, known=known)
    unusual, level = unusual_sentence(share), model.settings_.deferral_level
    if model.audit_name_ is None:
        why = ["Check before the answer: none, every image is accepted."]
    else:
        p = decision.p_audit
        outcome = "so it goes to a clinician, and no set is shown" if p < level else "so it is accepted"
        words = support_words(model.audit_name_)
        why = [
            f"Check before the answer, by {words.measure} ('{model.audit_name_}'): {_percent(p)} of the images set "
            f"aside for it {words.others} (p = {p:.4f}; below {level:g} an image is deferred), {outcome}."
        ]
        # The audit's measure and the distance may contradict each other; then say which one decided.
        if share is not None and (share >= _LESS_TYPICAL) == (p >= level) and model.audit_name_ != "distance":
            if p < level:
                unusual = f"Its distance alone is not unusual: {_percent(1 - share)} of known images are as far away."
            verdict = "deferred it" if p < level else "accepted it"
            unusual += f" The check that defers uses another measure ('{model.audit_name_}') and {verdict}."
    if verdicts:
        # What keeps diagnoses in the set, and which were ruled out.
        by_local = [entry for entry in verdicts if entry.kept_by == "neighbourhood"]
        if len(by_local) == len(verdicts) and any(math.isinf(entry.threshold) for entry in by_local):
            why.append("Too few calibration images are like this one to rule any diagnosis out.")
        else:
            target = 100 * (1 - model.settings_.miscoverage)
            names = ", ".join(entry.name for entry in by_local) or "no diagnosis"
            why.append(f"By the calibration images most like this one, at a target of {target:.0f} %: {names}.")
        for entry in verdicts:
            if entry.kept_by == "first":
                why.append(f"{entry.name} is added: {entry.because}.")
            elif entry.kept_by == "guard":
                why.append(f"{entry.name} is added by the guard of its class: {model.tail_reasons_[entry.name]}.")
        if left := [entry.name for entry in verdicts if not entry.kept_by]:
            why.append(f"Ruled out: {', '.join(left)}.")
    if neighbours:
        counts = Counter(entry.label_name for entry in neighbours).most_common()
        found = ", ".join(f"{count} {name or 'without a label'}" for name, count in counts)
        why.append(f"The {len(neighbours)} nearest reference images: {found}. They are shown for orientation only.")
    return Explanation(
        id=decision.id,
        action=decision.action.name.lower(),
        reason=decision.reason.name.lower(),
        released=decision.released,
        answer=answer_sentence(decisions, titles=named, always=always, audit=model.audit_name_),
        unusual=unusual,
        farther_than=share,
        why=tuple(why),
        p_audit=decision.p_audit,
        deferral_level=level,
        audit=model.audit_name_,
        verdicts=verdicts,
        neighbours=neighbours,
        model_digest=decisions.model_digest,
    )


def single_answer_record(model: Decider, test: Evidence) -> str:
    """How often this model's answers of one diagnosis are right, on labelled images not used to fit it.

    Parameters
    ----------
    model : Calcode or SiteModel
    test : Evidence
        With labels.
    """
    found = model.decide(test).summary(test.require_labels())
    return f"On {len(test):,} labelled test images the model gave {found.singles}."


def share_nearer(evidence: Evidence, *, audit: SupportAudit, known: FloatArray) -> float:
    """Share of the known images that are nearer to the reference than the first image of `evidence`.

    Parameters
    ----------
    evidence : Evidence
    audit : SupportAudit
    known : ndarray of shape (m,)
        Distances of the known images to their neighbours in the reference.
    """
    return float((known < audit.distances(evidence[:1])[0] - RANK_TOLERANCE).mean())


def usual_distances(vectors: FloatArray, *, count: int) -> FloatArray:
    """Median distance of images to their own `count` nearest neighbours, for at most 2000 of them; shape (n,)."""
    chosen = np.linspace(0, len(vectors) - 1, min(len(vectors), _COMPARED)).astype(np.int64)
    medians = np.empty(len(chosen))
    for rows in row_blocks(len(chosen), n_columns=len(vectors)):
        distances = cosine_distances(vectors[chosen[rows]], vectors)
        distances[np.arange(len(distances)), chosen[rows]] = np.inf
        medians[rows] = np.median(np.partition(distances, count - 1, axis=1)[:, :count], axis=1)
    return medians


def nearest(evidence: Evidence, reference: Cohort, *, count: int) -> tuple[Neighbour, ...]:
    """The reference images nearest to the first image, nearest first; ties in input order."""
    distances = cosine_distances(evidence.embeddings[:1], reference.evidence.embeddings)[0]
    rows = np.argsort(distances, kind="stable")[:count]
    names = reference.column("id")
    labels = reference.metadata.get("label_name", np.full(len(reference), ""))
    return tuple(
        Neighbour(id=str(names[row]), label_name=str(labels[row]), distance=max(0.0, float(distances[row])))
        for row in rows
    )


def support_words(audit: str | None) -> SupportWords:
    """Wording for a diagnostic; None for an unknown one.

    Examples
    --------
    >>> support_words("msp").deferred
    'the model is unusually unsure about the image'
    """
    return _SUPPORT.get(audit or "", _UNKNOWN_SUPPORT)


def answer_sentence(
    decisions: Decisions, *, titles: Mapping[str, str], always: Collection[str], audit: str | None
) -> str:
    """What the model says about the first image, in one sentence.

    Parameters
    ----------
    decisions : Decisions
    titles : mapping of str to str
    always : collection of str
        Classes that are in the set of every image; they are named last, and called so.
    audit : str or None
        The diagnostic that defers.
    """
    if decisions.action[0] == Action.DEFER:
        reason = Reason(int(decisions.reason[0]))
        return f"Deferred to a clinician: {_DEFERRED.get(reason, support_words(audit).deferred)}."
    names = [decisions.classes[y] for y in np.flatnonzero(decisions.released_sets[0])]
    if len(names) == len(decisions.classes):
        return f"Cannot narrow it down: all {len(names)} remain possible."
    shown = {name: name if titles[name] == name else f"{titles[name]} ({name})" for name in names}
    own = ", ".join(shown[name] for name in names if name not in always)
    kept = [shown[name] for name in names if name in always]
    marked = f"{' and '.join(kept)}, which {'is' if len(kept) == 1 else 'are'} in every set"
    if not own:
        return f"Every diagnosis is ruled out but {marked}."
    if len(names) == 1:
        return f"One diagnosis: {own}."
    also = f" (and {marked})" if kept else ""
    return f"{len(names)} of {len(decisions.classes)} diagnoses remain possible: {own}{also}."


def unusual_sentence(share: float | None) -> str:
    """How unusual an image is, given the share of known images that are nearer to the reference."""
    if share is None:
        return "How unusual the image is, this model cannot say: it was fitted without a check for that."
    if share >= 1.0:
        return "Very unusual image: it is further from the reference images than every image it was compared with."
    if share >= VERY_UNUSUAL:
        return f"Very unusual image: it is further from the reference images than {_percent(share)} of known images."
    if share >= _LESS_TYPICAL:
        return f"Less typical image: it is further from the reference images than {_percent(share)} of known images."
    return f"Nothing unusual about the image: {_percent(1 - share)} of known images are as far from the reference."


def _percent(share: float) -> str:
    # Rounded away from 0 % and 100 %, so that 100 % means all and 0 % means none.
    shown = math.floor(share * 100) if share > 0.5 else math.ceil(share * 100)
    if 0.99 < share < 1 or 0 < share < 0.01:
        return f"{(math.floor(share * 1000) if share > 0.5 else math.ceil(share * 1000)) / 10:.1f} %"
    return f"{shown} %"


def _verdicts(
    evidence: Evidence, decisions: Decisions, *, model: Calcode, titles: Mapping[str, str]
) -> tuple[ClassVerdict, ...]:
    """Every class, most probable first."""
    (probabilities,) = robust_probabilities(evidence.prompt_logits, trim=model.settings_.trim)
    (scores,) = decisions.scores
    # The thresholds before the first label is kept.
    localized, guarded = model.thresholds(evidence.embeddings)
    kept = np.select(
        [scores <= localized[0], scores <= guarded[0], decisions.sets[0]],
        ["neighbourhood", "guard", "first"],
        default="",
    )
    guards = {guard.name: guard for guard in model.guards_}
    verdicts = []
    for y in np.argsort(-probabilities, kind="stable"):
        name = decisions.classes[y]
        if kept[y] == "neighbourhood":
            because = "calibration images like this one leave room for it"
            if math.isinf(localized[0]):
                because = "too few calibration images are like this one to rule anything out"
        elif kept[y] == "first":
            because = "the model finds it the most likely"
        elif kept[y] == "guard":
            # Why a protected class is in the set, without technical terms.
            guard = guards[name]
            reason = model.tail_reasons_[name]
            images = f"{guard.n} calibration image{'s' * (guard.n != 1)}"
            if math.isinf(guard.quantile):
                needed = smallest_finite_count(miscoverage=guard.miscoverage)
                because = f"in every set: {images}, {needed} needed to rule it out"
            else:
                cause = {
                    "undercovered": f"{100 * (1 - reason.coverage):.0f} % of {reason.n} validation images were missed",
                    "too few": f"only {reason.n} validation images were seen",
                    "requested": "it was asked for",
                }.get(reason.kind, "every class is")
                because = f"protected because {cause}; its own {images} leave room for it"
        else:
            because = "calibration images like this one rule it out"
            if name in guards:
                because += f", and so do the {guards[name].n} of its own class"
        verdicts.append(
            ClassVerdict(
                name=name,
                title=titles[name],
                probability=float(probabilities[y]),
                score=float(scores[y]),
                threshold=float(decisions.threshold[0, y]),
                kept_by=str(kept[y]),
                because=because,
            )
        )
    return tuple(verdicts)
