"""The whole decision on a torch device (METHOD.md 2 to 9); decisions are those of `Calcode.decide`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from calcode.arrays import IntArray
from calcode.kernels.device import DISTANCE_DOUBT, DevicePoints, DeviceRule, DeviceThresholds, Precision
from calcode.method.audit import BASE_DIAGNOSTICS, LOG_FLOOR, RANK_TOLERANCE, SupportAudit
from calcode.method.decisions import Action, Decisions, Reason
from calcode.method.evidence import TRIM_EPSILON, Evidence
from calcode.method.localized import LocalizedRule
from calcode.method.model import Calcode
from calcode.method.quantiles import conformal_rank
from calcode.method.roles import identities

if TYPE_CHECKING:
    import torch

#: Values nearer to each other than this, absolute or relative, may be told apart otherwise on the CPU: it settles them.
_TIE = 1e-12


@dataclass(frozen=True, eq=False, kw_only=True)
class DeviceAnswers:
    """The arrays of `Decisions` as tensors on the device, and the rows that only the CPU can settle.

    Attributes
    ----------
    action, reason, label, top_label : tensor of int, shape (n,)
    sets, localized_sets : tensor of bool, shape (n, K)
    p_audit, top_probability : tensor of float64, shape (n,)
    threshold, scores : tensor of float64, shape (n, K)
    tied : tensor of bool, shape (n,)
        Something that decides about the row is equal to a boundary, or nearer to it than float64 sums are exact.
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


class DeviceDecider:
    """A model on a torch device, for any number of images.

    Evidence, audit, thresholds and sets are computed on the device: in float32 first, in float64 where that leaves a
    p-value or a label open. A row in which float64 itself leaves one open (two values equal up to 1e-12, as for a
    copy of a calibration image) is decided by `Calcode.decide`, so actions, reasons, sets and p-values are the same.
    A reported threshold may be a neighbouring calibration score when no label of the image lies between the two.

    Parameters
    ----------
    model : Calcode
        Fitted; its audit must look at all of the reference (no graph).
    device : str
        For instance "cuda".
    precision : {"float32", "tf32"}
        Of the product with the calibration images; "tf32" is faster and leaves more rows to float64.

    Examples
    --------
    Made once, used block after block::

        decider = DeviceDecider(Calcode.load("model.safetensors"))
        decisions = decider.decide(evidence)
    """

    def __init__(self, model: Calcode, *, device: str = "cuda", precision: Precision = "float32") -> None:
        import torch

        rule = model.fitted_rule
        self._model = model
        self._device = torch.device(device)
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
        self._audit = None if model.audit_ is None else _DeviceAudit(model.audit_, device=device)
        largest = [self._search.points, *([] if self._audit is None else self._audit.points)]
        #: How many images are decided on together.
        self.block_rows = min(points.block_rows(torch.float32) for points in largest)

    def decide(self, evidence: Evidence) -> Decisions:
        """As `Calcode.decide`."""
        import torch

        model = self._model
        model.evidence_format_.require(evidence, role="evidence")
        model.role_hashes_.require_disjoint("test", identities(evidence))
        answers = self.answers(
            torch.tensor(evidence.embeddings, device=self._device),
            torch.tensor(evidence.prompt_logits, device=self._device),
        )
        return self.decisions(answers, ids=evidence.ids, settle=lambda rows: evidence[rows].without_identity())

    def answers(self, embeddings: torch.Tensor, prompt_logits: torch.Tensor) -> DeviceAnswers:
        """Decide on tensors of the device.

        Parameters
        ----------
        embeddings : tensor of float64, shape (n, d)
            Unit rows.
        prompt_logits : tensor of float64, shape (n, M, K)
        """
        import torch

        settings = self._model.settings_
        probabilities = torch.softmax(prompt_logits, dim=2)
        # p_rob of Eq. 5; (n, M, K) in, (n, K) out. Prompts are few: they are sorted by comparing neighbours.
        import torch

        columns = list(probabilities.unbind(1))
        n_prompts = len(columns)
        if n_prompts > 1 and settings.trim > 0:
            for turn in range(n_prompts):
                for left in range(turn % 2, n_prompts - 1, 2):
                    pair = columns[left], columns[left + 1]
                    columns[left], columns[left + 1] = torch.minimum(*pair), torch.maximum(*pair)
            columns = columns[settings.trim : n_prompts - settings.trim]
        average = torch.stack(columns).sum(dim=0) / len(columns)
        robust = average / (average.sum(dim=1, keepdim=True) + TRIM_EPSILON)
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
            # A threshold of 1 and more lets every label in, whatever its last digit.
            tied |= (((scores - bound).abs() < _TIE) & (bound < 1.0)).any(dim=1)
        sets, localized_sets = scores <= threshold, scores <= localized
        if settings.keep_top:
            first = torch.nn.functional.one_hot(top_label, scores.shape[1]).bool()
            threshold = torch.where(first, torch.maximum(threshold, scores), threshold)
            sets, localized_sets = sets | first, localized_sets | first
        supported = p_audit >= settings.deferral_level
        certificate = self._model.certificate_
        if certificate is not None and not certificate.certified:
            second = torch.where(sets, -torch.inf, robust).argmax(dim=1)
            single = supported & (sets.sum(dim=1) == 1)
            joins = single[:, None] & torch.nn.functional.one_hot(second, scores.shape[1]).bool()
            sets, threshold = sets | joins, torch.where(joins, scores, threshold)
        size = sets.sum(dim=1)
        reason = torch.full_like(size, int(Reason.NONE))
        if settings.binary_utility:
            reason[size == sets.shape[1]] = int(Reason.FULL_SET)
        reason[size == 0] = int(Reason.EMPTY_SET)
        reason[~supported] = int(Reason.LOW_SUPPORT)
        action = torch.where(size == 1, int(Action.LABEL), int(Action.SET))
        action[reason != int(Reason.NONE)] = int(Action.DEFER)
        label = torch.where(action == int(Action.LABEL), sets.to(torch.int8).argmax(dim=1), -1)
        return DeviceAnswers(
            action=action.to(torch.int8),
            reason=reason.to(torch.int8),
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

    def answers_from_text(self, raw: torch.Tensor, text: torch.Tensor, temperature: float) -> DeviceAnswers:
        """Decide on raw embeddings and a bank of prompts, block by block.

        Parameters
        ----------
        raw : tensor of float16, float32 or float64, shape (n, d)
            Not yet of unit length.
        text : tensor of float64, shape (K, M, d)
            Unit rows.
        temperature : float
        """
        import torch

        n_classes, n_prompts, _ = text.shape
        columns = text.transpose(0, 1).reshape(n_prompts * n_classes, -1).T
        parts = []
        for start in range(0, len(raw), self.block_rows):
            rows = raw[start : start + self.block_rows].to(torch.float64)
            rows = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True)
            logits = (rows @ columns / temperature).view(len(rows), n_prompts, n_classes)
            parts.append(self.answers(rows, logits))
        names = [field.name for field in fields(DeviceAnswers)]
        return DeviceAnswers(**{name: torch.cat([getattr(part, name) for part in parts]) for name in names})

    def decisions(self, answers: DeviceAnswers, *, ids: Any, settle: Callable[[IntArray], Evidence]) -> Decisions:
        """Answers on the host, the tied rows settled by `Calcode.decide`.

        Parameters
        ----------
        answers : DeviceAnswers
        ids : ndarray of str or None
        settle : callable
            Row numbers in, their evidence out.
        """
        arrays = {field.name: getattr(answers, field.name).cpu().numpy() for field in fields(answers)}
        rows = np.flatnonzero(arrays.pop("tied"))
        if len(rows):
            settled = self._model.decide(settle(rows))
            for name, values in arrays.items():
                values[rows] = getattr(settled, name)
        model = self._model
        return Decisions(
            **arrays,
            ids=None if ids is None else np.array(ids),
            classes=model.classes_,
            model_digest=model.digest_,
            promises=model.promises_,
            in_every_set=model.in_every_set_,
        )

    def _combined(self, found: torch.Tensor, *, n_classes: int) -> tuple[torch.Tensor, torch.Tensor]:
        """tau(x) as a column and the guarded thresholds (Eq. 15), shape (n, K), from those of every rule."""
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


class _DeviceAudit:
    """p_audit on the device (METHOD.md 4), equal to that of float64."""

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
        """p_audit, and the rows in which a value is too near to one of the gate; each of shape (n,)."""
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
        # The ranks are exact, and so is what they are compared with.
        p_audit, _ = _ranks(fused, self._gate)
        return p_audit, torch.stack([close for _, close in parts]).any(dim=0)

    def _distance_ranks(self, embeddings: torch.Tensor, gate: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Ranks of the `distance`: from float32 where no gate value is within its error, else from float64."""
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


def _device_rule(rule: LocalizedRule, *, members: IntArray | None) -> DeviceRule:
    return DeviceRule(
        members=members,
        cut=rule.cut,
        level=rule.level,
        below=rule.below,
        total=rule.total,
        rank=conformal_rank(len(rule.scores), miscoverage=rule.miscoverage),
    )


def _aps_scores(robust: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """APS scores of Eq. 6, shape (n, K), and the rows with labels too equally probable to be ordered here."""
    import torch

    ordered, order = torch.sort(robust, dim=1, descending=True, stable=True)
    cumulative = ordered.cumsum(dim=1).clamp(max=1.0)
    cumulative[:, -1] = 1.0
    scores = torch.empty_like(cumulative).scatter_(1, order, cumulative)
    tied = (ordered[:, :-1] - ordered[:, 1:] <= _TIE * ordered[:, :-1]).any(dim=1)
    return scores, tied


def _ranks(values: torch.Tensor, gate: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(1 + #{gate: B >= B(x)}) / (n_g + 1) of Eq. 9, and the rows too near to a gate value; each of shape (n,)."""
    import torch

    first, low, high = (torch.searchsorted(gate, values - RANK_TOLERANCE + shift) for shift in (0.0, -_TIE, _TIE))
    # By a tensor: a device divides by a plain number as a product with its rounded inverse.
    count = torch.full_like(values, len(gate) + 1.0)
    return (1.0 + (len(gate) - first).to(torch.float64)) / count, low != high
