"""Find problems in a folder of images before long work begins."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path

from calcode.datasets.duplicates import duplicates_among, inspect_images
from calcode.datasets.listing import ImageListing, count_sentences
from calcode.datasets.registry import dataset_named
from calcode.errors import RoleError

#: An image with a shorter side, in pixels, has less detail than the smallest published data set here (96).
SMALLEST_SIDE = 64
_SHOWN = 5


class Level(StrEnum):
    """Importance of a finding."""

    FIX = "fix"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One kind of problem and the images that have it.

    Attributes
    ----------
    kind : str
        A fixed word for machines, such as "missing-files".
    level : Level
    message : str
        What is wrong and what to do.
    count : int
        Number of images, groups or labels affected; 0 if the finding is about the whole listing.
    examples : tuple of str
        The first few of them: ids, never the path of a DICOM file.
    """

    kind: str
    level: Level
    message: str
    count: int = 0
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """All findings on one listing.

    Attributes
    ----------
    listing : ImageListing
    findings : tuple of Finding
        Findings that must be fixed come first.
    """

    listing: ImageListing
    findings: tuple[Finding, ...]

    @property
    def must_fix(self) -> bool:
        """Whether something must be fixed before figures are meaningful."""
        return any(one.level is Level.FIX for one in self.findings)


def check_listing(
    listing: ImageListing,
    *,
    workers: int | None = None,
    smallest_side: int = SMALLEST_SIDE,
    advance: Callable[[int], None] | None = None,
) -> CheckReport:
    """Decode every image and report everything that would spoil later work.

    Parameters
    ----------
    listing : ImageListing
        If it has `roles`, the check includes that no group and no image is in two of them.
    workers : int, optional
        Number of decoding processes; default: one per core; 0 decodes in this process.
    smallest_side : int
        Images with a shorter side are named.
    advance : callable, optional
        Called with 1 after every image.

    Returns
    -------
    CheckReport
    """
    facts = inspect_images(listing, workers=workers, advance=advance)
    found = [(name, one) for name, one, there in zip(listing.ids, facts, listing.has_file, strict=True) if there]
    roles_of: dict[str, set[str]] = defaultdict(set)
    if listing.roles is not None:
        for group, role in zip(listing.groups.tolist(), listing.roles.tolist(), strict=True):
            if group and role:
                roles_of[group].add(role)
    copies = duplicates_among(listing, facts=facts).groups
    conflicting = [one for one in copies if one.conflicting]
    crossing = [one for one in copies if one.across_roles and not one.conflicting]
    apart = [one for one in copies if not one.conflicting and not one.across_roles and one.across_groups]
    findings: list[Finding] = []

    def report(level: Level, kind: str, what: str, concerned: Iterable[str], remedy: str) -> None:
        names = list(concerned)
        if names:
            message = f"{what}: {len(names):,}; {remedy}"
            examples = tuple(names[:_SHOWN])
            findings.append(Finding(kind=kind, level=level, message=message, count=len(names), examples=examples))

    fix, warn = partial(report, Level.FIX), partial(report, Level.WARNING)
    fix("repeated-ids", "ids that occur more than once", listing.repeated_ids, "give every image its own")
    missing = listing.ids[~listing.has_file].tolist()
    fix("missing-files", "missing image files", missing, "download or unpack the rest, or leave their rows out")
    what = "labels that are neither classes nor known to lie outside them"
    fix("unknown-labels", what, listing.unknown_labels, "correct their spelling, or say that they lie outside")
    unlabelled = listing.ids[listing.label_names == ""].tolist()
    warn("unlabelled", "images without a label", unlabelled, "they can be decided on, but neither calibrate nor test")
    empty = [name for name in listing.classes if name not in listing.counts]
    warn("empty-classes", "classes without an image", empty, "without calibration images they would be in every set")
    straddling = [group for group, roles in roles_of.items() if len(roles) > 1]
    remedy = "keep all images of a lesion or patient in one role (calcode.split_roles does)"
    fix("straddling-groups", "groups in more than one role", straddling, remedy)
    unreadable = [f"{name}: {one.reason}" for name, one in found if one.reason is not None]
    fix("unreadable", "images that cannot be read", unreadable, "download them again or leave their rows out")
    small = [
        f"{name}: {one.width} x {one.height}"
        for name, one in found
        if one.reason is None and min(one.width, one.height) < smallest_side
    ]
    what = f"images with a side shorter than {smallest_side} pixels"
    warn("small-images", what, small, "they may be thumbnails")
    burned_in = [str(name) for name, one in found if one.burned_in_text]
    what = "DICOM images with text in their pixels, by their own header"
    warn("burned-in-text", what, burned_in, "look whether it names a patient before they go anywhere")
    names = [_joined(one.ids, [label or "no label" for label in one.label_names]) for one in conflicting]
    remedy = "drop them whole: which label is right cannot be known"
    fix("conflicting-duplicates", "identical images with different labels", names, remedy)
    names = [_joined(one.ids, one.roles) for one in crossing]
    fix("duplicates-across-roles", "identical images in more than one role", names, "keep one image of each")
    what = "identical images of different lesions or patients, or of none"
    warn("duplicates", what, [" = ".join(one.ids) for one in apart], "keep one image of each")
    harmless = len(copies) - len(conflicting) - len(crossing) - len(apart)
    if harmless:
        text = f"identical images within one lesion or patient: {harmless:,}; they do no harm"
        findings.append(Finding(kind="duplicates-within-groups", level=Level.NOTE, message=text, count=harmless))
    findings += [
        Finding(kind="counts", level=Level.WARNING, message=f"not as published: {sentence}")
        for sentence in count_sentences(listing)
    ]
    findings += [Finding(kind="note", level=Level.NOTE, message=note) for note in listing.notes]
    order = list(Level)
    return CheckReport(listing=listing, findings=tuple(sorted(findings, key=lambda one: order.index(one.level))))


def _joined(ids: Sequence[str], words: Sequence[str]) -> str:
    return " = ".join(f"{name} ({word})" for name, word in zip(ids, words, strict=True))


def listing_to_check(name: str, folder: str | Path) -> ImageListing:
    """Read a data set by name, with the roles of the paper's setting if it can be split.

    A folder that is too small or too broken for a split is checked too; a note says why it has no roles.
    """
    known = dataset_named(name)
    listing = known.read(Path(folder))
    if known.roles is None:
        return listing
    try:
        return replace(listing, roles=known.roles(listing))
    except RoleError as error:
        return replace(listing, notes=(*listing.notes, f"not split into roles ({error})"))


def role_totals(listing: ImageListing) -> dict[str, int]:
    """Images per role, in the order of their first row; empty if there are no roles."""
    return {} if listing.roles is None else dict(Counter(role for role in listing.roles.tolist() if role))
