"""Make the monitors of a model, and let decided images vote in them (SITE.md S1 and S7)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from calcode.errors import CalcodeWarning, EvidenceError, MismatchError
from calcode.method.decisions import Decisions
from calcode.method.evidence import Evidence, robust_probabilities
from calcode.method.model import Calcode
from calcode.method.roles import identities
from calcode.monitor.coverage import miss_line
from calcode.monitor.watch import Case, Watch

if TYPE_CHECKING:
    from calcode.site import SiteModel

#: Bags of these designs are exchangeable with later coin cases.
_LIKE_COIN_CASES = ("coin", "consecutive")


class Replayed(NamedTuple):
    """Counts of the images of a replay.

    Attributes
    ----------
    n : int
        Number of images given.
    recognised : int
        Images seen in an earlier replay, which are ignored.
    votes : int
        Representatives of groups that had not voted before.
    in_model : int
        Representatives whose group calibrated the model; they have no vote.
    """

    n: int
    recognised: int
    votes: int
    in_model: int


def watch_model(model: Calcode | SiteModel, *, false_alarm: float = 0.01, random_state: int = 0) -> Watch:
    """The monitors of a fitted model, before the first image.

    A home model is compared with its own gate, so it rightly alarms at a new site. A site model is compared with the
    site's gate; without a gate M1 is off. M2 uses the bag's scores if the bag was filled by coin or with consecutive
    patients, else the first 20 cases of a class; a home model keeps no scores.

    Parameters
    ----------
    model : Calcode or SiteModel
    false_alarm : float
        Bound on the probability that an alarm is ever raised while nothing changes.
    random_state : int
        Seeds the randomised ranks.

    Returns
    -------
    Watch
        Use `replay` to let images vote, as in its example.
    """
    lines = miss_lines(model)
    if isinstance(model, Calcode):
        gate, references = None if model.audit_ is None else model.audit_.gate_distances, {}
        recalibrations = 0
    else:
        gate, recalibrations = model.gate_distances_, model.look_
        references = {
            name: scores
            for name, scores in model.bag_scores_.items()
            if model.settings_.sampling[name] in _LIKE_COIN_CASES
            and model.settings_.calibrate_with != "weighted"
            and len(scores) > 0
        }
    return Watch(
        classes=model.classes_,
        model_digest=model.digest_,
        gate=gate,
        references=references,
        lines=lines,
        false_alarm=false_alarm,
        recalibrations=recalibrations,
        random_state=random_state,
    )


def miss_lines(model: Calcode | SiteModel) -> dict[str, float]:
    """Tolerated miss rate of every class, for M3: from its calibrating labels and its level."""
    if isinstance(model, Calcode):
        settings = model.settings_
        levels = dict.fromkeys(model.classes_, settings.miscoverage)
        levels |= {guard.name: guard.miscoverage for guard in model.guards_}
        return {
            name: miss_line(n, miscoverage=levels[name], margin=settings.discovery_margin)
            for name, n in model.n_accepted_per_class_.items()
        }
    return {
        name: miss_line(n, miscoverage=model.levels_[name], rank=rank) for name, (rank, n) in model.thresholds_.items()
    }


def replay(
    watch: Watch,
    model: Calcode | SiteModel,
    evidence: Evidence,
    *,
    decisions: Decisions | None = None,
    times: Sequence[str] | None = None,
    secret: bytes = b"",
) -> Replayed:
    """Let images vote in row order: one image per group, and each group only once.

    Distances, and sets unless decisions are given, are computed only for the representatives.

    Parameters
    ----------
    watch : Watch
    model : Calcode or SiteModel
        The model that decided.
    evidence : Evidence
        With ids, in the order of time; a row without a group is its own group. Labels are ignored.
    decisions : Decisions, optional
        The decisions that were given, one per row; if None, the model decides.
    times : sequence of str, optional
        Ascending. Images of a group with equal times belong to one visit. The representative is drawn by keyed hash
        among those of the first visit, or among all rows of the group if there are no times.
    secret : bytes
        Key of that draw. Use the site's secret, so that the image that was reviewed is the one that votes.

    Returns
    -------
    Replayed
        The number of images, and how many voted.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> def role(n, name, shift=0.0):
    ...     labels = rng.integers(3, size=n)
    ...     images = np.eye(3, 8)[labels] + rng.normal(loc=shift, scale=0.4, size=(n, 8))
    ...     images /= np.linalg.norm(images, axis=1, keepdims=True)
    ...     ids = [f"{name}-{i}" for i in range(n)]
    ...     return Evidence.from_text(embeddings=images, text=np.eye(3, 8)[:, None], temperature=0.2,
    ...                               labels=labels, classes="abc", ids=ids, groups=ids)
    >>> roles = {"reference": 100, "validation": 200, "gate": 100, "calibration": 200}
    >>> model = Calcode().fit(**{name: role(n, name) for name, n in roles.items()})
    >>> watch = watch_model(model)
    >>> replay(watch, model, role(100, "same"))
    Replayed(n=100, recognised=0, votes=100, in_model=0)
    >>> watch.alarms
    []
    >>> other = replay(watch, model, role(100, "camera", shift=1.0))
    >>> [alarm.monitor for alarm in watch.alarms]
    ['M1']
    """
    from calcode.site import representatives

    if evidence.ids is None:
        raise EvidenceError("ids: a monitor has to recognise images that it has seen; the evidence has none")
    if model.digest_ != watch.model_digest:
        raise MismatchError(
            "model: not the one whose monitors these are; start new ones, or recalibrate them for the same bag"
        )
    if decisions is not None and decisions.model_digest != model.digest_:
        raise MismatchError("decisions: made by another model; give the model that made them")
    model.evidence_format_.require(evidence, role="evidence")
    if evidence.groups is None:
        warnings.warn(
            "groups: the images have none, so every image counts as a patient of its own; several images of one "
            "patient then raise false alarms",
            CalcodeWarning,
            stacklevel=2,
        )
    ids = evidence.ids.tolist()
    groups = ids if evidence.groups is None else evidence.groups.tolist()
    new = [row for row, name in enumerate(ids) if not watch.knows(name)]
    # Equal times mean one visit. Visits are ordered by the position of their time, not by its text.
    visits = None
    if times is not None:
        position = {time: f"{place:09d}" for place, time in reversed(list(enumerate(times)))}
        visits = [position[times[row]] for row in new]
    drawn = representatives([ids[row] for row in new], [groups[row] for row in new], secret=secret, visits=visits)
    chosen = np.array([new[i] for i in drawn if not watch.has_voted(groups[new[i]] or ids[new[i]])], dtype=np.int64)
    in_model = np.zeros(len(chosen), dtype=np.bool_)
    if isinstance(model, Calcode):
        model.role_hashes_.require_new("evidence", identities(evidence[chosen]))
    elif len(chosen):
        in_model = model.known_.find(
            len(chosen), ids=evidence.ids[chosen], groups=None if evidence.groups is None else evidence.groups[chosen]
        )[1]
        chosen = chosen[~in_model]
    for row in new:
        watch.note(ids[row])
    if len(chosen):
        part = evidence[chosen]
        given = model.decide(part) if decisions is None else decisions[chosen]
        robust = robust_probabilities(part.prompt_logits, trim=model.settings_.trim)
        distances = [None] * len(chosen)
        if watch.support is not None and model.audit_ is not None:
            distances = model.audit_.distances(part).tolist()
        for i, row in enumerate(chosen.tolist()):
            case = Case(
                labels=tuple(np.flatnonzero(given.sets[i]).tolist()),
                accepted=bool(given.accepted[i]),
                deferred=bool(given.deferred[i]),
                scores=tuple((1.0 - robust[i]).tolist()),
            )
            when = "" if times is None else times[row]
            watch.observe(ids[row], group=groups[row], case=case, distance=distances[i], when=when)
    if times is not None and new:
        watch.seen_until = times[new[-1]]
    return Replayed(len(ids), len(ids) - len(new), len(chosen), int(in_model.sum()))
