"""`calcode compare`: every method on the same images, in one table."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calcode.cli.options import AsJson, Conditions, FeatureFileArgument, PromptFile, names_in
from calcode.cli.running import Command, ExitCode
from calcode.errors import CalcodeError, FeatureFileError, RoleError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from calcode.baselines import Method, Roles
    from calcode.cli.rows import Choice
    from calcode.cli.screen import Screen
    from calcode.cohorts import Cohort
    from calcode.study.comparison import MethodRow, Terms

_TEST = "Test images"
#: Columns of a terminal from which all figures stand in one table.
_WIDE = 124


class _Form(StrEnum):
    TABLES = "tables"
    JSON = "--json"
    CSV = "--csv"
    LATEX = "--latex"


def compare(
    features: FeatureFileArgument,
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
        typer.Option(
            help="Compare on these classes alone; images of others are left out.", metavar="CLASSES"
        ),
    ] = None,
    where: Conditions = None,
    test_role: Annotated[
        str | None,
        typer.Option(
            help="Test on this role, such as external. Unless given, on the role test, or with --test-where on all.",
            metavar="NAME",
            rich_help_panel=_TEST,
        ),
    ] = None,
    test_where: Annotated[
        list[str] | None,
        typer.Option(
            help="Test on the images for which this holds, such as 'site=rosendahl'. Without it the conditions of "
            "--where hold for the role test too.",
            metavar="CONDITION",
            rich_help_panel=_TEST,
        ),
    ] = None,
    keep_outside: Annotated[
        bool,
        typer.Option(
            "--keep-outside",
            help="Keep test images of diagnoses outside the classes: they count for deferral and informative rate.",
            rich_help_panel=_TEST,
        ),
    ] = False,
    by: Annotated[
        str | None,
        typer.Option(help="Also compare within every value of this column, such as site.", metavar="COLUMN"),
    ] = None,
    min_images: Annotated[
        int, typer.Option(help="Answered images a class needs to be called the worst.", metavar="N", min=1)
    ] = 20,
    seed: Annotated[int, typer.Option(help="Seeds every draw of every method.", metavar="N")] = 0,
    prompts: PromptFile = None,
    as_json: AsJson = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print a line of comma-separated values per method instead.")
    ] = False,
    as_latex: Annotated[
        bool, typer.Option("--latex", help="Print LaTeX tabulars (booktabs) instead.")
    ] = False,
) -> None:
    """Run compared methods on the roles of a feature file: same images, same metrics, only the method differs.

    Prints coverage with its interval, the worst class by name, set size, full-set rate, informative rate, deferral,
    selective accuracy, calibration error and who reaches the target. A method that fails is a row that says why. The
    records of all methods: docs/baselines.md.
    """
    from calcode.cli.screen import Screen

    form = _form(as_json=as_json, as_csv=as_csv, as_latex=as_latex)
    chosen = _chosen(names_in(methods) or ["all"])
    terms = _terms(miscoverage=miscoverage, min_images=min_images, seed=seed)
    screen = Screen()
    own_role = test_role in (None, "test") and not test_where
    with screen.working(f"Reading {features}"):
        choice = _test_choice(
            features,
            prompts=prompts,
            role=test_role or ("test" if own_role else None),
            conditions=where if own_role else test_where,
        )
        roles = _roles(choice, where=where, classes=names_in(classes))
        test, left_out = _test(choice, classes=names_in(classes), by=by, keep_outside=keep_outside)
    rows = _run(chosen, roles, test, terms=terms, path=features, screen=screen)
    told = _Told(choice=choice, roles=roles, test=test, left_out=left_out, own_role=own_role, by=by)
    _tell(told, rows, form=form, screen=screen)
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


def _form(*, as_json: bool, as_csv: bool, as_latex: bool) -> _Form:
    asked = [
        form
        for form, wanted in ((_Form.JSON, as_json), (_Form.CSV, as_csv), (_Form.LATEX, as_latex))
        if wanted
    ]
    if len(asked) > 1:
        raise typer.BadParameter(f"stands beside {asked[0]}; ask for one form", param_hint=asked[1])
    return asked[0] if asked else _Form.TABLES


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


def _test_choice(
    path: Path, *, prompts: Path | None, role: str | None, conditions: list[str] | None
) -> Choice:
    from calcode.cli.rows import Choice
    from calcode.cohorts import open_features

    return Choice.checked(open_features(path, prompts=prompts), role=role, conditions=conditions)


def _roles(choice: Choice, *, where: list[str] | None, classes: list[str]) -> Roles:
    from calcode.baselines import Roles
    from calcode.cli.rows import read_fitted_roles, row_filter

    file = choice.features
    return Roles(**read_fitted_roles(file, where=row_filter(where, file), classes=classes))


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


def _run(
    methods: Sequence[Method], roles: Roles, test: Cohort, *, terms: Terms, path: Path, screen: Screen
) -> list[MethodRow]:
    from calcode.study.comparison import compare_methods

    rows: list[MethodRow] = []
    try:
        coming = compare_methods(roles, test.evidence, methods=methods, terms=terms)
    except RoleError as error:
        raise RoleError(
            f"{path}: {str(error).partition(';')[0]}; methods cannot be judged on images or groups they were "
            "fitted on: keep those out of the fitted roles with --where, or choose others with --test-where or "
            "--test-role"
        ) from error
    with screen.counting("Comparing", total=len(methods)) as advance:
        for row in coming:
            rows.append(row)
            advance(1)
    return rows


@dataclass(frozen=True, eq=False, kw_only=True)
class _Told:
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
        from calcode.cli.screen import counted

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


def _tell(told: _Told, rows: list[MethodRow], *, form: _Form, screen: Screen) -> None:
    from calcode.report.latex import tabular
    from calcode.study.comparison import EVERYTHING, SCHEMA, comparison_frame, comparison_table

    groups = told.groups(rows)
    if form is _Form.JSON:
        screen.emit("compare", _facts(told, rows, groups))
    elif form is _Form.CSV:
        frame = comparison_frame(rows, groups, column=told.by or "")
        typer.echo(SCHEMA.csv(frame), nl=False)
    elif form is _Form.LATEX:
        lines = [f"% {' '.join(note.split())}" for note in (told.sentence(), told.note)]
        lines.append(tabular(comparison_table(rows, EVERYTHING[:-1])))
        for value, members in groups.items():
            lines += [
                f"% {told.by} = {' '.join(value.split())}",
                tabular(comparison_table(members, EVERYTHING[:-1])),
            ]
        typer.echo("\n".join(lines))
    else:
        _show(told, rows, groups, screen=screen)


def _facts(told: _Told, rows: list[MethodRow], groups: dict[str, list[MethodRow]]) -> dict[str, Any]:
    terms = rows[0].terms
    facts: dict[str, Any] = {
        "file": str(told.choice.features.path),
        "test": {
            "described": told.choice.described,
            "images": len(told.test),
            "left_out": told.left_out,
            "exchangeable_by_design": told.own_role,
        },
        "fitted_on": told.counts(),
        "classes": list(told.test.evidence.classes),
        "miscoverage": terms.miscoverage,
        "target": terms.point.target,
        "min_n": terms.min_n,
        "seed": terms.random_state,
        "note": told.note,
        "rows": [row.to_dict() for row in rows],
    }
    if told.by is not None:
        facts["by"] = {
            "column": told.by,
            "groups": {value: [row.to_dict() for row in members] for value, members in groups.items()},
        }
    return facts


def _show(told: _Told, rows: list[MethodRow], groups: dict[str, list[MethodRow]], *, screen: Screen) -> None:
    """One wide table, or two narrow ones where the terminal has no room for it."""
    from rich.console import Console

    from calcode.cli.screen import counted, terminal_table
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
    screen.say(told.sentence())
    for headings, title in shown.items():
        screen.say()
        screen.show(terminal_table(comparison_table(rows, headings), title=title))
    screen.say()
    for sentence in comparison_notes(rows):
        screen.say(sentence)
    for value, members in groups.items():
        images = next((len(row.decided) for row in members if row.decided is not None), 0)
        screen.heading(f"{told.by} = {value}: {counted(images, 'image')}")
        screen.show(terminal_table(comparison_table(members, RELIABILITY)))
    screen.heading("What is promised, and what is only observed")
    screen.say(told.note)
    for sentence in comparison_warnings(rows):
        screen.warn(sentence)
