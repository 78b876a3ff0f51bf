"""The localized thresholds on a torch device: the same search as on the CPU, in large blocks.

One product gives the distances; one fused pass turns them into kernel weights and sums them in chunks,
for the localized rule and for every class-local rule at once; the chunk that reaches the cut is then looked
into. Sums are float64. Where `torch.compile` is not available the same lines run one by one.

As in `calcode.kernels.screened` nothing is decided on the device's precision alone: thresholds are also
searched at the cut moved by the error either way, and rows for which that changes a label are reported, to be
computed again in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from calcode.arrays import FloatArray
from calcode.kernels.tiled import CutRule
from calcode.kernels.weights import CHUNK, mass_error

if TYPE_CHECKING:
    import torch

Precision = Literal["float32", "tf32"]

#: What each precision may change in a normalised mass, in units of `mass_error`. Seen on one H200 with scores in any
#: order, and in the worst, that of the distances: float32 0.5 and 0.7, TF32 110 and 480.
DEVICE_ERROR: dict[str, float] = {"float32": 2.0, "tf32": 1200.0}
#: Numbers of one block of the product: 4 GiB of float32.
_BLOCK_NUMBERS = 1 << 30


class DeviceThresholds:
    """Calibration points on a device, ready for threshold searches.

    Parameters
    ----------
    embeddings : ndarray of shape (n, d)
        Unit rows in ascending order of their scores.
    scores : ndarray of shape (n,)
    bandwidth : float
    rules : sequence of CutRule
    device : str
        For instance "cuda" or "cpu".
    precision : {"float32", "tf32"}
        Of the product; "tf32" is faster and coarser.
    """

    def __init__(
        self,
        *,
        embeddings: FloatArray,
        scores: FloatArray,
        bandwidth: float,
        rules: Sequence[CutRule],
        device: str = "cuda",
        precision: Precision = "float32",
    ) -> None:
        import torch

        n = len(embeddings)
        width = -(-n // CHUNK) * CHUNK
        mean = embeddings.mean(axis=0)
        centred = np.zeros((width, embeddings.shape[1]))
        centred[:n] = embeddings - mean
        half = 0.5 * np.einsum("ij,ij->i", centred, centred)
        # Fillers are so far away that their weight is zero; with an infinite bandwidth only the mask keeps them out.
        half[n:] = 1e6
        self.precision: Precision = precision
        self._widest = float(half[:n].max(initial=0.0))
        self._device = torch.device(device)
        self._mean = torch.as_tensor(mean, device=self._device)
        self._anchors = torch.as_tensor(centred, dtype=torch.float32, device=self._device).T.contiguous()
        self._half = torch.as_tensor(half, dtype=torch.float32, device=self._device)
        self._scale = float(1.0 / bandwidth)
        self._scores = torch.as_tensor(np.append(scores, np.full(width - n + 1, np.inf)), device=self._device)
        self._cuts = [rule.cut for rule in rules]
        self._masks = torch.as_tensor(
            _masks(rules, n=n, width=width), dtype=torch.float32, device=self._device
        )
        self._chunk_sums: Callable[..., torch.Tensor] = _compiled(_chunk_sums)

    @property
    def block_rows(self) -> int:
        """How many images are looked at together."""
        return max(1, _BLOCK_NUMBERS // int(self._masks.shape[1]))

    def search(self, queries: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Thresholds at the cuts, and at the cuts lowered and raised by the error.

        Parameters
        ----------
        queries : tensor of shape (m, d)
            Unit rows on the device; m at most `block_rows`.

        Returns
        -------
        thresholds, lowest, highest : tensor of float64, shape (m, rules)
        """
        import torch

        centred = queries.to(torch.float64) - self._mean
        half = (0.5 * (centred * centred).sum(1)).to(torch.float32)
        with _matmul_precision(self.precision):
            product = centred.to(torch.float32) @ self._anchors
        sums = self._chunk_sums(product, half, self._half, self._scale, self._masks)
        # As `ScreenedAnchors.doubt`.
        doubt = DEVICE_ERROR[self.precision] * (1.0 + self._scale * (half.to(torch.float64) + self._widest))
        found = [
            self._first_reaching(product, half, sums[:, index], index, sign * doubt)
            for sign in (0.0, -1.0, 1.0)
            for index in range(len(self._cuts))
        ]
        rules = len(self._cuts)
        return tuple(torch.stack(found[i * rules : (i + 1) * rules], dim=1) for i in range(3))

    def _first_reaching(
        self, product: torch.Tensor, half: torch.Tensor, sums: torch.Tensor, index: int, doubt: torch.Tensor
    ) -> torch.Tensor:
        """Score of the first column at which the mass reaches the cut plus the error; +inf if none does."""
        import torch

        width = product.shape[1]
        ends = sums.cumsum(1)
        all_mass = 1.0 + ends[:, -1:]
        bounds = (self._cuts[index] + doubt[:, None] * mass_error(all_mass)) * all_mass
        chunk = torch.searchsorted(ends, bounds).squeeze(1)
        inside = torch.clamp(chunk, max=width // CHUNK - 1)
        columns = inside[:, None] * CHUNK + torch.arange(CHUNK, device=product.device)
        scaled = (half[:, None] + self._half[columns] - product.gather(1, columns)) * self._scale
        weights = (torch.exp(-scaled * scaled) * self._masks[index][columns]).to(torch.float64)
        before = torch.where(inside > 0, ends.gather(1, torch.clamp(inside - 1, min=0)[:, None])[:, 0], 0.0)
        short = before[:, None] + weights.cumsum(1) < bounds
        step = torch.clamp(short.sum(1), max=CHUNK - 1)
        never = chunk >= width // CHUNK
        position = torch.where(never, torch.full_like(chunk, width), inside * CHUNK + step)
        return self._scores[position]


def thresholds_on_device(
    search: DeviceThresholds, embeddings: FloatArray
) -> Iterator[tuple[slice, FloatArray, FloatArray, FloatArray]]:
    """Walk host embeddings in blocks: row slice, thresholds, lowest and highest, each (m, rules)."""
    import torch

    for start in range(0, len(embeddings), search.block_rows):
        rows = slice(start, min(start + search.block_rows, len(embeddings)))
        # A copy, because evidence is read-only and torch wants memory it may write to.
        queries = torch.as_tensor(np.array(embeddings[rows]), device=search._device)
        found, low, high = (part.cpu().numpy() for part in search.search(queries))
        yield rows, found, low, high


def _masks(rules: Sequence[CutRule], *, n: int, width: int) -> FloatArray:
    masks = np.zeros((len(rules), width))
    for mask, rule in zip(masks, rules, strict=True):
        mask[slice(n) if rule.members is None else rule.members] = 1.0
    return masks


def _chunk_sums(
    product: torch.Tensor, half: torch.Tensor, anchors_half: torch.Tensor, scale: float, masks: torch.Tensor
) -> torch.Tensor:
    """Masses of every chunk of columns under every mask; (m, width) in, (m, rules, width / 32) out."""
    import torch

    m, width = product.shape
    scaled = (half[:, None] + anchors_half[None, :] - product) * scale
    weights = torch.exp(-scaled * scaled)
    return torch.stack(
        [
            (weights * mask).view(m, width // CHUNK, CHUNK).sum(2, dtype=torch.float64)
            for mask in masks.unbind(0)
        ],
        dim=1,
    )


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function fused where torch can compile here, as it is where it cannot."""
    import torch

    if not torch.cuda.is_available():
        return function
    try:
        compiled: Callable[..., Any] = torch.compile(function, dynamic=False)
    except RuntimeError:  # no compiler on this platform
        return function
    return compiled


@contextmanager
def _matmul_precision(precision: Precision) -> Iterator[None]:
    """Let products use TF32 only where it was asked for, and put the setting back."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
