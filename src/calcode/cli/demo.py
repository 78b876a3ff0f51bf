"""`calcode demo`: three cohorts of real skin images, one table each, and a page."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calcode.cli.options import AsJson, output_option
from calcode.cli.running import DEVICE_NOTE, Screen, output_file, show_warnings
from calcode.errors import CalcodeWarning, OutputError

if TYPE_CHECKING:
    from calcode.cohorts import FeatureFile


def demo(
    output: Annotated[Path, output_option(help="Page to write; its folder is created if needed.")] = Path(
        "demo-output/report.html"
    ),
    image: Annotated[
        Path | None,
        typer.Option(help="Decide on this photograph of a skin lesion instead, and say why.", metavar="FILE"),
    ] = None,
    stream: Annotated[
        bool,
        typer.Option(
            "--stream",
            help="Play a stream of images in which the camera changes instead, and show when the monitors see it.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """See on real skin images which diseases an ordinary conformal predictor misses.

    Fits on dermoscopic images and decides on three cohorts: the same source (HAM), smartphone photographs (PAD) and
    the images of an unseen practice (ROSENDAHL). Compares split APS, the localized sets and CALCoDe, and writes a
    page. Every setting is the default. Needs calcode-demo-data (CC BY-NC 4.0), which 'make install' or 'pip install
    ./demo-data' brings.

    Examples
    --------
    calcode demo
    calcode demo -o page.html --json
    calcode demo --image photo.jpg
    calcode demo --stream
    """
    screen = Screen(as_json)
    if image is not None:
        decide_on_photograph(image, screen=screen)
        return
    from calcode.demo.cohorts import demo_features

    features = demo_features()
    if output.suffix == ".html":
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
        except PermissionError as error:
            raise OutputError(f"{output.parent}: permission denied; name another place with -o") from error
    output_file(output, suffixes=(".html",))
    if stream:
        play_stream(features, output=output, screen=screen)
    else:
        compare_on_cohorts(features, output=output, screen=screen)
    screen.say(f"{DEVICE_NOTE} Features: CC BY-NC 4.0, not for commercial use.")


def decide_on_photograph(image: Path, *, screen: Screen) -> None:
    """Show the demonstration model's answer for one photograph, and why."""
    from calcode.cli.explain import show_explanation
    from calcode.demo.image import explain_image

    with screen.working(f"Deciding on {image.name}"):
        explanation = explain_image(image)
    screen.emit("demo", {"image": str(image), **explanation.to_dict()})
    show_explanation(explanation, name=image.name, screen=screen)
    screen.say()
    screen.say(
        "A small encoder of dermoscopic images decided here; a photograph of anything else is outside what it was "
        f"calibrated for. {DEVICE_NOTE}"
    )


def play_stream(features: FeatureFile, *, output: Path, screen: Screen) -> None:
    """Play a stream of images in which the camera changes, and show when the monitors detect it."""
    from calcode.demo.stream import REVIEW_RATE, play
    from calcode.metrics.wording import short_percent
    from calcode.report.monitor_page import write_monitor_page

    with (
        screen.working("Fitting, and playing the stream"),
        warnings.catch_warnings(action="ignore", category=CalcodeWarning),
    ):
        played = play(features.read())
    write_monitor_page(output, played.watch, model_name="the demonstration model")
    counts = {name: getattr(played, name) for name in played._fields if name != "watch"}
    screen.emit("demo", {"output": str(output), **counts, **played.watch.facts})
    screen.say(
        f"First {played.calm_votes:,} lesions of HAM10000 that the model has not seen, then "
        f"{played.changed_votes:,} patients of PAD-UFES-20: dermoscopy, then smartphone photographs. One image "
        f"each; labels of {short_percent(REVIEW_RATE)} of them, drawn at random."
    )
    before = "no alarm" if not played.calm_alarms else f"{played.calm_alarms} false alarms"
    after = "no alarm about the images" if played.delay is None else f"an alarm after {played.delay} images"
    screen.say(f"While nothing changed: {before}. After the change of camera: {after}.", style="bold")
    screen.heading("Alarms")
    for alarm in played.watch.alarms:
        screen.point(f"{alarm.finding} {alarm.advice}")
    screen.say()
    screen.say(f"Wrote {output}.")


def compare_on_cohorts(features: FeatureFile, *, output: Path, screen: Screen) -> None:
    """Compare split APS, the localized sets and CALCoDe on three cohorts, and write the page about them."""
    started = time.perf_counter()
    from calcode.cli.summaries import show_methods
    from calcode.demo.cohorts import INTRODUCTION, NOTES, SETTINGS, TITLE, compare
    from calcode.demo.site import compare_sites, site_section
    from calcode.metrics.wording import counted
    from calcode.report.cohort_page import report_sections
    from calcode.report.findings import headline
    from calcode.report.model_facts import model_facts
    from calcode.report.page import write_page

    with screen.working("Reading the features"):
        images = features.read()
    cohorts = []
    for setting in SETTINGS:
        with warnings.catch_warnings(record=True) as caught, screen.working(f"{setting.name}: fitting and deciding"):
            warnings.simplefilter("always", CalcodeWarning)
            figures = compare(setting, images, titles=features.prompts.titles)
        cohorts.append(figures)
        cohort = figures.cohort
        screen.heading(f"{setting.name}: {cohort.title}")
        shift = "Shifted: every figure is an observation."
        kind = shift if cohort.shifted else "Exchangeable with the calibration images."
        screen.say(f"{cohort.description} {counted(len(cohort.labels), 'image')}. {kind}")
        screen.say()
        show_methods(figures, screen=screen)
        if figures.small_classes:
            small = ", ".join(f"{name} ({n})" for name, n in figures.small_classes.items())
            least = figures.guarded.summary.min_n
            screen.say(f"Worst class among those with at least {least} answered images; not: {small}.")
        show_warnings(caught, about=setting.name)
    with screen.working("Reviewing cases at the new sites"):
        sites = compare_sites(images, SETTINGS, [figures.cohort.model for figures in cohorts])
    computed = time.perf_counter()
    with screen.working(f"Writing {output}"):
        opening, *rest = report_sections(cohorts, introduction=INTRODUCTION, notes=NOTES)
        write_page(output, [opening, site_section(sites), *rest], title=TITLE)
    seconds = {"compute": computed - started, "page": time.perf_counter() - computed}
    findings = headline(cohorts)
    facts = {
        "output": str(output),
        "seconds": seconds,
        "cohorts": [
            {
                "name": setting.name,
                "title": setting.title,
                "shifted": setting.shifted,
                "target": figures.cohort.target,
                "methods": {method.name: method.summary.to_dict() for method in figures.methods},
                "small_classes": figures.small_classes,
                "model": model_facts(figures.cohort.model),
            }
            for setting, figures in zip(SETTINGS, cohorts, strict=True)
        ],
        "findings": [sentence.replace("\u00a0", " ") for sentence in findings],
        "sites": sites.facts,
    }
    screen.emit("demo", facts)
    screen.heading("With 200 reviewed cases of the new site")
    for sentence in sites.sentences:
        screen.point(sentence)
    screen.heading("What this shows")
    for sentence in findings:
        screen.point(sentence)
    screen.say()
    screen.say(f"Computed in {seconds['compute']:.1f} s; wrote {output} in {seconds['page']:.1f} s.")
