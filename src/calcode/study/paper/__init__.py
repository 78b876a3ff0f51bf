"""The tables that the paper prints, as data: shown next to a study's own, marked "reported", never mixed with them.

One TOML file per printed table. Cells are kept as printed, so that nothing gains or loses a digit.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from calcode.errors import StudyError
from calcode.metrics.wording import counted, listed
from calcode.report.parts import Column, Fold, Part, Table, Text
from calcode.study.methods import COMPLETE, PAPER_SETS

#: Columns that hold words; all others hold numbers.
_WORDS = frozenset(
    ["setting", "backbone", "method", "printed_name", "metric", "selected", "regime", "selected_audit", "class_name"]
)
#: Head of a column with four printed figures.
FOUR = "coverage/worst/size/deferral"
#: Printed tables with one row per setting, backbone and method.
_BY_METHOD = ("main_comparison", "camelyon_stress_test", "ham10000")
#: The paper's name of a cohort or backbone to the names a study may give it, letters and digits alone.
_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "ISIC 2019": ("isic2019", "isic"),
    "PAD-UFES-20": ("padufes20", "padufes", "pad"),
    "HAM10000": ("ham10000", "ham"),
    "Camelyon17": ("camelyon17", "camelyon", "camelyon17wilds"),
}
_BACKBONES: Mapping[str, tuple[str, ...]] = {
    "BiomedCLIP": ("biomedclip", "microsoftbiomedclip"),
    "OpenAI CLIP ViT-B/32": ("openaiclipvitb32", "openaiclip", "clipvitb32", "openaivitb32"),
    "PubMedCLIP ViT-B/32": ("pubmedclipvitb32", "pubmedclip"),
    "MedSigLIP-448": ("medsiglip448", "medsiglip"),
}


@dataclass(frozen=True, kw_only=True)
class ReportedTable:
    """One printed table.

    Attributes
    ----------
    name : str
    place : str
        Where the paper prints it, such as "Table 1".
    title, note : str
    columns : tuple of str
        Named as in a study's own tables wherever they mean the same.
    rows : tuple of mapping of str to str
        Cells as printed; empty where nothing is printed.
    """

    name: str
    place: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Mapping[str, str], ...]
    note: str = ""

    def find(self, wanted: Mapping[str, str]) -> Mapping[str, str] | None:
        """The one row with these cells, or None.

        Parameters
        ----------
        wanted : mapping of str to str
            Column to cell as printed.
        """
        found = [row for row in self.rows if all(row[name] == cell for name, cell in wanted.items())]
        if len(found) > 1:
            raise StudyError(f"wanted: {dict(wanted)} fits {len(found)} rows of {self.name}; name more columns")
        return found[0] if found else None


#: A printed table with one of its rows.
Reported = tuple[ReportedTable, Mapping[str, str]]


@cache
def reported_tables() -> Mapping[str, ReportedTable]:
    """Every printed table by name, in the order of the paper.

    Examples
    --------
    >>> table = reported_tables()["main_comparison"]
    >>> row = table.find({"setting": "ISIC 2019", "backbone": "average", "method": "calcode"})
    >>> table.place, row["coverage"], row["worst_class_coverage"], row["set_size"], row["deferral"]
    ('Table 1', '0.989', '0.970', '6.71', '0.132')
    """
    tables = []
    for file in files(__package__).iterdir():
        if file.name.endswith(".toml"):
            content = tomllib.loads(file.read_text(encoding="utf-8"))
            columns = tuple(content.pop("columns"))
            rows = tuple(MappingProxyType(dict(zip(columns, row, strict=True))) for row in content.pop("rows"))
            tables.append(ReportedTable(name=file.name.removesuffix(".toml"), columns=columns, rows=rows, **content))

    def order(table: ReportedTable) -> tuple[bool, int]:
        number = table.place.split()[1]
        return number.startswith("S"), int(number.removeprefix("S"))

    return MappingProxyType({table.name: table for table in sorted(tables, key=order)})


def paper_setting(name: str) -> str | None:
    """What the paper calls a setting of a study; None where it has no such cohort.

    Examples
    --------
    >>> paper_setting("PAD"), paper_setting("HAM->ISIC 2019"), paper_setting("ROSENDAHL")
    ('PAD-UFES-20', 'ISIC 2019', None)
    """
    target = re.split(r"->|→|\bto\b", name)[-1]
    return _known(target, _SETTINGS)


def paper_backbone(name: str) -> str | None:
    """What the paper calls a backbone of a study; None where it uses no such backbone.

    Examples
    --------
    >>> paper_backbone("medsiglip-448"), paper_backbone("lite0-derm")
    ('MedSigLIP-448', None)
    """
    return _known(name, _BACKBONES)


def paper_backbones() -> tuple[str, ...]:
    """The four backbones of the paper."""
    return tuple(_BACKBONES)


def has_papers_backbones(names: Iterable[str]) -> bool:
    """Whether an average over these backbones is one over the paper's: exactly its four."""
    return {paper_backbone(name) for name in names} == set(paper_backbones())


def reported(table: str, **wanted: str | None) -> Reported | None:
    """The one row of a printed table with these cells; None where it has none, or where a name is not the paper's."""
    if None in wanted.values():
        return None
    found = reported_tables()[table].find({name: str(cell) for name, cell in wanted.items()})
    return None if found is None else (reported_tables()[table], found)


def reported_at(table: str, setting: str, backbone: str, method: str | None = None) -> Reported | None:
    """The row of a printed table for a setting and a backbone of a study, and a method where it has several."""
    further = {} if method is None else {"method": method}
    return reported(table, setting=paper_setting(setting), backbone=paper_backbone(backbone), **further)


def reported_row(setting: str, backbone: str, method: str) -> Reported | None:
    """What the paper prints for a setting, backbone and method of a study; None where it prints nothing.

    The paper's CALCoDe releases the paper's sets; its row is shown for both.

    Examples
    --------
    >>> table, row = reported_row("PAD", "biomedclip", "calcode")
    >>> table.place, reported_figures(row)
    ('Table 1', '0.997/0.960/4.98/0.832')
    """
    papers_name = COMPLETE if method == PAPER_SETS else method
    return next((found for name in _BY_METHOD if (found := reported_at(name, setting, backbone, papers_name))), None)


def reported_parts(settings: Sequence[str], backbones: Sequence[str]) -> tuple[Part, ...]:
    """Which cells a study shares with the paper, by its settings and backbones, then every printed table in a fold."""
    cohorts, models = list(filter(paper_setting, settings)), list(filter(paper_backbone, backbones))
    shared = (
        f"{f'the cohorts {listed(cohorts)}' if cohorts else 'no cohort'} and "
        f"{f'the backbones {listed(models)}' if models else 'no backbone'}"
    )
    meaning = ", so no cell of the one is a cell of the other: they are shown for orientation, not for comparison."
    if cohorts and models:
        meaning = (
            "; where both have the same cell, the tables above show the paper's number next to ours in a column marked "
            '"reported".'
        )
    sentence = f"The {counted(len(reported_tables()), 'table')} that the paper prints, as data."
    folds = []
    for table in reported_tables().values():
        shown = [name for name in table.columns if name != "method" or "printed_name" not in table.columns]
        headings = {name: "method" if name == "printed_name" else name.replace("_", " ") for name in shown}
        made = Table(
            name=f"reported-{table.name.replace('_', '-')}",
            caption=f"({table.place}): {table.title}.{f' {table.note}' if table.note else ''}",
            columns=[Column(heading, numeric=name not in _WORDS) for name, heading in headings.items()],
            rows=[[row[name] for name in shown] for row in table.rows],
            layout="scroll",
            reported=True,
        )
        folds.append(Fold(title=f"{table.place}: {table.title}", parts=(made,)))
    return Text(sentences=(f"{sentence} This study shares {shared} with it{meaning}",)), *folds


def reported_figures(row: Mapping[str, str]) -> str:
    """Coverage, worst class, set size and deferral as printed."""
    return "/".join(row[name] or "--" for name in ("coverage", "worst_class_coverage", "set_size", "deferral"))


def _known(name: str, known: Mapping[str, tuple[str, ...]]) -> str | None:
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return next((papers for papers, names in known.items() if plain in names), None)
