"""Reviewed local cases at a new site, what else one could do with them, and sharp mode at home (SITE.md S15)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from calcode.errors import CalcodeWarning
from calcode.method.evidence import Evidence, one_per_group, robust_probabilities
from calcode.method.model import Calcode
from calcode.metrics.intervals import Estimate
from calcode.report.charts import ChartRow, RowChart
from calcode.report.parts import Figure, Part, Text
from calcode.report.wording import count, percent
from calcode.site.alternatives import ALTERNATIVES
from calcode.site.model import SiteModel
from calcode.site.review_bias import REMEDIES, triggered_review
from calcode.site.simulation import DrawFigures, draw_cases, fitted_on, site_figures
from calcode.study.cohorts import SettingCohorts
from calcode.study.experiment import Experiment, Tables
from calcode.study.figures import PLACE
from calcode.study.jobs import Job, job
from calcode.study.results import Results
from calcode.study.specification import Study
from calcode.study.tables import Row, TableSchema, integer, number, share, text
from calcode.study.view import PLACE_COLS, Col, counts, numbers, shares, view, words

if TYPE_CHECKING:
    import pyarrow

    from calcode.study.output import StudyOutput

RANDOM, ARCHIVE = "random", "archive"
_DESIGNS = {RANDOM: "consecutive", ARCHIVE: "archive"}
#: Labels at which alternatives, levels and triggers are compared.
_COMPARED = 200
_LEVEL = 0.05
#: Patients that a review by trigger and coin needs to say anything.
_FEWEST_PATIENTS = 200
_CAVEATS = (
    "The adapter's four numbers were chosen on labels of PAD and Rosendahl, so that sizes are a little optimistic. "
    "Archive draws are simulated from the same cohort. The spread is over draws of labels; two sites are two sites. A "
    "worst class must be read beside the one that an exactly valid method would show."
)


class SiteOptions(BaseModel):
    """The table `[site]` of a study file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    draws: int = Field(default=20, ge=2, description="Draws of the reviewed cases for every figure.")
    labels: tuple[int, ...] = Field(default=(60, 100, 200, 400, 800), description="Numbers of reviewed cases.")
    malignant: tuple[str, ...] = Field(
        default=("mel", "bcc", "akiec"), description="Classes behind the trigger 'looks malignant'."
    )


_FIGURES = (
    integer("n_draws", "Draws of the reviewed cases."),
    share("coverage", "Test images whose set holds the diagnosis, mean over draws."),
    share("worst_class_coverage", "Smallest coverage of a class with at least 20 test images, mean over draws."),
    share("ideal_worst", "The same for an exactly valid method with these labels."),
    number("set_size", "Labels per set, mean over draws.", unit="labels"),
    share("informative_rate", "Sets with a label left out and one in, mean over draws."),
    share("informative_rate_low", "A tenth of the draws lie below."),
    share("informative_rate_high", "A tenth of the draws lie above."),
    share("full_set_rate", "Sets of all labels."),
    share("deferral", "Empty sets, which are deferred; there is no audit."),
    share("single_rate", "Sets of one label."),
    share("single_right", "Of these, the right label."),
)
SCHEMA = TableSchema(
    name="site_recalibration",
    about="One row per shifted setting, backbone, method and number of reviewed cases: one image of every other "
    "patient, mean over draws.",
    columns=(
        *PLACE,
        text("method", "The site model with its design and what differs from its defaults, or an alternative."),
        integer("n_labels", "Reviewed cases."),
        *_FIGURES,
    ),
    key=("setting", "backbone", "method", "n_labels"),
)
BIAS = TableSchema(
    name="site_review_bias",
    about="One row per shifted setting, backbone, trigger and remedy: what calibrating on triggered cases costs.",
    columns=(
        *PLACE,
        text("trigger", "Why a case was reviewed, beside the coin."),
        text("remedy", "'ignored', 'weighted', or 'coin' (drawn cases calibrate, the others train)."),
        number("n_labels", "Reviewed cases, mean over draws."),
        share("malignant_coverage", "Smallest coverage of a malignant class, mean over draws."),
        *_FIGURES,
    ),
    key=("setting", "backbone", "trigger", "remedy"),
)
SHARP = TableSchema(
    name="site_sharp_mode",
    about="One row per setting without a shift and backbone: home as its own site, single answers certified on the "
    "reference images.",
    columns=(
        *PLACE,
        integer("n_labels", "Validation and calibration images, one per lesion, that calibrate."),
        integer("n_images", "Test images, one per lesion."),
        share("coverage", "Of these, with the diagnosis in the set."),
        number("set_size", "Labels per set.", unit="labels"),
        share("informative_rate", "Sets with a label left out and one in."),
        share("full_set_rate", "Sets of all labels."),
        share("deferral", "Empty sets, which are deferred; there is no audit."),
        integer("n_single", "Sets of one label."),
        integer("n_single_right", "Of these, the right one."),
        integer("n_checked", "Single answers on the reference images."),
        integer("n_wrong", "Of these, wrong."),
        text("certified", "'yes' if at most 5 % wrong is promised with 90 % confidence."),
    ),
    key=("setting", "backbone"),
)


# ---------------------------------------------------------------------- measuring


def measure(cohorts: SettingCohorts, options: Mapping[str, Any]) -> pyarrow.Table:
    """Rows of `site_recalibration` for a combination, without its name."""
    import pyarrow as pa

    cohort = cohorts.target.evidence
    rows: list[Row] = []
    if _sizes(cohort, options):
        rows = [
            {"method": name, "n_labels": n, **averaged(figures)}
            for name, n, figures in all_draws(_home(cohorts), cohorts, cohort, options)
        ]
    return pa.Table.from_pylist(rows)


def _sizes(cohort: Evidence, options: Mapping[str, Any]) -> list[int]:
    """The numbers of reviewed cases that leave a fifth of the patients for the test."""
    most = len(one_per_group(cohort, random_state=0)) * 4 // 5
    return [n for n in options["labels"] if n <= most]


def _home(cohorts: SettingCohorts) -> Calcode:
    roles = cohorts.roles
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        return Calcode().fit(
            reference=roles.reference, validation=roles.validation, gate=roles.gate, calibration=roles.calibration
        )


def all_draws(
    home: Calcode, cohorts: SettingCohorts, cohort: Evidence, options: Mapping[str, Any]
) -> Iterator[tuple[str, int, list[DrawFigures]]]:
    """Every method with its number of labels and the figures of all draws."""
    seeds = range(options["seed"], options["seed"] + options["draws"])

    def site(design: str, n: int, *, level: float = _LEVEL, **settings: Any) -> list[DrawFigures]:
        found = []
        for seed in seeds:
            cases = draw_cases(home, cohort, n=n, design=_DESIGNS[design], seed=seed, level=level)
            model = fitted_on(
                home, cohort, cases, sampling=_DESIGNS[design], miscoverage=level, random_state=seed, **settings
            )
            found.append(site_figures(model, cohort[cases.test]))
        return found

    sizes = _sizes(cohort, options)
    for design in (RANDOM, ARCHIVE):
        for n in sizes:
            yield f"site, {design}", n, site(design, n)
    compared = min(_COMPARED, sizes[-1])
    yield ("site, random, thinned, levels by count", compared, site(RANDOM, compared, slack="thin", rare="count"))
    for level in (0.025, 0.1):
        yield f"site, random, miscoverage {level:g}", compared, site(RANDOM, compared, level=level)
        if sizes[-1] >= 2 * compared:
            yield (f"site, random, miscoverage {level:g}", 2 * compared, site(RANDOM, 2 * compared, level=level))
    yield "site, random, assured at 0.9", sizes[-1], site(RANDOM, sizes[-1], assurance=0.9)
    for name, alternative in ALTERNATIVES.items():
        found = []
        for seed in seeds:
            cases = draw_cases(home, cohort, n=compared, design="consecutive", seed=seed)
            found.append(alternative(cohorts.roles.calibration, cohort, cases))
        yield name, compared, found


def averaged(figures: Sequence[DrawFigures]) -> Row:
    """Means over draws, and the spread of the informative rate."""
    informative = [entry.informative for entry in figures]
    low, high = np.quantile(informative, [0.1, 0.9])
    singles = sum(entry.n_single for entry in figures)
    right = sum(entry.n_single_right for entry in figures)

    def mean(name: str) -> float:
        return float(np.mean([getattr(entry, name) for entry in figures]))

    return {
        "n_draws": len(figures),
        "coverage": mean("coverage"),
        "worst_class_coverage": mean("worst_coverage"),
        "ideal_worst": mean("ideal_worst"),
        "set_size": mean("set_size"),
        "informative_rate": mean("informative"),
        "informative_rate_low": float(low),
        "informative_rate_high": float(high),
        "full_set_rate": mean("full_set_rate"),
        "deferral": mean("deferral"),
        "single_rate": mean("single_rate"),
        "single_right": right / singles if singles else math.nan,
    }


# ---------------------------------------------------------------------- review bias


def measure_bias(cohorts: SettingCohorts, options: Mapping[str, Any]) -> pyarrow.Table:
    """Rows of `site_review_bias` for a combination, without its name."""
    import pyarrow as pa

    home, cohort = _home(cohorts), cohorts.target.evidence
    if len(one_per_group(cohort, random_state=0)) < _FEWEST_PATIENTS:
        return pa.Table.from_pylist([])
    malignant = [k for k, name in enumerate(cohort.classes) if name in options["malignant"]]
    robust = robust_probabilities(cohort.prompt_logits, trim=1)
    distance = home.audit_.distances(cohort) if home.audit_ is not None else np.zeros(len(cohort))
    triggers = {
        "looks malignant": robust[:, malignant].sum(axis=1) >= 0.5,
        "model unsure": robust.max(axis=1) <= np.median(robust.max(axis=1)),
        "unlike home": distance >= np.median(distance),
    }
    rows = []
    for trigger, fired in triggers.items():
        seeds = range(options["seed"], options["seed"] + options["draws"])
        drawn = [triggered_review(home, cohort, fired, seed=seed) for seed in seeds]
        for remedy in REMEDIES:
            figures = [entry[remedy][0] for entry in drawn]
            names = [cohort.classes[k] for k in malignant]
            worst = [min((f.by_class.get(name, 1.0) for name in names), default=math.nan) for f in figures]
            rows.append(
                {
                    "trigger": trigger,
                    "remedy": remedy,
                    "n_labels": float(np.mean([entry[remedy][1] for entry in drawn])),
                    "malignant_coverage": float(np.mean(worst)),
                    **averaged(figures),
                }
            )
    return pa.Table.from_pylist(rows)


# ---------------------------------------------------------------------- sharp mode


def measure_sharp(cohorts: SettingCohorts, options: Mapping[str, Any]) -> pyarrow.Table:
    """The row of `site_sharp_mode` for a combination, without its name."""
    import pyarrow as pa

    site, test = sharp_model(cohorts, seed=options["seed"])
    figures = site_figures(site, test)
    certificate = site.certify_singles(cohorts.roles.reference)
    row = {
        "n_labels": len(site.bag_),
        "n_images": figures.n_images,
        "coverage": figures.coverage,
        "set_size": figures.set_size,
        "informative_rate": figures.informative,
        "full_set_rate": figures.full_set_rate,
        "deferral": figures.deferral,
        "n_single": figures.n_single,
        "n_single_right": figures.n_single_right,
        "n_checked": certificate.n,
        "n_wrong": certificate.wrong,
        "certified": "yes" if certificate.certified else "no",
    }
    return pa.Table.from_pylist([row])


def sharp_model(cohorts: SettingCohorts, *, seed: int = 0) -> tuple[SiteModel, Evidence]:
    """Home as its own site (SITE.md S13), audit off, and one test image per lesion."""
    roles, target = cohorts.roles, cohorts.target.evidence
    parts = (roles.validation, roles.calibration)
    reviewed = Evidence(
        embeddings=np.concatenate([part.embeddings for part in parts]),
        prompt_logits=np.concatenate([part.prompt_logits for part in parts]),
        labels=np.concatenate([part.require_labels() for part in parts]),
        classes=target.classes,
        ids=None if parts[0].ids is None else np.concatenate([np.asarray(part.ids) for part in parts]),
        groups=None if parts[0].groups is None else np.concatenate([np.asarray(part.groups) for part in parts]),
        prompt_digest=target.prompt_digest,
        backbone=target.backbone,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        site = SiteModel(None, sampling="consecutive", reference=roles.reference, audit="off", random_state=seed)
        site.fit(reviewed=reviewed)
    return site, target[one_per_group(target, random_state=seed)]


# ---------------------------------------------------------------------- jobs and tables


def _jobs(study: Study, what: str) -> list[Job]:
    """Sharp mode where nothing is shifted, everything else where something is."""
    options = {"seed": study.seed} | study.options["site"].model_dump(mode="json")
    return [
        job(f"{__name__}:{what}", what.replace("_", "-"), where, options)
        for where in study.combinations()
        if where[0].shifted is (what != "measure_sharp")
    ]


def jobs(study: Study) -> list[Job]:
    """Two per shifted combination, one per combination without a shift."""
    return [run for what in ("measure", "measure_bias", "measure_sharp") for run in _jobs(study, what)]


def tables(study: Study, results: Results) -> Tables:
    """The measured rows with their names."""
    return {
        SCHEMA.name: results.measured(_jobs(study, "measure")),
        BIAS.name: results.measured(_jobs(study, "measure_bias")),
        SHARP.name: results.measured(_jobs(study, "measure_sharp")),
    }


# ---------------------------------------------------------------------- the page


def section(output: StudyOutput) -> list[Part]:
    """Curves, alternatives, review bias and sharp mode."""
    found, bias, sharp = (output.table(schema.name) for schema in (SCHEMA, BIAS, SHARP))
    parts: list[Part] = []
    if len(found):
        parts.append(Text(sentences=(_CAVEATS,)))
        for (setting, backbone), rows in found.groupby(["setting", "backbone"], sort=False):
            parts.append(curve_figure(list(rows.itertuples(index=False)), title=f"{setting}, {backbone}"))
    for name, caption, frame, cols in (
        (
            "site-recalibration",
            "Reviewed local cases, and what else one could do with them: one image of every patient that was not "
            "reviewed, mean over draws. Ideal: the worst class that an exactly valid method would show.",
            found,
            (words("method"), counts("n_labels", "labels"), *_COLUMNS),
        ),
        (
            "site-review-bias",
            "Cases reviewed because of a trigger: calibrating on them as they come, weighted by the known review "
            "probability, or with the coin's cases alone.",
            bias,
            (
                words("trigger"),
                words("remedy"),
                numbers("n_labels", "labels", 0),
                shares("malignant_coverage", "worst malignant class"),
                *_COLUMNS,
            ),
        ),
        (
            "site-sharp-mode",
            "Sharp mode: home as its own site, one image per lesion; single answers certified on the reference "
            "images at 5 % with 90 % confidence.",
            sharp,
            _SHARP_COLUMNS,
        ),
    ):
        if len(frame):
            parts.append(view(name, caption, frame, (*PLACE_COLS, *cols), layout="stack"))
    return parts


def curve_figure(rows: Sequence[Any], *, title: str) -> Figure:
    """Informative rate against the number of reviewed cases, at random and from an archive."""
    sizes = sorted({row.n_labels for row in rows if row.method in (f"site, {RANDOM}", f"site, {ARCHIVE}")})
    chart = []
    for n in sizes:
        values = {
            series: Estimate(row.informative_rate, row.informative_rate_low, row.informative_rate_high, row.n_draws)
            for series, design in ((0, RANDOM), (2, ARCHIVE))
            for row in rows
            if row.method == f"site, {design}" and row.n_labels == n
        }
        chart.append(ChartRow(label=f"{count(n)} reviewed cases", values=values))
    return Figure(
        heading=f"Informative answers against reviewed cases: {title}",
        sentence="The mean over draws of the reviewed cases; eight of ten draws lie within the line.",
        charts=(RowChart(rows=chart, low=0.0, high=1.0),),
        legend=((0, "at random"), (2, "from an archive")),
        name=f"site-curve-{title}".replace(", ", "-"),
    )


_COST = (shares("full_set_rate", "full sets"), shares("deferral", "deferred"))
_COLUMNS = (
    shares("coverage", "coverage"),
    Col("worst class", lambda row: f"{percent(row.worst_class_coverage)} (ideal {percent(row.ideal_worst)})"),
    numbers("set_size", "set size", 2),
    Col(
        "informative",
        lambda row: (
            f"{percent(row.informative_rate)} ({percent(row.informative_rate_low)} to "
            f"{percent(row.informative_rate_high)})"
        ),
    ),
    *_COST,
    Col(
        "one answer",
        lambda row: "none" if not row.single_rate else f"{percent(row.single_rate)}, {percent(row.single_right)} right",
    ),
)

_SHARP_COLUMNS = (
    shares("coverage", "coverage"),
    numbers("set_size", "set size", 2),
    shares("informative_rate", "informative"),
    *_COST,
    Col(
        "one answer",
        lambda row: (
            f"{percent(row.n_single / row.n_images)}, {count(row.n_single_right)} of {count(row.n_single)} right"
        ),
    ),
    Col("checked", lambda row: f"{count(row.n_wrong)} of {count(row.n_checked)} wrong"),
    words("certified"),
)

EXPERIMENT = Experiment(
    name="site",
    title="Reviewed cases of a new site",
    schemas=(SCHEMA, BIAS, SHARP),
    jobs=jobs,
    tables=tables,
    section=section,
    options=("site", SiteOptions, SiteOptions()),
)
