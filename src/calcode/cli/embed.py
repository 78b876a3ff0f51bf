"""`calcode embed`: from a folder of images to a feature file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from calcode.cli.options import AsJson, option_groups, output_option
from calcode.cli.running import Screen, output_file

if TYPE_CHECKING:
    from calcode.datasets import PromptTemplates
    from calcode.engines.embedding import EmbedSummary, Progress

#: Number of skipped images named on the screen; the file lists all.
_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class _Loading:
    """Options for loading the model."""

    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.", metavar="NAME")] = None
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto"
    precision: Annotated[str, typer.Option(help="auto (bfloat16 on a GPU), float32, bfloat16 or float16.")] = "auto"


@option_groups(how=_Loading)
def embed(
    images: Annotated[Path, typer.Argument(metavar="IMAGES", help="Folder of a data set, or a CSV file.")],
    output: Annotated[Path, output_option(help="Feature file to write, .parquet.")],
    backbone: Annotated[
        str,
        typer.Option(
            "--backbone",
            "-b",
            metavar="MODEL",
            help="clip-vit-b32, pubmedclip-vit-b32, biomedclip, medsiglip-448; a hub name (owner/model, or "
            "hf-hub:owner/model for open_clip); a local folder of either; or an .onnx file.",
        ),
    ],
    how: _Loading,
    dataset: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="How to read the folder: ham10000, isic2019-test, pad-ufes-20, camelyon17, ...; csv or folders (one "
            "per class) for your own images.",
        ),
    ] = "folders",
    templates: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Prompt templates: dermatology, histopathology, or a .toml file of your own. Default: those of "
            "the data set.",
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Prompt file (.prompts.safetensors) instead of templates; an .onnx file needs one."
        ),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images at a time.", min=1)] = None,
    workers: Annotated[int | None, typer.Option(help="Decoding processes; default: one per core.", min=0)] = None,
    engine: Annotated[
        Literal["local", "ray"],
        typer.Option(
            help="Where to compute: on this machine; or with Ray on all GPUs and cores, here or on the cluster of "
            "RAY_ADDRESS."
        ),
    ] = "local",
    as_json: AsJson = False,
) -> None:
    """Embed a folder of images with a frozen image-text model.

    Writes a feature file and its prompts. An interrupted run continues when the same command is given
    again. An image that cannot be read is skipped and listed, with the reason, in NAME.skipped.csv. With
    HF_HUB_OFFLINE=1 only models already on this machine are used.

    Examples
    --------
    calcode embed HAM10000/ --dataset ham10000 -b clip-vit-b32 -o ham.parquet
    calcode embed photos/ -b t.onnx --prompts p.safetensors -o new.parquet
    """
    from calcode.backbones import embed_prompts, load_backbone
    from calcode.cohorts import Prompts, read_prompts
    from calcode.datasets import DATASETS, load_templates, read_class_folders, read_csv_images, read_dataset
    from calcode.engines.embedding import embed as embed_here
    from calcode.engines.embedding import skipped_file
    from calcode.metrics.wording import counted

    target = output_file(output, suffixes=(".parquet",))
    # A local folder or file gets its absolute path, which is valid in every working directory.
    name = str(Path(backbone).resolve()) if Path(backbone).exists() else backbone
    load = partial(load_backbone, name, **vars(how))
    # Cheap checks come before the model is loaded.
    known = ("auto", "float32", "bfloat16", "float16")
    if how.precision not in known:
        raise typer.BadParameter(f"{how.precision!r} is none of {', '.join(known)}", param_hint="--precision")
    embed_images: Callable[..., EmbedSummary]
    if engine == "local":
        embed_images = partial(embed_here, workers=workers)
    elif workers is not None:
        raise typer.BadParameter(
            "with --engine ray there is one worker per GPU or core; leave it out", param_hint="--workers"
        )
    else:
        from calcode.engines.ray_embedding import embed as embed_on_ray

        embed_images = partial(embed_on_ray, load=load)
    own_templates = templates or (DATASETS[dataset].templates if dataset in DATASETS else None)
    words: Prompts | PromptTemplates
    if prompts is not None:
        if templates is not None:
            raise typer.BadParameter("give templates or a prompt file, not both", param_hint="--prompts")
        words = read_prompts(prompts)
    elif own_templates is None:
        raise typer.BadParameter(
            f"the data set {dataset!r} has no templates of its own; name some, or give --prompts",
            param_hint="--templates",
        )
    else:
        words = load_templates(own_templates)
    # The prompts define which labels are inside the label space.
    if images.is_file():
        listing = read_csv_images(images, classes=words.classes)
    elif dataset == "folders":
        listing = read_class_folders(images, classes=words.classes)
    else:
        listing = read_dataset(dataset, images)
    screen = Screen(as_json)
    with screen.working(f"Loading {backbone}"):
        model = load()
        bank = words if isinstance(words, Prompts) else embed_prompts(model, words)
    try:
        with screen.counting("Embedding", total=len(listing)) as advance:
            done = 0

            def show(progress: Progress) -> None:
                nonlocal done
                skipped = f", {progress.skipped} skipped" if progress.skipped else ""
                advance(progress.done - done, f"{progress.images_per_second:,.0f} images/s{skipped}")
                done = progress.done

            summary = embed_images(
                listing, backbone=model, prompts=bank, out=target, batch_size=batch_size, progress=show
            )
    except KeyboardInterrupt:
        screen.warn("Interrupted. The same command goes on from here.")
        raise
    facts = asdict(summary) | {
        "backbone": asdict(model.card) | {"preprocessing": str(model.card.preprocessing)},
        "prompt_digest": bank.digest,
    }
    screen.emit("embed", facts)
    screen.say(f"Model: {model.card.identity}")
    went_on = f", {summary.resumed:,} of them in an earlier run" if summary.resumed else ""
    screen.say(
        f"Embedded {counted(summary.embedded, 'image')}{went_on}; {summary.images_per_second:,.1f} images per second."
    )
    if summary.skipped:
        screen.say(f"Skipped {counted(len(summary.skipped), 'image')}, listed in {skipped_file(summary.output)}:")
        for entry in summary.skipped[:_NAMED]:
            screen.point(f"{entry.id}: {entry.reason}")
    screen.say(f"Wrote {summary.output}. Embeddings are patient-derived data: treat the file like the images.")
