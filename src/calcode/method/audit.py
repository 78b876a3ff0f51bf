"""The support audit (METHOD.md 4): is this image like the calibration images?"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.errors import CalcodeWarning
from calcode.kernels import NeighbourGraph, ScreenedAnchors, distances_to, nearest_distances, search_graph
from calcode.kernels.threads import core_blocks, run_blocks
from calcode.method.evidence import Evidence, one_per_group, prompt_probabilities, robust_probabilities

if TYPE_CHECKING:
    from calcode.kernels.device_points import DevicePoints

BASE_DIAGNOSTICS = ("distance", "energy", "msp", "prompt")
DIAGNOSTICS = (*BASE_DIAGNOSTICS, "fused")
FusedRule = Literal["paper", "split"]
#: Distances, columns and errors, as returned by `ScreenedAnchors.nearest`.
Nearest = tuple[FloatArray, IntArray, FloatArray]
AverageName = Literal["median", "mean"]

#: Slack of the test B >= B(x), so that rounding in a product cannot change a p-value.
RANK_TOLERANCE = 1e-9
#: Upper bound of the computed cosine distance of an image to itself.
_OWN_ROW_DISTANCE = 1e-12
#: Probabilities are raised to at least this value inside logarithms.
LOG_FLOOR = 1e-12


def neighbour_distance(embeddings: FloatArray, *, reference: FloatArray, n_neighbors: int) -> FloatArray:
    """Median of the smallest cosine distances to the reference; larger means weaker support.

    Parameters
    ----------
    embeddings : ndarray of shape (n, d)
    reference : ndarray of shape (m, d)
    n_neighbors : int
        If the reference has fewer images, all of them.

    Returns
    -------
    ndarray of shape (n,)
    """
    return _averaged(nearest_distances(embeddings, reference, n_neighbors=n_neighbors), average="median")


def negative_energy(prompt_logits: FloatArray) -> FloatArray:
    """-logsumexp over classes of the prompt-averaged logits; shape (n, M, K) in, (n,) out."""
    average = prompt_logits.mean(axis=1)
    largest = average.max(axis=1)
    energy: FloatArray = -(largest + np.log(np.exp(average - largest[:, None]).sum(axis=1)))
    return energy


def prompt_disagreement(probabilities: FloatArray, robust: FloatArray) -> FloatArray:
    """Mean over prompts of KL(p_m || p_rob).

    Parameters
    ----------
    probabilities : ndarray of shape (n, M, K)
    robust : ndarray of shape (n, K)

    Examples
    --------
    >>> agreeing = np.full((1, 3, 2), 0.5)
    >>> prompt_disagreement(agreeing, agreeing.mean(axis=1))
    array([0.])
    """
    log_ratio = np.log(np.maximum(probabilities, LOG_FLOOR)) - np.log(np.maximum(robust, LOG_FLOOR))[:, None, :]
    divergence: FloatArray = (probabilities * log_ratio).sum(axis=2).mean(axis=1)
    return divergence


def rank_p_values(values: FloatArray, *, sorted_gate: FloatArray) -> FloatArray:
    """(1 + #{gate: B >= B(x)}) / (n_g + 1) (Eq. 9).

    Parameters
    ----------
    values : ndarray of shape (n,)
    sorted_gate : ndarray of shape (n_g,)
        Gate values, ascending.

    Examples
    --------
    >>> rank_p_values(np.array([0.0, 2.5, 9.0]), sorted_gate=np.array([1.0, 2.0, 3.0]))
    array([1.  , 0.5 , 0.25])
    """
    at_least = len(sorted_gate) - np.searchsorted(sorted_gate, values - RANK_TOLERANCE, side="left")
    return np.asarray((1.0 + at_least) / (len(sorted_gate) + 1.0), dtype=np.float64)


def auroc(values: FloatArray, errors: BoolArray) -> float:
    """Area under the ROC curve of `values` for `errors`, mid-ranks for ties; nan without both kinds (Eq. 8).

    Examples
    --------
    >>> auroc(np.array([1.0, 2.0, 2.0, 3.0]), np.array([False, False, True, True]))
    0.875
    """
    n_wrong = int(errors.sum())
    n_right = len(errors) - n_wrong
    if n_wrong == 0 or n_right == 0:
        return float("nan")
    ordered = np.sort(values)
    # Sums of halves are exact, so equal areas compare equal.
    mid_ranks = (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right") + 1) / 2
    wins = float(mid_ranks[errors].sum()) - n_wrong * (n_wrong + 1) / 2
    return wins / (n_wrong * n_right)


@dataclass(frozen=True, eq=False, kw_only=True)
class SupportAudit:
    """A diagnostic chosen on validation and calibrated on the gate. It can be used alone.

    Attributes
    ----------
    name : str
        The chosen diagnostic.
    aurocs : dict of str to float
        AUROC for top-1 error of every candidate on validation, in the fixed order.
    reference : ndarray of shape (n_ref, d)
    n_neighbors, trim : int
    fused : {"paper", "split"}
    gate_base : dict of str to ndarray
        Ascending gate values of the four base diagnostics, which give the ranks inside `fused`.
    gate_values : ndarray
        Ascending gate values of the chosen diagnostic, which give the p-values.
    gate_distances : ndarray of shape (n_groups,) or None
        Ascending `distance` of one gate image per group, whichever diagnostic was chosen: the reference of the monitor
        of SITE.md S7. None in older model files, which did not keep it.
    independent : bool
        Whether the selection never used the part of the gate that gives the p-values (METHOD.md 10).
    average : {"median", "mean"}
        How the neighbours' distances are averaged; METHOD.md 4 takes the median.
    graph : NeighbourGraph or None
        Index for finding neighbours in a very large reference; None searches all of it.
    own_rows_count : bool
        Whether a reference image counts among its own neighbours.
    validation_values : ndarray or None
        B of the chosen diagnostic on the validation images on which it was chosen; not kept in a file.
    device : str or None
        Torch device for the neighbour search, in float64; not kept in a file.

    Examples
    --------
    An image unlike all others has the smallest p-value that a gate of 99 images can give:

    >>> rng = np.random.default_rng(0)
    >>> def role(n):
    ...     labels = rng.integers(3, size=n)
    ...     images = np.eye(3, 8)[labels] + rng.normal(scale=0.4, size=(n, 8))
    ...     images /= np.linalg.norm(images, axis=1, keepdims=True)
    ...     return Evidence.from_text(embeddings=images, text=np.eye(3, 8)[:, None], temperature=0.2,
    ...                               labels=labels, classes="abc")
    >>> audit = SupportAudit.fit(reference=role(100), validation=role(200), gate=role(99))
    >>> audit.name
    'msp'
    >>> strange = Evidence.from_text(embeddings=np.eye(8)[7:], text=np.eye(3, 8)[:, None], temperature=0.2,
    ...                              classes="abc")
    >>> audit.p_values(strange)
    array([0.01])
    """

    name: str
    aurocs: dict[str, float]
    reference: FloatArray
    n_neighbors: int
    trim: int
    fused: FusedRule
    gate_base: dict[str, FloatArray]
    gate_values: FloatArray
    independent: bool
    gate_distances: FloatArray | None = None
    average: AverageName = "median"
    graph: NeighbourGraph | None = None
    own_rows_count: bool = True
    validation_values: FloatArray | None = None
    device: str | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """Facts for the model file: diagnostic, AUROCs, independence, and the neighbour search with its error."""
        search = {"kind": "exact"} if self.graph is None else self.graph.facts
        return {"name": self.name, "aurocs": self.aurocs, "independent": self.independent, "search": search}

    @property
    def auroc(self) -> float:
        """AUROC of the chosen diagnostic."""
        return self.aurocs[self.name]

    @classmethod
    def fit(
        cls,
        *,
        reference: Evidence,
        validation: Evidence,
        gate: Evidence,
        candidates: Sequence[str] = DIAGNOSTICS,
        n_neighbors: int = 10,
        trim: int = 1,
        fused: FusedRule = "paper",
        random_state: int = 0,
        average: AverageName = "median",
        device: str | None = None,
    ) -> Self:
        """Choose the diagnostic on validation and calibrate it on the gate.

        Parameters
        ----------
        reference, validation, gate : Evidence
            Only the embeddings of `reference` are used; `gate` needs no labels.
        candidates : sequence of str
            Among "distance", "energy", "msp", "prompt", "fused".
        n_neighbors, trim : int
        fused : {"paper", "split"}
            "split" takes the ranks inside `fused` from one half of the gate and the p-values from the other.
        random_state : int
            Seeds the halving.
        average : {"median", "mean"}
            How the neighbours' distances are averaged.
        device : str, optional
            Torch device for the neighbour search.
        """
        # Gate rows for the ranks inside `fused`, and gate rows for the p-values.
        ranking = calibrating = np.arange(len(gate))
        if fused == "split":
            shuffled = np.random.default_rng(random_state).permutation(len(gate))
            ranking, calibrating = shuffled[: len(gate) // 2], shuffled[len(gate) // 2 :]
        with_fused = "fused" in candidates
        needed = [name for name in BASE_DIAGNOSTICS if with_fused or name in candidates]
        graph = None
        if "distance" in needed:
            graph = search_graph(reference.embeddings, sample=validation.embeddings, n_neighbors=n_neighbors)
        audit = cls(
            name="",
            aurocs={},
            reference=reference.embeddings,
            n_neighbors=n_neighbors,
            trim=trim,
            fused=fused,
            gate_base={},
            gate_values=np.empty(0),
            independent=fused == "split" or not with_fused,
            average=average,
            graph=graph,
            device=device,
        )
        gate_values = {name: audit.values(gate, name) for name in needed}
        gate_base = {name: np.sort(gate_values[name][ranking]) for name in needed} if with_fused else {}
        validation_values = {name: audit.values(validation, name) for name in needed}
        if with_fused:
            validation_values["fused"] = fused_rank(validation_values, sorted_gate=gate_base)
            gate_values["fused"] = fused_rank(gate_values, sorted_gate=gate_base)
        top = robust_probabilities(validation.prompt_logits, trim=trim).argmax(axis=1)
        errors = np.asarray(top != validation.require_labels())
        aurocs = {name: auroc(validation_values[name], errors) for name in DIAGNOSTICS if name in candidates}
        if errors.all() or not errors.any():
            name = next(iter(aurocs))
            warnings.warn(
                f"audit: top-1 is {'always wrong' if errors.all() else 'never wrong'} on validation, so no diagnostic "
                f"can be preferred; '{name}' is used",
                CalcodeWarning,
                stacklevel=2,
            )
        else:
            # If areas are equal, the earlier name wins.
            name = max(aurocs, key=lambda name: aurocs[name])
        audit = replace(
            audit,
            name=name,
            aurocs=aurocs,
            gate_base=gate_base if name == "fused" else {},
            gate_values=np.sort(gate_values[name][calibrating]),
            graph=graph if name in ("distance", "fused") else None,
            validation_values=validation_values[name],
        )
        one_each = one_per_group(gate, random_state=random_state)
        if "distance" in needed and audit.graph is graph:
            gate_distances = gate_values["distance"][one_each]
        else:
            # Computed like later distances: exact and approximate neighbours must not be compared.
            gate_distances = audit.values(gate[one_each], "distance")
        return replace(audit, gate_distances=np.sort(gate_distances))

    @property
    def validation_p_values(self) -> FloatArray | None:
        """p_audit of the validation images that `fit` was given; these images chose the diagnostic."""
        if self.validation_values is None:
            return None
        return rank_p_values(self.validation_values, sorted_gate=self.gate_values)

    def statistic(self, evidence: Evidence) -> FloatArray:
        """B(x) of the chosen diagnostic, larger = weaker support; shape (n,)."""
        if self.name != "fused":
            return self.values(evidence, self.name)
        values = {name: self.values(evidence, name) for name in BASE_DIAGNOSTICS}
        return fused_rank(values, sorted_gate=self.gate_base)

    def distances(self, evidence: Evidence) -> FloatArray:
        """`distance` of every image, whichever diagnostic was chosen (SITE.md S7); float64, shape (n,)."""
        return self.values(evidence, "distance")

    def p_values(self, evidence: Evidence, *, nearest: Nearest | None = None) -> FloatArray:
        """p_audit(x) of Eq. 9, equal to that from float64 values; shape (n,).

        Distances are first computed in float32. If a gate value lies within the error, they are computed in float64.

        Parameters
        ----------
        evidence : Evidence
        nearest : tuple, optional
            Result of `ScreenedAnchors.nearest` for these images, if already known.
        """
        gates = self.gate_base if self.name == "fused" else {self.name: self.gate_values}
        screened = self.graph is None and self.own_rows_count and self.device is None
        if nearest is None and screened and "distance" in gates:
            nearest = self._anchors.nearest(evidence.embeddings, n_neighbors=self.n_neighbors)
        blocks = list(core_blocks(len(evidence.embeddings)))
        if screened and len(blocks) > 1:
            p_values = np.empty(len(evidence))

            def rank(rows: slice) -> None:
                found = None if nearest is None else (nearest[0][rows], nearest[1][rows], nearest[2][rows])
                p_values[rows] = self.p_values(evidence[rows], nearest=found)

            run_blocks(rank, blocks)
            return p_values
        ranks = []
        for name, gate in gates.items():
            if name == "distance" and nearest is not None:
                values = self._settled_distances(evidence, gate, nearest)
            else:
                values = self.values(evidence, name)
            ranks.append(rank_p_values(values, sorted_gate=gate))
        if self.name != "fused":
            return ranks[0]
        return rank_p_values(1.0 - np.minimum.reduce(ranks), sorted_gate=self.gate_values)

    def _settled_distances(self, evidence: Evidence, gate: FloatArray, found: Nearest) -> FloatArray:
        """`distance` from what `ScreenedAnchors.nearest` returned, in float64 if the gate rank could depend on it."""
        nearest, columns, errors = found
        values = _averaged(nearest[:, : self.n_neighbors], average=self.average)
        low, high = (np.searchsorted(gate, values - RANK_TOLERANCE + shift, side="left") for shift in (-errors, errors))
        unclear = np.flatnonzero(low != high)
        if len(unclear) == 0:
            return values
        exact = distances_to(evidence.embeddings[unclear], self.reference, columns[unclear])
        values[unclear] = _averaged(exact[:, : self.n_neighbors], average=self.average)
        if nearest.shape[1] < len(self.reference):
            # A column that was not found is farther than the last one found, up to the error of float32.
            again = unclear[exact[:, self.n_neighbors - 1] > nearest[unclear, -1] - errors[unclear]]
            values[again] = self.values(evidence[again], "distance")
        return values

    def without_own_rows(self) -> SupportAudit:
        """The audit for images that may be in the reference: each image ignores its own row (SITE.md S17)."""
        return replace(self, own_rows_count=False)

    def prepare(self) -> None:
        """Build now what the first image would build, so that several threads do not each build their own."""
        if self.graph is not None:
            self.graph.prepare()
        elif self.name in ("distance", "fused"):
            _ = self._anchors

    def values(self, evidence: Evidence, name: str) -> FloatArray:
        """One of the four base diagnostics, larger = weaker support; float64, shape (n,)."""
        if name == "distance":
            count = self.n_neighbors + (not self.own_rows_count)
            if self.graph is not None:
                nearest = self.graph.nearest_distances(evidence.embeddings, n_neighbors=count)
            elif self.device is not None:
                nearest = self._device_points.nearest_distances(evidence.embeddings, count=count)
            else:
                nearest = nearest_distances(evidence.embeddings, self.reference, n_neighbors=count)
            averages = _averaged(nearest[:, : self.n_neighbors], average=self.average)
            if not self.own_rows_count:
                # A neighbour at distance zero is the image itself; in a small reference none takes its place.
                own = nearest[:, 0] <= _OWN_ROW_DISTANCE
                others = nearest[own, 1:]
                averages[own] = _averaged(others, average=self.average) if others.size else np.inf
            return averages
        if name == "energy":
            return negative_energy(evidence.prompt_logits)
        robust = robust_probabilities(evidence.prompt_logits, trim=self.trim)
        if name == "msp":
            return np.asarray(-robust.max(axis=1))
        return prompt_disagreement(prompt_probabilities(evidence.prompt_logits), robust)

    @cached_property
    def _device_points(self) -> DevicePoints:
        from calcode.kernels.device_points import DevicePoints

        return DevicePoints(self.reference, device=self.device or "cpu")

    @cached_property
    def _anchors(self) -> ScreenedAnchors:
        return ScreenedAnchors(self.reference)


def fused_rank(values: dict[str, FloatArray], *, sorted_gate: dict[str, FloatArray]) -> FloatArray:
    """1 - the smallest gate rank among the four base diagnostics (Eq. 7); shape (n,)."""
    ranks = [rank_p_values(values[name], sorted_gate=sorted_gate[name]) for name in BASE_DIAGNOSTICS]
    fused: FloatArray = 1.0 - np.minimum.reduce(ranks)
    return fused


def _averaged(nearest: FloatArray, *, average: AverageName) -> FloatArray:
    """Median or mean over each row of ascending distances."""
    middle = slice((nearest.shape[1] - 1) // 2, nearest.shape[1] // 2 + 1)
    return np.asarray((nearest if average == "mean" else nearest[:, middle]).mean(axis=1))
