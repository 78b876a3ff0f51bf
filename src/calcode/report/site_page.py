"""The page about a site model's decisions on labelled images (SITE.md S9, S10 and S15)."""

from __future__ import annotations

from collections.abc import Mapping

from calcode.arrays import IntArray
from calcode.method.decisions import Decisions
from calcode.metrics import Summary, summarize
from calcode.metrics.wording import count, counted, number, percent, percent_estimate, short_percent
from calcode.report.charts import ChartRow, ReferenceLine, RowChart
from calcode.report.parts import Cell, Figure, Section, Table, Terms, Text, columns
from calcode.site.expected import ideal_worst_coverage
from calcode.site.model import SiteModel

KNOWN_PATIENTS = (
    "The figures are observations on these images. Patients whose own reviewed case is in the model are judged without "
    "it, and nothing is promised for them."
)


def ideal_worst(site: SiteModel, summary: Summary, *, min_n: int = 20) -> float:
    """Expected worst-class coverage of an exactly valid method with these labels and images (SITE.md S15)."""
    images = {row.name: row.coverage.n for row in summary.classwise if row.coverage.n >= min_n}
    return ideal_worst_coverage(site.thresholds_, images)


def site_sections(
    site: SiteModel, decisions: Decisions, labels: IntArray, *, class_titles: Mapping[str, str]
) -> list[Section]:
    """The sections of the page, to be written by `write_page`.

    Parameters
    ----------
    site : SiteModel
    decisions : Decisions
        The model's decisions.
    labels : ndarray of int, shape (n,)
        True classes; -1 marks an image outside the label space.
    class_titles : mapping of str to str
        Full names of the classes.
    """
    summary = summarize(decisions, labels)
    designs = ", ".join(f"{name}: {design}" for name, design in site.settings_.sampling.items())
    facts = (
        ("reviewed cases", count(len(site.bag_))),
        ("chosen by", designs),
        ("without a label", f"{count(site.n_unlabelled_)} ({percent(site.unlabelled_share_)})"),
        ("outside the label space", count(site.n_outside_)),
        ("further cases that train", count(site.n_trainers_)),
        ("audit", site.audit_kind_),
        ("site model digest", site.digest_),
        ("home model digest", site.home_digest_ or "none: home is the site"),
    )
    did = (lead_text(site, decisions, summary), class_figure(site, summary, class_titles))
    promised = Text(sentences=site.promises_, style="list")
    return [
        Section(key="what", title="What it did", parts=did),
        Section(key="promises", title="What is promised, and for whom", parts=(promised,)),
        Section(key="model", title="The site model", parts=(Terms(entries=facts),)),
    ]


def lead_text(site: SiteModel, decisions: Decisions, summary: Summary) -> Text:
    """Coverage with its cost, the worst class compared with an ideal one, and known patients."""
    sentences = [
        f"On {counted(summary.n, 'image')} it covers {percent_estimate(summary.coverage)} of those it answers, with "
        f"{number(summary.set_size.value)} of {len(site.classes_)} diagnoses per set on average; "
        f"{percent(summary.informative_rate.value)} of the answers rule something out, "
        f"{percent(summary.full_set_rate.value)} rule out nothing, {percent(summary.deferral.value)} are deferred.",
        summary.singles.sentence,
    ]
    if summary.worst_class is not None:
        sentences.append(
            f"Its worst class is {summary.worst_class}, {percent_estimate(summary.worst_class_coverage)}. An exactly "
            f"valid method with these labels would show about {percent(ideal_worst(site, summary))} as its worst class "
            "on these images."
        )
    if decisions.known_group is not None and decisions.known_group.any():
        sentences.append(f"{counted(int(decisions.known_group.sum()), 'image')} of known patients. {KNOWN_PATIENTS}")
    return Text(sentences=tuple(sentences), style="lead")


def class_figure(site: SiteModel, summary: Summary, class_titles: Mapping[str, str]) -> Figure:
    """Coverage of every class compared with the promise, with its number of labels."""
    titles = {name: class_titles.get(name, name) for name in site.classes_}
    levels = sorted(set(site.levels_.values()))
    return Figure(
        heading="Class by class",
        sentence="Dots: share of a class's answered images whose set holds the diagnosis, with 95 % intervals.",
        charts=(
            RowChart(
                rows=[
                    ChartRow(
                        label=titles[row.name],
                        note=f"n = {count(row.coverage.n)}, {count(site.counts_[row.name])} labels",
                        values={1: row.coverage},
                        marked=row.name in site.silenced_classes_,
                    )
                    for row in summary.classwise
                    if row.coverage.n
                ],
                references=[ReferenceLine(1 - level, f"promised {short_percent(1 - level)}") for level in levels[:2]],
            ),
        ),
        numbers=Table(
            caption="Labels, promises and coverage by class",
            columns=columns("class", "labels", "promised", "images", "covered"),
            rows=[
                [
                    titles[row.name],
                    count(site.counts_[row.name]),
                    Cell(
                        short_percent(1 - site.levels_[row.name]),
                        tag="in every set" if row.name in site.silenced_classes_ else "",
                    ),
                    count(row.coverage.n),
                    percent_estimate(row.coverage) if row.coverage.n else "-",
                ]
                for row in summary.classwise
            ],
        ),
    )
