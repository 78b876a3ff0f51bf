"""The decisions of a home model on a torch device (METHOD.md 2 to 9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calcode.arrays import IntArray
from calcode.engines.device_answers import DeviceAnswers, chosen_actions, second_labels
from calcode.engines.device_audit import TIE, DeviceAudit, robust_probabilities
from calcode.kernels.device import DeviceRule, DeviceThresholds
from calcode.kernels.device_points import Precision
from calcode.method.localized import LocalizedRule
from calcode.method.model import Calcode
from calcode.method.tail import image_level_rule

if TYPE_CHECKING:
    import torch


class HomeAnswers:
    """A home model on a device: evidence, audit, thresholds and sets.

    Computed in float32 first, and in float64 if a p-value or a label is still open.

    Parameters
    ----------
    model : Calcode
        Fitted; its audit must search all of the reference (no graph).
    device : str
    precision : {"float32", "tf32"}
        Precision of the product with the calibration images.
    """

    def __init__(self, model: Calcode, *, device: str, precision: Precision) -> None:
        import torch

        rule = model.rule_
        self._model = model
        self._guards = [guard for guard in model.guards_ if guard.searches]
        self._search = DeviceThresholds(
            points=rule.embeddings,
            scores=rule.scores,
            bandwidth=rule.bandwidth,
            rules=[
                _device_rule(rule, members=None),
                *(_device_rule(guard.local, members=guard.members) for guard in self._guards if guard.local),
            ],
            device=device,
            precision=precision,
        )
        self._audit = None if model.audit_ is None else DeviceAudit(model.audit_, device=device)
        largest = [self._search.points, *([] if self._audit is None else self._audit.points)]
        #: Number of images decided together.
        self.block_rows = min(points.block_rows(torch.float32) for points in largest)

    def answers(self, embeddings: torch.Tensor, prompt_logits: torch.Tensor) -> DeviceAnswers:
        """Decide on tensors on the device.

        Parameters
        ----------
        embeddings : tensor of float64, shape (n, d)
            Unit rows.
        prompt_logits : tensor of float64, shape (n, M, K)
        """
        import torch

        settings = self._model.settings_
        probabilities = torch.softmax(prompt_logits, dim=2)
        robust = robust_probabilities(probabilities, trim=settings.trim)
        scores, tied = _aps_scores(robust)
        top_probability, top_label = robust.max(dim=1)
        if self._audit is None:
            p_audit = torch.ones(len(robust), dtype=torch.float64, device=robust.device)
        else:
            p_audit, close = self._audit.p_values(embeddings, prompt_logits, probabilities, robust)
            tied |= close
        found, open_rows = self._search.search(
            embeddings, settled=lambda low, high, rows: self._agree(scores[rows], low, high)
        )
        tied |= open_rows
        localized, threshold = self._combined(found, n_classes=scores.shape[1])
        for bound in (localized, threshold):
            # A threshold of at least 1 lets every label in, so its last digits do not matter.
            tied |= (((scores - bound).abs() < TIE) & (bound < 1.0)).any(dim=1)
        sets, localized_sets = scores <= threshold, scores <= localized
        if settings.keep_top:
            first = torch.nn.functional.one_hot(top_label, scores.shape[1]).bool()
            threshold = torch.where(first, torch.maximum(threshold, scores), threshold)
            sets, localized_sets = sets | first, localized_sets | first
        supported = p_audit >= settings.deferral_level
        certificate = self._model.certificate_
        if certificate is not None and not certificate.certified:
            joins = second_labels(sets, answered=supported, preference=robust)
            sets, threshold = sets | joins, torch.where(joins, scores, threshold)
        action, reason, label = chosen_actions(sets, supported=supported, binary_utility=settings.binary_utility)
        return DeviceAnswers(
            action=action,
            reason=reason,
            label=label,
            sets=sets,
            localized_sets=localized_sets,
            p_audit=p_audit,
            threshold=threshold,
            scores=scores,
            top_label=top_label,
            top_probability=top_probability,
            tied=tied,
        )

    def _combined(self, found: torch.Tensor, *, n_classes: int) -> tuple[torch.Tensor, torch.Tensor]:
        """tau(x) as a column and the guarded thresholds (Eq. 15), shape (n, K), from the thresholds of all rules."""
        import torch

        localized = found[:, :1]
        guarded = localized.repeat(1, n_classes)
        local = {guard.index: column for column, guard in enumerate(self._guards, start=1)}
        for guard in self._model.guards_:
            own = torch.full_like(localized[:, 0], guard.quantile)
            if guard.index in local:
                own = torch.maximum(own, found[:, local[guard.index]])
            guarded[:, guard.index] = torch.maximum(guarded[:, guard.index], own)
        return localized, guarded

    def _agree(self, scores: torch.Tensor, lowest: torch.Tensor, highest: torch.Tensor) -> torch.Tensor:
        """Mask of the rows whose sets are the same at the lowest and at the highest thresholds."""
        pairs = zip(
            self._combined(lowest, n_classes=scores.shape[1]),
            self._combined(highest, n_classes=scores.shape[1]),
            strict=True,
        )
        (localized, guarded) = (((scores <= low) == (scores <= high)).all(dim=1) for low, high in pairs)
        return localized & guarded


def _device_rule(rule: LocalizedRule, *, members: IntArray | None) -> DeviceRule:
    counted = image_level_rule(rule, members=members) if rule.level in ("upper", "exact") else None
    return DeviceRule(members=members, cut=rule.cut, level=rule.level, counted=counted)


def _aps_scores(robust: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """APS scores of Eq. 6, shape (n, K), and the rows whose label probabilities are too close to order here."""
    import torch

    ordered, order = torch.sort(robust, dim=1, descending=True, stable=True)
    cumulative = ordered.cumsum(dim=1).clamp(max=1.0)
    cumulative[:, -1] = 1.0
    scores = torch.empty_like(cumulative).scatter_(1, order, cumulative)
    tied = (ordered[:, :-1] - ordered[:, 1:] <= TIE * ordered[:, :-1]).any(dim=1)
    return scores, tied
