"""The assured form: a promise for the reviewed sample at hand, by splitting the bag (SITE.md S6)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.method.home_sums import adapter_probabilities
from calcode.site.adapter import Adapter
from calcode.site.levels import SLACK
from calcode.site.ranking import TOLERANCE, Bag, Ranked, RankRule

#: Share of the bag used for training.
TRAINING_SHARE = 0.4


def failure_of_look(look: int, *, assurance: float) -> float:
    """Failure probability that look j may spend: (1 - assurance) / (j (j + 1)).

    Examples
    --------
    >>> [round(failure_of_look(look, assurance=0.9), 4) for look in (1, 2)]
    [0.05, 0.0167]
    """
    return (1.0 - assurance) / (look * (look + 1))


def exclusion_levels(n: int, *, failure: float) -> FloatArray:
    """The smallest level at which a label is excluded, by how many of n calibrating scores are below its score.

    The k-th smallest score covers Beta(k, n + 1 - k) of the class. It is a threshold at level delta if it covers at
    least 1 - delta with probability 1 - failure. A label above k scores is excluded from that delta on.

    Returns
    -------
    ndarray of shape (n + 1,)
        Entry 0 is 1: a label below all scores stays in every set.

    Examples
    --------
    >>> [round(float(exclusion_levels(n, failure=0.05)[-1]), 4) for n in (58, 59)]
    [0.0503, 0.0495]
    """
    from scipy.special import betaincinv

    ranks = np.arange(1, n + 1)
    return np.concatenate([[1.0], 1.0 - betaincinv(ranks, n + 1.0 - ranks, failure)])


@dataclass(frozen=True, eq=False, kw_only=True)
class SplitConformal:
    """An adapter trained on one part of the bag and class thresholds from the other.

    Attributes
    ----------
    adapter : Adapter
        Trained on the rows that do not calibrate.
    bag : Bag
        `calibrates` marks the calibrating part.
    rule : RankRule
    failure : float
        Probability with which the promise of a class may fail at this look.
    """

    adapter: Adapter
    bag: Bag
    rule: RankRule
    failure: float

    @classmethod
    def fit(
        cls,
        prior_outer: FloatArray,
        prior_by_class: FloatArray,
        *,
        bag: Bag,
        rule: RankRule,
        failure: float,
        random_state: int,
    ) -> Self:
        """Split the bag by `default_rng(random_state).permutation(n)`: the first round(0.4 n) rows train."""
        order = np.random.default_rng(random_state).permutation(len(bag))
        training = np.zeros(len(bag), dtype=np.bool_)
        training[order[: round(TRAINING_SHARE * len(bag))]] = True
        adapter = Adapter.fit(prior_outer, prior_by_class, features=bag.features[training], labels=bag.labels[training])
        return cls(adapter=adapter, bag=replace(bag, calibrates=~training), rule=rule, failure=failure)

    @property
    def threshold_ranks(self) -> IntArray:
        """k of SITE.md S6, the rank of the calibrating score that is the threshold; 0 if there is none; shape (K,)."""
        counts = np.bincount(self.bag.labels[self.bag.calibrates], minlength=len(self.rule.miscoverage))
        leaves = [
            exclusion_levels(n, failure=self.failure) <= delta + TOLERANCE
            for n, delta in zip(counts.tolist(), self.rule.miscoverage, strict=True)
        ]
        return np.array([mask.argmax() for mask in leaves])

    @property
    def silenced(self) -> BoolArray:
        """Classes with too few calibrating rows for this level and failure; shape (K,)."""
        return np.asarray(self.threshold_ranks == 0)

    @property
    def miscoverage(self) -> FloatArray:
        """The level of each class; shape (K,)."""
        return self.rule.miscoverage

    def labels_needed(self, miscoverage: float) -> int:
        """Fewest calibrating labels n with (1 - delta)^n <= failure."""
        return math.ceil(math.log(self.failure) / math.log1p(-miscoverage) - SLACK)

    def pool(self, candidate: int) -> tuple[int, ...]:
        """Always empty: the assured form has no pool."""
        return ()

    def rank(self, features: FloatArray, *, own_rows: IntArray, weights: FloatArray | None) -> Ranked:
        """The smallest level at which each label would leave the set; see `Ranking`."""
        p_values, outputs = self._levels(features, adapter=self.adapter, calibrates=self.bag.calibrates)
        for i in np.flatnonzero(own_rows >= 0):
            row = int(own_rows[i])
            adapter = self.adapter
            if not self.bag.calibrates[row]:
                adapter = adapter.removed(self.bag.features[row], label=int(self.bag.labels[row]))
            remaining = self.bag.calibrates & (np.arange(len(self.bag)) != row)
            alone = self._levels(features[i : i + 1], adapter=adapter, calibrates=remaining)
            p_values[i], outputs[i] = alone[0][0], alone[1][0]
        levels = np.tile(self.rule.miscoverage, (len(features), 1))
        return Ranked(p_values=p_values, levels=levels, outputs=outputs)

    def _levels(
        self, features: FloatArray, *, adapter: Adapter, calibrates: BoolArray
    ) -> tuple[FloatArray, FloatArray]:
        outputs = features @ adapter.weights
        own_scores = 1.0 - adapter_probabilities(outputs, sharpness=self.rule.sharpness)
        levels = np.empty_like(own_scores)
        for k, scores in enumerate(self.class_scores(adapter, calibrates)):
            below = np.searchsorted(scores, own_scores[:, k] - TOLERANCE, side="left")
            levels[:, k] = exclusion_levels(len(scores), failure=self.failure)[below]
        return levels, outputs

    def class_scores(self, adapter: Adapter, calibrates: BoolArray) -> list[FloatArray]:
        """Ascending scores of each class's calibrating rows."""
        outputs = self.bag.features[calibrates] @ adapter.weights
        labels = self.bag.labels[calibrates]
        scores = 1.0 - adapter_probabilities(outputs, sharpness=self.rule.sharpness)
        return [np.sort(scores[labels == k, k]) for k in range(scores.shape[1])]
