"""What decisions cost: risk in several regimes, operating points chosen on validation, another audit score."""

from __future__ import annotations

from collections.abc import Sequence

from calcode.report.wording import (
    counted,
    listed,
    number,
    percent,
    short_percent,
    signed,
    signed_points,
)
from calcode.study.page.cells import count_of, value_of, words_of
from calcode.study.page.output import StudyOutput
from calcode.study.page.parts import Heading, Part, Passage, Section, TableView, entries
from calcode.study.schema import Row
from calcode.study.specification import COMPLETE

_RISK, _CHOSEN = "cost_sensitive_risk_average", "validation_selected_risk_delta_summary"
_POINTS, _MODAL = "validation_selected_operating_points", "conservative_xmodal_budget_summary"


def costs_section(output: StudyOutput) -> Section | None:
    """Risk, chosen operating points and the exploratory audit score."""
    parts: list[Part] = []
    risks = output.chosen(_RISK, scope="all")
    if risks:
        regimes = list(dict.fromkeys(words_of(row, "regime") for row in risks))
        sentences = tuple(told for regime in regimes if (told := risk_sentence(risks, regime)))
        parts.append(Passage(heading="Cost-sensitive risk", sentences=sentences))
        parts.append(_risk_table(output, risks, regimes))
    chosen = output.chosen(_CHOSEN, scope="all")
    if chosen:
        sentences = tuple(chosen_sentence(row) for row in chosen)
        parts.append(Passage(heading="Operating points chosen on validation", sentences=sentences))
        parts += [_chosen_table(output), _points_table(output)]
    modal = output.rows(_MODAL)
    if modal:
        parts.append(
            Passage(heading="Cross-modal disagreement (exploratory)", sentences=(modal_sentence(modal),))
        )
        parts.append(_modal_table(modal))
    return Section(key="costs", title="Costs and choices", parts=tuple(parts)) if parts else None


# ---------------------------------------------------------------------- risk


def risk_sentence(rows: Sequence[Row], regime: str) -> str:
    """Which method has the lowest average risk in a regime, and where the complete one stands."""
    own = [row for row in rows if row["regime"] == regime]
    order = sorted(own, key=lambda row: value_of(row, "risk"))
    best = [row for row in own if row["lowest"] is True]
    if not best:
        return ""
    names = listed([words_of(row, "title") for row in best])
    risk = number(value_of(order[0], "risk"), digits=3)
    complete = next((row for row in own if row["method"] == COMPLETE), None)
    if complete is None or complete in best:
        second = next((row for row in order if row not in best), None)
        after = (
            f", then {words_of(second, 'title')} with {number(value_of(second, 'risk'), digits=3)}"
            if second
            else ""
        )
        return f"{regime.capitalize()}: the lowest average risk is that of {names} ({risk}){after}."
    place = 1 + sum(value_of(row, "risk") < value_of(complete, "risk") for row in own)
    return (
        f"{regime.capitalize()}: the lowest average risk is that of {names} ({risk}); CALCoDe stands at place "
        f"{place} of {len(own)} with {number(value_of(complete, 'risk'), digits=3)}."
    )


def _risk_table(output: StudyOutput, rows: Sequence[Row], regimes: Sequence[str]) -> TableView:
    costs = output.study["costs"]
    methods = list(dict.fromkeys(words_of(row, "method") for row in rows))
    risks = {(words_of(row, "method"), words_of(row, "regime")): row for row in rows}
    body = []
    for method in methods:
        own = [risks[method, regime] for regime in regimes if (method, regime) in risks]
        cells = [
            number(value_of(risks[method, r], "risk"), digits=3) if (method, r) in risks else ""
            for r in regimes
        ]
        first = own[0]
        body.append(
            entries(
                words_of(first, "title"),
                *cells,
                percent(value_of(first, "coverage")),
                percent(value_of(first, "worst_class_coverage")),
                number(value_of(first, "set_size")),
                percent(value_of(first, "rejected")),
            )
        )
    words = "; ".join(
        f"{name} ({costs[name]['error']:g}, {costs[name]['set_size']:g}, {costs[name]['deferral']:g})"
        for name in regimes
        if name in costs
    )
    return TableView(
        name="cost-risk",
        caption=f"Average risk over all settings and backbones, lower is better; costs of an error, a full set and a "
        f"deferral: {words}. Rejected: images that the audit does not accept.",
        headings=(
            Heading("method", numeric=False),
            *(Heading(regime) for regime in regimes),
            Heading("coverage"),
            Heading("worst class"),
            Heading("set size"),
            Heading("rejected"),
        ),
        rows=tuple(body),
        folded=f"Risk of all {counted(len(methods), 'method')}",
        layout="scroll",
    )


# ---------------------------------------------------------------------- operating points


def chosen_sentence(row: Row) -> str:
    """What choosing on validation changed on the target, and how often constraints were given up."""
    risk = value_of(row, "delta_risk")
    verdict = "lowers" if risk < 0 else "raises" if risk > 0 else "leaves"
    by = f" by {number(abs(risk), digits=3)}" if risk else " as it is"
    return (
        f"{words_of(row, 'regime').capitalize()}: choosing on validation {verdict} the risk on the target{by}; "
        f"coverage {signed_points(value_of(row, 'delta_coverage'))}, worst class "
        f"{signed_points(value_of(row, 'delta_worst_class_coverage'))}, set size "
        f"{signed(value_of(row, 'delta_set_size'))} labels, rejected "
        f"{signed_points(value_of(row, 'delta_rejected'))} to {percent(value_of(row, 'chosen_rejected'))}. Constraints "
        f"were relaxed in {count_of(row, 'n_relaxed') or 'none'} of "
        f"{counted(count_of(row, 'n_combinations'), 'combination')}."
    )


def _chosen_table(output: StudyOutput) -> TableView:
    return TableView(
        name="validation-selected-risk",
        caption="Audited base layer without guard, chosen point minus fixed point on the target, averaged over "
        "backbones. The choice adds no guarantee.",
        headings=(
            Heading("scope", numeric=False),
            Heading("regime", numeric=False),
            Heading("risk"),
            Heading("coverage, points"),
            Heading("worst class, points"),
            Heading("set size"),
            Heading("rejected, points"),
            Heading("relaxed"),
        ),
        rows=tuple(
            entries(
                words_of(row, "scope"),
                words_of(row, "regime"),
                signed(value_of(row, "delta_risk"), digits=3),
                signed(100 * value_of(row, "delta_coverage"), digits=1),
                signed(100 * value_of(row, "delta_worst_class_coverage"), digits=1),
                signed(value_of(row, "delta_set_size")),
                signed(100 * value_of(row, "delta_rejected"), digits=1),
                f"{count_of(row, 'n_relaxed')} of {count_of(row, 'n_combinations')}",
            )
            for row in output.rows(_CHOSEN)
        ),
        folded="Every scope",
        layout="scroll",
    )


def _points_table(output: StudyOutput) -> TableView:
    return TableView(
        name="validation-selected-points",
        caption="The point chosen on validation for every setting, backbone and regime, and what it does.",
        headings=(
            Heading("setting", numeric=False),
            Heading("backbone", numeric=False),
            Heading("regime", numeric=False),
            Heading("target coverage"),
            Heading("deferral level"),
            Heading("given up", numeric=False),
            Heading("risk"),
            Heading("coverage"),
            Heading("worst class"),
            Heading("set size"),
            Heading("rejected"),
        ),
        rows=tuple(
            entries(
                words_of(row, "setting"),
                words_of(row, "backbone"),
                words_of(row, "regime"),
                short_percent(value_of(row, "target_coverage")),
                short_percent(value_of(row, "deferral_level")),
                words_of(row, "relaxed") or "nothing",
                number(value_of(row, "risk"), digits=3),
                percent(value_of(row, "coverage")),
                percent(value_of(row, "worst_class_coverage")),
                number(value_of(row, "set_size")),
                percent(value_of(row, "rejected")),
            )
            for row in output.rows(_POINTS)
        ),
        folded="Every chosen point",
        layout="scroll",
    )


# ---------------------------------------------------------------------- cross-modal disagreement


def modal_sentence(rows: Sequence[Row]) -> str:
    """Where the validation filter let the disagreement replace the audit, and what that did on the target."""
    switched = [row for row in rows if row["switched"] is True]
    combinations = counted(len(rows), "combination")
    if not switched:
        return f"The validation filter lets it replace the method's own diagnostic in none of {combinations}."
    words = [
        f"{words_of(row, 'setting')} with {words_of(row, 'backbone')} (worst class "
        f"{signed_points(value_of(row, 'delta_worst_class_coverage'))}, set size "
        f"{signed(value_of(row, 'delta_set_size'))}, deferred {signed_points(value_of(row, 'delta_deferral'))})"
        for row in switched
    ]
    return (
        f"The validation filter lets it replace the method's own diagnostic in {len(switched)} of {combinations}: "
        f"{listed(words)}."
    )


def _modal_table(rows: Sequence[Row]) -> TableView:
    switched = any(row["switched"] is True for row in rows)
    changes = (
        Heading("worst class, points"),
        Heading("set size"),
        Heading("full sets, points"),
        Heading("deferred, points"),
    )
    return TableView(
        name="cross-modal",
        caption="AUROC for top-1 errors on validation of the method's own diagnostic, of the disagreement, and of the "
        "fused rank with it; changes on the target where it took over. Formula and budget are this project's.",
        headings=(
            Heading("setting", numeric=False),
            Heading("backbone", numeric=False),
            Heading("own diagnostic", numeric=False),
            Heading("its AUROC"),
            Heading("disagreement"),
            Heading("fused"),
            Heading("audit after the filter", numeric=False),
            *(changes if switched else ()),
        ),
        rows=tuple(
            entries(
                words_of(row, "setting"),
                words_of(row, "backbone"),
                words_of(row, "baseline_audit"),
                number(value_of(row, "baseline_auroc"), digits=3),
                number(value_of(row, "disagreement_auroc"), digits=3),
                number(value_of(row, "fused_disagreement_auroc"), digits=3),
                words_of(row, "selected_audit"),
                *(_changes(row) if switched else ()),
            )
            for row in rows
        ),
        layout="scroll",
    )


def _changes(row: Row) -> tuple[str, ...]:
    if row["switched"] is not True:
        return ("no switch",) * 4
    return (
        signed(100 * value_of(row, "delta_worst_class_coverage"), digits=1),
        signed(value_of(row, "delta_set_size")),
        signed(100 * value_of(row, "delta_full_set_rate"), digits=1),
        signed(100 * value_of(row, "delta_deferral"), digits=1),
    )
