"""Item 6: how far a target lies from the source in the embedding of a backbone (METHOD.md 12)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from calcode.arrays import BoolArray, FloatArray
from calcode.cohorts import Cohort
from calcode.method.audit import neighbour_distance
from calcode.method.evidence import Evidence
from calcode.study.experiment import Experiment, Rows
from calcode.study.jobs import Job, job
from calcode.study.method_decisions import method_job
from calcode.study.results import Results
from calcode.study.schema import Cell, TableSchema, integer, number, share, text
from calcode.study.setting_cohorts import FITTED_ROLES, SettingCohorts
from calcode.study.specification import COMPLETE, Backbone, Setting, Study
from calcode.study.summary_columns import BACKBONE, SETTING

if TYPE_CHECKING:
    import pyarrow

N_NEIGHBORS = 10
QUANTILES = (0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95)
_SCOPES = {"distance": "all", "class_distance": "same class"}
_DOMAIN = text("domain", "'source' for held-out source images, 'target', or 'outside' the label space.")

SUMMARY = TableSchema(
    name="geometry_summary",
    about="One row per setting and backbone: the shift as the embedding sees it, and what the method made of it.",
    columns=(
        SETTING,
        BACKBONE,
        number(
            "shift_ratio",
            "Median distance of the target to its 10 nearest reference images, over the source's.",
        ),
        number("class_shift_ratio", "The same with reference images of the same class alone."),
        share("probe_balanced_accuracy", "Of a logistic regression that tells source from target, 5-fold."),
        text("probe_source", "Role of the source images that the probe saw."),
        number("effective_rank", "exp of the entropy of the source covariance's eigenvalues."),
        share("top_variance_share", "Share of the largest eigenvalue."),
        number("median_p_audit", "Median audit p-value of the target."),
        share("deferral", "Target images that go to a clinician."),
        number("set_size", "Mean number of labels on accepted images.", unit="labels"),
        share("singleton_rate", "Accepted images with one label."),
        integer("n_reference", "Reference images."),
        integer("n_source", "Held-out source images."),
        integer("n_target", "Target images in the label space."),
        integer("dimension", "Length of an embedding."),
    ),
    key=("setting", "backbone"),
)
DISTANCES = TableSchema(
    name="distance_quantiles",
    about="One row per setting, backbone, domain, kind of neighbours and quantile of the support distance.",
    columns=(
        SETTING,
        BACKBONE,
        _DOMAIN,
        text("neighbours", "'all' reference images, or those of the 'same class'."),
        share("quantile", "Level of the quantile."),
        number("distance", "Median cosine distance to the 10 nearest reference images, at that quantile."),
        integer("n", "Images behind it."),
    ),
    key=("setting", "backbone", "domain", "neighbours", "quantile"),
)
PROJECTION = TableSchema(
    name="pca_domain_projection",
    about="One row per setting, backbone and drawn image: its place in the plane of the source's two largest principal "
    "components. Ids are patient-derived data.",
    columns=(
        SETTING,
        BACKBONE,
        _DOMAIN,
        text("id", "Id of the image."),
        text("label_name", "Its diagnosis."),
        number("component_1", "First coordinate."),
        number("component_2", "Second coordinate."),
        share("variance_1", "Share of the source's variance along the first component."),
        share("variance_2", "Share along the second."),
    ),
    key=("setting", "backbone", "domain", "id"),
)


def _domains(cohorts: SettingCohorts) -> dict[str, Cohort]:
    found = {"source": cohorts.held_out, "target": cohorts.target, "outside": cohorts.outside}
    return {name: cohort for name, cohort in found.items() if cohort is not None}


def measure_distances(cohorts: SettingCohorts, options: Mapping[str, Any]) -> pyarrow.Table:
    """Both support distances of every source, target and outside image."""
    import pyarrow as pa

    del options
    tables = []
    for domain, cohort in _domains(cohorts).items():
        own = class_distances(cohort.evidence, reference=cohorts.roles.reference)
        tables.append(
            pa.table(
                {
                    "domain": pa.array([domain] * len(cohort), type=pa.string()),
                    "in_space": pa.array(cohort.evidence.in_space),
                    "distance": neighbour_distance(
                        cohort.evidence.embeddings,
                        reference=cohorts.roles.reference.embeddings,
                        n_neighbors=N_NEIGHBORS,
                    ),
                    "class_distance": pa.array(own, mask=np.isnan(own)),
                }
            )
        )
    return pa.concat_tables(tables)


def class_distances(evidence: Evidence, *, reference: Evidence) -> FloatArray:
    """Median distance to the nearest reference images of the same class; nan where there are none; shape (n,)."""
    labels, known = evidence.require_labels(), reference.require_labels()
    distances = np.full(len(evidence), np.nan)
    for label in np.unique(labels[labels >= 0]):
        members, neighbours = labels == label, known == label
        if neighbours.any():
            distances[members] = neighbour_distance(
                evidence.embeddings[members],
                reference=reference.embeddings[neighbours],
                n_neighbors=N_NEIGHBORS,
            )
    return distances


def measure_geometry(cohorts: SettingCohorts, options: Mapping[str, Any]) -> pyarrow.Table:
    """Probe and spectrum of the source."""
    import pyarrow as pa

    source = _source_embeddings(cohorts)
    shares = _spectrum(source)[0]
    positive = shares[shares > 0]
    probe_role, probe_source = _probe_source(cohorts)
    inside = cohorts.target.evidence.in_space
    target = cohorts.target.evidence.embeddings[inside]
    row = {
        "probe_balanced_accuracy": domain_probe(probe_source, target, seed=options["seed"]),
        "probe_source": probe_role,
        "effective_rank": float(np.exp(-(positive * np.log(positive)).sum())),
        "top_variance_share": float(shares[0]),
        "n_reference": len(cohorts.roles.reference),
        "n_target": int(inside.sum()),
        "dimension": cohorts.roles.reference.dimension,
    }
    return pa.Table.from_pylist([row])


def domain_probe(source: FloatArray, target: FloatArray, *, seed: int) -> float:
    """Balanced accuracy of a logistic regression that tells two cohorts apart, 5-fold; nan if one is too small.

    Parameters
    ----------
    source, target : ndarray of shape (n, d) and (m, d)
    seed : int
        Deals out the folds.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import balanced_accuracy_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    if min(len(source), len(target)) < 5:
        return float("nan")
    embeddings = np.concatenate([source, target])
    domain = np.repeat([0, 1], [len(source), len(target)])
    folds = StratifiedKFold(n_splits=5, shuffle=True, random_state=seed)
    told = cross_val_predict(LogisticRegression(max_iter=1000), embeddings, domain, cv=folds)
    return float(balanced_accuracy_score(domain, told))


def measure_projection(cohorts: SettingCohorts, options: Mapping[str, Any]) -> pyarrow.Table:
    """Drawn images of every domain in the plane of the source's two largest components."""
    import pyarrow as pa

    source = _source_embeddings(cohorts)
    shares, vectors = _spectrum(source)
    plane = vectors[:, :2]
    # The sign of a component means nothing; fix it by its largest entry.
    plane = plane * np.sign(plane[np.abs(plane).argmax(axis=0), [0, 1]])
    tables = []
    for domain, cohort in _domains(cohorts).items():
        chosen = cohort[_drawn(len(cohort), n=options["n_images"], seed=options["seed"])]
        places = (chosen.evidence.embeddings - source.mean(axis=0)) @ plane
        tables.append(
            pa.table(
                {
                    "domain": [domain] * len(chosen),
                    "id": chosen.column("id").tolist(),
                    "label_name": chosen.column("label_name").tolist(),
                    "component_1": places[:, 0],
                    "component_2": places[:, 1],
                    "variance_1": [float(shares[0])] * len(chosen),
                    "variance_2": [float(shares[1])] * len(chosen),
                }
            )
        )
    return pa.concat_tables(tables)


def _drawn(n_rows: int, *, n: int, seed: int) -> BoolArray:
    mask = np.zeros(n_rows, dtype=bool)
    mask[np.random.default_rng(seed).permutation(n_rows)[:n]] = True
    return mask


def _source_embeddings(cohorts: SettingCohorts) -> FloatArray:
    """All source images: the fitted roles and the held-out one."""
    parts = [getattr(cohorts.roles, role).embeddings for role in FITTED_ROLES]
    if cohorts.held_out is not None:
        parts.append(cohorts.held_out.evidence.embeddings)
    return np.concatenate(parts)


def _spectrum(embeddings: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Normalised eigenvalues of the covariance, largest first, and their vectors as columns."""
    values, vectors = np.linalg.eigh(np.cov(embeddings, rowvar=False))
    values = np.maximum(values[::-1], 0.0)
    shares: FloatArray = values / values.sum()
    return shares, vectors[:, ::-1]


def _probe_source(cohorts: SettingCohorts) -> tuple[str, FloatArray]:
    """Held-out source images, or the reference where the target are those very images."""
    held_out = cohorts.held_out
    if held_out is not None and not np.isin(held_out.column("id"), cohorts.target.column("id")).any():
        return "test", held_out.evidence.embeddings
    return "reference", cohorts.roles.reference.embeddings


def _jobs_of(study: Study, setting: Setting, backbone: Backbone) -> dict[str, Job]:
    def measured(name: str, options: dict[str, Any]) -> Job:
        runner = f"{__name__}:measure_{name}"
        return job(runner, name, setting=setting, backbone=backbone, options=options)

    return {
        "distances": measured("distances", {}),
        "geometry": measured("geometry", {"seed": study.seed}),
        "projection": measured("projection", {"seed": study.seed, "n_images": study.projected_images}),
        "method": method_job(
            COMPLETE, setting=setting, backbone=backbone, point=study.point, seed=study.seed
        ),
    }


def jobs(study: Study) -> list[Job]:
    """Distances, geometry, projection and the method's decisions."""
    return [
        entry
        for setting, backbone in study.combinations()
        for entry in _jobs_of(study, setting, backbone).values()
    ]


def rows(study: Study, results: Results) -> Rows:
    """All three tables."""
    summary: list[dict[str, Cell]] = []
    quantiles: list[dict[str, Cell]] = []
    projection: list[dict[str, Cell]] = []
    for setting, backbone in study.combinations():
        work = _jobs_of(study, setting, backbone)
        head: dict[str, Cell] = {"setting": setting.name, "backbone": backbone.name}
        projection += [head | row for row in results.rows(work["projection"])]
        distances = results.rows(work["distances"])
        quantiles += [head | row for row in _quantile_rows(distances)]
        for row in results.rows(work["geometry"]):
            summary.append(head | row | _ratios(distances) | _method_cells(results, work["method"]))
    return {SUMMARY.name: summary, DISTANCES.name: quantiles, PROJECTION.name: projection}


def _values(distances: list[dict[str, Any]], domain: str, scope: str) -> FloatArray:
    found = [
        row[scope]
        for row in distances
        if row["domain"] == domain and row["in_space"] is (domain != "outside") and row[scope] is not None
    ]
    return np.array(found, dtype=np.float64)


def _ratios(distances: list[dict[str, Any]]) -> dict[str, Cell]:
    cells: dict[str, Cell] = {"n_source": len(_values(distances, "source", "distance"))}
    for name, scope in (("shift_ratio", "distance"), ("class_shift_ratio", "class_distance")):
        source, target = (_values(distances, domain, scope) for domain in ("source", "target"))
        cells[name] = float(np.median(target) / np.median(source)) if len(source) and len(target) else None
    return cells


def _quantile_rows(distances: list[dict[str, Any]]) -> list[dict[str, Cell]]:
    table: list[dict[str, Cell]] = []
    for domain in dict.fromkeys(row["domain"] for row in distances):
        for scope, neighbours in _SCOPES.items():
            values = _values(distances, domain, scope)
            for quantile in QUANTILES if len(values) else ():
                table.append(
                    {
                        "domain": domain,
                        "neighbours": neighbours,
                        "quantile": quantile,
                        "distance": float(np.quantile(values, quantile)),
                        "n": len(values),
                    }
                )
    return table


def _method_cells(results: Results, run: Job) -> dict[str, Cell]:
    decisions, summary = results.decisions(run), results.summary(run)
    if decisions is None or summary is None:
        return dict.fromkeys(("median_p_audit", "deferral", "set_size", "singleton_rate"))
    return {
        "median_p_audit": float(np.median(decisions.p_values)),
        "deferral": summary.deferral.value,
        "set_size": summary.set_size.value,
        "singleton_rate": summary.singleton_rate.value,
    }


EXPERIMENT = Experiment(
    name="geometry",
    title="Geometry audit",
    tables=(SUMMARY, DISTANCES, PROJECTION),
    jobs=jobs,
    rows=rows,
)
