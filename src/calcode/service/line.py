"""A model line in memory: its loaded models and their answers for a block of images."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calcode.cohorts import Prompts
from calcode.errors import CalcodeWarning, MismatchError
from calcode.files import canonical_json
from calcode.method.decisions import Action, Reason
from calcode.method.evidence import Evidence
from calcode.method.model import Calcode
from calcode.method.signatures import require_signature
from calcode.site import SiteModel, load_model

#: Number of golden embeddings (SERVICE.md 10).
N_GOLDEN = 256
_ACTIONS = [action.name.lower() for action in Action]
_REASONS = [reason.name.lower() for reason in Reason]


@dataclass(frozen=True, eq=False, kw_only=True)
class LineModel:
    """A loaded model with the prompts of its line.

    Attributes
    ----------
    model : Calcode or SiteModel
    kind : {"home", "site"}
    prompts : Prompts
    backbone : str or None
    file : Path
    """

    model: Calcode | SiteModel
    kind: str
    prompts: Prompts
    backbone: str | None
    file: Path

    @property
    def digest(self) -> str:
        """SHA-256 of the model."""
        return self.model.digest_

    @cached_property
    def promises(self) -> list[str]:
        """The promises of the model, which every answer repeats."""
        return list(self.model.promises_)

    @property
    def deferral_level(self) -> float:
        """p-value of the audit below which an image is deferred."""
        model = self.model
        return model.settings_.deferral_level if isinstance(model, Calcode) else model.deferral_level_

    def evidence(
        self,
        embeddings: NDArray[np.float32],
        groups: Sequence[str] | None = None,
        *,
        labels: Sequence[int] | None = None,
    ) -> Evidence:
        """Return the evidence of stored embeddings of shape (n, d)."""
        return Evidence.from_text(
            embeddings=embeddings,
            text=self.prompts.text,
            temperature=self.prompts.temperature,
            labels=labels,
            classes=self.prompts.classes,
            groups=groups,
            prompt_digest=self.prompts.digest,
            backbone=self.backbone,
        )

    def answers(
        self, embeddings: NDArray[np.float32], *, groups: Sequence[str | None], group_digests: Sequence[str | None]
    ) -> list[dict[str, Any]]:
        """Return what the log records of each image: action, reason, set, p-value, scores and thresholds.

        A site model gets the pseudonyms and leaves out a known patient's row (SITE.md S1). A home model decides without
        groups, because it would refuse a patient whose earlier image calibrated it; the overlap is recorded.

        Parameters
        ----------
        embeddings : ndarray of float32, shape (n, d)
        groups, group_digests : sequence of str or None
        """
        if isinstance(self.model, Calcode):
            decisions = self.model.decide(self.evidence(embeddings))
            in_model = self.model.role_hashes_.holds("groups", [group or "" for group in groups])
            known = [False] * len(in_model)
        else:
            decisions = self.model.decide(self.evidence(embeddings, [digest or "" for digest in group_digests]))
            assert decisions.known_group is not None
            in_model = known = decisions.known_group.tolist()
        scores, p_audit = decisions.scores.tolist(), decisions.p_audit.tolist()
        # If the sum is finite, all its terms are finite.
        if not isfinite(sum(map(sum, scores), sum(p_audit))):
            raise FloatingPointError("scores or p-values are not finite")
        digest, names = self.digest, (*decisions.classes, None)
        columns = zip(
            decisions.action.tolist(),
            decisions.reason.tolist(),
            decisions.label.tolist(),
            [list(compress(names, row)) for row in decisions.released_sets.tolist()],
            p_audit,
            scores,
            # JSON has no infinity: null means no limit.
            [[value if isfinite(value) else None for value in row] for row in decisions.threshold.tolist()],
            in_model,
            known,
            strict=True,
        )
        return [
            {
                "action": _ACTIONS[action],
                "reason": _REASONS[reason],
                "label": names[label],
                "set": released,
                "p_audit": p_value,
                "scores": row,
                "thresholds": limits,
                "in_model": inside,
                "known_group": seen,
                "model": digest,
            }
            for action, reason, label, released, p_value, row, limits, inside, seen in columns
        ]

    def golden(self) -> str:
        """Return the SHA-256 of the answers to the golden embeddings, which is the same on every machine."""
        embeddings = golden_embeddings(self.prompts)
        nobody = [None] * len(embeddings)
        answers = self.answers(embeddings, groups=nobody, group_digests=nobody)
        kept = [[answer["action"], answer["reason"], answer["set"]] for answer in answers]
        return hashlib.sha256(canonical_json(kept).encode()).hexdigest()


def golden_embeddings(prompts: Prompts) -> NDArray[np.float32]:
    """Return 256 synthetic embeddings, from near a prompt to far from all, which are the same on every machine."""
    rng = np.random.default_rng(20261115)
    bank = prompts.text.reshape(-1, prompts.dimension).astype(np.float64)
    chosen = bank[np.arange(N_GOLDEN) % len(bank)]
    noise = rng.normal(size=chosen.shape) / np.sqrt(prompts.dimension)
    vectors = chosen / np.linalg.norm(chosen, axis=1, keepdims=True)
    vectors = vectors + noise * np.linspace(0.1, 3.0, N_GOLDEN)[:, None]
    golden: NDArray[np.float32] = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return golden


def load_line_model(path: Path, *, prompts: Prompts, backbone: str | None, trusted: Sequence[str] | None) -> LineModel:
    """Load a home or a site model for a line and check that it accepts the line's prompts.

    Parameters
    ----------
    path : Path
    prompts : Prompts
    backbone : str or None
    trusted : sequence of str or None
        Keys, one of which must have signed the file; None accepts unsigned files.
    """
    model = load_model(path)
    # float32 rows have unit length only roughly, and are renormalised here as everywhere. Set once for all threads:
    # they share the filters, and each would restore those of another thread.
    warnings.filterwarnings("ignore", message=".* rows are not of unit length", category=CalcodeWarning)
    # Raised by an embedding whose length is beyond float32, which is refused.
    warnings.filterwarnings("ignore", message="overflow encountered in matmul", category=RuntimeWarning)
    if trusted is not None:
        require_signature(path, digest=model.digest_, trusted=trusted)
    kind = "home" if isinstance(model, Calcode) else "site"
    if isinstance(model, Calcode):
        model.prepare()
    backbone = backbone if backbone is not None else model.evidence_format_.backbone
    loaded = LineModel(model=model, kind=kind, prompts=prompts, backbone=backbone, file=path)
    if tuple(model.classes_) != tuple(prompts.classes):
        raise MismatchError(
            f"{path}: decides on {list(model.classes_)}, the line's prompts have {list(prompts.classes)}"
        )
    # Decide one synthetic image: a wrong dimension, prompts or backbone must fail here, not at the first patient.
    loaded.answers(golden_embeddings(prompts)[:1], groups=[None], group_digests=[None])
    return loaded
