"""`calcode study`: the whole evaluation from one file."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from calcode.cli.options import AsJson, output_option
from calcode.cli.running import DEVICE_NOTE, ExitCode, Screen, command_group, output_file

#: Seconds between two lines of progress in a log.
_LOG_SECONDS = 10.0
StudyFile = Annotated[Path, typer.Argument(metavar="STUDY", help="Study file, as 'calcode study init' writes it.")]


def init(
    path: Annotated[Path, typer.Argument(metavar="STUDY", help="File to write.")] = Path("study.toml"),
    as_json: AsJson = False,
) -> None:
    """Write a commented example of a study file.

    Every key is explained where it stands. An existing file is never overwritten.

    Examples
    --------
    calcode study init
    calcode study init my-study.toml
    """
    from importlib.resources import files

    from calcode.files import replacing

    if path.exists():
        raise typer.BadParameter(f"{path} exists; choose another name or remove it", param_hint="STUDY")
    with replacing(path) as temporary:
        temporary.write_bytes((files("calcode.study") / "example.toml").read_bytes())
    screen = Screen(as_json)
    screen.emit("study init", {"output": path})
    screen.say(f"Wrote {path}. Name your features in it, then: calcode study run {path}")


def run(
    path: StudyFile,
    output: Annotated[
        Path | None, output_option(help="Folder for the results, instead of the file's.", metavar="FOLDER")
    ] = None,
    features: Annotated[
        list[str] | None,
        typer.Option(
            help="Feature file of a backbone, instead of the file's; NAME/SETTING=PATH for one setting. Repeatable.",
            metavar="NAME=PATH",
        ),
    ] = None,
    resplits: Annotated[
        int | None, typer.Option(help="Number of new random splits by group, instead of the file's.", min=0)
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; default: all cores.", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Run every experiment of a study: methods x settings x backbones, tables, a manifest and the page.

    Finished work is not repeated, so an interrupted run continues where it stopped. One failing combination
    does not stop the others: it is reported at the end, and the exit code is 1.

    Examples
    --------
    calcode study run studies/dermatology.toml
    calcode study run study.toml --features my-model=features.parquet --resplits 20
    """
    from calcode.study.page import write_study_page
    from calcode.study.run import plan, run_study
    from calcode.study.study_file import read_study

    screen = Screen(as_json)
    paths = {}
    for value in features or ():
        name, equals, file = value.partition("=")
        if not (name and equals and file):
            raise typer.BadParameter(f"{value!r} is not NAME=PATH", param_hint="--features")
        paths[name] = Path(file)
    study = read_study(path, features=paths, output=output)
    if resplits is not None:
        deals = study.options["resplits"].model_copy(update={"n": resplits})
        study = study.model_copy(update={"options": study.options | {"resplits": deals}})
    if not as_json:
        names = ", ".join(backbone.name for backbone in study.backbones)
        settings = ", ".join(setting.name for setting in study.settings)
        screen.say(f"{study.title}: settings {settings}; backbones {names}; {len(study.compared)} methods.")
        for name, why in study.left_out.items():
            screen.warn(f"backbone {name} left out: {why}")
    total = len(plan(study))
    log = _Log(total)
    with screen.counting("Combinations", total=total) as advance:

        def step(name: str) -> None:
            advance(1)
            log.step(name)

        def planned(_: int, reused: int) -> None:
            advance(reused)
            log.done = reused

        done = run_study(study, workers=workers, on_plan=planned, on_step=step)
    with screen.working("Writing the page"):
        page = write_study_page(done.folder)
    if as_json:
        facts = {
            "output": done.folder,
            "combinations": done.n_jobs,
            "reused": done.n_reused,
            "seconds": done.seconds,
            "tables": done.tables,
            "failures": [{"what": failure.what, "error": failure.error} for failure in done.failures],
            "page": page,
        }
        screen.emit("study run", facts)
    else:
        computed = done.n_jobs - done.n_reused
        screen.say(
            f"{done.n_jobs} combinations in {done.seconds:.0f} s ({done.n_reused} were finished before, {computed} "
            f"computed now); {len(done.tables)} tables in {done.folder / 'tables'}."
        )
        screen.say(f"Wrote {page}. LaTeX tables and figure files: calcode study report {done.folder}")
        screen.say("On shifted settings every figure is an observation. " + DEVICE_NOTE)
        for failure in done.failures:
            screen.fail(f"{failure.what}: {failure.error}")
    if done.failures:
        raise typer.Exit(int(ExitCode.DATA))


class _Log:
    """Progress for a log: if standard error is not a terminal, print a line now and then and one at the end."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self._started = self._last = time.monotonic()
        self._wanted = not sys.stderr.isatty()

    def step(self, name: str) -> None:
        """Count one more finished job."""
        self.done += 1
        now = time.monotonic()
        if self._wanted and (now - self._last >= _LOG_SECONDS or self.done == self.total):
            self._last = now
            seconds = f"{now - self._started:.0f} s"
            typer.echo(f"{self.done} of {self.total} combinations after {seconds}: {name}", err=True)


def schema(as_json: AsJson = False) -> None:
    """Print the JSON schema of study files, for editors that complete and check TOML.

    Taplo, Even Better TOML and PyCharm read it: name the file in '#:schema study.schema.json' on the first line.

    Examples
    --------
    calcode study schema > study.schema.json
    """
    import json

    from calcode.study.study_file import json_schema

    del as_json  # the schema is JSON in either case
    typer.echo(json.dumps(json_schema(), indent=2))


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Output folder of 'calcode study run'.", show_default=False)
    ],
    output: Annotated[Path | None, output_option(help="Page to write; default: report.html in FOLDER.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the page of a study, its tables as LaTeX and its figures as SVG, PDF and PNG.

    Everything is read from the folder's tables and manifest; nothing is computed again. LaTeX tables go to
    FOLDER/latex, figures to FOLDER/figures. Figures need the extra `figures`.

    Examples
    --------
    calcode study report study-output/dermatology
    calcode study report study-output/dermatology -o result.html
    """
    from calcode.study.page import write_report

    screen = Screen(as_json)
    page = None if output is None else output_file(output, suffixes=(".html",))
    with screen.working(f"Reading {folder}"):
        written = write_report(folder, page=page)
    if as_json:
        screen.emit("study report", asdict(written))
        return
    screen.say(f"Wrote {written.page}. Open it in a browser.")
    screen.say(
        f"{len(written.latex)} LaTeX tables in {folder / 'latex'}; "
        f"{len(written.figures)} figure files in {folder / 'figures'}."
    )
    if not written.drawn:
        screen.warn('figure files were left out: pip install "calcode[figures]"')


group = command_group(
    "The whole evaluation from one file: every method, setting and experiment, as tables and a page.",
    init,
    run,
    report,
    schema,
    examples=("calcode study init", "calcode study run study.toml"),
)
