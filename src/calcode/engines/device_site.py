"""Decisions of a site model on a torch device (SITE.md S2 to S8), for images of patients that it does not know."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from calcode.engines.device_answers import DeviceAnswers, chosen_actions, second_labels
from calcode.engines.device_audit import DeviceAudit, robust_probabilities
from calcode.method.home_sums import EMBEDDING_SCALE, LOG_OFFSET, LOG_SCALE
from calcode.site import SiteModel
from calcode.site.device import DeviceRanking
from calcode.site.ranking import TOLERANCE

if TYPE_CHECKING:
    import torch


class SiteAnswers:
    """A site model on a device: features, audit, p-values and sets, in float64.

    Parameters
    ----------
    model : SiteModel
        Fitted; its audit must search all of the reference (no graph).
    device : str
    """

    def __init__(self, model: SiteModel, *, device: str) -> None:
        import torch

        self._model = model
        self._ranking = DeviceRanking(model.ranking_, device=device)
        self._levels = torch.tensor(model.ranking_.miscoverage, device=device)
        self._audit = None
        if model.audit_ is not None and model.audit_kind_ != "off":
            self._audit = DeviceAudit(model.audit_, device=device)
        points = [] if self._audit is None else self._audit.points
        #: Number of images decided together.
        self.block_rows = min([self._ranking.block_rows, *(own.block_rows(torch.float32) for own in points)])

    def answers(
        self, embeddings: torch.Tensor, prompt_logits: torch.Tensor, e: ArrayLike | None = None
    ) -> DeviceAnswers:
        """Decide on tensors on the device; shapes as in `DeviceDecider.answers`."""
        import torch

        model = self._model
        weights = None
        if (checked := model.image_weights(len(embeddings), e)) is not None:
            weights = torch.tensor(np.asarray(checked), device=embeddings.device)
        probabilities = torch.softmax(prompt_logits, dim=2)
        robust = robust_probabilities(probabilities, trim=model.settings_.trim)
        logs = torch.log(robust + LOG_OFFSET)
        features = torch.cat(
            [
                torch.ones_like(embeddings[:, :1]),
                EMBEDDING_SCALE * embeddings,
                LOG_SCALE * (logs - logs.mean(dim=1, keepdim=True)),
            ],
            dim=1,
        )
        p_values, outputs, tied = self._ranking.rank(features, weights=weights)
        p_audit = torch.ones_like(outputs[:, 0])
        if self._audit is not None:
            p_audit, close = self._audit.p_values(embeddings, prompt_logits, probabilities, robust)
            tied |= close
        supported = p_audit >= model.deferral_level_
        scores = 1.0 - p_values
        threshold = (1.0 - self._levels - TOLERANCE).repeat(len(scores), 1)
        sets = p_values > self._levels + TOLERANCE
        if model.certificate_ is not None and not model.certificate_.certified:
            joins = second_labels(sets, answered=supported, preference=p_values)
            sets, threshold = sets | joins, torch.where(joins, scores, threshold)
        action, reason, label = chosen_actions(sets, supported=supported)
        top_probability, top_label = torch.softmax(model.settings_.sharpness * outputs, dim=1).max(dim=1)
        return DeviceAnswers(
            action=action,
            reason=reason,
            label=label,
            sets=sets,
            localized_sets=sets.clone(),
            p_audit=p_audit,
            threshold=threshold,
            scores=scores,
            top_label=top_label,
            top_probability=top_probability,
            tied=tied,
        )
