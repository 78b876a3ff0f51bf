"""`calcode fit`: a model from the four fitted roles of a feature file."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calcode.cli.options import (
    AsJson,
    Conditions,
    FeatureFileArgument,
    PromptFile,
    names_in,
    number_in,
    output_file,
)
from calcode.cli.running import Command
from calcode.errors import SettingsError
from calcode.method.model import Calcode

if TYPE_CHECKING:
    from calcode.cli.screen import Screen

#: The defaults are the model's own.
_DEFAULT = Calcode().get_params()

_PROMISES = "Sets and promises"
_AUDIT = "Deferral"
_LOCAL = "Localization"
_TAIL = "Protected classes"


class Level(StrEnum):
    """The level rules."""

    LOO = "loo"
    EXACT = "exact"
    UPPER = "upper"
    CERTIFIED = "certified"


class Fused(StrEnum):
    """Which part of the gate ranks the fused diagnostic."""

    PAPER = "paper"
    SPLIT = "split"


class Protect(StrEnum):
    """Which classes are protected."""

    DISCOVERED = "discovered"
    ALL = "all"
    NONE = "none"


_LEVEL = Level(_DEFAULT["level"])
_FUSED = Fused(_DEFAULT["fused"])
_PROTECT = Protect(_DEFAULT["protect"])


def fit(
    features: FeatureFileArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Model file to write, .safetensors.", metavar="FILE")
    ],
    miscoverage: Annotated[
        float,
        typer.Option(
            help="Allowed share of accepted images whose set misses the diagnosis.",
            metavar="SHARE",
            rich_help_panel=_PROMISES,
        ),
    ] = _DEFAULT["miscoverage"],
    level: Annotated[
        Level,
        typer.Option(
            help="How the local level is found: loo, exact, upper or certified. All but loo make localized coverage a "
            "promise; where one is wanted, certified is recommended.",
            metavar="RULE",
            rich_help_panel=_PROMISES,
        ),
    ] = _LEVEL,
    level_grid: Annotated[
        str,
        typer.Option(
            help="Number of levels that loo chooses from, or 'none' for the critical value itself.",
            metavar="N",
            rich_help_panel=_PROMISES,
        ),
    ] = str(_DEFAULT["level_grid"]),
    trim: Annotated[
        int,
        typer.Option(
            help="Prompts dropped at each end of every class's evidence.",
            metavar="N",
            rich_help_panel=_PROMISES,
        ),
    ] = _DEFAULT["trim"],
    keep_top: Annotated[
        bool,
        typer.Option(
            "--keep-top/--paper-sets",
            help="Keep the label ranked first in every set, or follow the paper, whose sets may lack it.",
            rich_help_panel=_PROMISES,
        ),
    ] = _DEFAULT["keep_top"],
    binary_utility: Annotated[
        bool,
        typer.Option(
            "--binary-utility", help="With two classes: defer full sets too.", rich_help_panel=_PROMISES
        ),
    ] = _DEFAULT["binary_utility"],
    deferral_level: Annotated[
        float,
        typer.Option(
            help="Images with an audit p-value below it are deferred.",
            metavar="SHARE",
            rich_help_panel=_AUDIT,
        ),
    ] = _DEFAULT["deferral_level"],
    audit: Annotated[
        str,
        typer.Option(
            help="Candidate diagnostics, of which validation chooses one; 'none' accepts every image.",
            metavar="NAMES",
            rich_help_panel=_AUDIT,
        ),
    ] = ",".join(_DEFAULT["audit"]),
    fused: Annotated[
        Fused,
        typer.Option(
            help="Which part of the gate ranks the fused diagnostic: paper (all of it) or split, which makes the "
            "audit's p-value a promise and costs half the gate.",
            metavar="RULE",
            rich_help_panel=_AUDIT,
        ),
    ] = _FUSED,
    neighbors: Annotated[
        int, typer.Option(help="Neighbours of the audit distance.", metavar="N", rich_help_panel=_AUDIT)
    ] = _DEFAULT["n_neighbors"],
    bandwidth: Annotated[
        str,
        typer.Option(
            help="Width of the kernel: 'auto' takes the most local one that validation supports, 'inf' turns "
            "localization off.",
            metavar="H",
            rich_help_panel=_LOCAL,
        ),
    ] = str(_DEFAULT["bandwidth"]),
    support_budget: Annotated[
        float,
        typer.Option(
            help="Share of infinite held-out thresholds that the automatic bandwidth may cause. Smaller: smaller sets "
            "at home, less safety away.",
            metavar="SHARE",
            rich_help_panel=_LOCAL,
        ),
    ] = _DEFAULT["support_budget"],
    folds: Annotated[
        int,
        typer.Option(help="Folds of the cross-fit on validation.", metavar="N", rich_help_panel=_LOCAL),
    ] = _DEFAULT["n_folds"],
    protect: Annotated[
        Protect,
        typer.Option(
            help="Which classes get a guard: discovered (those that validation finds fragile), all, or none.",
            metavar="RULE",
            rich_help_panel=_TAIL,
        ),
    ] = _PROTECT,
    always_protect: Annotated[
        list[str] | None,
        typer.Option(
            help="Classes that get a guard whatever validation says.",
            metavar="CLASSES",
            rich_help_panel=_TAIL,
        ),
    ] = None,
    guard: Annotated[
        list[str] | None,
        typer.Option(
            help="Miscoverage of protected classes: a number for all, or CLASS=SHARE, repeated; classes that are not "
            f"named take --miscoverage. (default: {_DEFAULT['guard_miscoverage']})",
            metavar="SHARE",
            rich_help_panel=_TAIL,
        ),
    ] = None,
    discovery_margin: Annotated[
        float,
        typer.Option(
            help="A class is fragile when its held-out coverage falls below 1 - miscoverage - margin.",
            metavar="SHARE",
            rich_help_panel=_TAIL,
        ),
    ] = _DEFAULT["discovery_margin"],
    min_class_count: Annotated[
        int,
        typer.Option(
            help="Classes with fewer accepted validation images are protected.",
            metavar="N",
            rich_help_panel=_TAIL,
        ),
    ] = _DEFAULT["min_class_count"],
    class_local_min: Annotated[
        int,
        typer.Option(
            help="Calibration images from which on a guard is localized too.",
            metavar="N",
            rich_help_panel=_TAIL,
        ),
    ] = _DEFAULT["class_local_min"],
    classes: Annotated[
        list[str] | None,
        typer.Option(help="Fit on these classes alone; images of others are left out.", metavar="CLASSES"),
    ] = None,
    where: Conditions = None,
    seed: Annotated[
        int, typer.Option(help="Seeds the folds and the halving of the gate.", metavar="N")
    ] = _DEFAULT["random_state"],
    prompts: PromptFile = None,
    as_json: AsJson = False,
) -> None:
    """Fit a model on the roles reference, validation, gate and calibration of a feature file.

    Validation chooses the audit, the bandwidth and the classes that need protection; calibration sets the thresholds.
    The test role is not looked at. The defaults are those of the method; nothing needs to be set.

    The model file holds embeddings, which are patient-derived data: store and share it accordingly.
    """
    from calcode.cli.screen import Screen

    beside = features.with_suffix(".prompts.safetensors")
    target = output_file(output, suffixes=(".safetensors",), inputs=(features, prompts, beside))
    model = Calcode(
        miscoverage=miscoverage,
        guard_miscoverage=_guards(guard),
        discovery_margin=discovery_margin,
        deferral_level=deferral_level,
        trim=trim,
        n_neighbors=neighbors,
        bandwidth="auto" if bandwidth == "auto" else number_in(bandwidth, option="--bandwidth", word="auto"),
        support_budget=support_budget,
        level=level.value,
        level_grid=None if level_grid == "none" else _whole(level_grid),
        n_folds=folds,
        min_class_count=min_class_count,
        class_local_min=class_local_min,
        audit=None if audit == "none" else names_in([audit]),
        fused=fused.value,
        protect=protect.value,
        always_protect=names_in(always_protect),
        keep_top=keep_top,
        binary_utility=binary_utility,
        random_state=seed,
    )
    _check(model)  # before the file is read
    screen = Screen()
    try:
        _fit_on(model, features, prompts=prompts, classes=names_in(classes), where=where, screen=screen)
    except SettingsError as error:  # settings that name classes can only be checked against a file
        raise SettingsError(f"{features}: {_in_options(error)}") from error
    model.save(target)
    _tell(model, target=target, screen=screen, as_json=as_json)


COMMAND = Command(
    run=fit,
    examples=(
        "calcode fit split.parquet -o model.safetensors",
        "calcode fit split.parquet -o model.safetensors --level certified \\",
        "    --always-protect mel --guard mel=0.02 --where site!=rosendahl",
    ),
)


#: Settings whose option has another name.
_OPTIONS = {
    "guard_miscoverage": "guard",
    "n_neighbors": "neighbors",
    "n_folds": "folds",
    "random_state": "seed",
}


def _check(model: Calcode) -> None:
    try:
        model.checked()
    except SettingsError as error:
        option, _, sentence = _in_options(error).partition(": ")
        raise typer.BadParameter(sentence, param_hint=option) from error


def _in_options(error: SettingsError) -> str:
    """The message with the option's name in the place of the setting's."""
    setting, colon, rest = str(error).partition(":")
    name, bracket, key = setting.partition("[")
    return f"--{_OPTIONS.get(name, name).replace('_', '-')}{bracket}{key}{colon}{rest}"


def _fit_on(
    model: Calcode,
    path: Path,
    *,
    prompts: Path | None,
    classes: list[str],
    where: list[str] | None,
    screen: Screen,
) -> None:
    from calcode.cli.rows import read_fitted_roles, row_filter
    from calcode.cohorts import open_features

    with screen.working(f"Reading {path}"):
        file = open_features(path, prompts=prompts)
        roles = read_fitted_roles(file, where=row_filter(where, file), classes=classes)
    with screen.working("Fitting"):
        model.fit(**roles)


def _guards(values: list[str] | None) -> float | dict[str, float]:
    """One number for all classes, or one per named class."""
    if not values:
        return float(_DEFAULT["guard_miscoverage"])
    named: dict[str, float] = {}
    for value in values:
        name, equals, share = value.rpartition("=")
        number = number_in(share, option="--guard", word="CLASS=SHARE")
        if not equals and len(values) > 1:
            raise typer.BadParameter(
                f"{value!r} is for all classes and stands beside others; name a class in each, such as mel={value}",
                param_hint="--guard",
            )
        if not equals:
            return number
        named[name] = number
    return named


def _whole(text: str) -> Any:
    if text.isdigit():
        return int(text)
    raise typer.BadParameter(f"{text!r} is neither a whole number nor 'none'", param_hint="--level-grid")


def _tell(model: Calcode, *, target: Path, screen: Screen, as_json: bool) -> None:
    from calcode.report.model_facts import (
        audit_sentence,
        bandwidth_sentence,
        guard_sentences,
        images_text,
        model_facts,
    )

    if as_json:
        screen.emit("fit", {"output": str(target), **model_facts(model)})
        return
    screen.say(f"Fitted on {len(model.classes_)} classes; images: {images_text(model)}.")
    screen.point(f"Audit. {audit_sentence(model)}")
    screen.point(f"Bandwidth. {bandwidth_sentence(model)}")
    for sentence in guard_sentences(model):
        screen.point(f"Protected: {sentence}" if model.guards_ else sentence)
    screen.say(f"Wrote {target}. More about it: calcode inspect {target}")
