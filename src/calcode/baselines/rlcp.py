"""RLCP: the kernel stands at a random draw around the test image, which restores the marginal guarantee.

`gaussian.gaussian_weights` with the draws of golden ``rlcp`` ``RLCP_*_xtilde`` as centres and
`smoothed.smoothed_thresholds` with its ``_U`` reproduce ``RLCP_h*_a0.1``.
"""

from __future__ import annotations

import numpy as np

from calcode.baselines.gaussian import effective_bandwidth
from calcode.baselines.protocol import Prediction, Record, Roles
from calcode.baselines.smoothed import smoothed_prediction
from calcode.method.evidence import Evidence

RECORD = Record(
    name="rlcp",
    title="RLCP",
    paper="Hore and Barber, Conformal Prediction with Local Weights: Randomization Enables Robust Guarantees",
    venue="Journal of the Royal Statistical Society B",
    year=2025,
    assumes="Calibration and test exchangeable, bandwidth fixed before calibration: marginal coverage at least "
    "1 - miscoverage, over the draws too. Two seeds give two different sets.",
    selects="Bandwidth on the reference embeddings: the first of 0.02, 0.04, ..., 6 with effective size 50 around "
    "draws. One uniform draw and one Gaussian draw per test image.",
    differs="The kernel's normaliser is left out, which overflows in many dimensions and cancels. The search draws "
    "its noise once instead of anew for every bandwidth.",
)


class Rlcp:
    """Weighted quantile around a draw from the kernel at the test image."""

    record = RECORD

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> Prediction:
        """Three streams of the seed: the bandwidth's draws, the uniforms, the centres."""
        searching, smoothing, centring = np.random.default_rng(random_state).spawn(3)
        reference = roles.reference.embeddings
        bandwidth = effective_bandwidth(reference, searching.standard_normal(reference.shape))
        uniforms = smoothing.random(len(test))
        centres = test.embeddings + bandwidth * centring.standard_normal(test.embeddings.shape)
        return smoothed_prediction(
            roles.calibration, test, centres, uniforms, bandwidth=bandwidth, miscoverage=miscoverage
        )
