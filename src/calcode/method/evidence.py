"""Output of the frozen model for n images: unit embeddings and prompt logits (METHOD.md 1 and 2)."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from calcode.arrays import AnyArray, BoolArray, FloatArray, IntArray, TextArray
from calcode.errors import CalcodeWarning, EvidenceError

#: Vectors whose norm is further from 1 are normalised with a warning: they may be unnormalised features.
NORM_TOLERANCE = 0.01
#: Added to the sum of trimmed evidence in Eq. 5.
TRIM_EPSILON = 1e-12
#: Temperatures of frozen models are near 0.01.
_SMALLEST_TEMPERATURE = 1e-12
#: Rows per product of logits; a fixed shape makes a row's logits independent of its batch.
_PRODUCT_ROWS = 64


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Evidence:
    """Embeddings and prompt logits of n images, checked once and immutable.

    Parameters
    ----------
    embeddings : array_like of shape (n, d)
        Image embeddings; normalised to unit length in float64.
    prompt_logits : array_like of shape (n, M, K)
        Logit of every image for every prompt and class: images first, then prompts, then classes.
    labels : array_like of shape (n,), optional
        Class indices; -1 marks an image whose diagnosis lies outside `classes`.
    classes : sequence of str
        The K class names, in the order of the last axis of `prompt_logits`.
    ids, groups : sequence, optional
        One image id and one group (lesion, patient) per row. They are used only for the overlap check.
    review_probability : array_like of shape (n,), optional
        Known review probability of every image, 0 to 1, NaN if unknown (SITE.md S5). A site model with
        `calibrate_with="weighted"` needs it.
    prompt_digest, backbone : str, optional
        Identify the prompts and the frozen model that made the logits; a fitted model refuses others.

    Examples
    --------
    >>> evidence = Evidence(embeddings=[[1.0, 0.0]], prompt_logits=[[[2.0, 0.0, 1.0]]], classes=["a", "b", "c"])
    >>> evidence
    Evidence(1 image x 2 dimensions; prompt_logits: 1 image x 1 prompt x 3 classes [a, b, c]; no labels)
    """

    embeddings: FloatArray
    prompt_logits: FloatArray
    labels: IntArray | None = None
    classes: tuple[str, ...]
    ids: TextArray | None = None
    groups: TextArray | None = None
    review_probability: FloatArray | None = None
    prompt_digest: str | None = None
    backbone: str | None = None

    def __init__(
        self,
        *,
        embeddings: ArrayLike,
        prompt_logits: ArrayLike,
        labels: ArrayLike | None = None,
        classes: Sequence[str],
        ids: Sequence[object] | AnyArray | None = None,
        groups: Sequence[object] | AnyArray | None = None,
        review_probability: ArrayLike | None = None,
        prompt_digest: str | None = None,
        backbone: str | None = None,
    ) -> None:
        names = checked_classes(classes)
        vectors = _unit_rows(embeddings, name="embeddings")
        n = len(vectors)
        try:
            logits = np.asarray(prompt_logits, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise EvidenceError(f"prompt_logits: not an array of numbers ({error})") from error
        if logits.ndim != 3 or logits.shape[0] != n or logits.shape[2] != len(names) or logits.shape[1] == 0:
            raise EvidenceError(
                f"prompt_logits: shape {logits.shape} is not (images, prompts, classes) = ({n}, M, {len(names)})"
            )
        if not np.isfinite(logits).all():
            bad = np.flatnonzero(~np.isfinite(logits).all(axis=(1, 2)))
            raise EvidenceError(f"prompt_logits: NaN or infinity in {_rows(bad)}")
        self._store(
            embeddings=vectors,
            prompt_logits=logits.copy() if logits is prompt_logits else logits,
            labels=None if labels is None else checked_labels(labels, n=n, n_classes=len(names)),
            classes=names,
            ids=_text_column(ids, n=n, name="ids"),
            groups=_text_column(groups, n=n, name="groups"),
            review_probability=None if review_probability is None else _probabilities(review_probability, n=n),
            prompt_digest=prompt_digest,
            backbone=backbone,
        )

    @classmethod
    def from_text(
        cls,
        *,
        embeddings: ArrayLike,
        text: ArrayLike,
        temperature: float,
        labels: ArrayLike | None = None,
        classes: Sequence[str],
        ids: Sequence[object] | AnyArray | None = None,
        groups: Sequence[object] | AnyArray | None = None,
        review_probability: ArrayLike | None = None,
        prompt_digest: str | None = None,
        backbone: str | None = None,
    ) -> Self:
        """Evidence from a bank of prompt embeddings: logit = cos(image, prompt) / temperature (Eq. 4).

        Parameters
        ----------
        embeddings : array_like of shape (n, d)
        text : array_like of shape (K, M, d)
            One embedding per class and prompt: classes first, then prompts.
        temperature : float
            Divides the cosines; positive.
        labels, classes, ids, groups, review_probability, prompt_digest, backbone
            As in `Evidence`.

        Examples
        --------
        >>> bank = np.eye(3)[:, None, :]  # three classes, one prompt each
        >>> Evidence.from_text(embeddings=np.eye(3), text=bank, temperature=0.5, classes="abc").prompt_logits[0]
        array([[2., 0., 0.]])
        """
        names = checked_classes(classes)
        vectors = _unit_rows(embeddings, name="embeddings")
        n, dimension = vectors.shape
        bank = np.asarray(text, dtype=np.float64)
        if bank.ndim != 3 or bank.shape[0] != len(names) or bank.shape[2] != dimension:
            raise EvidenceError(
                f"text: shape {bank.shape} is not (classes, prompts, dimensions) = ({len(names)}, M, {dimension})"
            )
        checked_temperature(temperature)
        k, m, _ = bank.shape
        # Columns in the order (prompt, class), so that the reshape below yields (n, M, K).
        columns = _unit_rows(bank.transpose(1, 0, 2).reshape(m * k, dimension), name="text").T
        cosines, padded = np.empty((n, m * k)), np.zeros((_PRODUCT_ROWS, dimension))
        for start in range(0, n, _PRODUCT_ROWS):
            rows = vectors[start : start + _PRODUCT_ROWS]
            padded[: len(rows)] = rows
            cosines[start : start + len(rows)] = (padded @ columns)[: len(rows)]
        evidence = object.__new__(cls)
        evidence._store(
            embeddings=vectors,
            prompt_logits=(cosines / temperature).reshape(n, m, k),
            labels=None if labels is None else checked_labels(labels, n=n, n_classes=len(names)),
            classes=names,
            ids=_text_column(ids, n=n, name="ids"),
            groups=_text_column(groups, n=n, name="groups"),
            review_probability=None if review_probability is None else _probabilities(review_probability, n=n),
            prompt_digest=prompt_digest,
            backbone=backbone,
        )
        return evidence

    def _store(self, **values: Any) -> None:
        for field in fields(self):
            value = values[field.name]
            if isinstance(value, np.ndarray):
                value = value.view()
                value.flags.writeable = False
            object.__setattr__(self, field.name, value)

    def _replace(self, **changes: Any) -> Self:
        """Copy with some fields replaced by values already checked, without normalising again."""
        copy = object.__new__(type(self))
        copy._store(**({field.name: getattr(self, field.name) for field in fields(self)} | changes))
        return copy

    def __len__(self) -> int:
        return len(self.embeddings)

    def __getitem__(self, rows: slice | AnyArray | Sequence[int] | int) -> Self:
        """The chosen rows, in the given order: a slice, a mask, indices, or one index."""
        index: Any = [rows] if isinstance(rows, int | np.integer) else rows
        columns = ("embeddings", "prompt_logits", "labels", "ids", "groups", "review_probability")
        return self._replace(**{name: value[index] for name in columns if (value := getattr(self, name)) is not None})

    def __repr__(self) -> str:
        n, m, k = self.prompt_logits.shape
        names = ", ".join(self.classes[:8]) + (", ..." if k > 8 else "")
        labels = "no labels"
        if self.labels is not None:
            outside = int((self.labels < 0).sum())
            labels = f"labels: {n - outside} in the label space, {outside} outside"
        return (
            f"Evidence({_counted(n, 'image')} x {_counted(self.dimension, 'dimension')}; prompt_logits: "
            f"{_counted(n, 'image')} x {_counted(m, 'prompt')} x {k} classes [{names}]; {labels})"
        )

    @property
    def dimension(self) -> int:
        """Length d of an embedding."""
        return int(self.embeddings.shape[1])

    @cached_property
    def embeddings_digest(self) -> str:
        """`embeddings_digest` of these images, computed once."""
        return embeddings_digest(self.embeddings)

    @property
    def n_prompts(self) -> int:
        """Number M of prompts per class."""
        return int(self.prompt_logits.shape[1])

    @property
    def n_classes(self) -> int:
        """Number K of classes."""
        return len(self.classes)

    @property
    def in_space(self) -> BoolArray:
        """Mask of the rows whose label is one of the classes."""
        return self.require_labels() >= 0

    def require_labels(self) -> IntArray:
        """The labels, or an error that says they are missing."""
        if self.labels is None:
            raise EvidenceError("labels: this step needs labels and the evidence has none; pass labels=...")
        return self.labels

    def restrict(self, classes: Sequence[str]) -> Self:
        """The same images with fewer classes: logits are restricted, labels of dropped classes become -1.

        Parameters
        ----------
        classes : sequence of str
            Classes to keep, in the order of the result.

        Examples
        --------
        >>> evidence = Evidence(embeddings=np.eye(2), prompt_logits=np.zeros((2, 1, 3)), labels=[0, 2],
        ...                     classes=["a", "b", "c"])
        >>> evidence.restrict(["c", "b"]).labels
        array([-1,  0])
        """
        names = checked_classes(classes)
        missing = [name for name in names if name not in self.classes]
        if missing:
            raise EvidenceError(f"classes: {missing} not among the evidence's classes {list(self.classes)}")
        columns = np.array([self.classes.index(name) for name in names])
        labels = self.labels
        if labels is not None:
            new_index = np.full(self.n_classes + 1, -1, dtype=np.int64)
            new_index[columns] = np.arange(len(columns))
            labels = new_index[labels]
        return self._replace(classes=names, prompt_logits=self.prompt_logits[:, :, columns], labels=labels)

    def without_identity(self) -> Self:
        """The same evidence without ids and groups, which turns the overlap check off."""
        return self._replace(ids=None, groups=None)


def embeddings_digest(embeddings: FloatArray) -> str:
    """SHA-256 of the embeddings' bytes."""
    return hashlib.sha256(np.ascontiguousarray(embeddings).data).hexdigest()


def one_per_group(evidence: Evidence, *, random_state: int) -> IntArray:
    """Draw one row per group to represent it (SITE.md S1).

    Groups are taken in sorted order. Each takes one call of `integers(m)` of `np.random.default_rng(random_state)`,
    with m its number of rows in input order. A row without a group is its own group.

    Returns
    -------
    ndarray of shape (n_groups,)
        In the order of the groups; without groups, all rows in input order.

    Examples
    --------
    >>> evidence = Evidence(embeddings=np.eye(3), prompt_logits=np.zeros((3, 1, 2)), classes="ab",
    ...                     groups=["p2", "p1", "p2"])
    >>> one_per_group(evidence, random_state=0)
    array([1, 2])
    """
    if evidence.groups is None:
        return np.arange(len(evidence))
    rows: dict[tuple[str, int], list[int]] = {}
    for row, group in enumerate(evidence.groups.tolist()):
        rows.setdefault((group, -1 if group else row), []).append(row)
    rng = np.random.default_rng(random_state)
    return np.array([rows[key][rng.integers(len(rows[key]))] for key in sorted(rows)], dtype=np.int64)


def prompt_probabilities(prompt_logits: FloatArray) -> FloatArray:
    """Softmax over classes for every image and prompt, p_m(y | x) of Eq. 4.

    Parameters
    ----------
    prompt_logits : ndarray of shape (n, M, K)

    Returns
    -------
    ndarray of shape (n, M, K)
    """
    shifted = np.exp(prompt_logits - prompt_logits.max(axis=2, keepdims=True))
    probabilities: FloatArray = shifted / shifted.sum(axis=2, keepdims=True)
    return probabilities


def robust_probabilities(prompt_logits: FloatArray, *, trim: int) -> FloatArray:
    """Average over prompts without the `trim` largest and smallest of each class, p_rob of Eq. 5.

    Parameters
    ----------
    prompt_logits : ndarray of shape (n, M, K)
    trim : int
        Values dropped at each end; 2 trim < M. Ignored with a single prompt.

    Returns
    -------
    ndarray of shape (n, K)

    Examples
    --------
    >>> per_prompt = np.array([[[0.9, 0.1], [0.6, 0.4], [0.01, 0.99]]])
    >>> robust_probabilities(np.log(per_prompt), trim=1).round(6)
    array([[0.6, 0.4]])
    """
    n_prompts = prompt_logits.shape[1]
    if trim < 0 or (n_prompts > 1 and 2 * trim >= n_prompts):
        raise EvidenceError(
            f"trim: {trim} values at each end leave nothing of {n_prompts} prompts; use 0 to {(n_prompts - 1) // 2}"
        )
    kept = prompt_probabilities(prompt_logits)
    if n_prompts > 1 and trim > 0:
        kept = np.sort(kept, axis=1)[:, trim : n_prompts - trim]
    average = kept.mean(axis=1)
    robust: FloatArray = average / (average.sum(axis=1, keepdims=True) + TRIM_EPSILON)
    return robust


def checked_temperature(temperature: object) -> float:
    """Return the temperature as a float; raise `EvidenceError` unless it is a number that keeps logits finite."""
    try:
        number = float(temperature)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError) as error:
        raise EvidenceError(f"temperature: {str(temperature)[:60]!r} is not a number") from error
    if not (np.isfinite(number) and number > 0):
        raise EvidenceError(f"temperature: {temperature!r} must be a positive number")
    if number < _SMALLEST_TEMPERATURE:
        raise EvidenceError(f"temperature: {number!r} is below {_SMALLEST_TEMPERATURE:g}; logits would be infinite")
    return number


def checked_labels(labels: ArrayLike, *, n: int, n_classes: int) -> IntArray:
    """Return labels as class indices, -1 outside the label space, or raise an error; shape (n,)."""
    array = np.asarray(labels)
    if array.size == 0:
        # numpy makes an empty list an array of floats.
        array = array.astype(np.int64)
    if array.shape != (n,):
        raise EvidenceError(f"labels: shape {array.shape} is not ({n},)")
    if array.dtype.kind not in "iu":
        raise EvidenceError(
            f"labels: {array.dtype} given, class indices needed (integers, -1 = outside the label space)"
        )
    wrong = np.flatnonzero((array < -1) | (array >= n_classes))
    if len(wrong):
        raise EvidenceError(
            f"labels: {array[wrong[0]]} in row {wrong[0]} is neither -1 nor a class index 0 to {n_classes - 1} "
            f"({len(wrong)} such rows)"
        )
    return array.astype(np.int64)


def _unit_rows(vectors: ArrayLike, *, name: str) -> FloatArray:
    try:
        rows = np.asarray(vectors, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise EvidenceError(f"{name}: not an array of numbers ({error})") from error
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise EvidenceError(f"{name}: shape {rows.shape} is not (images, dimensions)")
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    broken = np.flatnonzero(~((norms > 0) & np.isfinite(norms)))
    if len(broken):
        bad = broken[~np.isfinite(rows[broken]).all(axis=1)]
        if len(bad):
            raise EvidenceError(f"{name}: NaN or infinity in {_rows(bad)}")
        # A vector whose squared length overflows or underflows has no usable direction.
        raise EvidenceError(f"{name}: a vector of length zero or beyond float64 in {_rows(broken)}")
    off = np.flatnonzero(np.abs(norms - 1) > NORM_TOLERANCE)
    if len(off):
        warnings.warn(
            f"{name}: {len(off)} of {len(rows)} rows are not of unit length (first: row {off[0]}, "
            f"norm {norms[off[0]]:.4g}); all are renormalised",
            CalcodeWarning,
            stacklevel=4,
        )
    unit: FloatArray = rows / norms[:, None]
    return unit


def checked_classes(classes: Sequence[str]) -> tuple[str, ...]:
    """Return the label space, two or more different names, or raise `EvidenceError`."""
    names = tuple(str(name) for name in classes)
    if len(names) < 2:
        raise EvidenceError(f"classes: {list(names)} holds fewer than two classes; there is nothing to decide")
    if len(set(names)) != len(names):
        repeated = sorted({name for name in names if names.count(name) > 1})
        raise EvidenceError(f"classes: {repeated} named more than once")
    return names


def _text_column(values: Sequence[object] | AnyArray | None, *, n: int, name: str) -> TextArray | None:
    if values is None:
        return None
    if isinstance(values, np.ndarray) and values.dtype.kind == "U":
        column = values.copy()
    else:
        column = np.array(["" if value is None else str(value) for value in values], dtype=np.str_)
    if column.shape != (n,):
        raise EvidenceError(f"{name}: {len(column)} values for {n} images")
    return column


def _probabilities(values: ArrayLike, *, n: int) -> FloatArray:
    try:
        column = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise EvidenceError(f"review_probability: not an array of numbers ({error})") from error
    if column.shape != (n,):
        raise EvidenceError(f"review_probability: shape {column.shape} is not ({n},)")
    wrong = np.flatnonzero((column < 0) | (column > 1))
    if len(wrong):
        raise EvidenceError(f"review_probability: {column[wrong[0]]:g} in {_rows(wrong)} is not between 0 and 1")
    return column


def _rows(indices: IntArray) -> str:
    shown = ", ".join(str(i) for i in indices[:5])
    return f"row{'s' if len(indices) > 1 else ''} {shown}" + (
        f" and {len(indices) - 5} more" if len(indices) > 5 else ""
    )


def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}" + ("" if n == 1 else "s")
