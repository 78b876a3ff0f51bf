"""`calcode decide`: a decision on every image of a feature file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from calcode.cli.options import AsJson, Conditions, Features, ModelFile, PromptFile, RoleName, output_option
from calcode.cli.running import Screen, output_file, plain_table

if TYPE_CHECKING:
    from calcode.engines.local import DecidedFile


def decide(
    model: ModelFile,
    features: Features,
    output: Annotated[Path, output_option(help="Decision file to write, .parquet or .csv.")],
    role: RoleName = None,
    where: Conditions = None,
    prompts: PromptFile = None,
    engine: Annotated[
        Literal["local", "ray", "gpu"],
        typer.Option(
            help="Where to compute: in this process; with Ray in several, here or on the cluster of RAY_ADDRESS; or "
            "on a GPU."
        ),
    ] = "local",
    device: Annotated[
        str | None, typer.Option(help="Torch device of --engine gpu; default: cuda.", metavar="NAME")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Decide on every image: one diagnosis, a set, or a deferral with its reason.

    Reads and writes in blocks, so that a file larger than memory goes through. Labels are not needed and not
    used. Images that the model was fitted on are refused. A deferred image shows no set.

    Examples
    --------
    calcode decide model.safetensors split.parquet -o decisions.csv --role test
    calcode decide model.safetensors clinic.parquet -o decisions.parquet
    calcode decide model.safetensors all.parquet -o decided.parquet --engine ray
    """
    from calcode.cli.rows import Choice
    from calcode.method.decisions import Reason
    from calcode.method.model import Calcode
    from calcode.metrics.wording import counted, percent

    target = output_file(output, suffixes=(".parquet", ".csv"), inputs=(model, features, prompts))
    if device is not None and engine != "gpu":
        raise typer.BadParameter(f"{device!r} is for --engine gpu; leave it out", param_hint="--device")
    decide_file: Callable[..., DecidedFile]
    if engine == "ray":
        from calcode.engines.ray_decisions import decide_file
    else:
        from calcode.engines import local

        decide_file = partial(local.decide_file, device=None if engine == "local" else device or "cuda")
    choice = Choice.opened(features, prompts=prompts, role=role, conditions=where)
    screen = Screen(as_json)
    # All rows of the file are read, even if a role or a condition selects only some.
    with (
        choice.errors_in_words_of_options(),
        screen.counting("Rows of the file", total=choice.features.contents.n_rows) as advance,
    ):
        decided = decide_file(model, choice.features, target, role=role, where=choice.where, progress=advance)
    if as_json:
        facts = {
            "output": str(target),
            "images": decided.images,
            "actions": decided.actions,
            "reasons": {word: count for word, count in decided.reasons.items() if word != "none"},
            "set_sizes": decided.set_sizes,
            "full_sets": decided.set_sizes.get(len(decided.model.classes_), 0),
            "model_digest": decided.model.digest_,
            "promises": list(decided.model.promises_),
        }
        screen.emit("decide", facts)
        return
    total, every = decided.images, len(decided.model.classes_)
    full = decided.set_sizes.get(every, 0)
    rows = [("one diagnosis", decided.actions["label"], True)]
    rows.append(("several diagnoses remain possible", decided.actions["set"], True))
    for size, count in decided.set_sizes.items():
        if size > 1:
            words = f"all {every}: the answer says nothing" if size == every else f"{size} of {every}"
            rows.append((f"  {words}", count, False))
    rows.append(("deferred to a clinician", decided.actions["defer"], True))
    why = {
        Reason.LOW_SUPPORT: "too little support for an answer (low support)",
        Reason.EMPTY_SET: "no diagnosis is plausible enough (empty set)",
        Reason.FULL_SET: "both diagnoses remain possible (full set)",
    }
    for reason, words in why.items():
        count = decided.reasons[reason.name.lower()]
        rows += [(f"  {words}", count, False)] * bool(count)
    table = plain_table("answer", "images", "share")
    for words, count, strong in rows:
        table.add_row(words, f"{count:,}", percent(count / total), style="bold" if strong else "")
    screen.say(f"{choice.described}: {counted(total, 'image')}")
    screen.show(table)
    screen.say()
    if 2 * full > total - decided.actions["defer"]:
        screen.say(
            f"Most answers say nothing: {full:,} of {total - decided.actions['defer']:,} sets hold every label. "
            "The model cannot tell the diagnoses apart on these images; 'calcode inspect' shows why sets are "
            "wide.",
            style="yellow",
        )
    if decided.actions["label"]:
        screen.say("Only labelled images show how often a single diagnosis is right: 'calcode evaluate' counts it.")
    if not isinstance(decided.model, Calcode):
        screen.say(f"Site model: {decided.model.facts_text()}.")
    screen.say(f"Wrote {decided.output}.")
