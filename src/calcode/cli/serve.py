"""`calcode serve`: the decision service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calcode.cli.options import AsJson
from calcode.cli.running import Screen
from calcode.errors import ServiceError

if TYPE_CHECKING:
    from calcode.service.service import Service


def serve(
    site: Annotated[Path | None, typer.Argument(metavar="SITE", help="Site file (TOML).")] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Without a site file: the demonstration model and a stream of images.")
    ] = False,
    pace: Annotated[
        float | None,
        typer.Option(min=0.1, max=1000.0, help="With --demo: images per second (8, which takes five minutes)."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="With --demo: write the story with pictures here and end.", metavar="FOLDER")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="With --demo: where it listens (8470; 0: any free port).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Serve decisions over HTTP; each is on the disk before it is answered.

    With --demo a story plays by itself: a model from elsewhere answers, an alarm is raised, cases are read, a site
    model is made, shadowed and promoted.

    Needs pip install 'calcode[service]'. The page docs/service.md is for the engineer who runs it. Research software,
    not a medical device.

    Examples
    --------
    calcode serve site.toml
    calcode serve --demo
    calcode serve --demo --pace 60 --report loop-output
    """
    if demo:
        if site is not None:
            raise typer.BadParameter(f"--demo has a site of its own; leave {site} or --demo out", param_hint="SITE")
        from calcode.service.demo import serve_demo

        serve_demo(port=8470 if port is None else port, pace=pace or 8.0, say=typer.echo, report=report)
        return
    if site is None:
        raise typer.BadParameter("name a site file, or use --demo", param_hint="SITE")
    for name, given in (("pace", pace), ("report", report), ("port", port)):
        if given is not None:
            remedy = f"; write port = {port} into {site}" if name == "port" else ""
            raise typer.BadParameter(f"it goes with --demo alone{remedy}", param_hint=f"--{name}")
    try:
        from calcode.service.keys import site_secret
        from calcode.service.operations import opened
        from calcode.service.server import serve as run
        from calcode.service.settings import read_site
    except ImportError as error:
        raise ServiceError(f"{error.name}: not installed; pip install 'calcode[service]'") from error
    settings = read_site(site)
    # Opening checks that the log exists: a start in an empty place would begin another log.
    with opened(settings):
        site_secret(settings)

    def listening(port: int, service: Service) -> None:

        url = f"http://{settings.host}:{port}/"
        if as_json:
            Screen(as_json).emit("serve", {"name": settings.name, "url": url})
        else:
            typer.echo(f"{settings.name} answers on {url} (Ctrl-C ends it)")

    run(settings, listening=listening)
