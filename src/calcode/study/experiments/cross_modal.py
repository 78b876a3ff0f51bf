"""Exploratory: cross-modal disagreement as an audit, behind a conservative selector (METHOD.md 12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from calcode.arrays import FloatArray
from calcode.baselines.protocol import Roles
from calcode.baselines.support import top_one_errors
from calcode.method.audit import Nearest, SupportAudit, auroc, neighbour_distance, rank_p_values
from calcode.method.evidence import Evidence, robust_probabilities
from calcode.metrics.wording import counted, listed, signed, signed_points
from calcode.report.parts import Column, Part, Text
from calcode.study.cohorts import SettingCohorts
from calcode.study.decisions import MethodDecisions
from calcode.study.experiment import Experiment, Job, Results, Study, StudyOutput, Tables, job
from calcode.study.figures import FIGURE_NAMES, FIGURES, PLACE, delta_columns, figures
from calcode.study.tables import Row, TableSchema, flag, numeric, share, text
from calcode.study.variants import decided_by, point_options, variant_models
from calcode.study.view import PLACE_COLS, shown, view

DISAGREEMENT, FUSED = "disagreement", "fused disagreement"
AUROC_GAIN = 0.02
DEFERRAL_BUDGET = 0.10
#: Slack of the comparison with the gain, as everywhere that shares are compared.
_TOLERANCE = 1e-12
#: The largest cosine distance: no reference image of the predicted class is no support at all.
_NO_SUPPORT = 2.0
_BASELINE, _SWITCHED = "baseline", "switched"

SCHEMA = TableSchema(
    name="conservative_xmodal_budget_summary",
    about="One row per setting and backbone: whether cross-modal disagreement passed the validation filter, and what "
    "the switch changed on the target. Exploratory: formula and budget are this project's, and it is no part of the "
    "method.",
    columns=(
        *PLACE,
        text("baseline_audit", "Diagnostic that the method selects."),
        numeric("baseline_auroc", "Its AUROC for top-1 error on validation."),
        numeric("disagreement_auroc", "AUROC of the disagreement."),
        numeric("fused_disagreement_auroc", "AUROC of the fused rank with the disagreement in it."),
        share("disagreement_validation_deferral", "Validation images that the disagreement would defer."),
        share("fused_disagreement_validation_deferral", "Validation images that its fused version would defer."),
        text("selected_audit", "The audit after the filter."),
        flag("switched", "Whether it replaced the baseline."),
        *delta_columns(FIGURES, "switched minus baseline on the target"),
    ),
)


@dataclass(frozen=True, eq=False, kw_only=True)
class DisagreementAudit(SupportAudit):
    """A confident text-induced prediction against weak support by images of that class.

    Attributes
    ----------
    reference_labels : ndarray of shape (n_ref,)
        Reference labels serve diagnostics alone.
    fused_base : SupportAudit or None
        The fused audit of METHOD.md 4, whose ranks the fused version adds its own to.
    own_gate : ndarray
        Ascending gate values of the disagreement.
    """

    reference_labels: FloatArray
    fused_base: SupportAudit | None = None
    own_gate: FloatArray = field(default_factory=lambda: np.empty(0))

    def disagreement(self, evidence: Evidence) -> FloatArray:
        """max p_rob times the median distance to the nearest reference images of the predicted class; (n,)."""
        robust = robust_probabilities(evidence.prompt_logits, trim=self.trim)
        predicted = robust.argmax(axis=1)
        distance = np.full(len(evidence), _NO_SUPPORT)
        for label in np.unique(predicted):
            neighbours = self.reference_labels == label
            if neighbours.any():
                members = predicted == label
                distance[members] = neighbour_distance(
                    evidence.embeddings[members], reference=self.reference[neighbours], n_neighbors=self.n_neighbors
                )
        values: FloatArray = robust.max(axis=1) * distance
        return values

    def statistic(self, evidence: Evidence) -> FloatArray:
        """The disagreement, or one minus the smallest rank among it and the four base diagnostics."""
        values = self.disagreement(evidence)
        if self.fused_base is None:
            return values
        own = 1.0 - rank_p_values(values, sorted_gate=self.own_gate)
        fused: FloatArray = np.maximum(self.fused_base.statistic(evidence), own)
        return fused

    def p_values(self, evidence: Evidence, *, nearest: Nearest | None = None) -> FloatArray:
        """Gate ranks of the statistic, which looks for neighbours of its own."""
        return rank_p_values(self.statistic(evidence), sorted_gate=self.gate_values)


def disagreement_audits(roles: Roles, *, trim: int, n_neighbors: int) -> dict[str, DisagreementAudit]:
    """The disagreement and its fused version, calibrated on the gate.

    Parameters
    ----------
    roles : Roles
        The reference with labels.
    trim, n_neighbors : int
    """
    fused_base = SupportAudit.fit(
        reference=roles.reference,
        validation=roles.validation,
        gate=roles.gate,
        candidates=("fused",),
        n_neighbors=n_neighbors,
        trim=trim,
    )
    plain = DisagreementAudit(
        name=DISAGREEMENT,
        aurocs={},
        reference=roles.reference.embeddings,
        n_neighbors=n_neighbors,
        trim=trim,
        fused="paper",
        gate_base={},
        gate_values=np.empty(0),
        independent=False,
        reference_labels=roles.reference.require_labels().astype(np.float64),
    )
    own_gate = np.sort(plain.disagreement(roles.gate))
    errors = top_one_errors(roles.validation)
    audits = {}
    for name, base in ((DISAGREEMENT, None), (FUSED, fused_base)):
        audit = replace(plain, name=name, fused_base=base, own_gate=own_gate)
        audits[name] = replace(
            audit,
            gate_values=np.sort(audit.statistic(roles.gate)),
            aurocs={name: auroc(audit.statistic(roles.validation), errors)},
        )
    return audits


def measure(cohorts: SettingCohorts, options: Mapping[str, Any]) -> dict[str, MethodDecisions]:
    """Decisions with the method's own audit and, where the filter lets it pass, with the disagreement."""
    models = variant_models(cohorts, options)
    baseline = models.fitted({})
    settings, audit = baseline.settings_, baseline.audit_
    assert audit is not None, "the method has an audit"
    audits = disagreement_audits(cohorts.roles, trim=settings.trim, n_neighbors=settings.n_neighbors)
    deferral = {
        name: float((entry.p_values(cohorts.roles.validation) < settings.deferral_level).mean())
        for name, entry in audits.items()
    }
    passing = [
        name
        for name in audits
        if audits[name].auroc >= audit.auroc + AUROC_GAIN - _TOLERANCE
        and deferral[name] <= DEFERRAL_BUDGET + _TOLERANCE
    ]
    selected = max(passing, key=lambda name: audits[name].auroc, default=None)
    decided = decided_by(baseline, cohorts.target)
    notes = {
        "baseline_audit": audit.name,
        "baseline_auroc": audit.auroc,
        "disagreement_auroc": audits[DISAGREEMENT].auroc,
        "fused_disagreement_auroc": audits[FUSED].auroc,
        "disagreement_validation_deferral": deferral[DISAGREEMENT],
        "fused_disagreement_validation_deferral": deferral[FUSED],
        "selected_audit": selected or audit.name,
        "switched": selected is not None,
    }
    variants = {_BASELINE: replace(decided, details={**decided.details, **notes})}
    if selected is not None:
        model = models.audited({})
        model.audit_ = audits[selected]
        model.discover_tail(validation=cohorts.roles.validation)
        variants[_SWITCHED] = decided_by(model.calibrate(calibration=cohorts.roles.calibration), cohorts.target)
    return variants


def jobs(study: Study) -> list[Job]:
    """One per combination."""
    return [job(f"{__name__}:measure", "cross-modal", where, point_options(study)) for where in study.combinations()]


def tables(study: Study, results: Results) -> Tables:
    """What was selected and what it changed."""
    noted = [column.name for column in SCHEMA.columns[2:10]]
    rows: list[Row] = []
    for run in jobs(study):
        before, after = (results.decided(run, name) for name in (_BASELINE, _SWITCHED))
        if before is None:
            continue
        deltas: Row = {f"delta_{name}": None for name in FIGURE_NAMES}
        if after is not None:
            new, old = figures(after[1]), figures(before[1])
            deltas = {f"delta_{name}": new[name] - old[name] for name in FIGURE_NAMES}
        head = {"setting": run.setting.name, "backbone": run.backbone}
        rows.append(head | {name: before[0].details[name] for name in noted} | deltas)
    return {SCHEMA.name: rows}


def section(output: StudyOutput) -> list[Part]:
    """Where the disagreement passed the filter, and what that did."""
    rows = output.table(SCHEMA.name)
    changes = shown(
        SCHEMA,
        ("delta_worst_class_coverage", "worst class, points"),
        ("delta_set_size", "set size"),
        ("delta_full_set_rate", "full sets, points"),
        ("delta_deferral", "deferred, points"),
        ("delta_selective_accuracy", "selective accuracy, points"),
    )

    def where_switched(column: Column) -> Column:
        write = column.cell
        assert write is not None, "as `shown` makes it"
        return replace(column, cell=lambda row: write(row) if row.switched else "no switch")

    table = view(
        "cross-modal",
        "AUROC for top-1 errors on validation of the method's own diagnostic, of the disagreement, and of the fused "
        "rank with it; changes on the target where it took over. Formula and budget are this project's.",
        rows,
        (
            *PLACE_COLS,
            *shown(SCHEMA, ("baseline_audit", "own diagnostic"), ("baseline_auroc", "its AUROC", 3)),
            *shown(SCHEMA, ("disagreement_auroc", "disagreement", 3), ("fused_disagreement_auroc", "fused", 3)),
            *shown(SCHEMA, ("selected_audit", "audit after the filter")),
            *(map(where_switched, changes) if rows["switched"].any() else ()),
        ),
    )
    return [Text(sentences=(switch_sentence(list(rows.itertuples(index=False))),)), table]


def switch_sentence(rows: Sequence[Any]) -> str:
    """Where the validation filter let the disagreement replace the audit, and what that did on the target."""
    switched = [row for row in rows if row.switched]
    if not switched:
        return (
            "The validation filter never lets the disagreement replace the method's own diagnostic "
            f"({counted(len(rows), 'combination')})."
        )
    named = [
        f"{row.setting} with {row.backbone} (worst class {signed_points(row.delta_worst_class_coverage)}, set size "
        f"{signed(row.delta_set_size)}, deferred {signed_points(row.delta_deferral)}, selective accuracy "
        f"{signed_points(row.delta_selective_accuracy)})"
        for row in switched
    ]
    return (
        f"The validation filter lets the disagreement replace the method's own diagnostic in {len(switched)} of "
        f"{counted(len(rows), 'combination')}: {listed(named)}."
    )


EXPERIMENT = Experiment("cross-modal", "Cross-modal disagreement (exploratory)", (SCHEMA,), jobs, tables, section)
