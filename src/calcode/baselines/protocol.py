"""The common interface of the compared methods, and the record of facts about each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import numpy as np

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.errors import RoleError, SettingsError
from calcode.method.evidence import Evidence

__all__ = ["Detail", "Evidence", "Method", "Prediction", "Record", "Roles"]

#: A value that a method reports about a run: chosen settings, thresholds, counts.
Detail = float | int | str | bool


@dataclass(frozen=True, kw_only=True)
class Record:
    """Facts about a method: one frozen record per method, read by commands, study and docs.

    Attributes
    ----------
    name : str
        Short name, the key in the registry.
    title : str
        Name in tables.
    paper, venue, year
        Where it was published.
    assumes : str
        What its promise requires, or that it promises nothing.
    selects : str
        What it selects, and on which role.
    differs : str
        How and why this implementation differs from the published code.
    transductive : bool
        Whether unlabelled test images are used in the fit, so that a decision depends on the batch.
    single_image : str
        What happens with a single test image; required only for transductive methods.
    reconstruction : bool
        Written from formulas because no code was released: its numbers must be marked "reconstruction".
    reproducible : bool
        False if the paper does not define the method well enough to run it.
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
    """The four fitted roles of METHOD.md 1; validation and calibration have labels in the label space.

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
        """The four roles, as arguments of `Calcode.fit`."""
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
    """Output of a method for n test images; the arrays are the same for all methods.

    Attributes
    ----------
    sets : ndarray of bool, shape (n, K)
        Prediction sets for every image, including deferred ones.
    top_label : ndarray of shape (n,)
        First-ranked class of the method's own probabilities, ties by the lower index.
    top_probability : ndarray of shape (n,)
        Its probability: the confidence used for the calibration error.
    deferred : ndarray of bool, shape (n,), or None
        Images handed to a human; None for a method that cannot defer.
    p_values : ndarray of shape (n,), or None
        Support p-values that determine the deferral.
    details : mapping
        Values selected or computed in the process (threshold, temperature, penalty).
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
        """Mask of the images that were not deferred; all images if the method cannot defer."""
        if self.deferred is None:
            return np.ones(len(self.sets), dtype=bool)
        return ~self.deferred


class Method(Protocol):
    """One compared method; it maps roles and test evidence to sets. Test labels are never read."""

    @property
    def record(self) -> Record:
        """Facts about the method."""
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
