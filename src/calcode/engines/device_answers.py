"""Decisions as tensors on a torch device, and the three-action rule on them (METHOD.md 9)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from calcode.method.decisions import Action, Reason

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False, kw_only=True)
class DeviceAnswers:
    """The arrays of `Decisions` as tensors on the device, and the rows that only the CPU can decide.

    Attributes
    ----------
    action, reason, label, top_label : tensor of int, shape (n,)
    sets, localized_sets : tensor of bool, shape (n, K)
    p_audit, top_probability : tensor of float64, shape (n,)
    threshold, scores : tensor of float64, shape (n, K)
    tied : tensor of bool, shape (n,)
        A value that matters for the row is equal to a boundary, or closer to it than the error of a float64 sum.
    """

    action: torch.Tensor
    reason: torch.Tensor
    label: torch.Tensor
    sets: torch.Tensor
    localized_sets: torch.Tensor
    p_audit: torch.Tensor
    threshold: torch.Tensor
    scores: torch.Tensor
    top_label: torch.Tensor
    top_probability: torch.Tensor
    tied: torch.Tensor


def second_labels(sets: torch.Tensor, *, answered: torch.Tensor, preference: torch.Tensor) -> torch.Tensor:
    """The same as `calcode.method.singles.second_labels`, on tensors (SITE.md S17); shape (n, K)."""
    import torch

    second = torch.where(sets, -torch.inf, preference).argmax(dim=1)
    single = answered & (sets.sum(dim=1) == 1)
    return single[:, None] & torch.nn.functional.one_hot(second, sets.shape[1]).bool()


def chosen_actions(
    sets: torch.Tensor, *, supported: torch.Tensor, binary_utility: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Action, reason and label, as from `calcode.method.decisions.choose_actions`; each of shape (n,)."""
    import torch

    size = sets.sum(dim=1)
    reason = torch.full_like(size, int(Reason.NONE))
    if binary_utility:
        reason[size == sets.shape[1]] = int(Reason.FULL_SET)
    reason[size == 0] = int(Reason.EMPTY_SET)
    reason[~supported] = int(Reason.LOW_SUPPORT)
    action = torch.where(size == 1, int(Action.LABEL), int(Action.SET))
    action[reason != int(Reason.NONE)] = int(Action.DEFER)
    label = torch.where(action == int(Action.LABEL), sets.to(torch.int8).argmax(dim=1), -1)
    return action.to(torch.int8), reason.to(torch.int8), label
