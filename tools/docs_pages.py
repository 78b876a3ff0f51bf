"""Pages of the documentation that are written from code and from the tables of a study.

As a hook of mkdocs it writes docs/study-tables.md from the schemas of the study's tables before every build.

`python tools/docs_pages.py keep FOLDER` keeps what the results page needs of the output of studies/dermatology.toml;
`python tools/docs_pages.py results` writes docs/results-dermatology.md from it. A test compares the two.
`python tools/docs_pages.py site [FOLDER]` prints what the study says of site models, of the kept tables or of a study's
output, compared with the figures of SITE.md S15.
`python tools/docs_pages.py settings` writes the tables of docs/settings.md from their declarations, as a test checks.
"""

from __future__ import annotations

import json
import re
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

from calcode.method.settings import SETTINGS, Setting
from calcode.metrics.wording import NBSP
from calcode.report.figure_files import write_figure
from calcode.report.latex import file_stem
from calcode.report.parts import Cell, Figure, Fold, Part, Section, Table, Terms, Text, columns
from calcode.study.output import StudyOutput
from calcode.study.page import input_parts, report_sections
from calcode.study.registry import EXPERIMENTS, TABLES
from calcode.study.run import MANIFEST

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
KEPT = DOCS / "data" / "dermatology"
#: Informative rates of SITE.md S15; of the alternatives it gives the mean of four backbones.
SITE_FIGURES = DOCS / "data" / "site-figures.csv"
#: How far the study may be from them.
_SITE_MARGIN = 0.06
#: Tables that the results page is written from.
_KEPT = (
    "recent_baselines_summary",
    "recent_baselines_dataset_means",
    "utility_calcode_dataset_means",
    "recent_baselines_classwise",
    "recent_baselines_paired_bootstrap",
    "calcode_matched_ablation_means",
    "calcode_matched_ablation_reference_check",
    "gamma_sensitivity_average",
    "guard_level_confirmation",
    "sensitivity_average",
    "audit_score_stability",
    "site_recalibration",
    "site_review_bias",
    "site_sharp_mode",
    "geometry_summary",
    "cost_sensitive_risk_average",
    "validation_selected_risk_delta_summary",
    "validation_selected_operating_points",
    "conservative_xmodal_budget_summary",
    "out_of_space_detection",
    "resplit_spread",
)
#: Figures that the page shows as pictures.
_PICTURES = (
    "reliability-utility",
    "paired-worst_class_coverage",
    "resplits-worst_class_coverage",
    "site-curve-PAD-lite0-derm",
    "site-curve-ROSENDAHL-lite0-derm",
)
_NOT_SHOWN = ("reported", "words", "record")

_TABLES_HEAD = """\
# Tables of the study

`calcode study run` writes one CSV file per table into `tables/`, and their schemas into `tables/schemas.json`. All of
them are computed from the decisions and measurements under `work/`. An empty cell is an undefined value: nothing was
answered, or the column does not apply. Numbers are written so that they read back exactly. On shifted settings every
figure is an observation, and coverage never stands without set size, full-set rate and deferral.

A study writes the tables of the experiments that it runs. Two runs of the same study give the same bytes, except in
columns marked *measured*, which hold durations.
"""
_RESULTS_HEAD = """\
# {title}: results

Written by `python tools/docs_pages.py results` from the tables in `docs/data/dermatology`; a test compares the two. The
study is `studies/dermatology.toml`:

```console
$ calcode study run studies/dermatology.toml{options}
$ calcode study report study-output/dermatology
```

The first command ends with the page of the study, the second writes every table as LaTeX and every figure as a file.
Research software, not a medical device.
"""

_SITE_NOTE = (
    "S15 are the figures of the method's description (docs/data/site-figures.csv). On PAD they have two figures "
    "for an archive. The lower is that of equal shares for the four diagnoses with enough patients to be tested (25, "
    "50 and 100 labels each). The higher serves five, as the quota does; only about 30 patients have a melanoma. A "
    "mean of 20 draws moves with the images that stand for the patients. With 24 keys of their draw, the 24 figures "
    "at random and by the quota have standard deviations of 0.01 to 0.05; two keys agree within 0.06 in 21 of the 24 "
    "figures on average, and in all of them for 3 % of the pairs. With lite0-frozen and 100 labels of an archive, "
    "where S15 has 0.74, the 24 means lay between 0.76 and 0.93 by the quota, and between 0.75 and 0.93 by equal "
    "shares."
)


def on_pre_build(config: Any) -> None:
    """Hook of mkdocs: write the page of the tables, if it is not the one that is there."""
    path = Path(config["docs_dir"]) / "study-tables.md"
    page = tables_page()
    if not path.is_file() or path.read_text(encoding="utf-8") != page:
        path.write_text(page, encoding="utf-8")


def settings_page(page: Path = DOCS / "settings.md") -> str:
    """The page on settings with a table of every setting, from the declarations that Python and the CLI read."""
    tables = [
        "\n".join(
            [
                f"### {panel}",
                "",
                "| setting | option | default | values | |",
                "|---|---|---|---|---|",
                *map(_setting_row, settings),
            ]
        )
        for panel, settings in groupby(SETTINGS.values(), key=lambda setting: setting.panel)
    ]
    head, tail = re.split(
        r"(?<=<!-- settings -->\n).*(?=<!-- end of settings -->)", page.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    return head + "\n" + "\n\n".join(tables) + "\n\n" + tail


def _setting_row(setting: Setting) -> str:
    off = getattr(setting.kind, "off", "")
    option = f"`{setting.option}`" + (f", `{off}`" if off else "")
    default = ", ".join(setting.default) if isinstance(setting.default, tuple) else repr(setting.default)
    return f"| `{setting.name}` | {option} | {default or 'none'} | {setting.kind} | {setting.help} |"


def tables_page() -> str:
    """The schemas of all tables as Markdown."""
    parts = [_TABLES_HEAD]
    for experiment in EXPERIMENTS.values():
        parts.append(f"## {experiment.title}\n\nExperiment `{experiment.name}`.\n")
        for schema in experiment.schemas:
            key = ", ".join(f"`{name}`" for name in schema.key)
            lines = [
                f"### {schema.name}.csv",
                "",
                f"{schema.about} A row is identified by {key}.",
                "",
                "| column | type | unit | meaning |",
                "|---|---|---|---|",
                *(
                    f"| `{column.name}` | {column.kind} | {column.unit} | {column.about}"
                    f"{' *Measured.*' if column.varies else ''} |"
                    for column in schema.columns
                ),
                "",
            ]
            parts.append("\n".join(lines))
    return "\n".join(parts)


def keep_tables(folder: Path, kept: Path = KEPT) -> None:
    """Keep what the results page needs: tables without image ids, and the manifest without paths of this machine."""
    output = StudyOutput(folder)
    (kept / "tables").mkdir(parents=True, exist_ok=True)
    for name in _KEPT:
        rows = output.table(name)
        if name == "recent_baselines_classwise":
            rows = rows[rows["method"].isin(output.shown)]
        elif name == "cost_sensitive_risk_average":
            rows = rows[rows["scope"] == output.average]
        if len(rows):
            TABLES[name].write(kept / "tables", rows)
    manifest = json.loads(json.dumps(output.manifest))
    manifest["study"]["output"] = "."
    for backbone in manifest["study"]["backbones"]:
        for features in backbone["features"].values():
            features["path"] = Path(features["path"]).name
            features["prompts"] = features["prompts"] and Path(features["prompts"]).name
    manifest["combinations"] = []
    manifest["durations"] = {"total_seconds": manifest["durations"]["total_seconds"], "combinations": {}}
    (kept / MANIFEST).write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def results_page(kept: Path = KEPT) -> str:
    """The results as Markdown: open parts of every section, and pictures of some figures."""
    output = StudyOutput(kept)
    resplits = output.study.options["resplits"].n
    options = " --features lite0-frozen=PATH/images.parquet" if len(output.backbones) > 1 else ""
    options += f" --resplits {resplits}" if resplits else ""
    sections = [section for section in report_sections(output) if section.key not in _NOT_SHOWN]
    sections.append(
        Section(key="site-figures", title="Site models compared with the figures of S15", parts=site_parts(output))
    )
    sections.append(Section(key="inputs", title="Inputs", parts=tuple(input_parts(output))))
    head = _RESULTS_HEAD.format(title=output.study.title, options=options)
    return "\n".join([head, *(_section(section) for section in sections)])


def site_parts(output: StudyOutput) -> tuple[Part, ...]:
    """The informative rates of site models and their alternatives compared with those of SITE.md S15."""
    measured = output.table("site_recalibration")
    mean = measured.groupby(["setting", "method", "n_labels"], as_index=False)[["informative_rate", "n_draws"]].mean()
    both = pd.concat([measured, mean.assign(backbone="mean")])
    rows = pd.read_csv(SITE_FIGURES).merge(
        both, on=["setting", "backbone", "method", "n_labels"], suffixes=("_s15", "")
    )
    rows["difference"] = rows["informative_rate"] - rows["informative_rate_s15"]
    cells = rows[rows["backbone"] != "mean"]
    beyond = cells[cells["difference"].abs() > _SITE_MARGIN]
    named = [f"{row.setting} {row.backbone}, {row.method}, {row.n_labels}" for row in beyond.itertuples()]
    sentence = f"{len(cells) - len(beyond)} of {len(cells)} cells are within {_SITE_MARGIN} of S15"
    shown = [
        (
            *(row.setting, row.backbone, row.method, str(row.n_labels), f"{row.n_draws:.0f}"),
            *(f"{row.informative_rate_s15:.2f}", f"{row.informative_rate:.3f}", f"{row.difference:+.3f}"),
        )
        for row in rows.itertuples()
    ]
    return (
        Text(sentences=(f"{sentence}{'; beyond it: ' if named else ''}{'; '.join(named)}.", _SITE_NOTE)),
        Table(
            caption="Informative rate, printed by `python tools/docs_pages.py site`; for the alternatives S15 has the "
            "mean of four backbones, here it is that of the backbones above",
            columns=columns("setting", "backbone", "method", "labels", "draws", "S15", "here", "difference", words=3),
            rows=shown,
        ),
    )


def write_results(kept: Path = KEPT, page: Path = DOCS / "results-dermatology.md") -> None:
    """Write the results page, and its pictures next to the tables."""
    for section in report_sections(StudyOutput(kept)):
        for figure in section.figures:
            if figure.name in _PICTURES:
                write_figure(figure, kept / file_stem(figure.name), formats=("svg",))
    page.write_text(results_page(kept), encoding="utf-8")


def _section(section: Section) -> str:
    parts = [text for part in section.parts if (text := _part(part))]
    return "\n\n".join([f"## {section.title}", *parts]) + "\n"


def _part(part: Part) -> str:
    if isinstance(part, Table):
        return _table(part)
    if isinstance(part, Figure):
        shown = f"\n\n![{part.heading}](data/dermatology/{file_stem(part.name)}.svg)" if part.name in _PICTURES else ""
        return f"**{_plain(part.heading)}.** {_plain(part.sentence)}{shown}"
    if isinstance(part, Terms):
        return "\n".join(f"- **{name}**: {_plain(meaning)}" for name, meaning in part.entries)
    if isinstance(part, Text):
        heading = [f"{'#' * part.level} {_plain(part.heading)}"] if part.heading else []
        badge = [f"*{part.badge}*"] if part.badge else []
        sentences = [_plain(sentence) for sentence in part.sentences if sentence]
        listed = part.style == "list" or len(sentences) > 2
        return "\n\n".join([*heading, *badge, *(["\n".join(f"- {s}" for s in sentences)] if listed else sentences)])
    assert isinstance(part, Fold), "the study has no other part"
    return ""  # what is folded on the page is left to the page


def _table(table: Table) -> str:
    head = "| " + " | ".join(_cell(Cell(column.heading)) for column in table.columns) + " |"
    rule = "|" + "|".join("---:" if column.numeric else "---" for column in table.columns) + "|"
    rows = ["| " + " | ".join(map(_cell, row)) + " |" for row in table.cells]
    return "\n".join([f"*{_plain(table.caption)}*", "", head, rule, *rows])


def _cell(cell: Cell) -> str:
    text = _plain(" ".join(filter(None, (cell.text, cell.tag, f"({cell.below})" if cell.below else ""))))
    return (f"**{text}**" if cell.best and text else text).replace("|", "\\|")


def _plain(text: str) -> str:
    return text.replace(NBSP, " ").replace("*", "\\*")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["keep", folder]:
            keep_tables(Path(folder))
        case ["results"]:
            write_results()
        case ["site", *folders]:
            print("\n\n".join(map(_part, site_parts(StudyOutput(Path(folders[0]) if folders else KEPT)))))
        case ["settings"]:
            (DOCS / "settings.md").write_text(settings_page(), encoding="utf-8")
        case _:
            sys.exit(__doc__)
