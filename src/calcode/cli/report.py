"""`calcode report`: one page about what a model did on a cohort."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calcode.cli.options import AsJson, Conditions, Features, ModelFile, PromptFile, RoleName, output_option
from calcode.cli.running import Screen, output_file


def report(
    model: ModelFile,
    features: Features,
    output: Annotated[Path, output_option(help="Page to write, .html.")] = Path("report.html"),
    role: RoleName = None,
    where: Conditions = None,
    title: Annotated[str | None, typer.Option(help="Heading of the page.", metavar="TEXT")] = None,
    exchangeable: Annotated[
        bool,
        typer.Option(
            "--exchangeable",
            help="The images come from the same source as the calibration images, split at random by group. Without "
            "this the page calls the cohort shifted and every figure an observation.",
        ),
    ] = False,
    without_ids: Annotated[
        bool, typer.Option("--without-ids", help="Name images by their row, not by their id.")
    ] = False,
    prompts: PromptFile = None,
    as_json: AsJson = False,
) -> None:
    """Write one self-contained page about what a model did on labelled images.

    Class-wise coverage before and after the guard, set sizes, deferrals and their reasons, the audit's p-values,
    subgroups where the file has site, sex or skin type, and what is promised. Where the file holds the calibration
    images of the model, split APS is shown for comparison.

    Examples
    --------
    calcode report model.safetensors split.parquet --role test --exchangeable
    calcode report model.safetensors elsewhere.parquet -o elsewhere.html
    """
    from dataclasses import replace

    from calcode.baselines.aps import RECORD
    from calcode.baselines.split import threshold
    from calcode.cli.rows import Choice, judged, remembered
    from calcode.cli.summaries import method_table, show_methods
    from calcode.method.evidence import robust_probabilities
    from calcode.method.scores import aps_scores, label_sets
    from calcode.metrics.wording import counted
    from calcode.report import ReportCohort, cohort_figures, report_sections, write_page
    from calcode.report.site_page import ideal_worst, site_sections
    from calcode.site import SiteModel, load_model

    target = output_file(output, suffixes=(".html",))
    screen = Screen(as_json)
    fitted = load_model(model)
    choice = Choice.opened(features, prompts=prompts, role=role, conditions=where)
    result = judged(fitted, choice, columns=None, screen=screen)
    if without_ids:
        result = replace(result, decisions=replace(result.decisions, ids=None))
    heading = title or f"What {model.name} did on {choice.described}"
    titles = choice.features.prompts.titles
    if isinstance(fitted, SiteModel):
        # A site model has neither a localized rule nor guards.
        sections = site_sections(fitted, result.decisions, result.labels, class_titles=titles)
        write_page(target, sections, title=heading)
        summary = result.decisions.summary(result.labels)
        worst = ideal_worst(fitted, summary)
        facts = {"output": str(target), "summary": summary.to_dict(), "ideal_worst_class_coverage": worst}
        screen.emit("report", facts)
        screen.show(method_table({"site model": summary}))
        screen.say(f"Single answers: {summary.singles}.")
        screen.say(f"An exactly valid method would show about {worst:.3f} as its worst class on these images.")
        screen.say(f"Wrote {target}. Open it in a browser.")
        return
    # The sets of split APS for the same images, if the file has the model's calibration images.
    ordinary, settings = None, fitted.settings_
    known = remembered(fitted, choice.features, role="calibration")
    if known is not None and known.evidence.labels is not None:
        scores = aps_scores(robust_probabilities(known.evidence.prompt_logits, trim=settings.trim))
        limit = threshold(scores, known.evidence.labels, miscoverage=settings.miscoverage)
        ordinary = RECORD.title, label_sets(result.decisions.scores, limit)
    cohort = ReportCohort(
        name=choice.role or choice.features.path.stem,
        title=choice.described,
        description="",
        shifted=not exchangeable,
        labels=result.labels,
        model=fitted,
        decisions=result.decisions,
        ordinary=ordinary,
        metadata={name: values for name, values in result.metadata.items() if name != "label_name"},
        class_titles=titles,
    )
    with screen.working(f"Writing {target}"):
        figures = cohort_figures(cohort)
        write_page(target, report_sections([figures]), title=heading)
    methods = {method.name: method.summary.to_dict() for method in figures.methods}
    screen.emit("report", {"output": str(target), "shifted": cohort.shifted, "methods": methods})
    kind = "Called exchangeable with the calibration images."
    if cohort.shifted:
        kind = "Called shifted, so every figure is an observation (--exchangeable says that it is not)."
    screen.say(f"{choice.described}: {counted(len(cohort.labels), 'image')}. {kind}")
    screen.say()
    show_methods(figures, screen=screen)
    if cohort.ordinary is None:
        screen.say("Split APS is not shown: the file does not hold the calibration images of this model.")
    screen.say()
    screen.say(f"Wrote {target}. Open it in a browser.")
