"""`calcode compare`: every method on the same images, in one table."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calcode.cli.options import Conditions, FeatureFileArgument, PromptFile, names_in, option_group
from calcode.cli.running import Command, ExitCode, Screen, counted, terminal_table
from calcode.errors import CalcodeError, FeatureFileError, RoleError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from calcode.baselines import Method, Roles
    from calcode.cli.rows import Choice
    from calcode.cohorts import Cohort
    from calcode.study.comparison import MethodRow, Terms

_TEST = "Test images"
#: Columns of a terminal from which all figures stand in one table.
_WIDE = 124


#: Forms of the output besides tables, and their options.
_FORMS = {
    "json": "Print JSON for machines instead of text and tables.",
    "csv": "Print a line of comma-separated values per method instead.",
    "latex": "Print LaTeX tabulars (booktabs) instead.",
}


def _form(asked: dict[str, bool]) -> str:
    """The one form that was asked for, "" for tables."""
    forms = [f"--{name.removeprefix('as_')}" for name, wanted in asked.items() if wanted]
    if len(forms) > 1:
        raise typer.BadParameter(f"given with {forms[0]}; ask for one form", param_hint=forms[1])
    return forms[0] if forms else ""


@dataclass(frozen=True, kw_only=True)
class _TestImages:
    """Which images the methods are judged on."""

    role: str | None
    where: list[str] | None
    keep_outside: bool

    @property
    def own(self) -> bool:
        """Whether they are the file's own test role, and so exchangeable with the fitted roles by design."""
        return self.role in (None, "test") and not self.where


@option_group(
    "test",
    {
        "test_role": (
            Annotated[
                str | None,
                typer.Option(
                    help="Test on this role, such as external. Default: the role test; with --test-where all images.",
                    metavar="NAME",
                    rich_help_panel=_TEST,
                ),
            ],
            None,
        ),
        "test_where": (
            Annotated[
                list[str] | None,
                typer.Option(
                    help="Test on the images for which this holds, such as 'site=rosendahl'. Without it the "
                    "conditions of --where hold for the role test too.",
                    metavar="CONDITION",
                    rich_help_panel=_TEST,
                ),
            ],
            None,
        ),
        "keep_outside": (
            Annotated[
                bool,
                typer.Option(
                    "--keep-outside",
                    help="Keep test images of diagnoses outside the classes: they count for deferral and informative "
                    "rate.",
                    rich_help_panel=_TEST,
                ),
            ],
            False,
        ),
    },
    build=lambda values: _TestImages(
        role=values["test_role"], where=values["test_where"], keep_outside=values["keep_outside"]
    ),
)
@option_group(
    "form",
    {f"as_{name}": (Annotated[bool, typer.Option(f"--{name}", help=words)], False) for name, words in _FORMS.items()},
    build=_form,
)
def compare(
    features: FeatureFileArgument,
    test: Any,
    form: Any,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            help="Names or groups, separated by commas. Groups: all, paper, deferring, split, local, transductive, "
            "reconstructions, ablations. A name that is not known shows all names.",
            metavar="NAMES",
        ),
    ] = None,
    miscoverage: Annotated[
        float, typer.Option(help="Allowed share of misses; the target is 1 minus it.", metavar="SHARE")
    ] = 0.05,
    classes: Annotated[
        list[str] | None,
        typer.Option(help="Compare on these classes alone; images of others are left out.", metavar="CLASSES"),
    ] = None,
    where: Conditions = None,
    by: Annotated[
        str | None, typer.Option(help="Also compare within every value of this column, such as site.", metavar="COLUMN")
    ] = None,
    min_images: Annotated[
        int, typer.Option(help="Answered images a class needs to be called the worst.", metavar="N", min=1)
    ] = 20,
    seed: Annotated[int, typer.Option(help="Seeds every draw of every method.", metavar="N")] = 0,
    prompts: PromptFile = None,
) -> None:
    """Run compared methods on the roles of a feature file: same images, same metrics, only the method differs.

    Prints coverage with its interval, the worst class by name, set size, full-set rate, single answers and how many
    are right, deferral, selective accuracy, calibration error and who reaches the target. A method that fails is a
    row that says why. The records of all methods: docs/baselines.md.
    """
    from calcode.baselines import Roles
    from calcode.cli.rows import Choice, read_fitted_roles, row_filter
    from calcode.cohorts import open_features

    chosen = _chosen(names_in(methods) or ["all"])
    terms = _terms(miscoverage=miscoverage, min_images=min_images, seed=seed)
    screen = Screen()
    with screen.working(f"Reading {features}"):
        choice = Choice.checked(
            open_features(features, prompts=prompts),
            role=test.role or ("test" if test.own else None),
            conditions=where if test.own else test.where,
        )
        file = choice.features
        fitted = read_fitted_roles(file, where=row_filter(where, file), classes=names_in(classes))
        cohort, left_out = _test(choice, classes=names_in(classes), by=by, keep_outside=test.keep_outside)
    roles = Roles(**fitted)
    from calcode.study.comparison import compare_methods

    rows: list[MethodRow] = []
    try:
        coming = compare_methods(roles, cohort.evidence, methods=chosen, terms=terms)
    except RoleError as error:
        raise RoleError(
            f"{features}: {str(error).partition(';')[0]}; methods cannot be judged on images or groups they were "
            "fitted on: keep those out of the fitted roles with --where, or choose others with --test-where or "
            "--test-role"
        ) from error
    with screen.counting("Comparing", total=len(chosen)) as advance:
        for row in coming:
            rows.append(row)
            advance(1)
    about = _Comparison(choice=choice, roles=roles, test=cohort, left_out=left_out, own_role=test.own, by=by)
    from calcode.report.latex import tabular
    from calcode.study.comparison import EVERYTHING, SCHEMA, comparison_frame, comparison_table

    groups = about.groups(rows)
    if form == "--json":
        screen.emit("compare", _facts(about, rows, groups))
    elif form == "--csv":
        frame = comparison_frame(rows, groups, column=about.by or "")
        typer.echo(SCHEMA.csv(frame), nl=False)
    elif form == "--latex":
        lines = [f"% {' '.join(note.split())}" for note in (about.sentence(), about.note)]
        lines.append(tabular(comparison_table(rows, EVERYTHING[:-1])))
        for value, members in groups.items():
            lines += [f"% {about.by} = {' '.join(value.split())}", tabular(comparison_table(members, EVERYTHING[:-1]))]
        typer.echo("\n".join(lines))
    else:
        _show(about, rows, groups, screen=screen)
    if all(row.problem for row in rows):
        raise typer.Exit(int(ExitCode.DATA))


COMMAND = Command(
    run=compare,
    examples=(
        "calcode compare split.parquet --methods all",
        "calcode compare split.parquet --methods split,calcode --by site",
        "calcode compare split.parquet --where site!=rosendahl \\",
        "    --test-where site=rosendahl --min-images 20 --csv",
    ),
)


def _chosen(names: list[str]) -> tuple[Method, ...]:
    from calcode.study.comparison import chosen_methods

    try:
        return chosen_methods(names)
    except CalcodeError as error:
        raise typer.BadParameter(str(error), param_hint="--methods") from error


def _terms(*, miscoverage: float, min_images: int, seed: int) -> Terms:
    from calcode.study.comparison import Terms

    try:
        return Terms(miscoverage=miscoverage, min_n=min_images, random_state=seed)
    except SettingsError as error:
        raise typer.BadParameter(str(error).partition(": ")[2], param_hint="--miscoverage") from error


def _test(choice: Choice, *, classes: list[str], by: str | None, keep_outside: bool) -> tuple[Cohort, int]:
    """The test images with labels, and how many were left out because of theirs."""
    cohort = choice.features.read(
        role=choice.role, where=choice.where, classes=classes or None, columns=choice.column_for(by)
    )
    if cohort.evidence.labels is None:
        raise FeatureFileError(
            f"{choice.described}: the images have no labels, so nothing can be judged; fill the column 'label_name'"
        )
    kept = cohort if keep_outside else cohort.in_space_only()
    if not cohort.evidence.in_space.any():
        raise FeatureFileError(
            f"{choice.described}: no image has a diagnosis among the classes {', '.join(cohort.evidence.classes)}"
        )
    return kept, len(cohort) - len(kept)


@dataclass(frozen=True, eq=False, kw_only=True)
class _Comparison:
    """What the output says about the comparison besides its rows."""

    choice: Choice
    roles: Roles
    test: Cohort
    left_out: int
    own_role: bool
    by: str | None

    @property
    def note(self) -> str:
        """Whether promises apply to the test images."""
        from calcode.study.comparison import EXCHANGEABLE_NOTE, SHIFTED_NOTE

        return EXCHANGEABLE_NOTE if self.own_role else SHIFTED_NOTE

    def groups(self, rows: Sequence[MethodRow]) -> dict[str, list[MethodRow]]:
        """The rows within every value of the column that was asked for."""
        from calcode.study.comparison import rows_by

        return {} if self.by is None else rows_by(rows, self.test.metadata[self.by])

    def sentence(self) -> str:
        """Which images, and how many."""
        evidence = self.test.evidence
        inside = int(evidence.in_space.sum())
        outside = f", {len(evidence) - inside:,} outside them" if inside < len(evidence) else ""
        dropped = f" ({self.left_out:,} of other diagnoses left out)" if self.left_out else ""
        return (
            f"{self.choice.described}: {counted(len(evidence), 'test image')}{dropped}, {inside:,} in "
            f"{len(evidence.classes)} classes{outside}; fitted on "
            + ", ".join(f"{name} {count:,}" for name, count in self.counts().items())
            + "."
        )

    def counts(self) -> dict[str, int]:
        """Images per fitted role."""
        return {entry.name: len(getattr(self.roles, entry.name)) for entry in fields(self.roles)}


def _facts(about: _Comparison, rows: list[MethodRow], groups: dict[str, list[MethodRow]]) -> dict[str, Any]:
    terms = rows[0].terms
    facts: dict[str, Any] = {
        "file": str(about.choice.features.path),
        "test": {
            "described": about.choice.described,
            "images": len(about.test),
            "left_out": about.left_out,
            "exchangeable_by_design": about.own_role,
        },
        "fitted_on": about.counts(),
        "classes": list(about.test.evidence.classes),
        "miscoverage": terms.miscoverage,
        "target": terms.point.target,
        "min_n": terms.min_n,
        "seed": terms.random_state,
        "note": about.note,
        "rows": [row.to_dict() for row in rows],
    }
    if about.by is not None:
        facts["by"] = {
            "column": about.by,
            "groups": {value: [row.to_dict() for row in members] for value, members in groups.items()},
        }
    return facts


def _show(about: _Comparison, rows: list[MethodRow], groups: dict[str, list[MethodRow]], *, screen: Screen) -> None:
    """One wide table, or two narrow ones where the terminal has no room for it."""
    from rich.console import Console

    from calcode.study.comparison import (
        EVERYTHING,
        RELIABILITY,
        UTILITY,
        comparison_notes,
        comparison_table,
        comparison_warnings,
    )

    wide = Console().width >= _WIDE
    shown = {EVERYTHING: ""} if wide else {RELIABILITY: "Reliability, and what it cost", UTILITY: "Utility"}
    screen.say(about.sentence())
    for headings, title in shown.items():
        screen.say()
        screen.show(terminal_table(comparison_table(rows, headings), title=title))
    screen.say()
    for sentence in comparison_notes(rows):
        screen.say(sentence)
    for value, members in groups.items():
        images = next((len(row.decided) for row in members if row.decided is not None), 0)
        screen.heading(f"{about.by} = {value}: {counted(images, 'image')}")
        screen.show(terminal_table(comparison_table(members, RELIABILITY)))
    screen.heading("What is promised, and what is only observed")
    screen.say(about.note)
    for sentence in comparison_warnings(rows):
        screen.warn(sentence)
