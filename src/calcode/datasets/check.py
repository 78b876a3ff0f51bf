"""What is wrong with a folder of images, found before the long work begins."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from calcode.datasets.duplicates import ImageFacts, duplicates_among, inspect_images
from calcode.datasets.listing import ImageListing, count_sentences
from calcode.datasets.registry import dataset_named
from calcode.errors import RoleError

#: Below this many pixels a side, an image has less detail than the smallest published set here (96).
SMALLEST_SIDE = 64
_SHOWN = 5


class Level(StrEnum):
    """How much a finding matters."""

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
        Images, groups or labels concerned; 0 where the finding is about the whole.
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
        The ones that must be fixed first.
    """

    listing: ImageListing
    findings: tuple[Finding, ...]

    @property
    def must_fix(self) -> bool:
        """Whether something must be fixed before figures mean anything."""
        return any(one.level is Level.FIX for one in self.findings)


def check_listing(
    listing: ImageListing,
    *,
    workers: int | None = None,
    smallest_side: int = SMALLEST_SIDE,
    advance: Callable[[int], None] | None = None,
) -> CheckReport:
    """Decode every image and report everything that would spoil the work on them.

    Parameters
    ----------
    listing : ImageListing
        With `roles`, it is also checked that no group and no image is in two of them.
    workers : int, optional
        Processes that decode; one per core if not given, 0 for this one.
    smallest_side : int
        Images with a shorter side are named.
    advance : callable, optional
        Called with 1 for every image done.

    Returns
    -------
    CheckReport
    """
    facts = inspect_images(listing, workers=workers, advance=advance)
    findings = [
        *_about_rows(listing),
        *_about_labels(listing),
        *_about_groups(listing),
        *_about_files(listing, facts, smallest_side=smallest_side),
        *_about_duplicates(listing, facts),
        *(Finding(kind="note", level=Level.NOTE, message=note) for note in listing.notes),
    ]
    order = list(Level)
    return CheckReport(
        listing=listing, findings=tuple(sorted(findings, key=lambda one: order.index(one.level)))
    )


def listing_to_check(name: str, folder: str | Path) -> ImageListing:
    """A data set by its name, with the roles of the paper's setting where it can be split.

    A folder too small or too broken for a split is checked all the same; a note says why it has no roles.
    """
    known = dataset_named(name)
    listing = known.read(Path(folder))
    if known.roles is None:
        return listing
    try:
        return replace(listing, roles=known.roles(listing))
    except RoleError as error:
        return replace(listing, notes=(*listing.notes, f"not split into roles ({error})"))


def _finding(
    kind: str, level: Level, what: str, remedy: str, *, examples: Iterable[str], of: int | None = None
) -> list[Finding]:
    """One finding with its count, or none if there are no examples."""
    names = list(examples)
    if not names:
        return []
    total = "" if of is None else f" of {of:,}"
    message = f"{what}: {len(names):,}{total}; {remedy}"
    return [
        Finding(kind=kind, level=level, message=message, count=len(names), examples=tuple(names[:_SHOWN]))
    ]


def _about_rows(listing: ImageListing) -> list[Finding]:
    findings = _finding(
        "repeated-ids",
        Level.FIX,
        "ids that occur more than once",
        "give every image its own",
        examples=listing.repeated_ids,
    )
    findings += _finding(
        "missing-files",
        Level.FIX,
        "missing image files",
        "download or unpack the rest, or leave their rows out",
        examples=listing.ids[~listing.has_file].tolist(),
        of=len(listing),
    )
    return findings + [
        Finding(kind="counts", level=Level.WARNING, message=f"not as published: {sentence}")
        for sentence in count_sentences(listing)
    ]


def _about_labels(listing: ImageListing) -> list[Finding]:
    findings = _finding(
        "unknown-labels",
        Level.FIX,
        "labels that are neither classes nor known to lie outside them",
        "correct their spelling, or say that they lie outside",
        examples=listing.unknown_labels,
    )
    findings += _finding(
        "unlabelled",
        Level.WARNING,
        "images without a label",
        "they can be decided on, but neither calibrate nor test",
        examples=listing.ids[listing.label_names == ""].tolist(),
    )
    counts = listing.counts
    return findings + _finding(
        "empty-classes",
        Level.WARNING,
        "classes without an image",
        "without calibration images they would be in every set",
        examples=[name for name in listing.classes if name not in counts],
    )


def _about_groups(listing: ImageListing) -> list[Finding]:
    if listing.roles is None:
        return []
    roles_of: dict[str, set[str]] = defaultdict(set)
    for group, role in zip(listing.groups.tolist(), listing.roles.tolist(), strict=True):
        if group and role:
            roles_of[group].add(role)
    return _finding(
        "straddling-groups",
        Level.FIX,
        "groups in more than one role",
        "keep all images of a lesion or patient in one role (calcode.split_roles does)",
        examples=[group for group, roles in roles_of.items() if len(roles) > 1],
    )


def _about_files(listing: ImageListing, facts: Sequence[ImageFacts], *, smallest_side: int) -> list[Finding]:
    ids = listing.ids.tolist()
    pairs = [(name, one) for name, one, there in zip(ids, facts, listing.has_file, strict=True) if there]
    findings = _finding(
        "unreadable",
        Level.FIX,
        "images that cannot be read",
        "download them again or leave their rows out",
        examples=[f"{name}: {one.reason}" for name, one in pairs if one.reason is not None],
    )
    findings += _finding(
        "small-images",
        Level.WARNING,
        f"images with a side shorter than {smallest_side} pixels",
        "they may be thumbnails",
        examples=[
            f"{name}: {one.width} x {one.height}"
            for name, one in pairs
            if one.reason is None and min(one.width, one.height) < smallest_side
        ],
    )
    return findings + _finding(
        "burned-in-text",
        Level.WARNING,
        "DICOM images with text in their pixels, by their own header",
        "look whether it names a patient before they go anywhere",
        examples=[name for name, one in pairs if one.burned_in_text],
    )


def _about_duplicates(listing: ImageListing, facts: Sequence[ImageFacts]) -> list[Finding]:
    groups = duplicates_among(listing, facts=facts).groups
    conflicting = [one for one in groups if one.conflicting]
    crossing = [one for one in groups if one.across_roles and not one.conflicting]
    apart = [one for one in groups if not one.conflicting and not one.across_roles and one.across_groups]
    harmless = len(groups) - len(conflicting) - len(crossing) - len(apart)
    findings = _finding(
        "conflicting-duplicates",
        Level.FIX,
        "identical images with different labels",
        "drop them whole: which label is right cannot be known",
        examples=(
            " = ".join(
                f"{name} ({label or 'no label'})"
                for name, label in zip(one.ids, one.label_names, strict=True)
            )
            for one in conflicting
        ),
    )
    findings += _finding(
        "duplicates-across-roles",
        Level.FIX,
        "identical images in more than one role",
        "keep one image of each",
        examples=(
            " = ".join(f"{name} ({role})" for name, role in zip(one.ids, one.roles, strict=True))
            for one in crossing
        ),
    )
    findings += _finding(
        "duplicates",
        Level.WARNING,
        "identical images of different lesions or patients, or of none",
        "keep one image of each",
        examples=(" = ".join(one.ids) for one in apart),
    )
    if harmless:
        text = f"identical images within one lesion or patient: {harmless:,}; they do no harm"
        findings.append(
            Finding(kind="duplicates-within-groups", level=Level.NOTE, message=text, count=harmless)
        )
    return findings


def role_totals(listing: ImageListing) -> dict[str, int]:
    """Images per role, in the order of their first row; empty where there are no roles."""
    return {} if listing.roles is None else dict(Counter(role for role in listing.roles.tolist() if role))
