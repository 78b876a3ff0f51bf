"""A page of the documentation with the results of a study, written from the tables kept beside it.

`python -m calcode.study.page.results_page keep FOLDER KEPT` keeps what the page needs of a study's output;
`python -m calcode.study.page.results_page write KEPT PAGE` writes the page and its pictures. A test compares them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from calcode.files import replacing
from calcode.study import TABLES
from calcode.study.manifest import FILE as MANIFEST_FILE
from calcode.study.page.ablations import ablation_section
from calcode.study.page.appendix import input_section
from calcode.study.page.audit import audit_section
from calcode.study.page.classes import classes_section
from calcode.study.page.comparison import comparison_section
from calcode.study.page.costs import costs_section
from calcode.study.page.markdown import section_markdown
from calcode.study.page.output import StudyOutput, read_output
from calcode.study.page.outside import outside_section
from calcode.study.page.paired import paired_section
from calcode.study.page.parts import Section
from calcode.study.page.resplits import resplit_section
from calcode.study.page.sensitivity import sensitivity_section
from calcode.study.page.summary import summary_section
from calcode.study.page.svg_files import standalone_svg
from calcode.study.table_files import write_table

#: Tables that the page is written from.
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
    "geometry_summary",
    "cost_sensitive_risk_average",
    "validation_selected_risk_delta_summary",
    "validation_selected_operating_points",
    "conservative_xmodal_budget_summary",
    "out_of_space_detection",
    "resplit_spread",
)
#: Of large tables the rows that the page looks at: the methods that are shown, or the averages over all settings.
_SHOWN_METHODS_ALONE = "recent_baselines_classwise"
_WHOLE_STUDY_ALONE = "cost_sensitive_risk_average"
_SECTIONS: tuple[Callable[[StudyOutput], Section | None], ...] = (
    summary_section,
    comparison_section,
    classes_section,
    paired_section,
    ablation_section,
    sensitivity_section,
    audit_section,
    outside_section,
    costs_section,
    resplit_section,
    input_section,
)
#: Figures that the page shows as pictures.
_PICTURES = ("reliability-utility", "paired-worst_class_coverage", "resplits-worst_class_coverage")

_HEAD = """\
# {title}: results

Written from the tables in `{kept}` by `python -m calcode.study.page.results_page`; a test compares the two. The
study is `studies/dermatology.toml`:

```console
$ calcode study run studies/dermatology.toml{options}
$ calcode study report study-output/dermatology
```

The second command writes the whole report with every table and figure. Research software, not a medical device.
"""


def keep_tables(folder: Path, kept: Path) -> None:
    """Keep what the page needs: tables without image ids, and the manifest without paths of this machine.

    Parameters
    ----------
    folder : Path
        Output of `calcode study run`.
    kept : Path
    """
    output = read_output(folder)
    (kept / "tables").mkdir(parents=True, exist_ok=True)
    for name in _KEPT:
        rows = output.rows(name)
        if name == _SHOWN_METHODS_ALONE:
            rows = [row for row in rows if row["method"] in output.shown]
        elif name == _WHOLE_STUDY_ALONE:
            rows = [row for row in rows if row["scope"] == "all"]
        if rows:
            write_table(kept / "tables", TABLES[name], rows)
    manifest = json.loads(json.dumps(output.manifest))
    manifest["study"]["output"] = "."
    for backbone in manifest["study"]["backbones"]:
        for features in backbone["features"].values():
            features["path"] = Path(features["path"]).name
            features["prompts"] = features["prompts"] and Path(features["prompts"]).name
    manifest["combinations"] = []
    manifest["durations"] = {"total_seconds": manifest["durations"]["total_seconds"], "combinations": {}}
    with replacing(kept / MANIFEST_FILE) as temporary:
        temporary.write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def results_page(kept: Path, *, address: str) -> tuple[str, dict[str, str]]:
    """The page as Markdown, and its pictures by file name.

    Parameters
    ----------
    kept : Path
        Folder of `keep_tables`.
    address : str
        The folder as the page links to it.
    """
    output = read_output(kept)
    sections = [section for make in _SECTIONS if (section := make(output)) is not None]
    pictures = {
        view.name: standalone_svg(view)
        for section in sections
        for view in section.figures
        if view.name in _PICTURES
    }
    links = {name: f"{address}/{name}.svg" for name in pictures}
    resplits = output.study["resplits"]["n"]
    options = f" --resplits {resplits}" if resplits else ""
    if len(output.backbones) > 1:
        options = f" --features lite0-frozen=PATH/images.parquet{options}"
    head = _HEAD.format(title=output.title, kept=f"docs/{address}", options=options)
    body = [section_markdown(section, pictures=links) for section in sections]
    return "\n".join([head, *body]), {f"{name}.svg": picture for name, picture in pictures.items()}


def write_page(kept: Path, page: Path) -> None:
    """Write the page, and its pictures into the kept folder.

    Parameters
    ----------
    kept : Path
        Below the folder of the page.
    page : Path
    """
    address = kept.resolve().relative_to(page.resolve().parent).as_posix()
    text, pictures = results_page(kept, address=address)
    for path, content in {page: text, **{kept / name: picture for name, picture in pictures.items()}}.items():
        with replacing(path) as temporary:
            temporary.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    import sys

    _, verb, first, second = sys.argv
    {"keep": keep_tables, "write": write_page}[verb](Path(first), Path(second))
