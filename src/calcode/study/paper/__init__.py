"""The tables that the paper prints, as data: shown beside a study's own, marked "reported", never mixed with them.

One TOML file per printed table. Cells are kept as printed, so that nothing gains or loses a digit.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from calcode.errors import StudyError

#: In the order of the paper.
_NAMES = (
    "main_comparison",
    "matched_ablations",
    "geometry_audit",
    "paired_bootstrap",
    "audit_stability",
    "gamma_sensitivity",
    "guard_level",
    "camelyon_stress_test",
    "utility_profile",
    "cost_risk",
    "validation_selected_risk",
    "cross_modal_switches",
    "camelyon_utility",
    "approximate_neighbours",
    "ham10000",
    "classwise_isic2019",
    "classwise_ham10000",
)
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
    note: str
    columns: tuple[str, ...]
    rows: tuple[Mapping[str, str], ...]

    def find(self, wanted: Mapping[str, str]) -> Mapping[str, str] | None:
        """The one row with these cells, or None.

        Parameters
        ----------
        wanted : mapping of str to str
            Column to cell as printed.
        """
        found = [row for row in self.rows if all(row[name] == cell for name, cell in wanted.items())]
        if len(found) > 1:
            raise StudyError(
                f"wanted: {dict(wanted)} fits {len(found)} rows of {self.name}; name more columns"
            )
        return found[0] if found else None


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
    return MappingProxyType({name: _read(name) for name in _NAMES})


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


def _known(name: str, known: Mapping[str, tuple[str, ...]]) -> str | None:
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return next((printed for printed, names in known.items() if plain in names), None)


def _read(name: str) -> ReportedTable:
    content = tomllib.loads((files(__package__) / f"{name}.toml").read_text(encoding="utf-8"))
    columns = tuple(content["columns"])
    return ReportedTable(
        name=name,
        place=content["place"],
        title=content["title"],
        note=content.get("note", ""),
        columns=columns,
        rows=tuple(MappingProxyType(dict(zip(columns, row, strict=True))) for row in content["rows"]),
    )
