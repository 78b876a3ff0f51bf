"""`calcode data`: the known data sets, and problems in a folder of images."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from calcode.cli.options import AsJson, names_in, option_groups
from calcode.cli.running import ExitCode, Screen, command_group, plain_table
from calcode.errors import CalcodeWarning

_OWN = "For images of your own (csv, folders)"


def _column(words: str) -> Any:
    return typer.Option(help=words, metavar="COLUMN", rich_help_panel=_OWN)


@dataclass(frozen=True, kw_only=True)
class _Columns:
    """Names of the columns of a CSV file."""

    id_column: Annotated[str | None, _column("Holds the ids of the images; usually 'id'.")] = None
    path_column: Annotated[str | None, _column("Holds the paths of the images; usually 'path'.")] = None
    label_column: Annotated[str | None, _column("Holds the labels; usually 'label_name'.")] = None
    group_column: Annotated[str | None, _column("Holds lesion or patient; usually 'group'.")] = None
    role_column: Annotated[str | None, _column("Holds the data roles; usually 'role'.")] = None


@option_groups(columns=_Columns)
def check(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="A name that 'calcode data list' shows.")],
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Holds the images; or the CSV file that 'calcode embed' takes.")
    ],
    columns: _Columns,
    csv: Annotated[
        Path | None, typer.Option(help="CSV file that lists the images.", metavar="FILE", rich_help_panel=_OWN)
    ] = None,
    classes: Annotated[
        list[str] | None, typer.Option(help="The label space, separated by commas.", rich_help_panel=_OWN)
    ] = None,
    outside: Annotated[
        list[str] | None, typer.Option(help="Labels known to lie outside, separated by commas.", rich_help_panel=_OWN)
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that decode; default: one per core.")] = None,
    smallest_side: Annotated[int, typer.Option(min=1, help="Name images with a shorter side, in pixels.")] = 64,
    as_json: AsJson = False,
) -> None:
    """Find out what is wrong with a folder of images before any model sees them.

    Every image is decoded once. Reported are missing and unreadable files, counts that differ from the
    published ones, unknown labels, repeated ids, identical images with conflicting labels or in several
    roles, groups in several roles, and images that are too small. The exit code is 1 if something must be
    fixed.

    Examples
    --------
    calcode data check ham10000 data/HAM10000
    calcode data check csv photos/list.csv
    calcode data check csv photos --csv list.csv --label-column diagnosis
    calcode data check folders photos --json
    """
    from calcode.datasets import CsvColumns, read_class_folders, read_csv_images
    from calcode.datasets.check import Level, check_listing, listing_to_check, role_totals

    if folder.is_file() and dataset == "csv" and csv is None:
        csv, folder = folder, folder.parent
    screen = Screen(as_json)
    with warnings.catch_warnings(action="ignore", category=CalcodeWarning), screen.working("Looking for files"):
        # The findings repeat all of these warnings, with examples.
        own = CsvColumns(**{name.removesuffix("_column"): value for name, value in vars(columns).items()})
        space, others = names_in(classes) or None, names_in(outside)
        if dataset == "folders" and not (csv or own.named()):
            listing = read_class_folders(folder, classes=space, outside=others)
        elif not (csv or own.named() or space or others):
            listing = listing_to_check(dataset, folder)
        elif dataset != "csv":
            raise typer.BadParameter(
                f"{dataset!r} has its own columns and classes; such options are for 'csv' and 'folders'",
                param_hint="DATASET",
            )
        elif csv is None:
            raise typer.BadParameter("name the CSV file too", param_hint="--csv")
        else:
            listing = read_csv_images(csv, images=folder, columns=own, classes=space, outside=others)
    with screen.counting("Decoding images", total=len(listing)) as advance:
        report = check_listing(listing, workers=workers, smallest_side=smallest_side, advance=advance)
    facts = {
        "dataset": dataset,
        "folder": str(folder),
        "images": len(listing),
        "files": int(listing.has_file.sum()),
        "classes": list(listing.classes),
        "in_space": int(listing.in_space.sum()),
        "counts": listing.counts,
        "published": None if listing.expected is None else listing.expected.images,
        "roles": role_totals(listing),
        "must_fix": report.must_fix,
        "findings": [asdict(one) | {"level": one.level.value} for one in report.findings],
    }
    screen.emit("data check", facts)
    screen.say(
        f"{listing.dataset}: {len(listing):,} images listed, {int(listing.has_file.sum()):,} files found, "
        f"{int(listing.in_space.sum()):,} in the label space"
    )
    table = plain_table("label", "images")
    for name, count in listing.counts.items():
        place = "" if name in listing.classes else " (no label)" if not name else " (outside)"
        table.add_row(f"{name}{place}".strip(), f"{count:,}")
    screen.show(table)
    roles = role_totals(listing)
    if roles:
        screen.say("roles: " + ", ".join(f"{name} {count:,}" for name, count in roles.items()))
    words = {Level.FIX: "Must be fixed", Level.WARNING: "Worth a look", Level.NOTE: "Good to know"}
    for level, word in words.items():
        findings = [one for one in report.findings if one.level is level]
        if findings:
            screen.heading(word)
        for one in findings:
            shown = f" ({', '.join(one.examples)}{', ...' * (one.count > len(one.examples))})"
            screen.point(one.message + (shown if one.examples else ""))
    if report.must_fix:
        raise typer.Exit(int(ExitCode.DATA))
    screen.say("Nothing must be fixed.", style="green")


def list_(as_json: AsJson = False) -> None:
    """Show the data sets that can be read by name, and what their folders must hold.

    Examples
    --------
    calcode data list
    """
    from calcode.datasets import DATASETS

    screen = Screen(as_json)
    keys = ("name", "title", "images", "licence", "needs", "templates")
    rows = [{key: getattr(one, key) for key in keys} for one in DATASETS.values()]
    screen.emit("data list", {"datasets": rows})
    words = ("what", "licence", "the folder must hold")
    table = plain_table("name", "images", *words, words=words, unbroken=("name",))
    for one in DATASETS.values():
        images = "" if one.images is None else f"{one.images:,}"
        table.add_row(one.name, images, one.title, one.licence, one.needs)
    screen.show(table)


group = command_group(
    "Data sets: which are known, and what is wrong with a folder of images.",
    check,
    list_,
    examples=("calcode data list", "calcode data check ham10000 data/HAM10000"),
)
