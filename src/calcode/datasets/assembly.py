"""The last steps that all readers share: map labels, compare counts, say what is missing."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from calcode.arrays import TextArray
from calcode.datasets.listing import ImageListing, Published
from calcode.errors import CalcodeWarning

_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class LabelMap:
    """From the source's labels to the task's.

    Attributes
    ----------
    classes : tuple of str
        The label space.
    inside : mapping of str to str
        Source label to class.
    outside : mapping of str to str
        Source label to the name under which a diagnosis outside the label space is kept.
    """

    classes: tuple[str, ...]
    inside: Mapping[str, str]
    outside: Mapping[str, str] = field(default_factory=dict)

    def names(self, source: TextArray) -> TextArray:
        """Label names, shape (n,); an unknown source label keeps its spelling and so stands out."""
        table = {**self.inside, **self.outside}
        return np.array([table.get(one, one) for one in source.tolist()], dtype=np.str_)


def count_sentences(listing: ImageListing) -> tuple[str, ...]:
    """Where the rows of a listing differ from the published counts; nothing where none are published."""
    expected = listing.expected
    if expected is None:
        return ()
    sentences = []
    if len(listing) != expected.images:
        sentences.append(f"{len(listing):,} images listed, {expected.images:,} published")
    differing = [
        f"{label or 'no label'} {count:,} of {published:,}"
        for label, count, published in _compared(listing, expected)
        if count != published
    ]
    if differing:
        sentences.append(f"labels differ: {', '.join(differing)}")
    groups = len(set(listing.groups.tolist()) - {""})
    if expected.groups is not None and groups != expected.groups:
        sentences.append(f"{groups:,} groups, {expected.groups:,} published")
    return tuple(sentences)


def _compared(listing: ImageListing, expected: Published) -> list[tuple[str, int, int]]:
    """Label, found, published: for all labels that the owners count."""
    if not expected.labels:
        return []
    found = Counter(listing.source_labels.tolist())
    rows = [(label, found[label], count) for label, count in expected.labels.items()]
    if expected.outside is None:
        return rows + [(label, found[label], 0) for label in sorted(found.keys() - expected.labels.keys())]
    outside = len(listing) - sum(found[label] for label in expected.labels)
    return [*rows, ("outside the label space", outside, expected.outside)]


def announced(listing: ImageListing) -> ImageListing:
    """The same listing, after one warning that says all that differs from what was published."""
    problems = list(count_sentences(listing))
    missing = listing.ids[~listing.has_file].tolist()
    if missing:
        problems.append(f"{len(missing):,} of {len(listing):,} image files are missing ({_first(missing)})")
    if listing.unknown_labels:
        problems.append(f"unknown labels: {', '.join(listing.unknown_labels)}")
    if listing.repeated_ids:
        problems.append(f"{len(listing.repeated_ids)} ids repeated ({_first(listing.repeated_ids)})")
    if problems:
        warnings.warn(f"{listing.dataset}: {'; '.join(problems)}", CalcodeWarning, stacklevel=3)
    return listing


def _first(names: list[str] | tuple[str, ...]) -> str:
    return f"first: {', '.join(names[:_SHOWN])}"
