"""Second half of the demonstration: what 200 reviewed cases of a new site change, and sharp mode at home."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from calcode.cohorts import Cohort
from calcode.errors import CalcodeWarning
from calcode.method.model import Calcode
from calcode.method.singles import SinglesCertificate
from calcode.metrics import Summary
from calcode.metrics.intervals import Estimate
from calcode.metrics.wording import count, counted, number, percent, percent_interval, short_percent
from calcode.report.charts import UNIT_SCALE, ChartRow, RowChart
from calcode.report.parts import Cell, Figure, Part, Section, Table, Text, columns
from calcode.site.expected import informative_share
from calcode.site.model import SiteModel
from calcode.site.ranking import TOLERANCE
from calcode.site.simulation import draw_cases, drawn_patients, fitted_on, site_figures
from calcode.study.cohorts import SettingCohorts, select_cohorts
from calcode.study.experiments.site import sharp_model
from calcode.study.specification import Setting

LABELS = 200
CURVE = (60, 100, 200, 400)
DRAWS = 10
#: Draws for the point that the sentences quote: a mean of 10 draws varies by 0.05.
SENTENCE_DRAWS = 40
_DESIGNS = {"at random": "consecutive", "from an archive": "archive"}
_CAVEATS = (
    "The adapter's four numbers were chosen on labels of these two sites, so the figures are a little optimistic; "
    "archive draws are simulated from the same cohort; the spread is over draws of the reviewed cases.",
)


@dataclass(frozen=True, eq=False, kw_only=True)
class SiteComparison:
    """A new site today and with reviewed cases, on the same images of the other patients.

    Attributes
    ----------
    setting : Setting
    site : SiteModel
        Site model of one seeded draw of 200 random cases.
    today, reviewed : Summary
        The home model and the site model on all images of the patients who were not reviewed.
    ideal_worst : float
        Expected worst-class coverage of an exactly valid method.
    curve : dict of (str, int) to Estimate
        Informative rate by design and number of cases; its interval contains eight of ten draws.
    """

    setting: Setting
    site: SiteModel
    today: Summary
    reviewed: Summary
    ideal_worst: float
    curve: dict[tuple[str, int], Estimate]


@dataclass(frozen=True, eq=False, kw_only=True)
class SharpComparison:
    """Home with default settings and in sharp mode, on one test image per lesion.

    Attributes
    ----------
    today, sharp : Summary
    certificate : SinglesCertificate
        Certificate of the single answers, from the reference images.
    """

    today: Summary
    sharp: Summary
    certificate: SinglesCertificate


@dataclass(frozen=True, eq=False, kw_only=True)
class SiteDemo:
    """All results of the second half."""

    sites: tuple[SiteComparison, ...]
    sharp: SharpComparison

    @cached_property
    def sentences(self) -> tuple[str, ...]:
        """The results, in one sentence per site and one for sharp mode."""
        found = [
            f"{entry.setting.short.capitalize()}: with {LABELS} reviewed cases, chosen at random, "
            f"{percent(entry.curve['at random', LABELS].value)} of the images of the patients who were not reviewed "
            f"get an answer that rules something out ({percent_interval(entry.curve['at random', LABELS])} in eight of "
            f"ten draws) instead of {percent(entry.today.informative_rate.value)}. In one such draw the answer holds "
            f"the diagnosis for {percent(entry.reviewed.worst_class_coverage.value)} of the worst class; an exactly "
            f"valid method would show about {percent(entry.ideal_worst)}."
            for entry in self.sites
        ]
        singles, default, certificate = self.sharp.sharp.singles, self.sharp.today.singles, self.sharp.certificate
        risk, confidence = short_percent(certificate.risk), short_percent(certificate.confidence)
        promise = f"at most {risk} wrong is promised with {confidence} confidence"
        promise = promise if certificate.certified else "not certified"
        found.append(
            f"Sharp mode at home: {percent(singles.n / self.sharp.sharp.n)} of the lesions, one image each, get one "
            f"diagnosis, {count(singles.right)} of {count(singles.n)} right; {promise} ({certificate.wrong} of "
            f"{certificate.n} wrong on the reference images). The default names one for "
            f"{counted(default.n, 'lesion')}, {count(default.right)} of them right."
        )
        return tuple(found)

    @property
    def facts(self) -> dict[str, Any]:
        """All results as plain values."""
        return {
            "settings": [
                {
                    "name": entry.setting.name,
                    "labels": entry.site.counts_,
                    "today": entry.today.to_dict(),
                    "reviewed": entry.reviewed.to_dict(),
                    "ideal_worst_class_coverage": entry.ideal_worst,
                    "curve": [
                        {"design": design, "labels": n, "informative": rate.value, "low": rate.low, "high": rate.high}
                        for (design, n), rate in entry.curve.items()
                    ],
                }
                for entry in self.sites
            ],
            "sharp": {
                "today": self.sharp.today.to_dict(),
                "sharp": self.sharp.sharp.to_dict(),
                "certificate": asdict(self.sharp.certificate) | {"certified": self.sharp.certificate.certified},
            },
            "findings": [sentence.replace("\u00a0", " ") for sentence in self.sentences],
        }


def compare_sites(images: Cohort, settings: Sequence[Setting], models: Sequence[Calcode]) -> SiteDemo:
    """Draw reviewed cases at the shifted settings, and run sharp mode at the setting that is not shifted.

    Parameters
    ----------
    images : Cohort
        All demonstration images.
    settings : sequence of Setting
    models : sequence of Calcode
        The home model of each setting.
    """
    sites, sharp = [], None
    with warnings.catch_warnings(action="ignore", category=CalcodeWarning):
        for setting, home in zip(settings, models, strict=True):
            cohorts = select_cohorts(images, setting)
            if setting.shifted:
                sites.append(compare_site(cohorts, home))
            else:
                site, test = sharp_model(cohorts)
                sharp = SharpComparison(
                    today=home.decide(test).summary(test.require_labels()),
                    sharp=site.decide(test).summary(test.require_labels()),
                    certificate=site.certify_singles(cohorts.roles.reference),
                )
    assert sharp is not None  # one of the demonstration's settings is not shifted
    return SiteDemo(sites=tuple(sites), sharp=sharp)


def compare_site(cohorts: SettingCohorts, home: Calcode) -> SiteComparison:
    """One draw of reviewed cases in detail, and the informative rate of many draws of several sizes."""
    cohort = cohorts.target.evidence
    patients = drawn_patients(cohort, seed=0)
    cases = draw_cases(home, cohort, patients, n=LABELS, design="consecutive", seed=0)
    site = fitted_on(home, cohort, cases, sampling="consecutive")
    test = cohort[cases.test]
    labels = test.require_labels()
    curve = {}
    for name, design in _DESIGNS.items():
        for n in CURVE:
            rates = []
            for seed in range(SENTENCE_DRAWS if (name, n) == ("at random", LABELS) else DRAWS):
                drawn = draw_cases(home, cohort, patients, n=n, design=design, seed=seed)
                model = fitted_on(home, cohort, drawn, sampling=design)
                # These are other patients, so their groups need not be looked up.
                p_values = model.p_values(cohort[drawn.test].without_identity())
                rates.append(informative_share(p_values > model.settings_.levels + TOLERANCE))
            low, high = np.quantile(rates, [0.1, 0.9])
            curve[name, n] = Estimate(float(np.mean(rates)), float(low), float(high), len(rates))
    return SiteComparison(
        setting=cohorts.setting,
        site=site,
        today=home.decide(test).summary(labels),
        reviewed=site.decide(test).summary(labels),
        ideal_worst=site_figures(site, test).ideal_worst,
        curve=curve,
    )


def site_section(demo: SiteDemo) -> Section:
    """The section of the page: sentences, a table, and the curves."""
    parts: list[Part] = [Text(sentences=demo.sentences, style="lead"), comparison_table(demo)]
    parts += [curve_figure(entry) for entry in demo.sites]
    parts.append(Text(sentences=_CAVEATS, style="note"))
    return Section(key="site", title="A model that learns its new site", parts=tuple(parts), short="A new site")


def comparison_table(demo: SiteDemo) -> Table:
    """Both models on the same images, by site."""
    rows = []
    for entry in demo.sites:
        for name, summary, ideal in (
            ("today", entry.today, ""),
            (f"{LABELS} reviewed cases", entry.reviewed, f"ideal {percent(entry.ideal_worst)}"),
        ):
            rows.append([entry.setting.short, name, *_cells(summary, ideal)])
    rows.append(["held-out images", "today", *_cells(demo.sharp.today, "")])
    rows.append(["held-out images", "sharp mode", *_cells(demo.sharp.sharp, "")])
    headings = ("images", "model", "coverage", "worst class", "set size", "informative", "one diagnosis", "deferred")
    return Table(
        caption="One draw of the reviewed cases; all images of the patients that were not reviewed; at home one test "
        "image per lesion",
        columns=columns(*headings, words=2),
        rows=rows,
        name="site",
    )


def _cells(summary: Summary, ideal: str) -> list[str | Cell]:
    singles = summary.singles
    return [
        Cell(percent(summary.coverage.value), below=percent_interval(summary.coverage)),
        Cell(percent(summary.worst_class_coverage.value), below=ideal),
        Cell(number(summary.set_size.value), below=f"of {len(summary.classes)}"),
        percent(summary.informative_rate.value),
        f"{count(singles.right)} of {count(singles.n)} right" if singles.n else "none",
        percent(summary.deferral.value),
    ]


def curve_figure(entry: SiteComparison) -> Figure:
    """Informative rate by number of reviewed cases."""
    return Figure(
        heading=f"Informative answers by number of reviewed cases: {entry.setting.short}",
        sentence=f"Each mark is a mean of {DRAWS} draws ({SENTENCE_DRAWS} draws for {LABELS} cases at random); eight "
        "of ten draws lie within the line. Today: "
        f"{percent(entry.today.informative_rate.value)} of {counted(entry.today.n, 'image')}.",
        charts=(
            RowChart(
                rows=[
                    ChartRow(
                        label=f"{n} reviewed cases",
                        values={series: entry.curve[name, n] for series, name in zip((0, 2), _DESIGNS, strict=True)},
                    )
                    for n in CURVE
                ],
                axis=UNIT_SCALE,
            ),
        ),
        legend=tuple(zip((0, 2), _DESIGNS, strict=True)),
        name=f"site-curve-{entry.setting.name}",
    )
