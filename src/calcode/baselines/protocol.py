"""What every compared method takes and gives back, and what is on record about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import numpy as np

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.errors import RoleError, SettingsError
from calcode.method.evidence import Evidence

__all__ = ["Detail", "Evidence", "Method", "Prediction", "Record", "Roles"]

#: What a method reports about a run: chosen settings, thresholds, counts.
Detail = float | int | str | bool


@dataclass(frozen=True, kw_only=True)
class Record:
    """What is known about a method: one frozen record per method, read by commands, study and docs.

    Attributes
    ----------
    name : str
        Short name, the key in the registry.
    title : str
        Name in tables.
    paper, venue, year
        Where it was published.
    assumes : str
        What its promise rests on, or that it promises nothing.
    selects : str
        What it chooses, and on which role.
    differs : str
        Where this implementation differs from the published code, and why.
    transductive : bool
        Whether unlabelled test images enter the fit, so that a decision depends on the batch.
    single_image : str
        What one test image alone means; only transductive methods need to say it.
    reconstruction : bool
        Written from formulas because no code was released: say "reconstruction" with its numbers.
    reproducible : bool
        False where the paper does not define the method well enough to run it.
    """

    name: str
    title: str
    paper: str
    venue: str
    year: int
    assumes: str
    selects: str
    differs: str
    transductive: bool = False
    single_image: str = ""
    reconstruction: bool = False
    reproducible: bool = True

    def __post_init__(self) -> None:
        if self.transductive and not self.single_image:
            raise SettingsError(f"single_image: {self.name} is transductive; say what one test image alone means")


@dataclass(frozen=True, kw_only=True)
class Roles:
    """The four fitted roles of METHOD.md 1; validation and calibration carry labels in the label space.

    Examples
    --------
    >>> one = Evidence(embeddings=[[1.0, 0.0]], prompt_logits=[[[1.0, 0.0]]], labels=[0], classes=["a", "b"])
    >>> Roles(reference=one, validation=one, gate=one, calibration=one).calibration.n_classes
    2
    """

    reference: Evidence
    validation: Evidence
    gate: Evidence
    calibration: Evidence

    @property
    def by_name(self) -> dict[str, Any]:
        """The four roles, as `Calcode.fit` takes them."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    def __post_init__(self) -> None:
        for name, evidence in self.by_name.items():
            if len(evidence) == 0:
                raise RoleError(f"{name}: the role holds no image; give it at least one")
            if evidence.classes != self.calibration.classes:
                raise RoleError(
                    f"{name}: classes {list(evidence.classes)} are not those of calibration "
                    f"{list(self.calibration.classes)}; restrict both to the same classes in the same order"
                )
        for name in ("validation", "calibration"):
            labels = getattr(self, name).require_labels()
            if (labels < 0).any():
                raise RoleError(f"{name}: {int((labels < 0).sum())} labels lie outside the classes; drop those rows")


@dataclass(frozen=True, eq=False, kw_only=True)
class Prediction:
    """What a method says about n test images; the same arrays whatever the method.

    Attributes
    ----------
    sets : ndarray of bool, shape (n, K)
        Prediction sets, given for every image, deferred or not.
    top_label : ndarray of shape (n,)
        First-ranked class of the method's own probabilities, ties by the lower index.
    top_probability : ndarray of shape (n,)
        Its probability, the confidence that the calibration error looks at.
    deferred : ndarray of bool, shape (n,), or None
        Images handed to a human; None for a method that cannot defer.
    p_values : ndarray of shape (n,), or None
        Support p-values behind the deferral.
    details : mapping
        What was selected or computed on the way (threshold, temperature, penalty).
    """

    sets: BoolArray
    top_label: IntArray
    top_probability: FloatArray
    deferred: BoolArray | None = None
    p_values: FloatArray | None = None
    details: Mapping[str, Detail] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    def __len__(self) -> int:
        return len(self.sets)

    @property
    def accepted(self) -> BoolArray:
        """Mask of the images that were not deferred; all of them where the method cannot defer."""
        if self.deferred is None:
            return np.ones(len(self.sets), dtype=bool)
        return ~self.deferred


class Method(Protocol):
    """One compared method: roles and test evidence in, sets out. Test labels are never read."""

    @property
    def record(self) -> Record:
        """What is known about the method."""
        ...

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> Prediction:
        """Fit on the roles and predict the test images.

        Parameters
        ----------
        roles : Roles
        test : Evidence
            At least one image.
        miscoverage : float
            Allowed share of misses, in (0, 1).
        random_state : int
            Seed of every draw.
        """
        ...
