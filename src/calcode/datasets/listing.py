"""A data set before any model is used: its images, what is known about them, and what was published."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from calcode.arrays import AnyArray, BoolArray, IntArray, TextArray
from calcode.errors import CalcodeWarning, DatasetError

if TYPE_CHECKING:
    import pyarrow

#: Role of the images of another hospital or device; they are never used for fitting.
EXTERNAL = "external"
#: Columns of text that every listing has.
_COLUMNS = ("ids", "paths", "label_names", "source_labels", "groups")
#: Number of ids that a warning names.
_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Published:
    """The counts published by the owners of a data set.

    Attributes
    ----------
    images : int
    labels : mapping of str to int
        Images per label, under the source's label names; empty if the owners publish none.
    outside : int or None
        All images outside the label space together, if only this is published.
    groups : int or None
        Number of lesions or patients.
    """

    images: int
    labels: Mapping[str, int] = field(default_factory=dict)
    outside: int | None = None
    groups: int | None = None


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ImageListing:
    """n images of a data set with their labels, groups and subgroup columns; nothing is decoded yet.

    Attributes
    ----------
    dataset : str
    classes : tuple of str
        The label space of the task.
    ids : ndarray of str, shape (n,)
    paths : ndarray of str, shape (n,)
        "" if the image file was not found.
    label_names : ndarray of str, shape (n,)
        A class or, for a diagnosis outside the label space, a name that is not among the classes ("scc"), as in
        feature files; "" for an image without a label.
    source_labels : ndarray of str, shape (n,)
        The label in the source's spelling.
    groups : ndarray of str, shape (n,)
        Lesion or patient; a group must not be split between roles; "" if an image is its own group.
    metadata : mapping of str to ndarray of shape (n,)
        `site`, `age`, `sex`, `fitzpatrick`, `anatomic_site`, ... if available; "" and NaN are missing values.
    roles : ndarray of str, shape (n,), or None
        Data role of every image, "" for an image without a role.
    outside : tuple of str
        Label names outside the label space that the data set is known to contain.
    expected : Published or None
        The published counts, minus images left out on purpose.
    notes : tuple of str
        Notes for the user on how the rows were selected.

    Examples
    --------
    >>> listing = ImageListing(dataset="mine", classes=("mel", "nv"), ids=np.array(["a", "b"]),
    ...                        paths=np.array(["a.png", ""]), label_names=np.array(["mel", "scc"]),
    ...                        source_labels=np.array(["MEL", "SCC"]), groups=np.array(["p1", "p2"]))
    >>> listing
    ImageListing(mine: 2 images (1 file found), classes [mel, nv]; labels: 1 in the label space, 1 outside)
    >>> listing.labels.tolist()
    [0, -1]
    """

    dataset: str
    classes: tuple[str, ...]
    ids: TextArray
    paths: TextArray
    label_names: TextArray
    source_labels: TextArray
    groups: TextArray
    metadata: Mapping[str, AnyArray] = field(default_factory=dict)
    roles: TextArray | None = None
    outside: tuple[str, ...] = ()
    expected: Published | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(set(self.classes)) != len(self.classes) or not self.classes:
            raise DatasetError(f"classes: {list(self.classes)} must be distinct names, at least one")
        for name, values in self.columns().items():
            if np.shape(values) != (len(self.ids),):
                raise DatasetError(f"{name}: shape {np.shape(values)} for {len(self.ids)} images")
            if values.dtype.kind == "U" or name in self.metadata:
                continue
            raise DatasetError(f"{name}: {values.dtype} given, text needed")

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: slice | AnyArray | Sequence[int]) -> Self:
        """The chosen rows, in the given order: a slice, a mask, or indices."""
        index: Any = rows
        chosen: dict[str, Any] = {name: getattr(self, name)[index] for name in _COLUMNS}
        chosen["metadata"] = {name: values[index] for name, values in self.metadata.items()}
        return replace(self, **chosen, roles=None if self.roles is None else self.roles[index])

    def __repr__(self) -> str:
        n, files = len(self), int((self.paths != "").sum())
        inside = int(self.in_space.sum())
        unlabelled = int((self.label_names == "").sum())
        labels = f"{inside} in the label space, {n - inside - unlabelled} outside"
        if unlabelled:
            labels += f", {unlabelled} without"
        return (
            f"ImageListing({self.dataset}: {n} image{'s' * (n != 1)} ({files} file{'s' * (files != 1)} found), "
            f"classes [{', '.join(self.classes)}]; labels: {labels})"
        )

    @property
    def labels(self) -> IntArray:
        """Class index of every image, -1 outside the label space or without a label; shape (n,)."""
        index = {name: i for i, name in enumerate(self.classes)}
        return np.array([index.get(name, -1) for name in self.label_names.tolist()], dtype=np.int64)

    @property
    def in_space(self) -> BoolArray:
        """Mask of the images whose label is one of the classes; shape (n,)."""
        return np.isin(self.label_names, self.classes)

    @property
    def has_file(self) -> BoolArray:
        """Mask of the images whose file was found; shape (n,)."""
        return np.asarray(self.paths != "")

    @property
    def unknown_labels(self) -> tuple[str, ...]:
        """Labels that are neither classes nor known to be outside the label space; perhaps misspelt."""
        return tuple(sorted(set(self.label_names.tolist()) - {*self.classes, *self.outside, ""}))

    @property
    def repeated_ids(self) -> tuple[str, ...]:
        """Ids that occur more than once."""
        return tuple(name for name, count in Counter(self.ids.tolist()).items() if count > 1)

    @property
    def counts(self) -> dict[str, int]:
        """Images per label name: the classes first, then other names, then "" (without a label)."""
        found = Counter(self.label_names.tolist())
        others = sorted(found.keys() - {*self.classes, ""})
        return {name: found[name] for name in (*self.classes, *others, "") if name in found}

    def columns(self) -> dict[str, AnyArray]:
        """All columns under their names in feature files, and the path."""
        roles = {} if self.roles is None else {"role": self.roles}
        return {
            "id": self.ids,
            "path": self.paths,
            "label_name": self.label_names,
            **roles,
            "group": self.groups,
            "source_label": self.source_labels,
            **self.metadata,
        }

    def restrict(self, classes: Sequence[str]) -> Self:
        """The same images in a smaller label space; labels of dropped classes are then outside it."""
        unknown = [name for name in classes if name not in self.classes]
        if unknown:
            raise DatasetError(f"classes: {unknown} not in the label space {list(self.classes)}")
        dropped = [name for name in self.classes if name not in classes]
        return replace(self, classes=tuple(classes), outside=(*self.outside, *dropped))

    def to_table(self) -> pyarrow.Table:
        """An Arrow table, one row per image; "" and NaN become nulls. It contains file names, so it is a working table.

        Feature and decision files get the ids from here, never the paths.
        """
        import pyarrow as pa

        arrays = {
            name: pa.array([value or None for value in values.tolist()], type=pa.string())
            if values.dtype.kind == "U"
            else pa.array(values, from_pandas=True)
            for name, values in self.columns().items()
        }
        if "dataset" not in arrays:
            arrays["dataset"] = pa.array([self.dataset] * len(self), type=pa.string())
        return pa.table(arrays)

    def announced(self) -> Self:
        """The same listing, after one warning that names all differences from the published counts."""
        problems = list(count_sentences(self))
        missing = self.ids[~self.has_file].tolist()
        if missing:
            problems.append(f"{len(missing):,} of {len(self):,} image files are missing ({_first(missing)})")
        if self.unknown_labels:
            problems.append(f"unknown labels: {', '.join(self.unknown_labels)}")
        if self.repeated_ids:
            problems.append(f"{len(self.repeated_ids)} ids repeated ({_first(self.repeated_ids)})")
        if problems:
            warnings.warn(f"{self.dataset}: {'; '.join(problems)}", CalcodeWarning, stacklevel=3)
        return self


@dataclass(frozen=True, kw_only=True)
class LabelMap:
    """Maps the source's labels to those of the task.

    Attributes
    ----------
    inside : mapping of str to str
        From source label to class.
    outside : mapping of str to str
        From source label to the name kept for a diagnosis outside the label space.
    """

    inside: Mapping[str, str]
    outside: Mapping[str, str] = field(default_factory=dict)

    def names(self, source: TextArray) -> TextArray:
        """Label names, shape (n,); an unknown source label keeps its spelling, so that it is noticed."""
        table = {**self.inside, **self.outside}
        return np.array([table.get(one, one) for one in source.tolist()], dtype=np.str_)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A data set that can be read by name.

    Attributes
    ----------
    name, title : str
    needs : str
        Required content of the folder.
    read : callable
        Maps a folder to an `ImageListing`.
    images : int or None
        Published number of images.
    licence : str
        Licence of the images, as stated by their owners.
    templates : str or None
        Name of the matching packaged prompt templates.
    roles : callable or None
        Maps a listing to the roles of the paper's setting, "" for images that it does not use; None if the setting
        uses this data set as an external cohort, or if there is no setting.
    """

    name: str
    title: str
    needs: str
    read: Callable[[Path], ImageListing]
    images: int | None = None
    licence: str = ""
    templates: str | None = None
    roles: Callable[[ImageListing], TextArray] | None = None


def joined(listings: Sequence[ImageListing], *, dataset: str, classes: Sequence[str]) -> ImageListing:
    """Several data sets as one listing with a column `dataset`; a column that one lacks has missing values there.

    Parameters
    ----------
    listings : sequence of ImageListing
    dataset : str
        Name of the joined data set.
    classes : sequence of str
        The common label space; other labels are outside it.
    """
    names = list(dict.fromkeys(name for listing in listings for name in listing.metadata))
    metadata: dict[str, AnyArray] = {}
    for name in names:
        text = any(one.metadata[name].dtype.kind == "U" for one in listings if name in one.metadata)
        parts = [one.metadata.get(name, np.full(len(one), "" if text else np.nan)) for one in listings]
        metadata[name] = np.concatenate([part.astype(np.str_) if text else part for part in parts])
    metadata["dataset"] = np.concatenate([np.full(len(one), one.dataset) for one in listings])
    roles = [one.roles for one in listings if one.roles is not None]
    seen = {name for one in listings for name in (*one.classes, *one.outside)}
    columns: dict[str, Any] = {name: np.concatenate([getattr(one, name) for one in listings]) for name in _COLUMNS}
    return ImageListing(
        dataset=dataset,
        classes=tuple(classes),
        **columns,
        metadata=metadata,
        roles=np.concatenate(roles) if len(roles) == len(listings) else None,
        outside=tuple(sorted(seen - set(classes))),
        notes=tuple(note for one in listings for note in one.notes),
    )


def count_sentences(listing: ImageListing) -> tuple[str, ...]:
    """Differences between a listing's rows and the published counts; empty if none are published."""
    expected = listing.expected
    if expected is None:
        return ()
    sentences = []
    if len(listing) != expected.images:
        sentences.append(f"{len(listing):,} images listed, {expected.images:,} published")
    if expected.labels:
        found = Counter(listing.source_labels.tolist())
        rows = [(label, found[label], count) for label, count in expected.labels.items()]
        if expected.outside is None:
            rows += [(label, found[label], 0) for label in sorted(found.keys() - expected.labels.keys())]
        else:
            outside = len(listing) - sum(found[label] for label in expected.labels)
            rows.append(("outside the label space", outside, expected.outside))
        differing = [
            f"{label or 'no label'} {count:,} of {published:,}"
            for label, count, published in rows
            if count != published
        ]
        if differing:
            sentences.append(f"labels differ: {', '.join(differing)}")
    groups = len(set(listing.groups.tolist()) - {""})
    if expected.groups is not None and groups != expected.groups:
        sentences.append(f"{groups:,} groups, {expected.groups:,} published")
    return tuple(sentences)


def _first(names: list[str] | tuple[str, ...]) -> str:
    return f"first: {', '.join(names[:_SHOWN])}"
