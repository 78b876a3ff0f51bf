"""`calcode study`: the whole evaluation from one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calcode.cli.options import AsJson, output_file
from calcode.cli.running import Command, ExitCode, guarded

if TYPE_CHECKING:
    from calcode.cli.screen import Screen
    from calcode.study import Outcome, Study

PANEL = "For a publication or a decision to deploy"
StudyFile = Annotated[
    Path, typer.Argument(metavar="STUDY", help="Study file, as 'calcode study init' writes it.")
]


def init(
    path: Annotated[Path, typer.Argument(metavar="STUDY", help="File to write.")] = Path("study.toml"),
    as_json: AsJson = False,
) -> None:
    """Write a commented example of a study file.

    Every key is explained where it stands. An existing file is never overwritten.
    """
    from calcode.cli.screen import Screen
    from calcode.files import replacing
    from calcode.study.example import EXAMPLE

    if path.exists():
        raise typer.BadParameter(f"{path} exists; choose another name or remove it", param_hint="STUDY")
    with replacing(path) as temporary:
        temporary.write_text(EXAMPLE, encoding="utf-8")
    if as_json:
        Screen().emit("study init", {"output": str(path)})
        return
    Screen().say(f"Wrote {path}. Name your features in it, then: calcode study run {path}")


def run(
    path: StudyFile,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Folder for the results, instead of the file's.", metavar="FOLDER"
        ),
    ] = None,
    features: Annotated[
        list[str] | None,
        typer.Option(
            "--features",
            help="Feature file of a backbone, instead of the file's; NAME/SETTING=PATH for one setting. Repeatable.",
            metavar="NAME=PATH",
        ),
    ] = None,
    resplits: Annotated[
        int | None,
        typer.Option("--resplits", help="New deals of the roles by group, instead of the file's.", min=0),
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", help="Processes; all cores unless given.", min=1)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run every experiment of a study: methods x settings x backbones, tables and a manifest.

    What was finished before is not repeated, so an interrupted run goes on where it stopped. One failing combination
    does not stop the others: it is reported at the end, and the exit code is 1.
    """
    from dataclasses import replace

    from calcode.cli.screen import Screen
    from calcode.study import plan, read_study, run_study

    screen = Screen()
    study = read_study(path, features=_feature_paths(features), output=output)
    if resplits is not None:
        study = replace(study, resplits=replace(study.resplits, n=resplits))
    if not as_json:
        _introduce(study, screen)
    with screen.counting("Combinations", total=len(plan(study))) as advance:
        outcome = run_study(
            study,
            workers=workers,
            on_plan=lambda _, reused: advance(reused),
            on_step=lambda _: advance(1),
        )
    if as_json:
        screen.emit("study run", _facts(outcome))
    else:
        _tell(outcome, screen)
    if outcome.failures:
        raise typer.Exit(int(ExitCode.DATA))


def report(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="Output folder of 'calcode study run'.", show_default=False),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Page to write; report.html in FOLDER unless given.", metavar="FILE"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write one self-contained page about a study, its tables as LaTeX and its figures as SVG and PNG.

    Everything is read from the folder's tables and manifest; nothing is computed anew. LaTeX tables go to
    FOLDER/latex, figures to FOLDER/figures. PNG needs the extra `figures`.
    """
    from calcode.cli.screen import Screen
    from calcode.study.page import write_study_report

    screen = Screen()
    page = None if output is None else output_file(output, suffixes=(".html",))
    with screen.working(f"Reading {folder}"):
        written = write_study_report(folder, page=page)
    if as_json:
        facts = {
            "page": str(written.page),
            "latex": [str(path) for path in written.latex],
            "figures": [str(path) for path in written.figures],
            "png": not written.without_png,
        }
        screen.emit("study report", facts)
        return
    screen.say(f"Wrote {written.page}. Open it in a browser.")
    screen.say(
        f"{len(written.latex)} LaTeX tables in {folder / 'latex'}; "
        f"{len(written.figures)} figures in {folder / 'figures'}."
    )
    if written.without_png:
        screen.warn('PNG figures were left out: pip install "calcode[figures]"')


INIT = Command(run=init, examples=("calcode study init", "calcode study init my-study.toml"), panel=PANEL)
RUN = Command(
    run=run,
    examples=(
        "calcode study run studies/dermatology.toml",
        "calcode study run study.toml --features my-model=features.parquet --resplits 20",
    ),
    panel=PANEL,
)
REPORT = Command(
    run=report,
    examples=(
        "calcode study report study-output/dermatology",
        "calcode study report study-output/dermatology -o result.html",
    ),
    panel=PANEL,
)
#: In the order of the help page.
COMMANDS: tuple[Command, ...] = (INIT, RUN, REPORT)

group = typer.Typer(
    name="study",
    help="The whole evaluation from one file: every method, setting and experiment, as tables.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
for _command in COMMANDS:
    group.command(_command.name, help=_command.help_text())(guarded(_command.run))


def _feature_paths(values: list[str] | None) -> dict[str, Path]:
    paths = {}
    for value in values or ():
        name, equals, path = value.partition("=")
        if not (name and equals and path):
            raise typer.BadParameter(f"{value!r} is not NAME=PATH", param_hint="--features")
        paths[name] = Path(path)
    return paths


def _introduce(study: Study, screen: Screen) -> None:
    names = ", ".join(backbone.name for backbone in study.backbones)
    settings = ", ".join(setting.name for setting in study.settings)
    screen.say(f"{study.title}: settings {settings}; backbones {names}; {len(study.methods)} methods.")
    for name, why in study.left_out.items():
        screen.warn(f"backbone {name} left out: {why}")


def _tell(outcome: Outcome, screen: Screen) -> None:
    done = outcome.n_jobs - outcome.n_reused
    screen.say(
        f"{outcome.n_jobs} combinations in {outcome.seconds:.0f} s ({outcome.n_reused} were finished before, "
        f"{done} computed now); {len(outcome.tables)} tables in {outcome.folder / 'tables'}."
    )
    screen.say("On shifted settings every figure is an observation. Research software, not a medical device.")
    for failure in outcome.failures:
        screen.fail(f"{failure.what}: {failure.error}")


def _facts(outcome: Outcome) -> dict[str, Any]:
    return {
        "output": str(outcome.folder),
        "combinations": outcome.n_jobs,
        "reused": outcome.n_reused,
        "seconds": outcome.seconds,
        "tables": [str(path) for path in outcome.tables],
        "failures": [{"what": failure.what, "error": failure.error} for failure in outcome.failures],
    }
