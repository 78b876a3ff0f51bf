"""The application: all commands, and the options that come before a command."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from calcode import __version__
from calcode.cli.running import add_command

_OWN_IMAGES, _HOSPITAL = "On images of your own", "In a hospital"
#: In the order of the help page, by heading. A new command is a file of its name and a word here.
COMMANDS = {
    "Start here": "demo",
    _OWN_IMAGES: "embed split fit inspect decide explain evaluate compare report monitor",
    _HOSPITAL: "serve",
}
GROUPS = {
    _OWN_IMAGES: "data site model",
    _HOSPITAL: "service log",
    "For a publication or a decision to deploy": "study",
}

_HELP = (
    "Class-Tail Adaptive Localized Conformal Deferral (CALCoDe): a reliability layer for frozen medical "
    "vision-language models.\n\n"
    'For every image: one diagnosis, a set of plausible diagnoses, or "defer to a clinician". '
    "Start with [bold]demo[/bold]. For your own images: [bold]split, fit, decide, evaluate, report[/bold]. "
    "Every command has --help with examples.\n\n"
    "Research software, not a medical device."
)

app = typer.Typer(
    name="calcode",
    help=_HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _before_any_command(
    version: Annotated[bool, typer.Option("--version", help="Show the version and stop.")] = False,
) -> None:
    # typer gets the help of the application from above; the callback only has the options.
    if version:
        typer.echo(f"calcode {__version__}")
        raise typer.Exit


for _panel, _names in COMMANDS.items():
    for _name in _names.split():
        add_command(app, getattr(import_module(f"calcode.cli.{_name}"), _name), panel=_panel)
for _panel, _names in GROUPS.items():
    for _name in _names.split():
        app.add_typer(import_module(f"calcode.cli.{_name}").group, name=_name, rich_help_panel=_panel)
