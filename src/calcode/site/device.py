"""Full conformal p-values on a torch device, with the array code of the processor (SITE.md S3)."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.errors import SettingsError
from calcode.kernels.threads import slices
from calcode.site.adapter import Adapter
from calcode.site.p_values import TOLERANCE, Bag, FullConformal, Ranked, inverse_probability

if TYPE_CHECKING:
    import torch

#: Numbers in one block of rows times images: 256 MiB of float64 for each of the few arrays that live at a time.
_BLOCK_NUMBERS = 1 << 25


class DeviceRanking:
    """A `FullConformal` whose products and scores are computed on a torch device, in float64.

    Images of known groups are few, and are ranked on the processor.

    Parameters
    ----------
    ranking : FullConformal
    device : str
        Such as "cuda".

    Examples
    --------
    A site model on a GPU::

        site = SiteModel.load("site.safetensors")
        site.ranking_ = DeviceRanking(site.ranking_, device="cuda")
        site.p_values(evidence)
    """

    def __init__(self, ranking: FullConformal, *, device: str) -> None:
        if not isinstance(ranking, FullConformal) or ranking.rule.rare == "pool":
            raise SettingsError("device: the assured form and rare='pool' run on the processor")
        self._ranking = ranking
        self._device = device

    @property
    def adapter(self) -> Adapter:
        """The adapter that scores an image."""
        return self._ranking.adapter

    @property
    def bag(self) -> Bag:
        """The reviewed rows."""
        return self._ranking.bag

    @property
    def silenced(self) -> BoolArray:
        """Classes that are in every set; shape (K,)."""
        return self._ranking.silenced

    @property
    def miscoverage(self) -> FloatArray:
        """The level of each class; shape (K,)."""
        return self._ranking.miscoverage

    def labels_needed(self, miscoverage: float) -> int:
        """Fewest calibrating labels with which a class can leave a set."""
        return self._ranking.labels_needed(miscoverage)

    @cached_property
    def _tensors(self) -> dict[str, Any]:
        """What every image shares, on the device; rows stand class by class."""
        ranks = self._ranking.ranks
        order = np.concatenate(ranks.rows)
        features = self.bag.features[order]
        shared = {
            "directions": features @ self.adapter.inverse,
            "inverse": self.adapter.inverse,
            "weights": self.adapter.weights,
            "leverage": ranks.leverage[order],
            "fits": ranks.fits[order],
            "masses": np.ones(len(order)) if ranks.weights is None else ranks.weights[order],
        }
        return {name: self._moved(values) for name, values in shared.items()}

    def _moved(self, values: FloatArray) -> torch.Tensor:
        import torch

        return torch.as_tensor(np.ascontiguousarray(values), dtype=torch.float64, device=self._device)

    def rank(self, features: FloatArray, *, own_rows: IntArray, weights: FloatArray | None) -> Ranked:
        """As `FullConformal.rank`."""
        ranks = self._ranking.ranks
        shape = (len(features), ranks.fits.shape[1])
        p_values, outputs = np.empty(shape), np.empty(shape)
        for rows in slices(len(features), step=max(1, _BLOCK_NUMBERS // max(1, len(self.bag)))):
            own_weights = None if weights is None else weights[rows]
            p_values[rows], outputs[rows] = self._ranked(features[rows], weights=own_weights)
        known = np.flatnonzero(own_rows >= 0)
        levels = np.tile(ranks.levels.miscoverage, (len(features), 1))
        if len(known):
            own = self._ranking.rank(
                features[known], own_rows=own_rows[known], weights=None if weights is None else weights[known]
            )
            p_values[known], outputs[known], levels[known] = own.p_values, own.outputs, own.levels
        return Ranked(p_values=p_values, levels=levels, outputs=outputs)

    def _ranked(self, features: FloatArray, *, weights: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        import torch

        ranks, own = self._ranking.ranks, self._tensors
        images = self._moved(features)
        outputs = images @ own["weights"]
        shared = own["directions"] @ images.T
        own_leverage = ((images @ own["inverse"]) * images).sum(dim=1)
        probabilities = torch.softmax(ranks.rule.sharpness * outputs, dim=1)
        image = 1.0 if weights is None else self._moved(np.where(np.isinf(weights), 1.0, weights))
        p_values = torch.ones_like(probabilities)
        ends = np.cumsum([0, *map(len, ranks.rows)])
        for k in np.flatnonzero(ranks.levels.served).tolist():
            rows = slice(int(ends[k]), int(ends[k + 1]))
            inverse = inverse_probability(
                torch,
                shared=shared[rows],
                own_leverage=own_leverage,
                leverage=own["leverage"][rows],
                outputs=outputs,
                fits=own["fits"][rows],
                own=k,
                candidate=k,
                sharpness=ranks.rule.sharpness,
            )
            at_least = inverse * (probabilities[:, k] + TOLERANCE) >= 1.0
            masses = own["masses"][rows]
            unlabelled = float(ranks.rule.n_unlabelled)
            above = masses @ at_least.to(torch.float64) + unlabelled
            p_values[:, k] = (image + above) / (image + masses.sum() + unlabelled)
        if weights is not None:
            p_values[self._moved(np.isinf(weights).astype(np.float64)) > 0] = 1.0
        return p_values.cpu().numpy(), outputs.cpu().numpy()
