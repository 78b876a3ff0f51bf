"""Robust probabilities and the support audit on a torch device (METHOD.md 2 and 4), equal to those of the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calcode.kernels.device_points import DISTANCE_DOUBT, DevicePoints
from calcode.method.audit import BASE_DIAGNOSTICS, LOG_FLOOR, RANK_TOLERANCE, SupportAudit
from calcode.method.evidence import TRIM_EPSILON

if TYPE_CHECKING:
    import torch

#: The CPU may order values differently that are closer than this, absolutely or relatively; it decides on them.
TIE = 1e-12


def robust_probabilities(probabilities: torch.Tensor, *, trim: int) -> torch.Tensor:
    """p_rob of Eq. 5; (n, M, K) in, (n, K) out. The few prompts are sorted by comparing neighbours."""
    import torch

    columns = list(probabilities.unbind(1))
    n_prompts = len(columns)
    if n_prompts > 1 and trim > 0:
        for turn in range(n_prompts):
            for left in range(turn % 2, n_prompts - 1, 2):
                pair = columns[left], columns[left + 1]
                columns[left], columns[left + 1] = torch.minimum(*pair), torch.maximum(*pair)
        columns = columns[trim : n_prompts - trim]
    average = torch.stack(columns).sum(dim=0) / len(columns)
    return average / (average.sum(dim=1, keepdim=True) + TRIM_EPSILON)


class DeviceAudit:
    """p_audit on the device (METHOD.md 4), equal to that from float64."""

    def __init__(self, audit: SupportAudit, *, device: str) -> None:
        import torch

        self._audit = audit
        self._gate = torch.as_tensor(audit.gate_values.copy(), device=device)
        self._gate_base = {
            name: torch.as_tensor(values.copy(), device=device) for name, values in audit.gate_base.items()
        }
        self.points: list[DevicePoints] = []
        if audit.name in ("distance", "fused"):
            self.points = [DevicePoints(audit.reference, device=device)]

    def p_values(
        self, embeddings: torch.Tensor, prompt_logits: torch.Tensor, probabilities: torch.Tensor, robust: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """p_audit, and the rows in which a value is too close to a gate value; each of shape (n,)."""
        import torch

        def values(name: str) -> torch.Tensor:
            if name == "energy":
                return -torch.logsumexp(prompt_logits.mean(dim=1), dim=1)
            if name == "msp":
                return -robust.amax(dim=1)
            ratio = torch.log(probabilities.clamp(min=LOG_FLOOR)) - torch.log(robust.clamp(min=LOG_FLOOR))[:, None]
            return (probabilities * ratio).sum(dim=2).mean(dim=1)

        def ranks(name: str, gate: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self._distance_ranks(embeddings, gate) if name == "distance" else _ranks(values(name), gate)

        if self._audit.name != "fused":
            return ranks(self._audit.name, self._gate)
        parts = [ranks(name, self._gate_base[name]) for name in BASE_DIAGNOSTICS]
        fused = 1.0 - torch.stack([p for p, _ in parts]).amin(dim=0)
        # The ranks are exact, and so are the values with which they are compared.
        p_audit, _ = _ranks(fused, self._gate)
        return p_audit, torch.stack([close for _, close in parts]).any(dim=0)

    def _distance_ranks(self, embeddings: torch.Tensor, gate: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Ranks of the `distance`: from float32 if no gate value is within its error, else from float64."""
        import torch

        (reference,) = self.points
        count = self._audit.n_neighbors
        found, columns = reference.nearest(embeddings, count=count)
        values = self._averaged(found[:, :count])
        error = DISTANCE_DOUBT * reference.lengths(embeddings)
        low, high = (torch.searchsorted(gate, values - RANK_TOLERANCE + shift) for shift in (-error, error))
        again = (low != high).nonzero()[:, 0]
        exact = reference.nearest_exactly(embeddings[again], count=count, found=found[again], columns=columns[again])
        values[again] = self._averaged(exact)
        p_values, close = _ranks(values, gate)
        settled = torch.ones_like(close)
        settled[again] = False
        return p_values, close & ~settled

    def _averaged(self, nearest: torch.Tensor) -> torch.Tensor:
        if self._audit.average == "mean":
            return nearest.mean(dim=1)
        count = nearest.shape[1]
        return 0.5 * (nearest[:, (count - 1) // 2] + nearest[:, count // 2])


def _ranks(values: torch.Tensor, gate: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(1 + #{gate: B >= B(x)}) / (n_g + 1) of Eq. 9, and the rows too close to a gate value; each of shape (n,)."""
    import torch

    first, low, high = (torch.searchsorted(gate, values - RANK_TOLERANCE + shift) for shift in (0.0, -TIE, TIE))
    # Divide by a tensor: for a plain number, a device multiplies by its rounded inverse.
    count = torch.full_like(values, len(gate) + 1.0)
    return (1.0 + (len(gate) - first).to(torch.float64)) / count, low != high
