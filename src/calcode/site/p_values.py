"""Full conformal p-values in closed form: as if the adapter were refitted per image and label (SITE.md S3 to S5)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.kernels.threads import row_blocks, run_blocks
from calcode.method.home_sums import adapter_probabilities
from calcode.method.quantiles import conformal_rank
from calcode.site.adapter import Adapter
from calcode.site.levels import ClassLevels, class_levels, labels_needed
from calcode.site.ranking import TOLERANCE, Bag, Ranked, RankRule


def inverse_probability(
    arrays: ModuleType,
    *,
    shared: Any,
    own_leverage: Any,
    leverage: Any,
    outputs: Any,
    fits: Any,
    own: int,
    candidate: int,
    sharpness: float,
) -> Any:
    """1 / softmax(b deleted_i)_y for rows i of class y, with the image in the bag under a candidate label (S3).

    Works with numpy and torch.

    Parameters
    ----------
    arrays : module
        numpy or torch.
    shared : array of shape (m, t)
        g_i = phi_i' M phi for m rows and t images.
    own_leverage : array of shape (t,)
        c = phi' M phi of the images.
    leverage : array of shape (m,)
        phi_i' M phi_i.
    outputs : array of shape (t, K)
        f = W' phi.
    fits : array of shape (m, K)
        W' phi_i.
    own, candidate : int
        Class y of the rows, and the candidate label k of the images.
    sharpness : float

    Returns
    -------
    array of shape (m, t)
    """
    gain = shared / (1.0 + own_leverage)
    deleted_leverage = leverage[:, None] - shared * gain
    scale = sharpness / (1.0 - deleted_leverage)
    pull = outputs.T * -1.0
    pull[candidate] += 1.0
    own_logit = (fits[:, own, None] + gain * pull[own] - deleted_leverage) * scale
    gain *= scale
    total = arrays.ones_like(gain)
    term, push = arrays.empty_like(gain), arrays.empty_like(gain)
    for other in range(fits.shape[1]):
        if other == own:
            continue
        arrays.multiply(scale, fits[:, other, None], out=term)
        arrays.multiply(gain, pull[other], out=push)
        term += push
        term -= own_logit
        arrays.exp(term, out=term)
        total += term
    return total


@dataclass(frozen=True, eq=False, kw_only=True)
class DeletedRanks:
    """Ranks of candidate labels among the deleted scores of a bag's rows.

    Attributes
    ----------
    labels, calibrates, weights
        Of the rows, as in `Bag`.
    leverage : ndarray of shape (n,)
        phi_i' M phi_i.
    fits : ndarray of shape (n, K)
        W' phi_i.
    rule : RankRule
    """

    labels: IntArray
    calibrates: BoolArray
    weights: FloatArray | None
    leverage: FloatArray
    fits: FloatArray
    rule: RankRule

    @cached_property
    def rows(self) -> tuple[IntArray, ...]:
        """Calibrating rows of each class."""
        return tuple(np.flatnonzero(self.calibrates & (self.labels == k)) for k in range(self.fits.shape[1]))

    @cached_property
    def counts(self) -> IntArray:
        """Rows of each class in the bag; shape (K,)."""
        return np.bincount(self.labels, minlength=self.fits.shape[1])

    @cached_property
    def levels(self) -> ClassLevels:
        """Level of each class, and whether it can be excluded; of a pooled class, the pool must be large enough."""
        rule = self.rule
        levels = class_levels(
            self.counts,
            calibrating=np.array([len(rows) for rows in self.rows]) + rule.n_unlabelled,
            miscoverage=rule.miscoverage,
            by_count=rule.rare == "count",
            always_protect=rule.always_protect,
        )
        for k in range(len(self.counts)):
            pooled = sum(len(self.rows[j]) for j in self.pool(k)) + rule.n_unlabelled
            if self.pool(k):
                levels.served[k] = pooled >= labels_needed(float(rule.miscoverage[k]))
        return levels

    @property
    def silenced(self) -> BoolArray:
        """Mask of the classes that are in every set, for any image; shape (K,)."""
        unlabelled = self.rule.n_unlabelled
        ranked = [sum(len(self.rows[j]) for j in self.pool(k) or (k,)) for k in range(len(self.counts))]
        smallest = (1.0 + unlabelled) / (np.array(ranked) + unlabelled + 1.0)
        return np.asarray(~self.levels.served | (smallest > self.levels.miscoverage + TOLERANCE))

    def pool(self, candidate: int) -> tuple[int, ...]:
        """The rare classes if the candidate is counted too; empty if the candidate is not rare (SITE.md S4)."""
        if self.rule.rare != "pool":
            return ()
        rare = tuple(
            j
            for j, count in enumerate(self.counts)
            if count + (j == candidate) <= labels_needed(float(self.rule.miscoverage[j]))
            and j not in self.rule.always_protect
        )
        return rare if candidate in rare else ()

    def p_values(
        self, shared: FloatArray, own_leverage: FloatArray, outputs: FloatArray, *, weights: FloatArray | None
    ) -> FloatArray:
        """p-values of t images.

        Parameters
        ----------
        shared : ndarray of shape (n, t)
            g_i = phi_i' M phi.
        own_leverage : ndarray of shape (t,)
            c = phi' M phi.
        outputs : ndarray of shape (t, K)
        weights : ndarray of shape (t,) or None

        Returns
        -------
        ndarray of shape (t, K)
        """
        above = np.full(outputs.shape, float(self.rule.n_unlabelled))
        compared = self.products(
            np,
            shared=shared,
            own_leverage=own_leverage,
            outputs=outputs,
            probabilities=adapter_probabilities(outputs, sharpness=self.rule.sharpness),
            leverage=self.leverage,
            fits=self.fits,
        )
        for k, rows, products in compared:
            at_least = products >= 1.0
            above[:, k] += at_least.sum(axis=0) if self.weights is None else self.weights[rows] @ at_least
        image = np.ones(len(outputs)) if weights is None else np.where(np.isinf(weights), 1.0, weights)
        p_values: FloatArray = (image[:, None] + above) / (image[:, None] + self.masses)
        p_values[:, ~self.levels.served] = 1.0
        if weights is not None:
            # Images that are never reviewed have no equivalent among the rows.
            p_values[np.isinf(weights)] = 1.0
        return p_values

    @cached_property
    def masses(self) -> FloatArray:
        """Total weight of the rows among which each class is ranked; shape (K,)."""
        rows = (np.concatenate([self.rows[own] for own in self.pool(k) or (k,)]) for k in range(len(self.counts)))
        masses = [len(own) if self.weights is None else self.weights[own].sum() for own in rows]
        return np.array(masses) + float(self.rule.n_unlabelled)

    def products(
        self,
        arrays: ModuleType,
        *,
        shared: Any,
        own_leverage: Any,
        outputs: Any,
        probabilities: Any,
        leverage: Any,
        fits: Any,
    ) -> Iterator[tuple[int, IntArray, Any]]:
        """Values that are at least 1 where s_i >= s - 1e-12, for every candidate that can be excluded.

        Works with numpy and torch.

        Parameters
        ----------
        arrays : module
            numpy or torch; the other arguments are its arrays.
        shared, own_leverage, outputs
            As in `p_values`.
        probabilities : array of shape (t, K)
            1 - s of the images.
        leverage, fits
            Those of the rows.

        Yields
        ------
        candidate : int
        rows : ndarray of int
            Calibrating rows of one class: the candidate's, or one of its pool.
        products : array of shape (rows, t)
        """
        n, n_classes = self.fits.shape
        for k in np.flatnonzero(self.levels.served).tolist():
            pool = self.pool(k)
            # A pool compares 1 - (1 - s) / pi_j, so that rows of a frequent class do not dominate.
            shares = (self.counts + (np.arange(n_classes) == k) + 1.0) / (n + 1.0 + n_classes)
            for own in pool or (k,):
                rows = self.rows[own]
                # s_i >= s - 1e-12, in terms of the probabilities.
                limit = probabilities[:, k] + TOLERANCE
                if pool:
                    limit = (probabilities[:, k] / float(shares[k]) + TOLERANCE) * float(shares[own])
                with np.errstate(over="ignore"):  # a probability of zero
                    inverse = inverse_probability(
                        arrays,
                        shared=shared[rows],
                        own_leverage=own_leverage,
                        leverage=leverage[rows],
                        outputs=outputs,
                        fits=fits[rows],
                        own=own,
                        candidate=k,
                        sharpness=self.rule.sharpness,
                    )
                    yield k, rows, inverse * limit

    def without(self, row: int, *, column: FloatArray) -> DeletedRanks:
        """The ranks after one row has been removed from the bag: one downdate (SITE.md S1).

        Parameters
        ----------
        row : int
        column : ndarray of shape (n,)
            phi_i' M phi_row.
        """
        kept = np.arange(len(self.labels)) != row
        room = 1.0 - self.leverage[row]
        return DeletedRanks(
            labels=self.labels[kept],
            calibrates=self.calibrates[kept],
            weights=None if self.weights is None else self.weights[kept],
            leverage=(self.leverage + column**2 / room)[kept],
            fits=(self.fits - np.outer(column, self.residual(row)) / room)[kept],
            rule=self.rule,
        )

    def residual(self, row: int) -> FloatArray:
        """e_y - W' phi of one row; shape (K,)."""
        return np.asarray((np.arange(self.fits.shape[1]) == self.labels[row]) - self.fits[row])


@dataclass(frozen=True, eq=False, kw_only=True)
class FullConformal:
    """The bag with its adapter, ready to rank images (SITE.md S3).

    Attributes
    ----------
    adapter : Adapter
        Trained with every row of the bag.
    bag : Bag
    rule : RankRule
    """

    adapter: Adapter
    bag: Bag
    rule: RankRule

    @cached_property
    def directions(self) -> FloatArray:
        """phi_i' M of every row; shape (n, p)."""
        return self.bag.features @ self.adapter.inverse

    @cached_property
    def ranks(self) -> DeletedRanks:
        """Values that all images share."""
        bag = self.bag
        return DeletedRanks(
            labels=bag.labels,
            calibrates=bag.calibrates,
            weights=bag.weights,
            leverage=np.einsum("ij,ij->i", self.directions, bag.features),
            fits=bag.features @ self.adapter.weights,
            rule=self.rule,
        )

    @property
    def threshold_ranks(self) -> IntArray:
        """ceil((n_y + 1)(1 - delta_y)), where n_y includes cases of score +inf; shape (K,)."""
        counts = np.bincount(self.bag.labels[self.bag.calibrates], minlength=len(self.miscoverage))
        rows = (counts + self.rule.n_unlabelled).tolist()
        return np.array([conformal_rank(n, miscoverage=d) for n, d in zip(rows, self.miscoverage, strict=True)])

    @property
    def silenced(self) -> BoolArray:
        """Mask of the classes that are in every set, for any image; shape (K,)."""
        return self.ranks.silenced

    @property
    def miscoverage(self) -> FloatArray:
        """The level of each class, which may depend on its count; shape (K,)."""
        return self.ranks.levels.miscoverage

    def labels_needed(self, miscoverage: float) -> int:
        """Fewest calibrating labels with which a class can be excluded; each case of score +inf raises the number."""
        unlabelled = self.rule.n_unlabelled
        return labels_needed(miscoverage, steps=1 + unlabelled) - unlabelled

    def pool(self, candidate: int) -> tuple[int, ...]:
        """The rare classes among which a candidate is ranked, if any (SITE.md S4)."""
        return self.ranks.pool(candidate)

    def added(self, bag: Bag, *, rule: RankRule) -> FullConformal:
        """The ranking with further rows, each added by a rank-one update (SITE.md S6).

        Parameters
        ----------
        bag : Bag
        rule : RankRule
            The rule from now on; its number of cases without a label may have grown.
        """
        adapter, directions = self.adapter, self.directions
        for row, label in zip(bag.features, bag.labels.tolist(), strict=True):
            before, adapter = adapter, adapter.added(row, label=label)
            direction = before.inverse @ row
            shared = directions @ row
            directions = directions - np.outer(shared / (1.0 + float(row @ direction)), direction)
            directions = np.concatenate([directions, (adapter.inverse @ row)[None]])
        ranking = FullConformal(adapter=adapter, bag=self.bag.joined(bag), rule=rule)
        # Set here, because `directions` would need two more products.
        vars(ranking)["directions"] = directions
        return ranking

    def rank(self, features: FloatArray, *, own_rows: IntArray, weights: FloatArray | None) -> Ranked:
        """p-values, levels and outputs of the images; see `Ranking`."""
        ranks = self.ranks
        shape = (len(features), ranks.fits.shape[1])
        p_values, outputs = np.empty(shape), np.empty(shape)
        levels = np.tile(ranks.levels.miscoverage, (len(features), 1))

        def rank_block(rows: slice) -> None:
            block = features[rows]
            shared = self.directions @ block.T
            own_leverage = np.einsum("ij,ij->i", block @ self.adapter.inverse, block)
            outputs[rows] = block @ self.adapter.weights
            own_weights = None if weights is None else weights[rows]
            p_values[rows] = ranks.p_values(shared, own_leverage, outputs[rows], weights=own_weights)
            for i in np.flatnonzero(own_rows[rows] >= 0):
                image, row = rows.start + i, int(own_rows[rows.start + i])
                column = self.directions @ self.bag.features[row]
                left, pull = ranks.without(row, column=column), shared[row, i] / (1.0 - ranks.leverage[row])
                outputs[image] -= pull * ranks.residual(row)
                levels[image] = left.levels.miscoverage
                p_values[image] = left.p_values(
                    np.delete(shared[:, i] + pull * column, row)[:, None],
                    own_leverage[i : i + 1] + pull * shared[row, i],
                    outputs[image : image + 1],
                    weights=None if own_weights is None else own_weights[i : i + 1],
                )[0]

        run_blocks(rank_block, row_blocks(len(features), n_columns=len(self.bag)))
        return Ranked(p_values=p_values, levels=levels, outputs=outputs)
