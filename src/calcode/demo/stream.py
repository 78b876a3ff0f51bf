"""A stream of real skin images in which the camera changes, and the monitors that detect it (SITE.md S7)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from calcode.cohorts import Cohort
from calcode.demo.cohorts import fitted_on
from calcode.monitor import Watch, replay, watch_model

#: Number of lesions before the change, and share of all cases whose label is looked up.
N_CALM = 200
REVIEW_RATE = 0.3


class Played(NamedTuple):
    """Results of the monitors.

    Attributes
    ----------
    watch : Watch
    calm_votes, changed_votes : int
        Number of lesions of HAM10000 and of patients of PAD-UFES-20 that voted.
    calm_alarms : int
        Number of alarms before the change.
    delay : int or None
        Number of PAD-UFES-20 images until M1 raised its alarm; None if it did not.
    """

    watch: Watch
    calm_votes: int
    changed_votes: int
    calm_alarms: int
    delay: int | None


def play(images: Cohort, *, random_state: int = 0) -> Played:
    """Fit on HAM10000, then stream held-out HAM10000 images, then smartphone photographs of PAD-UFES-20.

    Parameters
    ----------
    images : Cohort
        All demonstration images.
    random_state : int
        Seeds the order of the images, and which of them are reviewed.
    """
    rng = np.random.default_rng(random_state)
    ham = images[images.column("dataset") == "ham10000"]
    pad = images[images.column("dataset") == "padufes20"].evidence
    held_out = ham.with_role("test").evidence
    model = fitted_on(ham)
    watch = watch_model(model)
    votes = []
    for evidence, n in ((held_out, N_CALM), (pad, len(pad))):
        before = len(watch.alarms)
        shuffled = evidence[rng.permutation(len(evidence))]
        assert shuffled.groups is not None  # the demonstration's images have groups
        # The first image of each group, so that the part before the change has a given number of lesions.
        _, first = np.unique(shuffled.groups, return_index=True)
        stream = shuffled[np.sort(first)[:n]]
        votes.append((replay(watch, model, stream).votes, before))
        for row in np.flatnonzero(rng.random(len(stream)) < REVIEW_RATE).tolist():
            watch.review(str(np.asarray(stream.ids)[row]), label=int(stream.require_labels()[row]))
    (calm, _), (changed, calm_alarms) = votes
    support = [alarm.n - calm for alarm in watch.alarms[calm_alarms:] if alarm.monitor == "M1"]
    return Played(watch, calm, changed, calm_alarms, support[0] if support else None)
