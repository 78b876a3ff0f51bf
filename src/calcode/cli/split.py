"""`calcode split`: a role for every image."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer

from calcode.cli.options import AsJson, Features, PromptFile, output_option
from calcode.cli.running import Screen, output_file, plain_table


def split(
    features: Features,
    output: Annotated[Path, output_option(help="Parquet file to write.")],
    sizes: Annotated[
        str,
        typer.Option(
            help="Reference, validation, gate, calibration, test: shares that sum to 1, or numbers of images. Four of "
            "them leave out the test role.",
            metavar="A,B,C,D,E",
        ),
    ] = "0.2,0.2,0.2,0.2,0.2",
    seed: Annotated[int, typer.Option(help="Seed of the order in which groups are placed.", metavar="N", min=0)] = 0,
    guard: Annotated[
        float,
        typer.Option(
            help="Miscoverage of the guard that you plan to fit with; it decides how many calibration images a class "
            "needs.",
            metavar="SHARE",
        ),
    ] = 0.05,
    replace_roles: Annotated[
        bool, typer.Option("--replace-roles", help="Assign new roles where the file has some already.")
    ] = False,
    prompts: PromptFile = None,
    as_json: AsJson = False,
) -> None:
    """Give every image one of the five data roles.

    Images of one group (column 'group': patient or lesion) stay together, and every class is spread over the roles as
    evenly as the groups allow. Writes the same file with a column 'role', and its prompts next to it. Says how many
    images of each class every role got, and which classes have too few calibration images for a finite guard.

    Examples
    --------
    calcode split skin.parquet -o split.parquet
    calcode split skin.parquet -o split.parquet --sizes 0.1,0.2,0.2,0.3,0.2
    """
    from calcode.cli.rows import warn_of_unknown_labels
    from calcode.cohorts import open_features, role_counts, split_roles, write_roles
    from calcode.errors import CalcodeWarning, FeatureFileError, RoleError, SettingsError
    from calcode.method.roles import FITTED_ROLES

    target = output_file(output, suffixes=(".parquet",), inputs=(features,))
    if not 0 < guard < 1:
        raise typer.BadParameter(f"{guard} must lie strictly between 0 and 1", param_hint="--guard")
    try:
        parts = [float(part) for part in sizes.split(",")]
    except ValueError as error:
        raise typer.BadParameter(
            f"{sizes!r} is no list of numbers; write for example 0.2,0.2,0.2,0.2,0.2", param_hint="--sizes"
        ) from error
    shares = [int(part) for part in parts] if all(part.is_integer() for part in parts) else parts
    file = open_features(features, prompts=prompts)
    if file.role_counts and not replace_roles:
        complete = set(FITTED_ROLES) <= set(file.role_counts)
        raise FeatureFileError(
            f"{file.path}: column 'role' is there already ({', '.join(file.role_counts)}); "
            f"{'fit on it as it is, or ' * complete}pass --replace-roles to assign new ones"
        )
    warn_of_unknown_labels(file, file.contents.labels)
    labels, groups = file.labels_and_groups()
    screen = Screen(as_json)
    with screen.working(f"Checking {features}"), warnings.catch_warnings(action="ignore", category=CalcodeWarning):
        # Refuse embeddings that later commands would refuse; warnings are left to 'calcode fit'.
        for _ in file.batches(columns=()):
            pass
    alone = len(labels) if groups is None else int((groups == "").sum())
    if alone:
        lack = "no column 'group'"
        if groups is not None:
            lack = f"column 'group' is empty in {alone:,} of {len(labels):,} rows"
        warnings.warn(
            f"{file.path}: {lack}, so images of one patient may fall into different roles; every promise supposes "
            "that they do not",
            CalcodeWarning,
            stacklevel=2,
        )
    try:
        with warnings.catch_warnings(action="ignore", category=CalcodeWarning):
            # The counts are shown below, for the classes of the prompts, so the warnings are not needed.
            roles = split_roles(labels, groups=groups, sizes=shares, random_state=seed)
    except SettingsError as error:
        raise typer.BadParameter(str(error).removeprefix("sizes: "), param_hint="--sizes") from error
    except RoleError as error:
        raise RoleError(f"{file.path}: {error}") from error
    counts = role_counts(labels, roles, classes=file.classes, guard_miscoverage=guard)
    with screen.working(f"Writing {target}"):
        write_roles(target, features=file, roles=roles)
    facts = {
        "output": str(target),
        "roles": list(counts.roles),
        "classes": list(counts.classes),
        "counts": {
            name: dict(zip(counts.roles, row.tolist(), strict=True))
            for name, row in zip(counts.classes, counts.counts, strict=True)
        },
        "infinite_guard": [
            {"name": name, "n": counts.calibration[name], "n_needed": counts.needed[name]}
            for name in counts.infinite_guard
        ],
    }
    screen.emit("split", facts)
    table = plain_table("class", *counts.roles, "total")
    for name, row in zip(counts.classes, counts.counts, strict=True):
        table.add_row(name, *[f"{value:,}" for value in row], f"{row.sum():,}")
    totals = counts.counts.sum(axis=0)
    table.add_row("total", *[f"{value:,}" for value in totals], f"{totals.sum():,}", style="bold")
    screen.show(table)
    screen.say()
    screen.say(counts.guard_sentence(), style="yellow" if counts.infinite_guard else "")
    screen.say(f"Wrote {target}. Next: calcode fit {target} -o model.safetensors")
