"""The evidence that compared methods share: same prompts, same trimming, same averaging."""

from __future__ import annotations

from calcode.arrays import FloatArray
from calcode.method.evidence import Evidence, prompt_probabilities, robust_probabilities


def trim_for(evidence: Evidence) -> int:
    """Values trimmed at each end: METHOD.md's 1, and 0 where two prompts leave nothing to trim."""
    return min(1, (evidence.n_prompts - 1) // 2)


def robust(evidence: Evidence) -> FloatArray:
    """p_rob of METHOD.md 2; shape (n, K)."""
    return robust_probabilities(evidence.prompt_logits, trim=trim_for(evidence))


def averaged_logits(evidence: Evidence) -> FloatArray:
    """Mean of the logits over prompts, the start of Conf-OT, temperature scaling and LATA; shape (n, K)."""
    mean: FloatArray = evidence.prompt_logits.mean(axis=1)
    return mean


def softmax(logits: FloatArray) -> FloatArray:
    """Softmax over classes of (n, K) logits: Eq. 4 with one prompt."""
    return prompt_probabilities(logits[:, None, :])[:, 0]
