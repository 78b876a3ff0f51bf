"""The whole decision on a torch device (METHOD.md 2 to 9, SITE.md S3 to S8), with the same result as `decide`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.engines.device_answers import DeviceAnswers
from calcode.engines.device_home import HomeAnswers
from calcode.engines.device_site import SiteAnswers
from calcode.kernels.device_points import Precision
from calcode.method.decisions import Decisions
from calcode.method.evidence import Evidence
from calcode.method.model import Calcode
from calcode.method.roles import identities
from calcode.site import SiteModel

if TYPE_CHECKING:
    import torch


class DeviceDecider:
    """A model on a torch device that decides on any number of images.

    Evidence, audit, thresholds or p-values, and sets are computed on the device. `decide` of the model on the CPU
    decides the rows that float64 leaves open (two values equal up to 1e-12, as for a copy of a calibration image) and
    the images of patients that a site model knows. So actions, reasons, sets and p-values are the same. A reported
    threshold of a home model may be a neighbouring calibration score if no label of the image lies between the two.

    Parameters
    ----------
    model : Calcode or SiteModel
        Fitted; its audit must search all of the reference (no graph).
    device : str
        For instance "cuda".
    precision : {"float32", "tf32"}
        Precision of the product with the calibration images; "tf32" is faster and leaves more rows to float64. A site
        model has fewer rows and computes in float64.

    Examples
    --------
    Make it once and use it for every block::

        decider = DeviceDecider(Calcode.load("model.safetensors"))
        decisions = decider.decide(evidence)
    """

    def __init__(self, model: Calcode | SiteModel, *, device: str = "cuda", precision: Precision = "float32") -> None:
        import torch

        self._model = model
        self._device = torch.device(device)
        self._answers: HomeAnswers | SiteAnswers
        if isinstance(model, SiteModel):
            self._answers = SiteAnswers(model, device=device)
        else:
            self._answers = HomeAnswers(model, device=device, precision=precision)
        #: Number of images decided together.
        self.block_rows = self._answers.block_rows

    def decide(self, evidence: Evidence, e: ArrayLike | None = None) -> Decisions:
        """As `Calcode.decide` and `SiteModel.decide`.

        Parameters
        ----------
        evidence : Evidence
        e : array_like of shape (n,), optional
            Review probability of every image, for a site model with `calibrate_with="weighted"`; taken from the
            evidence if not given.
        """
        import torch

        model = self._model
        model.evidence_format_.require(evidence, role="evidence")
        known = None
        if isinstance(model, SiteModel):
            known = model.known_.find(len(evidence), ids=evidence.ids, groups=evidence.groups)
        else:
            model.role_hashes_.require_new("evidence", identities(evidence))
        answers = self.answers(
            torch.tensor(evidence.embeddings, device=self._device),
            torch.tensor(evidence.prompt_logits, device=self._device),
            evidence.review_probability if e is None else e,
        )
        return self.decisions(answers, ids=evidence.ids, settle=lambda rows: evidence[rows], known=known, e=e)

    def answers(
        self, embeddings: torch.Tensor, prompt_logits: torch.Tensor, e: ArrayLike | None = None
    ) -> DeviceAnswers:
        """Decide on tensors on the device, without checking the identity of the images.

        Parameters
        ----------
        embeddings : tensor of float64, shape (n, d)
            Unit rows.
        prompt_logits : tensor of float64, shape (n, M, K)
        e : array_like of shape (n,), optional
            As in `decide`.
        """
        if isinstance(self._answers, HomeAnswers):
            return self._answers.answers(embeddings, prompt_logits)
        return self._answers.answers(embeddings, prompt_logits, e)

    def answers_from_text(
        self, raw: torch.Tensor, text: torch.Tensor, temperature: float, e: FloatArray | None = None
    ) -> DeviceAnswers:
        """Decide on raw embeddings and a bank of prompts, in blocks.

        Parameters
        ----------
        raw : tensor of float16, float32 or float64, shape (n, d)
            Not yet normalised to unit length.
        text : tensor of float64, shape (K, M, d)
            Unit rows.
        temperature : float
        e : ndarray of shape (n,), optional
            As in `decide`.
        """
        import torch

        n_classes, n_prompts, _ = text.shape
        columns = text.transpose(0, 1).reshape(n_prompts * n_classes, -1).T
        parts = []
        for start in range(0, len(raw), self.block_rows):
            block = slice(start, start + self.block_rows)
            rows = raw[block].to(torch.float64)
            rows = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True)
            logits = (rows @ columns / temperature).view(len(rows), n_prompts, n_classes)
            parts.append(self.answers(rows, logits, None if e is None else e[block]))
        names = [field.name for field in fields(DeviceAnswers)]
        return DeviceAnswers(**{name: torch.cat([getattr(part, name) for part in parts]) for name in names})

    def decisions(
        self,
        answers: DeviceAnswers,
        *,
        ids: Any,
        settle: Callable[[IntArray], Evidence],
        known: tuple[IntArray, BoolArray] | None = None,
        e: ArrayLike | None = None,
    ) -> Decisions:
        """Copy the answers to the host; the model's own `decide` settles the rows that are left open.

        Parameters
        ----------
        answers : DeviceAnswers
        ids : ndarray of str or None
        settle : callable
            Maps row numbers to their evidence.
        known : (ndarray of int, ndarray of bool), optional
            Result of `KnownGroups.find` for the images, for a site model.
        e : array_like of shape (n,), optional
            As in `decide`.
        """
        arrays: dict[str, Any] = {field.name: getattr(answers, field.name).cpu().numpy() for field in fields(answers)}
        left = arrays.pop("tied")
        model = self._model
        if known is not None:
            left = left | (known[0] >= 0)
            arrays["known_group"] = known[1]
        rows = np.flatnonzero(left)
        if len(rows):
            evidence = settle(rows)
            if isinstance(model, SiteModel):
                settled = model.decide(evidence, None if e is None else np.asarray(e)[rows])
            else:
                settled = model.decide(evidence.without_identity())
            for name, values in arrays.items():
                values[rows] = getattr(settled, name)
        return Decisions(
            **arrays,
            ids=None if ids is None else np.array(ids),
            classes=model.classes_,
            model_digest=model.digest_,
            promises=model.promises_,
            in_every_set=model.in_every_set_,
        )
