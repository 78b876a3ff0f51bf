"""`calcode site`: from a sheet of reviewed cases to a model for this hospital."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from calcode.cli.options import (
    NAMESAKES,
    AsJson,
    Features,
    ModelFile,
    PromptFile,
    names_in,
    option_groups,
    output_option,
)
from calcode.cli.running import Screen, command_group, output_file, plain_table
from calcode.cli.site_summary import show_plan, show_site, site_facts

if TYPE_CHECKING:
    from calcode.arrays import BoolArray
    from calcode.cohorts import Cohort
    from calcode.method.evidence import Evidence
    from calcode.method.model import Calcode
    from calcode.site.model import SiteModel

#: Most unreviewed images that a curve uses.
_CURVE_IMAGES = 600

#: How the reviewed cases are chosen.
Sampling = Literal["archive", "coin", "consecutive"]
ReviewSheet = Annotated[
    Path, typer.Argument(metavar="REVIEW", help="The sheet of 'calcode site plan', with its labels filled in.")
]
Levels = Annotated[
    list[str] | None,
    typer.Option(
        "--miscoverage",
        help="Allowed share of missed diagnoses: a number for all classes, or CLASS=SHARE, repeated. Others: 0.05.",
        metavar="SHARE",
    ),
]


def plan(
    model: ModelFile,
    features: Features,
    budget: Annotated[
        int | None,
        typer.Option(help="Cases to review. The coin takes it as a share of the patients.", metavar="N", min=1),
    ] = None,
    output: Annotated[Path, output_option(help="Sheet to write, .csv.")] = Path("review.csv"),
    sampling: Annotated[Sampling, typer.Option(help="How the cases are chosen.")] = "archive",
    rate: Annotated[
        float | None, typer.Option(help="Share of the patients that the coin draws.", metavar="SHARE")
    ] = None,
    classes: Annotated[
        list[str] | None,
        typer.Option(help="With archive: the classes to serve, instead of the best ones.", metavar="CLASSES"),
    ] = None,
    visit: Annotated[
        str | None,
        typer.Option(help="Column with the date of the image; only first visits are reviewed.", metavar="COLUMN"),
    ] = None,
    coin: Annotated[
        Path | None,
        typer.Option(
            help="File with the secret of the draw. Default: NAME.coin.json next to the sheet. Keep it: with it "
            "nobody is drawn twice.",
            metavar="FILE",
        ),
    ] = None,
    miscoverage: Levels = None,
    prompts: PromptFile = None,
    as_json: AsJson = False,
) -> None:
    """Choose whom to review, one image per patient, and write the sheet to fill in.

    An archive needs known diagnoses in the column label_name: they choose the cases and are not written to the sheet.
    Coin and consecutive need none. The sheet never shows what the model thinks. Fill in the column label with a
    diagnosis, 'other' for one that the model does not know, or 'cannot tell'.

    Examples
    --------
    calcode site plan model.safetensors clinic.parquet --budget 100
    calcode site plan model.safetensors clinic.parquet --budget 200 --sampling coin
    """
    import numpy as np

    from calcode.engines.local import naming
    from calcode.errors import FeatureFileError, RoleError
    from calcode.method.roles import identities
    from calcode.site.levels import labels_needed
    from calcode.site.plan import CoinFile, named_groups, plan_archive, plan_coin, plan_consecutive
    from calcode.site.sheet import require_replaceable, write_sheet

    target = output_file(output, suffixes=(".csv",), inputs=(model, features, prompts))
    if rate is not None and sampling != "coin":
        raise typer.BadParameter("is for --sampling coin; leave it out", param_hint="--rate")
    if budget is None and rate is None:
        raise typer.BadParameter("say how many cases can be reviewed", param_hint="--budget")
    screen = Screen(as_json)
    with screen.working(f"Reading {features}"):
        home, cohort = _opened(model, features, prompts=prompts)
    evidence = cohort.evidence
    # What `fit` would refuse is refused before anyone reviews it.
    try:
        home.role_hashes_.require_new("evidence", identities(evidence))
    except RoleError as error:
        found = str(error).removeprefix("evidence: ").rpartition(";")[0]
        raise RoleError(f"{features}: {found}; give a file of your own clinic's images{NAMESAKES}") from error
    with naming(features):
        n_groups = len(set(named_groups(evidence)))
    if visit is not None and visit not in cohort.metadata:
        raise FeatureFileError(
            f"{features}: no metadata column {visit!r} for --visit; it has {', '.join(cohort.metadata) or 'none'}"
        )
    visits = None if visit is None else [str(value) for value in cohort.column(visit)]
    if sampling == "archive" and evidence.labels is None:
        raise FeatureFileError(
            f"{features}: the images have no labels, and an archive is drawn within each diagnosis; fill the column "
            "'label_name', or choose --sampling consecutive or coin"
        )
    coin_path = target.with_suffix(".coin.json") if coin is None else coin
    coins = CoinFile.opened(coin_path)
    levels = _levels(miscoverage, home.classes_)
    if sampling == "archive":
        wanted = names_in(classes)
        _require_classes(wanted, home.classes_, option="--classes")
        planned = plan_archive(
            home,
            evidence,
            budget=budget or 0,
            secret=coins.secret,
            miscoverage=np.array(list(levels.values())),
            classes=[home.classes_.index(name) for name in wanted] or None,
            visits=visits,
        )
    elif sampling == "coin":
        share = rate if rate is not None else min(1.0, (budget or 0) / n_groups)
        planned = plan_coin(evidence, rate=share, coins=coins, visits=visits)
    else:
        planned = plan_consecutive(evidence, budget=budget or 0, secret=coins.secret, visits=visits)
    require_replaceable(target, drawn_once=sampling == "coin")
    # Write the secret first and the marks last: if this is interrupted in between, the same cases are drawn again.
    if not coin_path.exists():
        CoinFile(coins.secret, set()).save(coin_path)
    write_sheet(target, evidence, planned)
    coins.save(coin_path)
    needed = {name: labels_needed(levels[name]) for name in home.classes_}
    quota = None if planned.quota is None else planned.quota.labels
    available = [None if planned.available is None else planned.available[k] for k in range(len(home.classes_))]
    labels = {name: None if quota is None else quota.get(k, 0) for k, name in enumerate(home.classes_)}
    # The coin draws slightly more or fewer cases than the budget, unless it draws all patients.
    short = budget is not None and len(planned.rows) < budget and (sampling != "coin" or n_groups < budget)
    facts = {
        "output": str(target),
        "coin": str(coin_path),
        "sampling": sampling,
        "missing": budget - len(planned.rows) if budget is not None and short else 0,
        "cases": len(planned.rows),
        "training": planned.why.count("training"),
        "already_tossed": planned.already,
        "classes": [
            {"class": name, "available": stock, "needed": needed[name], "planned": labels[name]}
            for name, stock in zip(home.classes_, available, strict=True)
        ],
    }
    screen.emit("site plan", facts)
    show_plan(facts, screen=screen)


@dataclass(frozen=True, kw_only=True)
class _FitOptions:
    """Settings of a site model."""

    calibrate_with: Annotated[
        Literal["coin", "weighted"],
        typer.Option(
            help="coin: review was by chance alone. weighted: some cases were reviewed for a reason, each with the "
            "known probability in the column review_probability of REVIEW or FEATURES."
        ),
    ] = "coin"
    rare: Annotated[
        Literal["keep", "count", "pool"],
        typer.Option(
            help="Classes with too few labels: keep them in every set, let their level follow the count, or pool them."
        ),
    ] = "keep"
    slack: Annotated[
        Literal["keep", "thin"], typer.Option(help="thin: exactly as many cases calibrate as the level needs.")
    ] = "keep"
    always_protect: Annotated[
        list[str] | None, typer.Option(help="Classes that keep their level whatever their count.", metavar="CLASSES")
    ] = None
    assurance: Annotated[
        float | None,
        typer.Option(
            help="Hold for this very sample with this probability, such as 0.9; needs about 99 labels of a class.",
            metavar="SHARE",
        ),
    ] = None
    audit: Annotated[
        Literal["off", "site", "home"],
        typer.Option(
            help="Defer images unlike the site's own (site: the patients that are not on the sheet), unlike home's, "
            "or none."
        ),
    ] = "off"
    seed: Annotated[int, typer.Option(help="Seeds every draw; fix it beforehand.", metavar="N", min=0)] = 0


@option_groups(options=_FitOptions)
def fit(
    model: ModelFile,
    features: Features,
    review: ReviewSheet,
    output: Annotated[Path, output_option(help="Site model to write, .safetensors.")],
    sampling: Annotated[Sampling, typer.Option(help="How the reviewed cases were chosen.")],
    options: _FitOptions,
    miscoverage: Levels = None,
    look: Annotated[
        int,
        typer.Option(
            help="With --assurance: number of this fit, counted from 1, if the sample grows between fits.",
            min=1,
            metavar="N",
        ),
    ] = 1,
    prompts: PromptFile = None,
    as_json: AsJson = False,
) -> None:
    r"""Fit a site model on a filled sheet.

    Every label trains and calibrates, and every class with enough labels is covered at its level. Cases without a
    label are counted: their share weakens the promise. The site model takes the place of the model in decide,
    evaluate, report, inspect and explain. It holds embeddings of patients: keep it at the site.

    Examples
    --------
    calcode site fit model.safetensors clinic.parquet review.csv \
        -o site.safetensors --sampling archive
    """
    target = output_file(output, suffixes=(".safetensors",), inputs=(model, features, review, prompts))
    screen = Screen(as_json)
    with screen.working(f"Reading {features}"):
        home, cohort = _opened(model, features, prompts=prompts)
    settings = asdict(options) | {
        "always_protect": names_in(options.always_protect),
        "miscoverage": _levels(miscoverage, home.classes_),
    }
    settings["random_state"] = settings.pop("seed")
    with screen.working("Fitting"):
        site, _ = _fitted(home, cohort, review, sampling=sampling, settings=settings, look=look)
        site.save(target)
        facts = site_facts(site)
    screen.emit("site fit", {"output": str(target), **facts})
    show_site(site, facts, screen=screen)
    screen.say()
    also = "" if prompts is None else f" --prompts {prompts}"
    screen.say(f"Wrote {target}. Decide with it: calcode decide {target} {features}{also} -o decisions.csv")
    if options.calibrate_with == "weighted":
        screen.say("Every feature file that it decides on needs the column review_probability.")


def curve(
    model: ModelFile,
    features: Features,
    review: ReviewSheet,
    sampling: Annotated[Sampling, typer.Option(help="How the reviewed cases were chosen.")],
    labels: Annotated[
        str, typer.Option(help="Numbers of labels to look at, separated by commas.", metavar="N,N,...")
    ] = "60,100,200,400",
    miscoverage: Levels = None,
    draws: Annotated[int, typer.Option(help="Draws of the reviewed cases for each number.", min=2)] = 20,
    seed: Annotated[int, typer.Option(help="Seeds every draw.", metavar="N", min=0)] = 0,
    prompts: PromptFile = None,
    as_json: AsJson = False,
) -> None:
    """Say what more labels would bring: the informative rate by resampling the reviewed cases.

    It is measured on images that are not on the sheet, whose labels are not needed. Beyond the number of reviewed
    cases these are drawn with replacement, which is a guess.

    Examples
    --------
    calcode site curve model.safetensors clinic.parquet review.csv --sampling archive
    """
    import warnings

    from calcode.errors import CalcodeWarning
    from calcode.method.evidence import one_per_group
    from calcode.metrics.wording import counted, percent
    from calcode.site.expected import learning_curve

    try:
        sizes = [int(part) for part in names_in([labels])]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise typer.BadParameter(f"{labels!r} is no list of whole numbers, such as 60,100,200", param_hint="--labels")
    screen = Screen(as_json)
    with screen.working(f"Reading {features}"):
        home, cohort = _opened(model, features, prompts=prompts)
    settings = {"miscoverage": _levels(miscoverage, home.classes_), "random_state": seed}
    with screen.working("Resampling"), warnings.catch_warnings(action="ignore", category=CalcodeWarning):
        # Each number of labels has different silenced classes, so their warnings are not shown.
        site, others = _fitted(home, cohort, review, sampling=sampling, settings=settings, look=1)
        images = others[one_per_group(others, random_state=seed)[:_CURVE_IMAGES]]
        points = learning_curve(site, images, sizes, n_draws=draws, random_state=seed)
    rows = [asdict(point) for point in points]
    screen.emit("site curve", {"reviewed": len(site.bag_), "images": len(images), "curve": rows})
    table = plain_table("labels", "calibrate", "informative", "8 of 10 draws", "", words=())
    for point in points:
        note = "a guess: too few cases" if point.beyond else ""
        rate, low, high = (percent(share, digits=0) for share in (point.informative, point.low, point.high))
        table.add_row(
            f"{point.labels:,}",
            f"{point.calibrating:,} of {counted(point.diagnoses, 'diagnosis')}",
            rate,
            f"{low} to {high}" if point.varied else "all cases: one draw",
            note,
        )
    screen.say(
        f"{len(site.bag_):,} reviewed cases, {len(images):,} images that were not reviewed. Informative: at least one "
        "diagnosis is ruled out and one remains. A further diagnosis that calibrates can be left out of a set, and "
        "takes labels from the others."
    )
    screen.show(table)


def _opened(model: Path, features: Path, *, prompts: Path | None) -> tuple[Calcode, Cohort]:
    """Read the home model and all images of the site."""
    from calcode.cohorts import open_features
    from calcode.engines.local import naming
    from calcode.method.model import Calcode

    home = Calcode.load(model)
    file = open_features(features, prompts=prompts)
    cohort = file.read(classes=home.classes_)
    with naming(features):
        home.evidence_format_.require(cohort.evidence, role="images")
    return home, cohort


def _fitted(
    home: Calcode, cohort: Cohort, review: Path, *, sampling: str, settings: dict[str, Any], look: int
) -> tuple[SiteModel, Evidence]:
    """Fit the site model of a sheet; also return the images of patients who are not on it."""
    import numpy as np

    from calcode.engines.local import naming
    from calcode.errors import EvidenceError, FeatureFileError
    from calcode.method.evidence import one_per_group
    from calcode.site.model import SiteModel
    from calcode.site.sheet import read_sheet

    evidence = cohort.evidence
    with naming(review):
        if evidence.ids is None or evidence.groups is None:
            raise EvidenceError("groups: the images have none; fill the column 'group' with the patient")
    cases = read_sheet(
        review, ids=evidence.ids.tolist(), groups=evidence.groups.tolist(), classes=home.classes_, sampling=sampling
    )
    ungrouped = [str(evidence.ids[row]) for row in cases.rows if not evidence.groups[row]]
    if ungrouped:
        raise FeatureFileError(
            f"{review}: image {ungrouped[0]!r} has no group in the feature file; fill the column 'group' with the "
            "patient"
        )
    if cases.without_label.all():
        raise FeatureFileError(f"{review}: no label is filled in yet; write a diagnosis into the column 'label'")

    drawn, training = ~cases.training, cases.training & ~cases.without_label
    e = None
    if settings.get("calibrate_with") == "weighted":
        own = evidence.review_probability
        e = cases.review_probability if own is None or cases.review_probability is not None else own[cases.rows]
        wrong = drawn if e is None else drawn & ~((e > 0) & (e <= 1))
        if e is None or wrong.any():
            raise FeatureFileError(
                f"{review}: image {str(evidence.ids[cases.rows[wrong]][0])!r} has no review probability above 0 and up "
                "to 1; fill the column 'review_probability' of the sheet or of the feature file"
            )
        e = e[drawn]

    def labelled(chosen: BoolArray) -> Evidence:
        return replace(evidence[cases.rows[chosen]], labels=cases.labels[chosen], review_probability=None)

    others = evidence[~np.isin(evidence.groups, evidence.groups[cases.rows])]
    gate = None
    if settings.get("audit") == "site":
        gate = others[one_per_group(others, random_state=settings["random_state"])]
    trainers = labelled(training) if training.any() else None
    with naming(review):
        site = SiteModel(home, sampling=sampling, **settings).fit(
            reviewed=labelled(drawn),
            trainers=trainers,
            gate=gate,
            e=e,
            look=look,
            without_label=cases.without_label[drawn],
        )
    return site, others


def _levels(texts: list[str] | None, classes: tuple[str, ...]) -> dict[str, float]:
    """Miscoverage of every class, from the values of the option."""
    from calcode.errors import SettingsError
    from calcode.method.settings import Kind
    from calcode.site.settings import DEFAULT_MISCOVERAGE

    try:
        given = Kind("shares", inside=True).parse("--miscoverage", texts or [str(DEFAULT_MISCOVERAGE)])
    except SettingsError as error:
        raise typer.BadParameter(str(error).partition(": ")[2], param_hint="--miscoverage") from error
    if not isinstance(given, dict):
        return dict.fromkeys(classes, given)
    _require_classes(list(given), classes, option="--miscoverage")
    return {name: given.get(name, DEFAULT_MISCOVERAGE) for name in classes}


def _require_classes(names: list[str], classes: tuple[str, ...], *, option: str) -> None:
    unknown = [name for name in names if name not in classes]
    if unknown:
        raise typer.BadParameter(
            f"{', '.join(unknown)}: no such class; the model has {', '.join(classes)}", param_hint=option
        )


group = command_group(
    "Adapt a model to a new site with a few reviewed cases: plan, fit, curve.",
    plan,
    fit,
    curve,
    examples=(
        "calcode site plan model.safetensors clinic.parquet --budget 100",
        "calcode site fit model.safetensors clinic.parquet review.csv \\",
        "    -o site.safetensors --sampling archive",
    ),
)
