"""The application: every command, and the options that stand before one."""

from __future__ import annotations

from typing import Annotated

import typer

from calcode import __version__
from calcode.cli import (
    compare,
    data,
    decide,
    demo,
    embed,
    evaluate,
    explain,
    fit,
    inspect,
    log,
    model,
    monitor,
    report,
    serve,
    service,
    site,
    split,
    study,
)
from calcode.cli.running import OWN_IMAGES, Command, guarded

#: In the order of the help page. A new command is its file and one line here.
COMMANDS: tuple[Command, ...] = (
    demo.COMMAND,
    embed.COMMAND,
    split.COMMAND,
    fit.COMMAND,
    inspect.COMMAND,
    decide.COMMAND,
    explain.COMMAND,
    evaluate.COMMAND,
    compare.COMMAND,
    report.COMMAND,
    monitor.COMMAND,
    serve.COMMAND,
)

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
    # typer takes the help of the application from above; the callback only holds the options.
    if version:
        typer.echo(f"calcode {__version__}")
        raise typer.Exit


for _command in COMMANDS:
    app.command(_command.name, help=_command.help_text(), rich_help_panel=_command.panel)(guarded(_command.run))

app.add_typer(data.group, name="data", rich_help_panel=OWN_IMAGES)
app.add_typer(site.group, name="site", rich_help_panel=OWN_IMAGES)
app.add_typer(model.group, name="model", rich_help_panel=OWN_IMAGES)
app.add_typer(service.group, name="service", rich_help_panel=serve.PANEL)
app.add_typer(log.group, name="log", rich_help_panel=serve.PANEL)
app.add_typer(study.group, name="study", rich_help_panel=study.PANEL)
