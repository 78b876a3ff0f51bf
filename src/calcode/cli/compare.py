"""`calcode compare`: every method on the same images, in one table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from calcode.cli.options import AsJson, Conditions, Features, LeastImages, PromptFile, names_in, option_groups
from calcode.cli.running import ExitCode, Screen, terminal_table
from calcode.errors import CalcodeError, FeatureFileError, RoleError, SettingsError

_TEST = "Test images"
#: Terminal width from which all figures fit in one table.
_WIDE = 124


@dataclass(frozen=True, kw_only=True)
class _Forms:
    """Output formats other than tables."""

    as_json: AsJson = False
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print a line of comma-separated values per method instead.")
    ] = False
    as_latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX tabulars (booktabs) instead.")] = False


@dataclass(frozen=True, kw_only=True)
class _TestImages:
    """The images on which the methods are tested."""

    test_role: Annotated[
        str | None,
        typer.Option(
            help="Test on this role, such as external. Default: the role test; with --test-where all images.",
            metavar="NAME",
            rich_help_panel=_TEST,
        ),
    ] = None
    test_where: Annotated[
        list[str] | None,
        typer.Option(
            help="Test on the images for which this holds, such as 'site=rosendahl'. Without it the conditions of "
            "--where hold for the role test too.",
            metavar="CONDITION",
            rich_help_panel=_TEST,
        ),
    ] = None
    keep_outside: Annotated[
        bool,
        typer.Option(
            "--keep-outside",
            help="Keep test images of diagnoses outside the classes: they count for deferral and informative rate.",
            rich_help_panel=_TEST,
        ),
    ] = False

    @property
    def own(self) -> bool:
        """Whether they are the file's own test role, and so exchangeable with the fitted roles by design."""
        return self.test_role in (None, "test") and not self.test_where


@option_groups(test=_TestImages, forms=_Forms)
def compare(
    features: Features,
    test: _TestImages,
    forms: _Forms,
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
    min_n: LeastImages = 20,
    seed: Annotated[int, typer.Option(help="Seeds every draw of every method.", metavar="N")] = 0,
    prompts: PromptFile = None,
) -> None:
    r"""Run compared methods on the roles of a feature file: same images, same metrics, only the method differs.

    Prints coverage with its interval, the worst class by name, set size, full-set rate, single answers and how many
    are right, deferral, selective accuracy, calibration error and who reaches the target. A method that fails is a
    row that says why. The records of all methods: docs/baselines.md.

    Examples
    --------
    calcode compare split.parquet --methods all
    calcode compare split.parquet --methods split,calcode --by site
    calcode compare split.parquet --where site!=rosendahl \
        --test-where site=rosendahl --min-n 20 --csv
    """
    from calcode.baselines import Roles
    from calcode.cli.rows import Choice, read_fitted_roles, row_filter
    from calcode.metrics.wording import counted
    from calcode.report.latex import tabular
    from calcode.study import comparison

    asked = [f"--{name.removeprefix('as_')}" for name, wanted in vars(forms).items() if wanted]
    if len(asked) > 1:
        raise typer.BadParameter(f"given with {asked[0]}; ask for one form", param_hint=asked[1])
    try:
        chosen = comparison.chosen_methods(names_in(methods) or ["all"])
    except CalcodeError as error:
        raise typer.BadParameter(str(error), param_hint="--methods") from error
    try:
        terms = comparison.Terms(miscoverage=miscoverage, min_n=min_n, random_state=seed)
    except SettingsError as error:
        raise typer.BadParameter(str(error).partition(": ")[2], param_hint="--miscoverage") from error
    screen = Screen(forms.as_json)
    with screen.working(f"Reading {features}"):
        choice = Choice.opened(
            features,
            prompts=prompts,
            role=test.test_role or ("test" if test.own else None),
            conditions=where if test.own else test.test_where,
        )
        file = choice.features
        roles = Roles(**read_fitted_roles(file, where=row_filter(where, file), classes=names_in(classes)))
        read = file.read(
            role=choice.role, where=choice.where, classes=names_in(classes) or None, columns=choice.column_for(by)
        )
        if read.evidence.labels is None:
            raise FeatureFileError(
                f"{choice.described}: the images have no labels, so nothing can be judged; fill the column 'label_name'"
            )
        if not read.evidence.in_space.any():
            raise choice.no_diagnosis(read.evidence.classes)
        cohort = read if test.keep_outside else read.in_space_only()
    evidence, left_out = cohort.evidence, len(read) - len(cohort)
    try:
        coming = comparison.compare_methods(roles, evidence, methods=chosen, terms=terms)
    except RoleError as error:
        raise RoleError(
            f"{features}: {str(error).partition(';')[0]}; methods cannot be judged on images or groups they were "
            "fitted on: keep those out of the fitted roles with --where, or choose others with --test-where or "
            "--test-role"
        ) from error
    rows = []
    with screen.counting("Comparing", total=len(chosen)) as advance:
        for row in coming:
            rows.append(row)
            advance(1)
    groups = {} if by is None else comparison.rows_by(rows, cohort.metadata[by])
    counts = {name: len(members) for name, members in roles.by_name.items()}
    note = comparison.EXCHANGEABLE_NOTE if test.own else comparison.SHIFTED_NOTE
    inside = int(evidence.in_space.sum())
    sentence = (
        f"{choice.described}: {counted(len(evidence), 'test image')}"
        + (f" ({left_out:,} of other diagnoses left out)" if left_out else "")
        + f", {inside:,} in {len(evidence.classes)} classes"
        + (f", {len(evidence) - inside:,} outside them" if inside < len(evidence) else "")
        + f"; fitted on {', '.join(f'{name} {count:,}' for name, count in counts.items())}."
    )
    if forms.as_json:
        facts: dict[str, Any] = {
            "file": str(file.path),
            "test": {
                "described": choice.described,
                "images": len(evidence),
                "left_out": left_out,
                "exchangeable_by_design": test.own,
            },
            "fitted_on": counts,
            "classes": list(evidence.classes),
            "miscoverage": terms.miscoverage,
            "target": terms.point.target,
            "min_n": terms.min_n,
            "seed": terms.random_state,
            "note": note,
            "rows": [row.to_dict() for row in rows],
        }
        if by is not None:
            shown = {value: [row.to_dict() for row in members] for value, members in groups.items()}
            facts["by"] = {"column": by, "groups": shown}
        screen.emit("compare", facts)
    elif forms.as_csv:
        typer.echo(comparison.SCHEMA.csv(comparison.comparison_frame(rows, groups, column=by or "")), nl=False)
    elif forms.as_latex:
        heads = comparison.EVERYTHING[:-1]
        lines = [f"% {' '.join(text.split())}" for text in (sentence, note)]
        lines.append(tabular(comparison.comparison_table(rows, heads)))
        for value, members in groups.items():
            lines += [f"% {by} = {' '.join(value.split())}", tabular(comparison.comparison_table(members, heads))]
        typer.echo("\n".join(lines))
    else:
        # One wide table, or two narrow ones if the terminal is too narrow for it.
        parts: dict[tuple[str, ...], str] = {comparison.EVERYTHING: ""}
        if screen.width < _WIDE:
            parts = {comparison.RELIABILITY: "Reliability, and what it cost", comparison.UTILITY: "Utility"}
        screen.say(sentence)
        for headings, title in parts.items():
            screen.say()
            screen.show(terminal_table(comparison.comparison_table(rows, headings), title=title))
        screen.say()
        for remark in comparison.comparison_notes(rows):
            screen.say(remark)
        for value, members in groups.items():
            images = next((len(row.decided) for row in members if row.decided is not None), 0)
            screen.heading(f"{by} = {value}: {counted(images, 'image')}")
            screen.show(terminal_table(comparison.comparison_table(members, comparison.RELIABILITY)))
        screen.heading("What is promised, and what is only observed")
        screen.say(note)
        for warning in comparison.comparison_warnings(rows):
            screen.warn(warning)
    if all(row.problem for row in rows):
        raise typer.Exit(int(ExitCode.DATA))
