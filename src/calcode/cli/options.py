"""Arguments and options that several commands share, and how their text is read."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="Model file, as 'calcode fit' writes it.")]
FeatureFileArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FEATURES",
        help="Parquet file with one row per image: id, embedding and, where known, label_name, role and group.",
    ),
]
PromptFile = Annotated[
    Path | None,
    typer.Option(
        "--prompts", help="Prompt file. Default: NAME.prompts.safetensors next to NAME.parquet.", metavar="FILE"
    ),
]
RoleName = Annotated[
    str | None, typer.Option("--role", help="Only the images of this role, such as test.", metavar="NAME")
]
Conditions = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        help="Only images for which this holds, such as 'site!=rosendahl' or 'age>=60'. Repeat it for several "
        "conditions. A missing value meets none.",
        metavar="CONDITION",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of text and tables.")]


def names_in(values: Sequence[str] | None) -> list[str]:
    """Names given one by one or separated by commas.

    Examples
    --------
    >>> names_in(["mel,bcc", "nv"])
    ['mel', 'bcc', 'nv']
    """
    return [name.strip() for value in values or () for name in value.split(",") if name.strip()]


def option_group(
    argument: str, options: Mapping[str, tuple[Any, Any]], *, build: Callable[[dict[str, Any]], Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command with many options that belong together: typer sees each, the command gets one value.

    Parameters
    ----------
    argument : str
        Of the command, which takes the value.
    options : mapping of str to (annotation, default)
        As typer reads them.
    build : callable
        From the options' values by name to the value.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command)
        hints = get_type_hints(command, include_extras=True)

        @functools.wraps(command)
        def run(**values: Any) -> None:
            grouped = {name: values.pop(name) for name in options}
            command(**values, **{argument: build(grouped)})

        made = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, (annotation, default) in options.items()
        ]
        kept = [
            entry.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])
            for name, entry in own.parameters.items()
            if name != argument
        ]
        run.__signature__ = own.replace(parameters=[*kept, *made])  # type: ignore[attr-defined]
        run.__annotations__ = {entry.name: entry.annotation for entry in (*kept, *made)}
        return run

    return decorate
