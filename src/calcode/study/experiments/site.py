"""Reviewed local cases at a new site, what else one could do with them, and sharp mode at home (SITE.md S15)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from calcode.errors import CalcodeWarning
from calcode.method.evidence import Evidence, one_per_group, robust_probabilities
from calcode.method.model import Calcode
from calcode.metrics.intervals import Estimate
from calcode.metrics.wording import count, percent
from calcode.report.charts import UNIT_SCALE, ChartRow, RowChart
from calcode.report.parts import Column, Figure, Part, Text
from calcode.site.alternatives import ALTERNATIVES
from calcode.site.model import SiteModel
from calcode.site.review_bias import REMEDIES, triggered_review
from calcode.site.simulation import DrawFigures, draw_cases, drawn_patients, fitted_on, site_figures
from calcode.study.cohorts import SettingCohorts
from calcode.study.experiment import Experiment, Results, Tables
from calcode.study.figures import PLACE
from calcode.study.jobs import Job, job
from calcode.study.output import StudyOutput
from calcode.study.specification import Study
from calcode.study.tables import Row, TableSchema, integer, numeric, share, text
from calcode.study.view import PLACE_COLS, estimate, shown, view, words

RANDOM, ARCHIVE = "random", "archive"
#: Each with its name in `draw_cases`; the archives are one way of sampling.
_DESIGNS = {
    RANDOM: "consecutive",
    ARCHIVE: "archive",
    f"{ARCHIVE}, equal shares": "equal shares",
    f"{ARCHIVE}, equal shares, common classes": "equal shares, common classes",
}
#: Labels at which alternatives, levels and triggers are compared.
_COMPARED = 200
_LEVEL = 0.05
#: Figures of a draw that have another name in the tables.
_MEASURED = {"worst_class_coverage": "worst_coverage", "informative_rate": "informative"}
#: Patients that a review by trigger and coin needs to say anything.
_FEWEST_PATIENTS = 200
_CAVEATS = (
    "The adapter's four numbers were chosen on labels of PAD and Rosendahl, so that sizes are a little optimistic. "
    "Archive draws are simulated from the same cohort. The spread is over draws of labels; the image that stands for a "
    "patient is the same in all of them, and other images would move a mean of 20 draws by 0.01 to 0.05. Two sites are "
    "two sites. A worst class must be compared with the one that an exactly valid method would show."
)


class SiteOptions(BaseModel):
    """The table `[site]` of a study file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    draws: int = Field(default=20, ge=2, description="Draws of the reviewed cases for every figure.")
    labels: tuple[int, ...] = Field(default=(60, 100, 200, 400, 800), description="Numbers of reviewed cases.")
    cliff: tuple[int, ...] = Field(
        default=(100, 200),
        description="Numbers of reviewed cases where several classes have about the 19 labels that they need, so that "
        "means of 20 draws scatter by 0.03.",
    )
    cliff_draws: int = Field(default=200, ge=2, description="Draws for these, or `draws` if that is more.")
    malignant: tuple[str, ...] = Field(
        default=("mel", "bcc", "akiec"), description="Classes behind the trigger 'looks malignant'."
    )


_FIGURES = (
    integer("n_draws", "Draws of the reviewed cases."),
    share("coverage", "Test images whose set holds the diagnosis, mean over draws."),
    share("worst_class_coverage", "Smallest coverage of a class with at least 20 test images, mean over draws."),
    share("ideal_worst", "The same for an exactly valid method with these labels."),
    numeric("set_size", "Labels per set, mean over draws.", unit="labels"),
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
    about="One row per shifted setting, backbone, method and number of reviewed cases: all images of the other "
    "patients, mean over draws.",
    columns=(
        *PLACE,
        text(
            "method", "The site model with its design and what differs from its defaults, or an alternative.", key=True
        ),
        integer("n_labels", "Reviewed cases.", key=True),
        *_FIGURES,
    ),
)
BIAS = TableSchema(
    name="site_review_bias",
    about="One row per shifted setting, backbone, trigger and remedy: what calibrating on triggered cases costs.",
    columns=(
        *PLACE,
        text("trigger", "Why a case was reviewed, apart from the coin.", key=True),
        text("remedy", "'ignored', 'weighted', or 'coin' (drawn cases calibrate, the others train).", key=True),
        numeric("n_labels", "Reviewed cases, mean over draws."),
        share("malignant_coverage", "Smallest coverage of a malignant class, mean over draws."),
        *_FIGURES,
    ),
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
        numeric("set_size", "Labels per set.", unit="labels"),
        share("informative_rate", "Sets with a label left out and one in."),
        share("full_set_rate", "Sets of all labels."),
        share("deferral", "Empty sets, which are deferred; there is no audit."),
        integer("n_single", "Sets of one label."),
        integer("n_single_right", "Of these, the right one."),
        integer("n_checked", "Single answers on the reference images."),
        integer("n_wrong", "Of these, wrong."),
        text("certified", "'yes' if at most 5 % wrong is promised with 90 % confidence."),
    ),
)


# ---------------------------------------------------------------------- measuring


def measure(cohorts: SettingCohorts, options: Mapping[str, Any]) -> list[Row]:
    """Rows of `site_recalibration` for a combination, without its name."""
    # The numbers of reviewed cases that leave a fifth of the patients for the test.
    most = len(drawn_patients(cohorts.target.evidence, seed=options["seed"])) * 4 // 5
    sizes = [n for n in options["labels"] if n <= most]
    return [
        {"method": name, "n_labels": n, **averaged(figures)}
        for name, n, figures in (all_draws(cohorts, sizes, options) if sizes else ())
    ]


def home_model(cohorts: SettingCohorts) -> Calcode:
    """The method with its defaults on the source; what it warns of is said where the method itself is shown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        return Calcode().fit(**cohorts.roles.by_name)


def all_draws(
    cohorts: SettingCohorts, sizes: Sequence[int], options: Mapping[str, Any]
) -> Iterator[tuple[str, int, list[DrawFigures]]]:
    """Every method with its number of labels and the figures of all draws."""
    home, cohort = home_model(cohorts), cohorts.target.evidence
    patients = drawn_patients(cohort, seed=options["seed"])
    seeds = range(options["seed"], options["seed"] + options["draws"])
    many = range(options["seed"], options["seed"] + max(options["draws"], options["cliff_draws"]))

    def site(design: str, n: int, *, level: float = _LEVEL, seeds: range = seeds, **settings: Any) -> list[DrawFigures]:
        found = []
        settings |= {"sampling": "consecutive" if design == RANDOM else "archive", "miscoverage": level}
        for seed in seeds:
            cases = draw_cases(home, cohort, patients, n=n, design=_DESIGNS[design], seed=seed, level=level)
            model = fitted_on(home, cohort, cases, random_state=seed, **settings)
            found.append(site_figures(model, cohort[cases.test]))
        return found

    for design in _DESIGNS:
        for n in sizes:
            yield f"site, {design}", n, site(design, n, seeds=many if n in options["cliff"] else seeds)
    compared = min(_COMPARED, sizes[-1])
    yield "site, random, thinned, levels by count", compared, site(RANDOM, compared, slack="thin", rare="count")
    for level in (0.025, 0.1):
        for n in (compared, 2 * compared):
            if n <= sizes[-1]:
                yield f"site, random, miscoverage {level:g}", n, site(RANDOM, n, level=level)
    yield "site, random, assured at 0.9", sizes[-1], site(RANDOM, sizes[-1], assurance=0.9)
    drawn = [draw_cases(home, cohort, patients, n=compared, design="consecutive", seed=seed) for seed in seeds]
    for name, alternative in ALTERNATIVES.items():
        yield name, compared, [alternative(cohorts.roles.calibration, cohort, cases) for cases in drawn]


def averaged(figures: Sequence[DrawFigures]) -> Row:
    """Means over draws, and the spread of the informative rate."""
    informative = [entry.informative for entry in figures]
    low, high = np.quantile(informative, [0.1, 0.9])
    singles = sum(entry.n_single for entry in figures)
    right = sum(entry.n_single_right for entry in figures)

    means = {
        name: float(np.mean([getattr(entry, _MEASURED.get(name, name)) for entry in figures]))
        for name in (*_MEASURED, "coverage", "ideal_worst", "set_size", "full_set_rate", "deferral", "single_rate")
    }
    return means | {
        "n_draws": len(figures),
        "informative_rate_low": float(low),
        "informative_rate_high": float(high),
        "single_right": right / singles if singles else math.nan,
    }


# ---------------------------------------------------------------------- review bias


def measure_bias(cohorts: SettingCohorts, options: Mapping[str, Any]) -> list[Row]:
    """Rows of `site_review_bias` for a combination, without its name."""
    home, cohort = home_model(cohorts), cohorts.target.evidence
    patients = drawn_patients(cohort, seed=options["seed"])
    if len(patients) < _FEWEST_PATIENTS:
        return []
    malignant = [k for k, name in enumerate(cohort.classes) if name in options["malignant"]]
    robust = robust_probabilities(cohort.prompt_logits, trim=1)
    distance = home.audit_.distances(cohort) if home.audit_ is not None else np.zeros(len(cohort))
    triggers = {
        "looks malignant": robust[:, malignant].sum(axis=1) >= 0.5,
        "model unsure": robust.max(axis=1) <= np.median(robust.max(axis=1)),
        "unlike home": distance >= np.median(distance),
    }
    names = [cohort.classes[k] for k in malignant]
    seeds = range(options["seed"], options["seed"] + options["draws"])
    rows = []
    for trigger, fired in triggers.items():
        drawn = [triggered_review(home, cohort, patients, fired, seed=seed) for seed in seeds]
        for remedy in REMEDIES:
            figures = [entry[remedy][0] for entry in drawn]
            worst = [min((f.by_class.get(name, 1.0) for name in names), default=math.nan) for f in figures]
            labels = float(np.mean([entry[remedy][1] for entry in drawn]))
            head = {"trigger": trigger, "remedy": remedy, "n_labels": labels}
            rows.append(head | {"malignant_coverage": float(np.mean(worst))} | averaged(figures))
    return rows


# ---------------------------------------------------------------------- sharp mode


def measure_sharp(cohorts: SettingCohorts, options: Mapping[str, Any]) -> list[Row]:
    """The row of `site_sharp_mode` for a combination, without its name."""
    site, test = sharp_model(cohorts, seed=options["seed"])
    figures = site_figures(site, test)
    certificate = site.certify_singles(cohorts.roles.reference)
    same = ("n_images", "coverage", "set_size", "full_set_rate", "deferral", "n_single", "n_single_right")
    return [
        {name: getattr(figures, name) for name in same}
        | {"n_labels": len(site.bag_), "informative_rate": figures.informative}
        | {"n_checked": certificate.n, "n_wrong": certificate.wrong}
        | {"certified": "yes" if certificate.certified else "no"}
    ]


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


def jobs_by_table(study: Study) -> dict[str, list[Job]]:
    """Sharp mode where nothing is shifted, everything else where something is."""
    options = {"seed": study.seed} | study.options["site"].model_dump(mode="json")
    return {
        schema.name: [
            job(f"{__name__}:{what}", what.replace("_", "-"), where, options)
            for where in study.combinations()
            if where[0].shifted is (schema is not SHARP)
        ]
        for schema, what in ((SCHEMA, "measure"), (BIAS, "measure_bias"), (SHARP, "measure_sharp"))
    }


def jobs(study: Study) -> list[Job]:
    """Two per shifted combination, one per combination without a shift."""
    return [run for runs in jobs_by_table(study).values() for run in runs]


def tables(study: Study, results: Results) -> Tables:
    """The measured rows with their names."""
    return {name: results.measured(runs) for name, runs in jobs_by_table(study).items()}


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
            "Reviewed local cases, and what else one could do with them: all images of the patients that were not "
            "reviewed, mean over draws. Ideal: the worst class that an exactly valid method would show.",
            found,
            (*shown(SCHEMA, "method", ("n_labels", "labels"), ("n_draws", "draws")), *_COLUMNS),
        ),
        (
            "site-review-bias",
            "Cases reviewed because of a trigger: calibrating on them as they come, weighted by the known review "
            "probability, or with the coin's cases alone.",
            bias,
            (
                *shown(BIAS, "trigger", "remedy", ("n_labels", "labels", 0)),
                *shown(BIAS, ("malignant_coverage", "worst malignant class")),
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
    series = {f"site, {RANDOM}": 0, f"site, {ARCHIVE}": 2}
    values: dict[int, dict[int, Estimate | float]] = {}
    for row in sorted(
        (row for row in rows if row.method in series), key=lambda row: (row.n_labels, series[row.method])
    ):
        values.setdefault(row.n_labels, {})[series[row.method]] = estimate(row, "informative_rate", n="n_draws")
    chart = [ChartRow(label=f"{count(n)} reviewed cases", values=found) for n, found in values.items()]
    return Figure(
        heading=f"Informative answers by number of reviewed cases: {title}",
        sentence="The mean over draws of the reviewed cases; eight of ten draws lie within the line.",
        charts=(RowChart(rows=chart, axis=UNIT_SCALE),),
        legend=((0, "at random"), (2, "from an archive")),
        name=f"site-curve-{title}".replace(", ", "-"),
    )


_COST = shown(_FIGURES, ("full_set_rate", "full sets"), ("deferral", "deferred"))
_COLUMNS = (
    *shown(_FIGURES, "coverage"),
    Column("worst class", lambda row: f"{percent(row.worst_class_coverage)} (ideal {percent(row.ideal_worst)})"),
    *shown(_FIGURES, "set_size"),
    Column(
        "informative",
        lambda row: (
            f"{percent(row.informative_rate)} ({percent(row.informative_rate_low)} to "
            f"{percent(row.informative_rate_high)})"
        ),
    ),
    *_COST,
    Column(
        "one answer",
        lambda row: "none" if not row.single_rate else f"{percent(row.single_rate)}, {percent(row.single_right)} right",
    ),
)

_SHARP_COLUMNS = (
    *shown(SHARP, "coverage", "set_size", ("informative_rate", "informative")),
    *_COST,
    Column(
        "one answer",
        lambda row: (
            f"{percent(row.n_single / row.n_images)}, {count(row.n_single_right)} of {count(row.n_single)} right"
        ),
    ),
    Column("checked", lambda row: f"{count(row.n_wrong)} of {count(row.n_checked)} wrong"),
    words("certified"),
)

OPTIONS = ("site", SiteOptions, SiteOptions())
EXPERIMENT = Experiment("site", "Reviewed cases of a new site", (SCHEMA, BIAS, SHARP), jobs, tables, section, OPTIONS)
