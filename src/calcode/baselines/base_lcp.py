"""baseLCP: a smoothed quantile weighted around the test image, without recalibration.

`gaussian.gaussian_weights` (centres: the images themselves) and `smoothed.smoothed_thresholds` reproduce golden
``rlcp`` ``baseLCP_h*_a0.1`` (thresholds and, with `smoothed.half_open_sets`, coverage) from its ``_U`` draws.
"""

from __future__ import annotations

import numpy as np

from calcode.baselines.gaussian import effective_bandwidth
from calcode.baselines.protocol import Prediction, Record, Roles
from calcode.baselines.smoothed import smoothed_prediction
from calcode.method.evidence import Evidence

RECORD = Record(
    name="base-lcp",
    title="baseLCP",
    paper="Hore and Barber, Conformal Prediction with Local Weights: Randomization Enables Robust Guarantees",
    venue="Journal of the Royal Statistical Society B",
    year=2025,
    assumes="Nothing that holds: no marginal guarantee, even under exchangeability.",
    selects="Bandwidth on the reference embeddings: the first of 0.02, 0.04, ..., 6 with effective size 50. One "
    "uniform draw per test image.",
    differs="The kernel's normaliser is left out, which overflows in many dimensions and cancels. The published search "
    "starts where the user says and runs off its grid when nothing reaches the target.",
)


class BaseLcp:
    """Weighted quantile of the neighbours' scores, the image's own weight at +inf."""

    record = RECORD

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> Prediction:
        """The seed makes one uniform draw per test image."""
        reference = roles.reference.embeddings
        bandwidth = effective_bandwidth(reference, np.zeros_like(reference))
        uniforms = np.random.default_rng(random_state).random(len(test))
        return smoothed_prediction(
            roles.calibration, test, test.embeddings, uniforms, bandwidth=bandwidth, miscoverage=miscoverage
        )
