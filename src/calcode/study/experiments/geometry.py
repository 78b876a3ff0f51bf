"""How far a target lies from the source in the embedding of a backbone (METHOD.md 12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import Field

from calcode.arrays import FloatArray
from calcode.cohorts import Cohort
from calcode.method.audit import neighbour_distance
from calcode.method.evidence import Evidence
from calcode.metrics.wording import listed, number, percent
from calcode.report.charts import Axis, Marks, PlaneChart, plain_number
from calcode.report.parts import Figure, Fold, Part, Text
from calcode.study.cohorts import SettingCohorts
from calcode.study.experiment import Combination, Experiment, Job, Results, Study, StudyOutput, Tables, job, method_job
from calcode.study.figures import PLACE, place
from calcode.study.methods import COMPLETE
from calcode.study.paper import reported_at
from calcode.study.specification import Setting
from calcode.study.tables import Row, TableSchema, integer, numeric, share, text
from calcode.study.view import PLACE_COLS, numbers, reported_cols, rounded_scale, shown, view

_N_NEIGHBORS = 10
_QUANTILES = (0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95)
_NEIGHBOURS = {"distance": "all", "class_distance": "same class"}
#: Images of a domain that a chart draws; a page has no room for thousands.
_DRAWN = 300
#: Domains with their mark and their name in the legend.
_DOMAINS = {"source": (1, "source, held out"), "target": (0, "target"), "outside": (3, "beyond the label space")}
_DOMAIN = text("domain", "'source' for held-out source images, 'target', or 'outside' the label space.", key=True)
#: Columns of the table on the page: name, heading, digits.
_SHOWN = (
    ("shift_ratio", "shift", 2),
    ("class_shift_ratio", "shift within the class", 2),
    ("probe_balanced_accuracy", "probe balanced accuracy", 3),
    ("effective_rank", "effective rank", 1),
    ("top_variance_share", "top variance share", 3),
    ("median_p_audit", "median p-value", 3),
    ("deferral", "deferred", 3),
    ("set_size", "set size", 2),
)

SUMMARY = TableSchema(
    name="geometry_summary",
    about="One row per setting and backbone: the shift as the embedding sees it, and what the method made of it.",
    columns=(
        *PLACE,
        numeric("shift_ratio", "Median distance of the target to its 10 nearest reference images, over the source's."),
        numeric("class_shift_ratio", "The same with reference images of the same class alone."),
        share("probe_balanced_accuracy", "Of a logistic regression that tells source from target, 5-fold."),
        text("probe_source", "Role of the source images that the probe saw."),
        numeric("effective_rank", "exp of the entropy of the source covariance's eigenvalues."),
        share("top_variance_share", "Share of the largest eigenvalue."),
        numeric("median_p_audit", "Median audit p-value of the target."),
        share("deferral", "Target images that go to a clinician."),
        numeric("set_size", "Mean number of labels on accepted images.", unit="labels"),
        share("singleton_rate", "Accepted images with one label."),
        integer("n_reference", "Reference images."),
        integer("n_source", "Held-out source images."),
        integer("n_target", "Target images in the label space."),
        integer("dimension", "Length of an embedding."),
    ),
)
DISTANCES = TableSchema(
    name="distance_quantiles",
    about="One row per setting, backbone, domain, kind of neighbours and quantile of the support distance.",
    columns=(
        *PLACE,
        _DOMAIN,
        text("neighbours", "'all' reference images, or those of the 'same class'.", key=True),
        share("quantile", "Level of the quantile.", key=True),
        numeric("distance", "Median cosine distance to the 10 nearest reference images, at that quantile."),
        integer("n", "Images behind it."),
    ),
)
PROJECTION = TableSchema(
    name="pca_domain_projection",
    about="One row per setting, backbone and drawn image: its place in the plane of the source's two largest principal "
    "components. Ids are patient-derived data.",
    columns=(
        *PLACE,
        _DOMAIN,
        text("id", "Id of the image.", key=True),
        text("label_name", "Its diagnosis."),
        numeric("component_1", "First coordinate."),
        numeric("component_2", "Second coordinate."),
        share("variance_1", "Share of the source's variance along the first component."),
        share("variance_2", "Share along the second."),
    ),
)


def domains(cohorts: SettingCohorts) -> dict[str, Cohort]:
    """Held-out source images, target images, and those outside the label space, where there are any."""
    found = {"source": cohorts.held_out, "target": cohorts.target, "outside": cohorts.out_of_space}
    return {name: cohort for name, cohort in found.items() if cohort is not None}


def measure_distances(cohorts: SettingCohorts, options: Mapping[str, Any]) -> list[Row]:
    """Both support distances of every source, target and out-of-space image."""
    del options
    reference, rows = cohorts.roles.reference, list[Row]()
    for domain, cohort in domains(cohorts).items():
        images = cohort.evidence
        far = neighbour_distance(images.embeddings, reference=reference.embeddings, n_neighbors=_N_NEIGHBORS)
        own = class_distances(images, reference=reference)
        columns = {"domain": domain, "in_space": images.in_space, "distance": far, "class_distance": own}
        rows += pd.DataFrame(columns).to_dict("records")
    return rows


def class_distances(evidence: Evidence, *, reference: Evidence) -> FloatArray:
    """Median distance to the nearest reference images of the same class; nan where there are none; shape (n,)."""
    labels, known = evidence.require_labels(), reference.require_labels()
    distances = np.full(len(evidence), np.nan)
    for label in np.unique(labels[labels >= 0]):
        members, neighbours = labels == label, known == label
        if neighbours.any():
            distances[members] = neighbour_distance(
                evidence.embeddings[members], reference=reference.embeddings[neighbours], n_neighbors=_N_NEIGHBORS
            )
    return distances


def measure_geometry(cohorts: SettingCohorts, options: Mapping[str, Any]) -> list[Row]:
    """Probe and spectrum of the source."""
    _, shares, _ = spectrum(cohorts)
    positive = shares[shares > 0]
    # Held-out source images, or the reference where the target are those very images.
    held_out = cohorts.held_out
    probe_role, probe_source = "reference", cohorts.roles.reference.embeddings
    if held_out is not None and not np.isin(held_out.column("id"), cohorts.target.column("id")).any():
        probe_role, probe_source = "test", held_out.evidence.embeddings
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
    return [row]


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
    guessed = cross_val_predict(LogisticRegression(max_iter=1000), embeddings, domain, cv=folds)
    return float(balanced_accuracy_score(domain, guessed))


def measure_projection(cohorts: SettingCohorts, options: Mapping[str, Any]) -> list[Row]:
    """Drawn images of every domain in the plane of the source's two largest components."""
    centre, shares, vectors = spectrum(cohorts)
    variances = {"variance_1": float(shares[0]), "variance_2": float(shares[1])}
    plane = vectors[:, :2]
    # The sign of a component means nothing; fix it by its largest entry.
    plane = plane * np.sign(plane[np.abs(plane).argmax(axis=0), [0, 1]])
    rows: list[Row] = []
    for domain, cohort in domains(cohorts).items():
        mask = np.zeros(len(cohort), dtype=bool)
        mask[np.random.default_rng(options["seed"]).permutation(len(cohort))[: options["n_images"]]] = True
        chosen = cohort[mask]
        x, y = ((chosen.evidence.embeddings - centre) @ plane).T
        columns = {"domain": domain, "id": chosen.column("id"), "label_name": chosen.column("label_name")}
        rows += pd.DataFrame(columns | {"component_1": x, "component_2": y} | variances).to_dict("records")
    return rows


def spectrum(cohorts: SettingCohorts) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Mean of all source images, normalised eigenvalues of their covariance, largest first, and vectors as columns."""
    parts = [part.embeddings for part in cohorts.roles.by_name.values()]
    if cohorts.held_out is not None:
        parts.append(cohorts.held_out.evidence.embeddings)
    source = np.concatenate(parts)
    values, vectors = np.linalg.eigh(np.cov(source, rowvar=False))
    values = np.maximum(values[::-1], 0.0)
    return source.mean(axis=0), values / values.sum(), vectors[:, ::-1]


def geometry_jobs(study: Study, where: Combination) -> dict[str, Job]:
    """The jobs of a combination by what they measure, and the method's own."""
    options = {
        "distances": {},
        "geometry": {"seed": study.seed},
        "projection": {"seed": study.seed, "n_images": study.options["projected_images"]},
    }
    measured = {name: job(f"{__name__}:measure_{name}", name, where, own) for name, own in options.items()}
    return measured | {"method": method_job(study, COMPLETE, where)}


def jobs(study: Study) -> list[Job]:
    """Distances, geometry, projection and the method's decisions."""
    return [run for where in study.combinations() for run in geometry_jobs(study, where).values()]


def tables(study: Study, results: Results) -> Tables:
    """All three tables."""
    summary: list[Row] = []
    quantiles: list[Row] = []
    projection: list[Row] = []
    for where in study.combinations():
        work, head = geometry_jobs(study, where), place(*where)
        projection += results.measured([work["projection"]])
        distances = pd.DataFrame(results.rows(work["distances"]), columns=["domain", "in_space", *_NEIGHBOURS])
        kept = distances[distances["in_space"] == (distances["domain"] != "outside")]
        values = {
            (domain, scope): own[scope].dropna().to_numpy(dtype=np.float64)
            for domain, own in kept.groupby("domain", sort=False)
            for scope in _NEIGHBOURS
        }
        quantiles += [
            head
            | {"domain": domain, "neighbours": _NEIGHBOURS[scope], "quantile": quantile}
            | {"distance": float(np.quantile(own, quantile)), "n": len(own)}
            for (domain, scope), own in values.items()
            for quantile in (_QUANTILES if len(own) else ())
        ]
        ratios: Row = {"n_source": len(values.get(("source", "distance"), ()))}
        for name, scope in (("shift_ratio", "distance"), ("class_shift_ratio", "class_distance")):
            source, target = (values.get((domain, scope), np.empty(0)) for domain in ("source", "target"))
            ratios[name] = float(np.median(target) / np.median(source)) if len(source) and len(target) else None
        found = results.decided(work["method"])
        method: Row = dict.fromkeys(("median_p_audit", "deferral", "set_size", "singleton_rate"))
        if found is not None:
            method = {name: getattr(found[1], name).value for name in ("deferral", "set_size", "singleton_rate")}
            method["median_p_audit"] = float(np.median(found[0].p_values))
        summary += [head | row | ratios | method for row in results.rows(work["geometry"])]
    return {SUMMARY.name: summary, DISTANCES.name: quantiles, PROJECTION.name: projection}


# ---------------------------------------------------------------------- the page


def section(output: StudyOutput) -> list[Part]:
    """The projection, then ratios, probe and spectrum, and quantiles of the distances in a fold."""
    projections = [projection_figure(output, setting) for setting in output.settings]
    parts: list[Part] = [figure for figure in projections if figure is not None]
    rows = output.table(SUMMARY.name)
    if len(rows):
        parts.append(Text(sentences=(geometry_sentence(list(rows.itertuples(index=False))),)))
        cols = (
            *PLACE_COLS,
            *(numbers(*entry) for entry in _SHOWN),
            *reported_cols(
                "the same in this order",
                rows,
                lambda row: reported_at("geometry_audit", row.setting, row.backbone),
                lambda cells: " / ".join(cells[name] for name, _, _ in _SHOWN),
            ),
        )
        caption = (
            "Distances are median cosine distances to the 10 nearest reference images; a shift of 2 means twice the "
            "distance of held-out source images."
        )
        parts.append(view("geometry", caption, rows, cols, layout="stack"))
    distances = output.table(DISTANCES.name)
    if len(distances):
        parts.append(Fold(title="Quantiles of the distances", parts=(distance_table(distances),)))
    return parts


def geometry_sentence(rows: Sequence[Any]) -> str:
    """Where the target lies farthest from the reference, and how easily a probe tells the two apart."""
    same = list(dict.fromkeys(row.setting for row in rows if row.shift_ratio == 1.0))
    itself = f" On {listed(same)} the held-out source images are the target itself, so the shift is 1." if same else ""
    farthest = max(rows, key=lambda row: row.shift_ratio)
    easiest = max(rows, key=lambda row: row.probe_balanced_accuracy)
    return (
        f"The target lies farthest from the reference on {farthest.setting} with {farthest.backbone}: "
        f"{number(farthest.shift_ratio)} times the distance of held-out source images "
        f"({number(farthest.class_shift_ratio)} times within the class), median p-value "
        f"{number(farthest.median_p_audit, digits=3)}, {percent(farthest.deferral)} deferred. A linear probe "
        f"separates source and target best on {easiest.setting} with {easiest.backbone}: balanced accuracy "
        f"{percent(easiest.probe_balanced_accuracy)}.{itself}"
    )


def distance_table(rows: pd.DataFrame) -> Part:
    """Quantiles side by side, one row per domain and kind of neighbours."""
    keys = ["setting", "backbone", "domain", "neighbours", "n"]
    wide = rows.pivot_table(index=keys, columns="quantile", values="distance", sort=False).reset_index()
    levels = [name for name in wide.columns if name not in keys]
    wide = wide.rename(columns={level: f"q{i}" for i, level in enumerate(levels)})
    return view(
        "distance-quantiles",
        "Quantiles of the median cosine distance to the 10 nearest reference images, of any class or the same.",
        wide,
        (
            *shown(DISTANCES, *keys[:-1], ("n", "images")),
            *(numbers(f"q{i}", f"{level:g}", 3) for i, level in enumerate(levels)),
        ),
    )


def projection_figure(output: StudyOutput, setting: Setting) -> Figure | None:
    """Source and target in the plane of the source's first two principal components, one chart per backbone."""
    rows = output.table(PROJECTION.name, setting=setting.name)
    rows = rows.groupby("backbone", sort=False).filter(lambda own: not same_images(own))
    if not len(rows):
        return None
    # One axis in each direction for all charts of the figure.
    across, up = (
        Axis(title=f"{place} component", low=scale.low, high=scale.high, tick_text=plain_number)
        for place, column in (("first", "component_1"), ("second", "component_2"))
        for scale in [rounded_scale(rows[column], step=0.1, least=0.2)]
    )
    charts, shares = [], []
    for backbone, own in rows.groupby("backbone", sort=False):
        marks = []
        for domain, (series, name) in _DOMAINS.items():
            members = own[own["domain"] == domain]
            # Evenly over the file, so that no part of the cohort is left out.
            kept = members.iloc[:: max(1, -(-len(members) // _DRAWN))]
            if len(kept):
                x, y = tuple(kept["component_1"]), tuple(kept["component_2"])
                marks.append(Marks(series=series, name=name, across=x, up=y, cloud=True))
        charts.append(PlaneChart(heading=output.backbones[str(backbone)], marks=marks, across=across, up=up))
        held = percent(own["variance_1"].iloc[0] + own["variance_2"].iloc[0])
        shares.append(f"{held} of the source's variance on {output.where(setting.name, str(backbone))}")
    return Figure(
        name=f"projection-{setting.name}",
        heading=f"Source and target of {setting.name} in the plane of two principal components",
        sentence=f"The plane holds {listed(shares)}; at most {_DRAWN} images of each kind are drawn.",
        legend=tuple(_DOMAINS[name] for name in _DOMAINS if name in set(rows["domain"])),
        charts=tuple(charts),
    )


def same_images(rows: pd.DataFrame) -> bool:
    """Whether the target is the held-out source itself, so that there is nothing to compare."""
    source, target = (set(rows[rows["domain"] == domain]["id"]) for domain in ("source", "target"))
    return source == target


OPTIONS = ("projected_images", Annotated[int, Field(ge=2, le=100_000)], 1000)
EXPERIMENT = Experiment(
    "geometry", "The shift in the embeddings", (SUMMARY, DISTANCES, PROJECTION), jobs, tables, section, OPTIONS
)
