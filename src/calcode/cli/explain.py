"""`calcode explain`: why the model answers as it does, image by image."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calcode.cli.options import AsJson, Features, ModelFile, PromptFile, names_in
from calcode.cli.running import DEVICE_NOTE, Screen, plain_table
from calcode.errors import FeatureFileError, RoleError, SettingsError

if TYPE_CHECKING:
    from calcode.cohorts import FeatureFile
    from calcode.method.evidence import Evidence
    from calcode.method.explain import Explanation


def explain(
    model: ModelFile,
    features: Features,
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", help="Image to explain. Repeat it, or separate ids by commas.", metavar="ID"),
    ] = None,
    image: Annotated[
        list[Path] | None, typer.Option(help="Photograph to explain instead; needs --backbone.", metavar="FILE")
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            "--backbone",
            "-b",
            help="What embeds --image: the image-text model behind FEATURES, an .onnx file or a name as for "
            "'calcode embed'.",
            metavar="MODEL",
        ),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(
            help="Feature file with the reference images of the model, if FEATURES does not hold them: the nearest "
            "ones are shown.",
            metavar="FILE",
        ),
    ] = None,
    neighbours: Annotated[int, typer.Option(help="How many reference images to show.", metavar="N", min=1)] = 5,
    prompts: PromptFile = None,
    as_json: AsJson = False,
) -> None:
    r"""Explain the answer for single images.

    Says what the model answers, how unusual the image is, why each diagnosis stays or goes and with what evidence,
    and which reference images are nearest. An answer of one diagnosis comes with its record: how often such answers
    were right on the labelled images of the role test, where FEATURES has them.

    Examples
    --------
    calcode explain model.safetensors split.parquet --id ISIC_0024306
    calcode explain model.safetensors split.parquet --id a,b,c --json
    calcode explain model.safetensors split.parquet \
        --image photo.jpg --backbone tower.onnx
    """
    from calcode.backbones import load_backbone
    from calcode.backbones.photograph import photograph_evidence
    from calcode.cli.rows import remembered
    from calcode.cohorts import open_features
    from calcode.engines.local import naming, require_review_probability
    from calcode.method.explain import explain as explained
    from calcode.method.explain import single_answer_record
    from calcode.site import SiteModel, load_model
    from calcode.site.explain import explain_site

    if bool(names_in(ids)) == bool(image):
        raise typer.BadParameter("name images by --id or photographs by --image", param_hint="--id")
    if image and backbone is None:
        raise typer.BadParameter("say what embeds the photograph", param_hint="--backbone")
    screen = Screen(as_json)
    with screen.working(f"Reading {model}"):
        fitted = load_model(model)
        file = open_features(features, prompts=prompts)
        if isinstance(fitted, SiteModel):
            require_review_probability(file, fitted)
            if image and fitted.settings_.calibrate_with == "weighted":
                raise SettingsError(
                    f"{model}: needs the review probability of an image, which a photograph does not tell; embed it "
                    "into a feature file with the column 'review_probability' and explain it by --id"
                )
    if image:
        tower = load_backbone(backbone or "")
        cases = [(path.name, photograph_evidence(path, backbone=tower, prompts=file.prompts)) for path in image]
    else:
        cases = images_by_id(file, ids or [])
    cohort = None
    if not isinstance(fitted, SiteModel):
        holder = file if reference is None else open_features(reference, prompts=file.prompts)
        cohort = remembered(fitted, holder, role="reference")
    explanations, record = [], None
    for name, evidence in cases:
        try:
            with naming(Path(name) if image else features):
                restricted = evidence.restrict(fitted.classes_)
                if isinstance(fitted, SiteModel):
                    found = explain_site(restricted, model=fitted, titles=file.prompts.titles)
                else:
                    found = explained(
                        restricted, model=fitted, reference=cohort, titles=file.prompts.titles, n_neighbours=neighbours
                    )
        except RoleError as error:
            raise RoleError(
                f"{features}: the model was fitted on {name!r} or on another image of its patient, so its answer "
                "would say nothing; explain an image of the role test, or a new one"
            ) from error
        if found.action == "label" and record is None:
            record = (
                "How often such an answer is right is not known here: 'calcode evaluate' says so from labelled images."
            )
            if "test" in file.role_counts and file.contents.label_column is not None:
                test = file.read(role="test", columns=[], classes=fitted.classes_).evidence
                record = record if test.labels is None else single_answer_record(fitted, test)
        found = replace(found, record=(record or "") if found.action == "label" else "")
        explanations.append((name, found))
    screen.emit("explain", {"images": [{"image": name, **found.to_dict()} for name, found in explanations]})
    for name, found in explanations:
        show_explanation(found, name=name, screen=screen)
    if cohort is None and not isinstance(fitted, SiteModel):
        screen.say()
        screen.say(
            f"The nearest reference images are not shown: {features} does not hold the reference images of this "
            "model. Name the file that does with --reference."
        )
    screen.say()
    screen.say(DEVICE_NOTE)


def images_by_id(file: FeatureFile, given: Sequence[str]) -> list[tuple[str, Evidence]]:
    """The images with these ids, in this order; raise an error with the nearest id if the file lacks one.

    A text with commas is one id if the file has it, and several otherwise.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from calcode.cohorts.parquet import stream_tables, text_values

    found: dict[str, Evidence] = {}
    by_id = pc.field("id").cast(pa.string()).isin(pa.array([*given, *names_in(given)], pa.string()))
    for block in file.batches(columns=[], where=by_id):
        for row, name in enumerate(np.asarray(block.evidence.ids).tolist()):
            found[name] = block.evidence[row]
    wanted = [name for text in given for name in ([text] if text in found else names_in([text]))]
    missing = [name for name in wanted if name not in found]
    if missing:
        tables = stream_tables(file.path, columns=["id"], batch_size=65_536)
        known = [name for table in tables for name in text_values(table["id"]).tolist()]
        near = difflib.get_close_matches(missing[0], known, n=1)
        meant = f"; did you mean {near[0]!r}?" if near else f"; ids look like {known[0]!r}"
        raise FeatureFileError(f"{file.path}: no image with the id {', '.join(map(repr, missing))}{meant}")
    return [(name, found[name]) for name in wanted]


def show_explanation(explanation: Explanation, *, name: str, screen: Screen) -> None:
    """Show the answer first, then the reasons, the nearest images and the numbers."""
    from calcode.method.explain import VERY_UNUSUAL
    from calcode.metrics.wording import percent

    screen.heading(name)
    screen.say(explanation.answer, style="bold")
    strange = explanation.farther_than is not None and explanation.farther_than >= VERY_UNUSUAL
    screen.say(explanation.unusual, style="yellow" if strange else "")
    if explanation.record:
        screen.say(explanation.record)
    if explanation.verdicts:
        screen.say()
        headings = ("diagnosis", "probability", "possible", "because")
        table = plain_table(*headings, words=headings)
        for verdict in explanation.verdicts:
            title = verdict.title if verdict.title == verdict.name else f"{verdict.title} ({verdict.name})"
            kept = "yes" if verdict.kept_by else "no"
            style = "bold" if verdict.kept_by else ""
            table.add_row(title, percent(verdict.probability), kept, verdict.because, style=style)
        screen.show(table)
    if explanation.neighbours:
        screen.say()
        names = ("nearest reference images", "diagnosis")
        table = plain_table(*names, "distance", words=names)
        for neighbour in explanation.neighbours:
            table.add_row(neighbour.id, neighbour.label_name or "-", f"{neighbour.distance:.3f}")
        screen.show(table)
    screen.say()
    screen.say("In detail", style="bold")
    for sentence in explanation.why:
        screen.point(sentence)
    if explanation.verdicts:
        limits = ", ".join(
            f"{verdict.name} {verdict.score:.3f} ({verdict.threshold:.3f})" for verdict in explanation.verdicts
        )
        screen.point(f"Scores, and in brackets what each may be at most: {limits.replace('inf', 'any')}.")
