"""CP_r-value: labels are ranked among the calibration images by a vote of the prompts.

`greedy_steps` over the number of columns, in float32, reproduces golden ``cp_rvalue`` ``demo_k__rvalues`` and
``clip_kplus1__rvalues`` from ``prompt_probs_cal[i, :, y_cal[i]]`` and ``prompt_probs_test``; `r_value_sets` its
``demo_k_a*__sets`` with ``boundary_rank = conformal_rank(n)`` and ``clip_kplus1_a*__sets`` with that rank plus one.
`random_slots` gives the column order of the valid mode.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.baselines.greedy_vote import BLOCK, Rankings, label_steps
from calcode.baselines.protocol import Prediction, Record, Roles
from calcode.baselines.split import prediction, robust
from calcode.method.evidence import Evidence, prompt_probabilities
from calcode.method.quantiles import conformal_rank

_DIFFERS = "Same r-values as the published loop, by a vectorised greedy selection over blocks of test images; ties of "
_DIFFERS += "float32 probabilities go to the lower column, where the published sort leaves them open. "

VALID = Record(
    name="cp-rvalue",
    title="CP r-value",
    paper="Zeng et al., Empirical Bayes Conformal Prediction for Vision and Language Models",
    venue="arXiv",
    year=2026,
    assumes="Calibration and test exchangeable; marginal coverage 1 - miscoverage (0.900 measured at 0.90), as far "
    "as the columns of the wrong labels do not disturb the order of the others.",
    selects="Nothing; a random column order per test image.",
    differs=_DIFFERS + "Count ties are broken by a random column order instead of calibration first, which restores "
    "coverage.",
)
DEMO = replace(
    VALID,
    name="cp-rvalue-k",
    title="CP r-value (published, k)",
    assumes="Exchangeability, but count ties favour calibration columns: coverage falls short (0.879 at 0.90).",
    selects="Nothing.",
    differs=_DIFFERS + "Boundary at the k-th calibration image, as in the demo notebook.",
)
TABLES = replace(
    DEMO,
    name="cp-rvalue-k1",
    title="CP r-value (published, k + 1)",
    assumes="Exchangeability, but count ties favour calibration columns: coverage falls short (0.891 at 0.90).",
    differs=_DIFFERS + "Boundary one image later, as in the notebook behind the paper's tables; k + 1 > n gives "
    "the full set, where the published code fails.",
)


def greedy_steps(calibration: FloatArray, candidates: FloatArray, slots: IntArray | None = None) -> IntArray:
    """Step at which the greedy majority ordering chooses each candidate label of each test image.

    The columns are the n calibration images and the K labels of one test image. Every prompt ranks them
    by decreasing probability; at step t every prompt votes for its t-th column, and the open column with
    the most votes is chosen, ties by the column order.

    Parameters
    ----------
    calibration : ndarray of shape (n, M)
        Probability of the true label under each prompt; compared in float32.
    candidates : ndarray of shape (m, M, K)
        Probabilities of the test images; compared in float32.
    slots : ndarray of shape (m, K), optional
        How many calibration columns precede each label in the column order; default: all of them,
        as published.

    Returns
    -------
    ndarray of shape (m, K)
        From 1 to n + K; divided by n + K they are the r-values.

    Examples
    --------
    >>> calibration = np.array([[0.9], [0.5], [0.1]])
    >>> greedy_steps(calibration, np.array([[[0.7, 0.3]]]))
    array([[2, 4]])
    """
    n, _ = calibration.shape
    m, _, n_labels = candidates.shape
    before = np.full((m, n_labels), n) if slots is None else slots
    rankings = Rankings.from_probabilities(calibration)
    steps = np.empty((m, n_labels), dtype=np.int64)
    for start in range(0, m, BLOCK):
        part = slice(start, start + BLOCK)
        steps[part] = label_steps(rankings, candidates[part].astype(np.float32), before[part])
    return steps


def random_slots(n_images: int, n_labels: int, *, n_calibration: int, random_state: int) -> IntArray:
    """A random position among the calibration columns for every label of every test image; shape (m, K)."""
    generator = np.random.default_rng(random_state)
    return generator.integers(0, n_calibration + 1, size=(n_images, n_labels))


def r_value_sets(steps: IntArray, *, n_calibration: int, boundary_rank: int) -> BoolArray:
    """Labels chosen no later than the calibration column of the boundary rank.

    Parameters
    ----------
    steps : ndarray of shape (m, K)
        From `greedy_steps`.
    n_calibration : int
    boundary_rank : int
        1-based; if it exceeds `n_calibration`, every label is in the set.

    Returns
    -------
    ndarray of bool, shape (m, K)

    Examples
    --------
    >>> r_value_sets(np.array([[2, 4]]), n_calibration=3, boundary_rank=2)
    array([[ True, False]])
    """
    if boundary_rank > n_calibration:
        return np.ones(steps.shape, dtype=bool)
    # Every label chosen before the boundary column moves that column one step later.
    boundary = np.full(len(steps), boundary_rank)
    for step in np.sort(steps, axis=1).T:
        boundary += step <= boundary
    return np.asarray(steps <= boundary[:, None])


class RValue:
    """The majority ordering, with a boundary among the calibration columns.

    Parameters
    ----------
    record : Record
    later : int
        Added to k = ceil((n + 1)(1 - miscoverage)): 0 in the demo notebook, 1 for the paper's tables.
    slots : callable or None
        Positions of the labels among the calibration columns (`random_slots`); None puts them last, as published.
    """

    def __init__(self, record: Record, *, later: int = 0, slots: Callable[..., IntArray] | None = None) -> None:
        self.record = record
        self._later = later
        self._slots = slots

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> Prediction:
        """Sets may be empty; the seed draws the positions, if they are random."""
        labels = roles.calibration.require_labels()
        n = len(labels)
        slots = None
        if self._slots is not None:
            slots = self._slots(len(test), test.n_classes, n_calibration=n, random_state=random_state)
        own = prompt_probabilities(roles.calibration.prompt_logits)[np.arange(n), :, labels]
        steps = greedy_steps(own, prompt_probabilities(test.prompt_logits), slots)
        rank = conformal_rank(n, miscoverage=miscoverage) + self._later
        sets = r_value_sets(steps, n_calibration=n, boundary_rank=rank)
        return prediction(sets, robust(test), details={"boundary_rank": rank})


METHODS = (RValue(DEMO), RValue(TABLES, later=1), RValue(VALID, slots=random_slots))
