"""Full conformal p-values on a torch device, with the same array code as on the CPU (SITE.md S3 to S6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from calcode.arrays import FloatArray
from calcode.site.assured import SplitConformal, exclusion_levels
from calcode.site.p_values import FullConformal
from calcode.site.ranking import TOLERANCE, Ranking

if TYPE_CHECKING:
    import torch

#: Most values in a block of rows times images: 256 MiB of float64 for each of the few arrays in memory at a time.
_BLOCK_NUMBERS = 1 << 25
#: The CPU may order two scores closer than this differently; for a sharpness of 1.
_TIE = 1e-9


class DeviceRanking:
    """A ranking on a torch device, in float64, for images of unknown groups.

    Parameters
    ----------
    ranking : FullConformal or SplitConformal
    device : str
        Such as "cuda".

    Attributes
    ----------
    block_rows : int
        Images whose products with the reviewed rows fit into memory.
    """

    def __init__(self, ranking: Ranking, *, device: str) -> None:
        import torch

        def moved(values: FloatArray) -> torch.Tensor:
            return torch.tensor(np.ascontiguousarray(values), dtype=torch.float64, device=device)

        assert isinstance(ranking, FullConformal | SplitConformal)
        self._ranking = ranking
        self.block_rows = max(1, _BLOCK_NUMBERS // max(1, len(ranking.bag)))
        self._tie = _TIE * max(1.0, ranking.rule.sharpness)
        self._weights = moved(ranking.adapter.weights)
        self._tables: list[tuple[torch.Tensor, torch.Tensor]] = []
        if isinstance(ranking, FullConformal):
            self._directions, self._inverse = moved(ranking.directions), moved(ranking.adapter.inverse)
            self._leverage, self._fits = moved(ranking.ranks.leverage), moved(ranking.ranks.fits)
            self._masses = moved(ranking.ranks.masses)
            bag = ranking.bag
            self._row_masses = moved(np.ones(len(bag)) if bag.weights is None else bag.weights)
        else:
            scores = ranking.class_scores(ranking.adapter, ranking.bag.calibrates)
            self._tables = [(moved(own), moved(exclusion_levels(len(own), failure=ranking.failure))) for own in scores]

    def rank(
        self, features: torch.Tensor, *, weights: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """p-values and outputs of images, as from `Ranking.rank`, and the rows that must be recomputed on the CPU.

        Parameters
        ----------
        features : tensor of float64, shape (t, p)
        weights : tensor of float64, shape (t,), or None
            1/e of the images.

        Returns
        -------
        p_values, outputs : tensor of float64, shape (t, K)
        tied : tensor of bool, shape (t,)
        """
        import torch

        outputs = features @ self._weights
        probabilities = torch.softmax(self._ranking.rule.sharpness * outputs, dim=1)
        if isinstance(self._ranking, FullConformal):
            p_values, tied = self._full(features, outputs, probabilities, weights=weights)
        else:
            p_values, tied = self._split(probabilities)
        first, second = torch.topk(outputs, min(2, outputs.shape[1]), dim=1).values.split(1, dim=1)
        return p_values, outputs, tied | (first - second < _TIE)[:, 0]

    def _full(
        self,
        features: torch.Tensor,
        outputs: torch.Tensor,
        probabilities: torch.Tensor,
        *,
        weights: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        assert isinstance(self._ranking, FullConformal)
        ranks = self._ranking.ranks
        above = torch.full_like(outputs, float(ranks.rule.n_unlabelled))
        tied = torch.zeros(len(outputs), dtype=torch.bool, device=outputs.device)
        compared = ranks.products(
            torch,
            shared=self._directions @ features.T,
            own_leverage=((features @ self._inverse) * features).sum(dim=1),
            outputs=outputs,
            probabilities=probabilities,
            leverage=self._leverage,
            fits=self._fits,
        )
        for k, rows, products in compared:
            above[:, k] += self._row_masses[rows] @ (products >= 1.0).to(torch.float64)
            tied |= ((products - 1.0).abs() < self._tie).any(dim=0)
        image = torch.ones_like(above[:, :1])
        if weights is not None:
            image = torch.where(torch.isinf(weights), 1.0, weights)[:, None]
        p_values = (image + above) / (image + self._masses)
        p_values[:, torch.as_tensor(~ranks.levels.served, device=p_values.device)] = 1.0
        if weights is not None:
            p_values[torch.isinf(weights)] = 1.0
            # Here the last digits of a sum of weights may differ.
            levels = torch.as_tensor(ranks.levels.miscoverage, device=p_values.device) + TOLERANCE
            tied |= ((p_values - levels).abs() < _TIE).any(dim=1)
        return p_values, tied

    def _split(self, probabilities: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        scores = 1.0 - probabilities - TOLERANCE
        p_values = torch.empty_like(scores)
        tied = torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
        for k, (own, levels) in enumerate(self._tables):
            column = scores[:, k].contiguous()
            below, low, high = (torch.searchsorted(own, column + shift) for shift in (0.0, -self._tie, self._tie))
            p_values[:, k] = levels[below]
            tied |= low != high
        return p_values, tied
