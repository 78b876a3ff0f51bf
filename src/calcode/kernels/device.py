"""Threshold searches on a torch device: the sums of the CPU kernels, in large blocks.

Everything is computed in float32 (or TF32) first, with a bound on its error. Values within that bound of a boundary
are computed again in float64, also on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from calcode.arrays import FloatArray, IntArray
from calcode.kernels.device_points import GROUP, DevicePoints, Precision
from calcode.kernels.image_levels import WEIGHT_ERROR, ImageLevelRule, LevelWindow
from calcode.kernels.masses import mass_error
from calcode.kernels.screened import NARROWEST_SCREENED

if TYPE_CHECKING:
    import torch

#: Bound on the error of a normalised mass per precision, in units of `mass_error`. Measured on one H200 with scores in
#: any order, and in the worst order, that of the distances: float32 0.5 and 0.7, TF32 110 and 480.
MASS_DOUBT: dict[str, float] = {"float32": 2.0, "tf32": 1200.0}
#: Bound on what the order of a float64 sum changes in a normalised mass: closer to a cut than this, the CPU decides.
TIE = 1e-11
#: Terms of a running sum that one product with a triangular matrix adds up.
_TRIANGLE = 32


@dataclass(frozen=True, eq=False, kw_only=True)
class DeviceRule:
    """One threshold search over some of the points.

    Attributes
    ----------
    members : ndarray of int, ascending, or None
        None for all points.
    cut : float
        Value that the normalised mass must reach; for the levels `loo` and `certified`.
    level : {"loo", "certified", "upper", "exact"}
    counted : ImageLevelRule or None
        The counting rule of the levels `upper` and `exact`.
    """

    members: IntArray | None
    cut: float
    level: str = "loo"
    counted: ImageLevelRule | None = None


class DeviceThresholds:
    """Calibration points and the rules that search thresholds among them (METHOD.md 5 and 8).

    Parameters
    ----------
    points : ndarray of shape (n, d)
        Unit rows in ascending order of their scores.
    scores : ndarray of shape (n,)
    bandwidth : float
    rules : sequence of DeviceRule
        All of the same level.
    device : str
    precision : {"float32", "tf32"}
        Precision of the first pass; "tf32" is faster and leaves more rows undecided.
    """

    def __init__(
        self,
        *,
        points: FloatArray,
        scores: FloatArray,
        bandwidth: float,
        rules: Sequence[DeviceRule],
        device: str = "cuda",
        precision: Precision = "float32",
    ) -> None:
        import torch

        self.points = DevicePoints(points, device=device)
        self._scale = 1.0 / bandwidth
        self._precision: Precision = precision
        self._rules = rules
        width = self.points.width
        masks = np.zeros((width, len(rules)))
        for index, rule in enumerate(rules):
            masks[slice(self.points.n) if rule.members is None else rule.members, index] = 1.0
        self._masks = torch.as_tensor(masks, device=self.points.device)
        self._cuts = torch.tensor([rule.cut for rule in rules], dtype=torch.float64, device=self.points.device)
        self._windows: list[LevelWindow] = []
        if rules[0].level == "upper" and self.points.n:
            self._windows = [
                LevelWindow.of_rule(rule.counted, n_columns=self.points.n, exact=False)
                for rule in rules
                if rule.counted is not None
            ]
        self._scores = torch.as_tensor(
            np.append(scores, np.full(width - self.points.n + 1, np.inf)), device=self.points.device
        )

    def search(
        self, queries: torch.Tensor, *, settled: Callable[[torch.Tensor, torch.Tensor, slice], torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Thresholds of unit rows under every rule, and the rows that only the CPU can decide.

        Parameters
        ----------
        queries : tensor of float64, shape (m, d)
        settled : callable
            Takes the thresholds at the lowered and at the raised cuts, each (rows, rules), and their row slice or row
            numbers. Returns the mask of the rows whose decision is the same for both.

        Returns
        -------
        thresholds : tensor of float64, shape (m, rules)
        tied : tensor of bool, shape (m,)
        """
        import torch

        found = torch.full((len(queries), len(self._rules)), np.inf, dtype=torch.float64, device=queries.device)
        left = torch.full((len(queries),), self.points.n > 0, device=queries.device)  # no point, no finite threshold
        if self.points.n and self._rules[0].level != "exact" and self._scale <= 1.0 / NARROWEST_SCREENED:
            for rows in self.points.blocks(len(queries), dtype=torch.float32):
                found[rows], lowest, highest = self._look(queries[rows], dtype=torch.float32)
                left[rows] = ~settled(lowest, highest, rows)
        again = left.nonzero()[:, 0]
        tied = torch.zeros_like(left)
        for part in self.points.blocks(len(again), dtype=torch.float64):
            rows = again[part]
            found[rows], lowest, highest = self._look(queries[rows], dtype=torch.float64)
            tied[rows] = ~settled(lowest, highest, rows)
        return found, tied

    def _look(self, queries: torch.Tensor, *, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Thresholds of every rule at its cut, and at the cut lowered and raised by the error of this precision."""
        import torch

        scaled = self.points.distances(queries, dtype=dtype, scale=self._scale, precision=self._precision)
        weights = kernel_weights(scaled.device.type)(scaled)
        del scaled
        if self._rules[0].level != "exact":
            return self._reaching(weights, lengths=self.points.lengths(queries))
        found = [[self._counted(weights, rule, shift=shift) for rule in self._rules] for shift in (0.0, -TIE, TIE)]
        thresholds, lowest, highest = (self._scores[torch.stack(columns, dim=1)] for columns in found)
        return thresholds, lowest, highest

    def _reaching(
        self, weights: torch.Tensor, *, lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Scores at which the mass first reaches the cuts, and bounds on these scores, each (m, rules).

        The sums of whole groups show in which group a cut is reached; only that group is searched. If the error may
        move a cut into another group, there is no bound on that side.
        """
        import torch

        m, width = weights.shape
        n_groups, rules = width // GROUP, len(self._rules)
        masks = self._masks.to(weights.dtype).view(n_groups, GROUP, rules)
        sums = torch.bmm(weights.view(m, n_groups, GROUP).transpose(0, 1), masks)
        ends = prefix_sums(sums.to(torch.float64))
        mass = 1.0 + ends[-1]
        error = torch.full_like(mass, TIE)
        if weights.dtype == torch.float32:
            # An error e in a distance changes a weight by about 2 (d / h) (e / h) of itself (`ScreenedAnchors.doubt`).
            doubt = MASS_DOUBT[self._precision] * (1.0 + self._scale * lengths)
            error = doubt[:, None] * mass_error(mass)
            for index, window in enumerate(self._windows):
                error[:, index] += WEIGHT_ERROR * window.steepest * doubt
        cuts = self._cuts
        if self._windows:
            cuts = torch.stack([self._upper_cuts(weights, window) for window in self._windows], dim=1)
        bound, low, high = ((cuts + shift) * mass for shift in (0.0, -error, error))
        group = (ends < bound).sum(0).clamp(max=n_groups - 1)
        after = ends.gather(0, group[None])[0]
        before = torch.where(group > 0, ends.gather(0, (group - 1).clamp(min=0)[None])[0], 0.0)
        columns = group[..., None] * GROUP + torch.arange(GROUP, device=mass.device)
        own = weights.gather(1, columns.view(m, -1)).view(columns.shape).to(torch.float64)
        own *= self._masks[columns, torch.arange(rules, device=mass.device)[:, None]]
        reached = before[..., None] + own @ torch.ones((GROUP, GROUP), dtype=own.dtype, device=own.device).triu()

        def score(at: torch.Tensor) -> torch.Tensor:
            step = (reached < at[..., None]).sum(2)
            return torch.where(step == GROUP, torch.inf, self._scores[group * GROUP + step.clamp(max=GROUP - 1)])

        lowest = torch.where((low <= before) & (group > 0), -torch.inf, score(low))
        highest = torch.where(high > after, torch.inf, score(high))
        return torch.where(bound > after, torch.inf, score(bound)), lowest, highest

    def _upper_cuts(self, weights: torch.Tensor, window: LevelWindow) -> torch.Tensor:
        """Cut of every image under the level `upper` (METHOD.md 5); (m, width) in, (m,) out, in float64."""
        import torch

        if window.rank == 0:
            return torch.full((len(weights),), torch.inf, dtype=torch.float64, device=weights.device)
        columns, below, total = (
            torch.as_tensor(part, device=weights.device) for part in (window.columns, window.below, window.total)
        )
        own = weights[:, columns].to(torch.float64)
        return torch.kthvalue((below + own) / (total + own), window.rank - window.n_below, dim=1).values + TIE / 10

    def _counted(self, kernel: torch.Tensor, rule: DeviceRule, *, shift: float) -> torch.Tensor:
        """Column of the threshold under the level `exact`, in float64: the largest k with S_k < rank, by bisection.

        See `calcode.method.localized.exact_positions`.
        """
        import torch

        counted, device = rule.counted, self.points.device
        assert counted is not None
        members = torch.arange(self.points.n, device=device)
        if counted.members is not None:
            members = torch.as_tensor(counted.members, device=device)
        n = len(members)
        if counted.rank > n:
            return torch.full((len(kernel),), self.points.width, device=device)
        weights = kernel[:, members]
        below, total, first = (
            torch.as_tensor(part, device=device) for part in (counted.below, counted.total, counted.first)
        )
        masses = torch.nn.functional.pad(weights.cumsum(1), (1, 0))
        masses = masses / (1.0 + masses[:, -1:])
        theta, theta_plus = below / (total + weights), (below + weights) / (total + weights)
        edges = torch.cat([first, torch.tensor([n], device=device)])
        places = torch.arange(n, device=device)
        low = torch.zeros(len(weights), dtype=torch.int64, device=device)
        high = torch.full_like(low, n + 1)
        while bool((high - low > 1).any()):
            probe = (low + high) // 2
            edge = edges[probe]
            bound = masses.gather(1, edge[:, None]) - TIE / 10 - shift
            count = torch.where(places < edge[:, None], theta < bound, theta_plus < bound).sum(1)
            low, high = (torch.where(count < counted.rank, probe, low), torch.where(count < counted.rank, high, probe))
        return torch.cat([members, torch.tensor([self.points.width], device=device)])[low]


@cache
def kernel_weights(device_type: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function that maps distances over h to exp(-(d / h)^2) (Eq. 11); it may overwrite its input.

    Examples
    --------
    Near and far::

        kernel_weights("cpu")(torch.tensor([0.0, 3.0]))  # [1.0, 0.0001]
    """
    if device_type == "cuda":
        from torch.cuda.jiterator import _create_jit_fn

        # Needs one pass over memory instead of three; compiled at its first use.
        return _create_jit_fn("template <typename T> T kernel_weight(T s) { return exp(-s * s); }")  # type: ignore[no-any-return]
    return lambda scaled: scaled.mul_(scaled).neg_().exp_()


def prefix_sums(values: torch.Tensor) -> torch.Tensor:
    """Running sums along the first axis, by products with a triangular matrix: a plain running sum is sequential.

    Examples
    --------
    Sums of one, two and three rows::

        prefix_sums(torch.tensor([[1.0], [2.0], [4.0]]))  # [[1.0], [3.0], [7.0]]
    """
    import torch

    length = len(values)
    size = min(length, _TRIANGLE)
    padded = torch.nn.functional.pad(values.reshape(length, -1), (0, 0, 0, -length % size))
    triangle = torch.ones((size, size), dtype=values.dtype, device=values.device).tril()
    blocks = triangle @ padded.view(len(padded) // size, size, -1)
    if len(blocks) > 1:
        blocks[1:] += prefix_sums(blocks[:, -1])[:-1, None]
    return blocks.view(len(padded), -1)[:length].view(values.shape)
