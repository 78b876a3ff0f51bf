"""`calcode fit`: fit a model on the four fitted roles of a feature file."""

from __future__ import annotations

from dataclasses import make_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from calcode.cli.options import AsJson, Conditions, Features, PromptFile, names_in, option_groups, output_option
from calcode.cli.running import Screen, output_file
from calcode.errors import SettingsError
from calcode.method.model import Calcode
from calcode.method.settings import SETTINGS, Setting


def _option(setting: Setting) -> tuple[Any, Any]:
    """A setting as a typer option: its annotation and its default."""
    panel = None if setting.panel == "General" else setting.panel
    if isinstance(setting.default, bool):
        off = f"/{setting.kind.off}" if setting.kind.off else ""
        flag = typer.Option(setting.option + off, help=setting.help, rich_help_panel=panel)
        return Annotated[bool, flag], setting.default
    repeats = setting.kind.repeats
    usual = ",".join(setting.default) if isinstance(setting.default, tuple) else str(setting.default)
    note = f" (default: {usual})" if repeats and usual else ""
    option = typer.Option(setting.option, help=setting.help + note, metavar=setting.kind.metavar, rich_help_panel=panel)
    return (Annotated[list[str] | None, option], None) if repeats else (Annotated[str, option], usual)


def _in_options(error: SettingsError) -> str:
    """The message with the option's name instead of the setting's."""
    setting, colon, rest = str(error).partition(":")
    name, bracket, key = setting.partition("[")
    option = SETTINGS[name].option if name in SETTINGS else name
    return f"{option}{bracket}{key}{colon}{rest}"


@option_groups(given=make_dataclass("Given", [(name, *_option(setting)) for name, setting in SETTINGS.items()]))
def fit(
    features: Features,
    output: Annotated[Path, output_option(help="Model file to write, .safetensors.")],
    given: Any,
    classes: Annotated[
        list[str] | None,
        typer.Option(help="Fit on these classes alone; images of others are left out.", metavar="CLASSES"),
    ] = None,
    where: Conditions = None,
    device: Annotated[
        str | None,
        typer.Option(help="Compute on this torch device, such as cuda; the processor if not given.", metavar="DEVICE"),
    ] = None,
    prompts: PromptFile = None,
    as_json: AsJson = False,
) -> None:
    r"""Fit a model on the roles reference, validation, gate and calibration of a feature file.

    Validation chooses the audit, the bandwidth and the classes that need protection; calibration sets the thresholds.
    The test role is not looked at. The defaults are those of the method; nothing needs to be set.

    The model file holds embeddings, which are patient-derived data: store and share it accordingly.

    Examples
    --------
    calcode fit split.parquet -o model.safetensors
    calcode fit split.parquet -o model.safetensors --level certified \
        --always-protect mel --guard mel=0.02 --where site!=rosendahl
    """
    from calcode.cli.rows import read_fitted_roles, row_filter
    from calcode.cohorts import open_features
    from calcode.engines.local import require_device
    from calcode.report.model_facts import audit_sentence, bandwidth_sentence, guard_sentences, images_text, model_facts

    try:
        settings: dict[str, Any] = {
            name: value if isinstance(value, bool) else SETTINGS[name].parse(value)
            for name, value in vars(given).items()
            if value is not None and value != []
        }
        model = Calcode(**settings)
        model.checked()
    except SettingsError as error:
        option, _, sentence = _in_options(error).partition(": ")
        raise typer.BadParameter(sentence, param_hint=option) from error
    if device is not None:
        require_device(device)
    own_prompts = features.with_suffix(".prompts.safetensors")
    target = output_file(output, suffixes=(".safetensors",), inputs=(features, prompts, own_prompts))
    screen = Screen(as_json)
    with screen.working(f"Reading {features}"):
        file = open_features(features, prompts=prompts)
        roles: dict[str, Any] = read_fitted_roles(file, where=row_filter(where, file), classes=names_in(classes))
    try:
        with screen.working("Fitting"):
            model.fit(device=device, **roles)
    except SettingsError as error:  # settings that name classes can only be checked with a file
        raise SettingsError(f"{features}: {_in_options(error)}") from error
    model.save(target)
    screen.emit("fit", {"output": str(target), **model_facts(model)})
    screen.say(f"Fitted on {len(model.classes_)} classes; images: {images_text(model)}.")
    screen.point(f"Audit. {audit_sentence(model)}")
    screen.point(f"Bandwidth. {bandwidth_sentence(model)}")
    for words in guard_sentences(model):
        screen.point(f"Protected: {words}" if model.guards_ else words)
    screen.say(f"Wrote {target}. More about it: calcode inspect {target}")
