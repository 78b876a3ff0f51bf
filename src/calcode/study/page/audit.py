"""How stable the audit's choice is, and the shift as the embeddings see it."""

from __future__ import annotations

from collections.abc import Sequence

from calcode.report.plane import Axis, Marks, plain_number
from calcode.report.wording import count, counted, listed, number, percent
from calcode.study.page.cells import count_of, value_of, words_of
from calcode.study.page.figure_words import place_words
from calcode.study.page.output import SettingFacts, StudyOutput
from calcode.study.page.parts import (
    Entry,
    FigureView,
    Heading,
    Part,
    Passage,
    PlanePanel,
    Section,
    TableView,
    entries,
)
from calcode.study.page.scales import rounded_range
from calcode.study.paper import paper_backbone, paper_setting, reported_tables
from calcode.study.schema import Row

_STABILITY, _GEOMETRY, _PROJECTION = "audit_score_stability", "geometry_summary", "pca_domain_projection"
_DISTANCES = "distance_quantiles"
#: Images of a domain that a panel draws; a page has no room for thousands.
_DRAWN = 300
#: Bootstraps that must agree before a choice is called stable, as in the paper.
_STABLE = 0.95
_DOMAINS = {
    "source": (1, "source, held out"),
    "target": (0, "target"),
    "outside": (3, "outside the label space"),
}


def audit_section(output: StudyOutput) -> Section | None:
    """Stability, geometry, distances and the projection."""
    parts: list[Part] = []
    stability = output.rows(_STABILITY)
    if stability:
        parts.append(Passage(heading="Stability of the audit", sentences=(stability_sentence(stability),)))
        parts.append(_stability_table(stability))
    geometry = output.rows(_GEOMETRY)
    if geometry:
        parts.append(Passage(heading="The shift in the embeddings", sentences=(geometry_sentence(geometry),)))
        parts.append(_geometry_table(geometry))
    distances = output.rows(_DISTANCES)
    if distances:
        parts.append(_distance_table(distances))
    for setting in output.settings:
        figure = projection_figure(output, setting)
        if figure is not None:
            parts.append(figure)
    return Section(key="audit", title="The audit and the embeddings", parts=tuple(parts)) if parts else None


def stability_sentence(rows: Sequence[Row]) -> str:
    """How often the choice is the same on bootstraps of validation."""
    stable = [row for row in rows if value_of(row, "frequency") >= _STABLE]
    least = min(rows, key=lambda row: value_of(row, "frequency"))
    return (
        f"Bootstraps of the validation images select the same diagnostic in at least {percent(_STABLE, digits=0)} of "
        f"cases for {len(stable) or 'none'} of {counted(len(rows), 'combination')}; least often on "
        f"{words_of(least, 'setting')} with {words_of(least, 'backbone')} ({words_of(least, 'selected')} in "
        f"{percent(value_of(least, 'frequency'))}, {number(value_of(least, 'margin'), digits=3)} AUROC above "
        f"{words_of(least, 'runner_up')})."
    )


def _stability_table(rows: Sequence[Row]) -> TableView:
    printed = reported_tables()["audit_stability"]

    def beside(row: Row) -> Entry:
        found = _printed("audit_stability", row)
        text = (
            f"{found['selected']} {found['auroc']} / {found['margin']} / {found['frequency']}"
            if found
            else ""
        )
        return Entry(text, printed.place if found else "")

    extra = any(_printed("audit_stability", row) for row in rows)
    return TableView(
        name="audit-stability",
        caption=f"Diagnostic selected on validation, and how often {count(count_of(rows[0], 'n_resamples'))} "
        "bootstraps of the validation images select it again; gate ranks are fixed. AUROC: top-1 errors on validation.",
        headings=(
            Heading("setting", numeric=False),
            Heading("backbone", numeric=False),
            Heading("selected", numeric=False),
            Heading("AUROC"),
            Heading("margin"),
            Heading("runner-up", numeric=False),
            Heading("selected again"),
            Heading("errors"),
            *((Heading("reported: AUROC / margin / frequency"),) if extra else ()),
        ),
        rows=tuple(
            entries(
                words_of(row, "setting"),
                words_of(row, "backbone"),
                words_of(row, "selected"),
                number(value_of(row, "auroc"), digits=3),
                number(value_of(row, "margin"), digits=3),
                words_of(row, "runner_up"),
                percent(value_of(row, "frequency")),
                f"{count(count_of(row, 'n_errors'))} of {count(count_of(row, 'n_validation'))}",
                *([beside(row)] if extra else []),
            )
            for row in rows
        ),
    )


def _printed(table: str, row: Row) -> dict[str, str] | None:
    setting, backbone = paper_setting(words_of(row, "setting")), paper_backbone(words_of(row, "backbone"))
    if setting is None or backbone is None:
        return None
    found = reported_tables()[table].find({"setting": setting, "backbone": backbone})
    return None if found is None else dict(found)


def geometry_sentence(rows: Sequence[Row]) -> str:
    """Where the target lies farthest from the reference, and how easily the two are told apart."""
    same = [words_of(row, "setting") for row in rows if value_of(row, "shift_ratio") == 1.0]
    itself = (
        f" On {listed(list(dict.fromkeys(same)))} the held-out source images are the target itself, hence a shift of 1."
        if same
        else ""
    )
    farthest = max(rows, key=lambda row: value_of(row, "shift_ratio"))
    easiest = max(rows, key=lambda row: value_of(row, "probe_balanced_accuracy"))
    return (
        f"The target lies farthest from the reference on {words_of(farthest, 'setting')} with "
        f"{words_of(farthest, 'backbone')}: {number(value_of(farthest, 'shift_ratio'))} times the distance of "
        f"held-out source images ({number(value_of(farthest, 'class_shift_ratio'))} times within the class), median "
        f"p-value {number(value_of(farthest, 'median_p_audit'), digits=3)}, "
        f"{percent(value_of(farthest, 'deferral'))} deferred. A linear probe tells source from target best on "
        f"{words_of(easiest, 'setting')} with {words_of(easiest, 'backbone')}: balanced accuracy "
        f"{percent(value_of(easiest, 'probe_balanced_accuracy'))}.{itself}"
    )


def _geometry_table(rows: Sequence[Row]) -> TableView:
    columns = (
        ("shift_ratio", "shift", 2),
        ("class_shift_ratio", "shift within the class", 2),
        ("probe_balanced_accuracy", "probe balanced accuracy", 3),
        ("effective_rank", "effective rank", 1),
        ("top_variance_share", "top variance share", 3),
        ("median_p_audit", "median p-value", 3),
        ("deferral", "deferred", 3),
        ("set_size", "set size", 2),
    )
    printed = reported_tables()["geometry_audit"]
    extra = any(_printed("geometry_audit", row) for row in rows)

    def beside(row: Row) -> Entry:
        found = _printed("geometry_audit", row)
        return Entry(" / ".join(found[name] for name, _, _ in columns), printed.place) if found else Entry("")

    return TableView(
        name="geometry",
        caption="Distances are median cosine distances to the 10 nearest reference images; a shift of 2 means twice "
        "the distance of held-out source images.",
        headings=(
            Heading("setting", numeric=False),
            Heading("backbone", numeric=False),
            *(Heading(title) for _, title, _ in columns),
            *((Heading("reported, in this order"),) if extra else ()),
        ),
        rows=tuple(
            entries(
                words_of(row, "setting"),
                words_of(row, "backbone"),
                *(number(value_of(row, name), digits=digits) for name, _, digits in columns),
                *([beside(row)] if extra else []),
            )
            for row in rows
        ),
    )


def _distance_table(rows: Sequence[Row]) -> TableView:
    levels = sorted({value_of(row, "quantile") for row in rows})
    keys = ("setting", "backbone", "domain", "neighbours")
    groups: dict[tuple[str, ...], dict[float, Row]] = {}
    for row in rows:
        place = tuple(words_of(row, key) for key in keys)
        groups.setdefault(place, {})[value_of(row, "quantile")] = row
    return TableView(
        name="distance-quantiles",
        caption="Quantiles of the median cosine distance to the 10 nearest reference images, of any class or the same.",
        headings=(
            *(Heading(key, numeric=False) for key in keys),
            Heading("images"),
            *(Heading(f"{level:g}") for level in levels),
        ),
        rows=tuple(
            entries(
                *place,
                count(count_of(next(iter(own.values())), "n")),
                *(
                    number(value_of(own[level], "distance"), digits=3) if level in own else ""
                    for level in levels
                ),
            )
            for place, own in groups.items()
        ),
        folded="Quantiles of the distances",
        layout="scroll",
    )


def projection_figure(output: StudyOutput, setting: SettingFacts) -> FigureView | None:
    """Source and target in the plane of the source's first two principal components, one panel per backbone."""
    panels, shares = [], []
    seen: set[str] = set()
    for backbone in output.backbones:
        rows = output.chosen(_PROJECTION, setting=setting.name, backbone=backbone)
        if not rows or same_images(rows):
            continue
        seen |= {words_of(row, "domain") for row in rows}
        panels.append(_projection_panel(rows, heading=output.backbones[backbone]))
        first, second = value_of(rows[0], "variance_1"), value_of(rows[0], "variance_2")
        place = place_words(output, setting, backbone)
        shares.append(f"{percent(first + second)} of the source's variance on {place}")
    if not panels:
        return None
    return FigureView(
        name=f"projection-{setting.name}",
        heading=f"Source and target of {setting.name} in the plane of two principal components",
        sentence=f"The plane holds {listed(shares)}; at most {_DRAWN} images of each kind are drawn.",
        legend=tuple(_DOMAINS[name] for name in _DOMAINS if name in seen),
        panels=tuple(panels),
    )


def same_images(rows: Sequence[Row]) -> bool:
    """Whether the target is the held-out source itself, so that the two cannot be told apart."""
    source, target = (
        {words_of(row, "id") for row in rows if row["domain"] == domain} for domain in ("source", "target")
    )
    return source == target


def _projection_panel(rows: Sequence[Row], *, heading: str) -> PlanePanel:
    marks = []
    shown: list[Row] = []
    for domain, (series, name) in _DOMAINS.items():
        own = [row for row in rows if row["domain"] == domain]
        # Evenly over the file, so that no part of the cohort is left out.
        kept = own[:: max(1, -(-len(own) // _DRAWN))]
        if kept:
            shown += kept
            marks.append(
                Marks(
                    series=series,
                    name=name,
                    across=tuple(value_of(row, "component_1") for row in kept),
                    up=tuple(value_of(row, "component_2") for row in kept),
                    cloud=True,
                )
            )
    return PlanePanel(
        heading=heading,
        marks=tuple(marks),
        across=_axis(shown, "component_1", "first component"),
        up=_axis(shown, "component_2", "second component"),
    )


def _axis(rows: Sequence[Row], name: str, title: str) -> Axis:
    low, high = rounded_range([value_of(row, name) for row in rows], step=0.1, least=0.2)
    return Axis(title=title, low=low, high=high, tick_text=plain_number)
