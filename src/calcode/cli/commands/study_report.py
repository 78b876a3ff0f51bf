"""`calcode study report`: a study's tables as one page, LaTeX tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calcode.cli.options import AsJson, output_file
from calcode.cli.running import Command

PANEL = "For a publication or a decision to deploy"


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


REPORT = Command(
    run=report,
    examples=(
        "calcode study report study-output/dermatology",
        "calcode study report study-output/dermatology -o result.html",
    ),
    panel=PANEL,
)
