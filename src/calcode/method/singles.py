"""Single answers with a promise, for home and site models alike (SITE.md S17)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from calcode.arrays import BoolArray, FloatArray
from calcode.errors import SettingsError
from calcode.method.decisions import Action, Decisions
from calcode.method.evidence import Evidence

NOT_CERTIFIED = (
    "Observed only: single answers are not certified (certify_singles checks them on a sample of their own)."
)
#: Upper bound of answers in a certification sample; a file with more is damaged.
_MOST_ANSWERS = 10**9


@dataclass(frozen=True, kw_only=True)
class SinglesCertificate:
    """Result of a certification sample for answers of one label.

    Attributes
    ----------
    n, wrong : int
        Single answers in the sample, and how many of them were wrong.
    risk, confidence : float
        Promised with probability `confidence` over the sample: at most `risk` of the single answers are wrong.
    sample_digest : str
        SHA-256 of the sample's embeddings.

    Examples
    --------
    >>> SinglesCertificate(n=45, wrong=0, risk=0.05, confidence=0.9, sample_digest="").certified
    True
    >>> SinglesCertificate(n=44, wrong=0, risk=0.05, confidence=0.9, sample_digest="").certified
    False
    """

    n: int
    wrong: int
    risk: float
    confidence: float
    sample_digest: str

    def __post_init__(self) -> None:
        for name, value in (("risk", self.risk), ("confidence", self.confidence)):
            if not 0.0 < value < 1.0:
                raise SettingsError(f"{name}: {value!r} is not strictly between 0 and 1")
        if not 0 <= self.wrong <= self.n <= _MOST_ANSWERS:
            raise SettingsError(f"wrong: {self.wrong} of {self.n} single answers is impossible")

    @classmethod
    def check(cls, decisions: Decisions, sample: Evidence, *, risk: float, confidence: float) -> Self:
        """Count the single answers on a labelled sample that was not used for the model.

        An answer for an image outside the label space is wrong.
        """
        single = decisions.action == Action.LABEL
        wrong = single & (decisions.label != sample.require_labels())
        return cls(
            n=int(single.sum()),
            wrong=int(wrong.sum()),
            risk=float(risk),
            confidence=float(confidence),
            sample_digest=sample.embeddings_digest,
        )

    @property
    def certified(self) -> bool:
        """Whether BinomCDF(wrong; n, risk) <= 1 - confidence."""
        from scipy.special import bdtr

        return self.n > 0 and bool(bdtr(self.wrong, self.n, self.risk) <= 1.0 - self.confidence)

    @property
    def sentence(self) -> str:
        """Sentence to show with every single answer."""
        if not self.certified:
            return (
                f"Not certified: {self.wrong} of {self.n} checked single answers were wrong, too many or too few to "
                f"promise at most {self.risk:.3g} with {self.confidence:.3g} confidence; every single answer is "
                "released with a second label."
            )
        return (
            f"Promised with {self.confidence:.3g} confidence: at most {self.risk:.3g} of the single answers are wrong; "
            f"answers of this kind were wrong in {self.wrong} of {self.n} checked cases."
        )


def second_labels(sets: BoolArray, *, answered: BoolArray, preference: FloatArray) -> BoolArray:
    """Mask of the second labels that are added to uncertified single answers; shape (n, K).

    Parameters
    ----------
    sets : ndarray of bool, shape (n, K)
    answered : ndarray of bool, shape (n,)
        Images that get an answer.
    preference : ndarray of shape (n, K)
        The excluded label with the largest value is added, ties by the lower index.

    Examples
    --------
    >>> sets = np.array([[True, False, False], [True, True, False]])
    >>> preference = np.array([[0.5, 0.2, 0.3], [0.5, 0.3, 0.2]])
    >>> second_labels(sets, answered=np.array([True, True]), preference=preference)
    array([[False, False,  True],
           [False, False, False]])
    """
    single = np.flatnonzero(answered & (sets.sum(axis=1) == 1))
    joins = np.zeros_like(sets)
    joins[single, np.where(sets[single], -np.inf, preference[single]).argmax(axis=1)] = True
    return joins
