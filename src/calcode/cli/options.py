"""Arguments and options that several commands share, and functions that read their text."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="Model file, as 'calcode fit' writes it.")]
Features = Annotated[
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
LeastImages = Annotated[
    int, typer.Option(help="Answered images a class needs to be called the worst.", metavar="N", min=1)
]
#: Option for the output file or folder; called with the help text.
output_option = functools.partial(typer.Option, "--output", "-o", metavar="FILE")
#: Ends the error about images that a model was fitted on: many hospitals number their patients from one.
NAMESAKES = "; if only the names are the same, give these images or patients other names"
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of text and tables.")]


def names_in(values: Sequence[str] | None) -> list[str]:
    """Names that were given one by one or separated by commas.

    Examples
    --------
    >>> names_in(["mel,bcc", "nv"])
    ['mel', 'bcc', 'nv']
    """
    return [name.strip() for value in values or () for name in value.split(",") if name.strip()]


def option_groups(**groups: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command take some options in groups: typer sees every option, the command gets one value per group.

    Parameters
    ----------
    **groups : dataclass
        Groups by the command's argument that receives them; the fields are options, annotated for typer.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        own = inspect.signature(command)
        parameters = [
            entry.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])
            for name, entry in own.parameters.items()
            if name not in groups
        ]
        for group in groups.values():
            hints |= get_type_hints(group, include_extras=True)
            parameters += [
                inspect.Parameter(
                    entry.name, inspect.Parameter.KEYWORD_ONLY, default=entry.default, annotation=hints[entry.name]
                )
                for entry in fields(group)
            ]

        @functools.wraps(command)
        def run(**values: Any) -> None:
            for name, group in groups.items():
                values[name] = group(**{entry.name: values.pop(entry.name) for entry in fields(group)})
            command(**values)

        run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {entry.name: entry.annotation for entry in parameters}
        return run

    return decorate
