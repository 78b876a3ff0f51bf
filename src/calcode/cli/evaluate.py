"""`calcode evaluate`: quality of decisions on labelled images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calcode.cli.options import AsJson, Conditions, Features, LeastImages, PromptFile, RoleName
from calcode.cli.running import Screen

if TYPE_CHECKING:
    from calcode.metrics import Summary

_FROM_MODEL_ONLY = ("selective_accuracy", "calibration_error")


def evaluate(
    decided_by: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL_OR_DECISIONS", help="Model file (.safetensors), or the decisions it made (.parquet or .csv)."
        ),
    ],
    features: Features,
    role: RoleName = None,
    where: Conditions = None,
    by: Annotated[
        str | None,
        typer.Option(help="Also show the figures for every value of this column, such as site.", metavar="COLUMN"),
    ] = None,
    min_n: LeastImages = 20,
    prompts: PromptFile = None,
    as_json: AsJson = False,
) -> None:
    """Compare decisions with the true labels.

    Coverage never comes alone: set size, full-set rate, single answers and how many are right, and deferral come with
    it, with 95 % intervals, and the worst class by name. Ends with what the model promises. On images that are not
    exchangeable with the calibration images every figure is an observation.

    Examples
    --------
    calcode evaluate model.safetensors split.parquet --role test
    calcode evaluate decisions.parquet split.parquet --by site
    """
    from calcode.cli.rows import Choice, judged, judged_file, warn_of_unknown_labels
    from calcode.cli.summaries import class_table, overall_table, subgroup_table
    from calcode.metrics import summarize, summarize_by
    from calcode.metrics.summary_text import cohort_sentence, remarks
    from calcode.metrics.wording import counted
    from calcode.report.site_page import KNOWN_PATIENTS, ideal_worst
    from calcode.site import SiteModel, load_model

    screen = Screen(as_json)
    choice = Choice.opened(features, prompts=prompts, role=role, conditions=where)
    warn_of_unknown_labels(choice.features, choice.features.contents.labels)
    from_model = decided_by.suffix == ".safetensors"
    columns = choice.column_for(by)
    model = None
    if from_model:
        model = load_model(decided_by)
        result = judged(model, choice, columns=columns, screen=screen)
    elif decided_by.suffix not in (".parquet", ".csv"):
        raise typer.BadParameter(
            f"{decided_by} is neither a model (.safetensors) nor decisions (.parquet, .csv)",
            param_hint="MODEL_OR_DECISIONS",
        )
    else:
        with screen.working(f"Reading {decided_by}"):
            result = judged_file(decided_by, choice, columns=columns)
    # A label of -1 has no name: then the file itself places all of its images outside the classes.
    if (result.labels < 0).all() and any(result.metadata["label_name"].tolist()):
        raise choice.no_diagnosis(result.decisions.classes)
    summary = summarize(result.decisions, result.labels, min_n=min_n)
    groups = {} if by is None else summarize_by(result.decisions, result.labels, result.metadata[by], min_n=min_n)
    facts: dict[str, Any] = {"file": str(features), "summary": _facts(summary, from_model=from_model)}
    if not from_model:
        facts["undecided"] = result.n_undecided
    if by is not None:
        shown = {value: _facts(found, from_model=from_model) for value, found in groups.items()}
        facts["by"] = {"column": by, "groups": shown}
    ideal = None
    if isinstance(model, SiteModel):
        ideal = facts["ideal_worst_class_coverage"] = ideal_worst(model, summary, min_n=min_n)
    screen.emit("evaluate", facts)
    screen.say(f"{choice.described}: {cohort_sentence(summary)}")
    if result.n_undecided:
        verb = "has" if result.n_undecided == 1 else "have"
        screen.say(
            f"{counted(result.n_undecided, 'image')} of {choice.described} {verb} no decision in {decided_by.name}.",
            style="yellow",
        )
    screen.say()
    screen.show(overall_table(summary, top_known=from_model))
    screen.say()
    screen.show(class_table(summary, protected=result.protected))
    if result.protected:
        screen.say("* protected")
    for sentence in remarks(summary):
        screen.say(sentence)
    if ideal is not None:
        screen.say(f"An exactly valid method would show about {ideal:.3f} as its worst class on these images.")
    known = result.decisions.known_group
    if known is not None and known.any():
        screen.say(f"{counted(int(known.sum()), 'image')} of known patients. {KNOWN_PATIENTS}")
    if by is not None:
        screen.heading(f"By {by}")
        screen.show(subgroup_table(groups, column=by))
    screen.heading("What is promised, and what is only observed")
    for promise in summary.promises:
        screen.point(promise)
    if not summary.promises:
        screen.point("The file does not say what the model promises; calcode inspect on the model does.")
    screen.point("Every figure above is an observation on these images.")


def _facts(summary: Summary, *, from_model: bool) -> dict[str, Any]:
    """The summary for JSON; a decision file does not contain the first-ranked classes."""
    facts = summary.to_dict()
    return facts if from_model else {key: None if key in _FROM_MODEL_ONLY else facts[key] for key in facts}
