"""What a study left in its folder: its manifest and its tables, read once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calcode.baselines.registry import METHODS
from calcode.study import TABLES, StudyError, read_table
from calcode.study.manifest import FILE as MANIFEST_FILE
from calcode.study.page.cells import words_of
from calcode.study.schema import Cell, Row
from calcode.study.specification import COMPLETE, EVERY_SETTING
from calcode.study.summary_columns import title_of

#: The method whose name stands for an ordinary conformal predictor.
ORDINARY = "aps"


@dataclass(frozen=True, kw_only=True)
class SettingFacts:
    """A setting as the manifest describes it."""

    name: str
    title: str
    description: str
    shifted: bool
    classes: tuple[str, ...] | None
    outside: tuple[str, ...]
    min_images: int


@dataclass(frozen=True, kw_only=True)
class StudyOutput:
    """A study's folder.

    Attributes
    ----------
    folder : Path
    manifest : mapping
        As `calcode study run` wrote it.
    """

    folder: Path
    manifest: Mapping[str, Any]
    _tables: dict[str, list[dict[str, Cell]]] = field(default_factory=dict, repr=False, compare=False)

    def rows(self, table: str) -> Sequence[Row]:
        """The rows of a table; none where the experiment was not run or its file is not kept."""
        if table not in self._tables:
            kept = (self.folder / "tables" / f"{table}.csv").is_file()
            self._tables[table] = read_table(self.folder / "tables", TABLES[table]) if kept else []
        return self._tables[table]

    def chosen(self, table: str, **wanted: Cell) -> list[Row]:
        """Rows of a table whose cells have the wanted values."""
        return [row for row in self.rows(table) if all(row[name] == value for name, value in wanted.items())]

    @property
    def study(self) -> Mapping[str, Any]:
        """The resolved study."""
        resolved: Mapping[str, Any] = self.manifest["study"]
        return resolved

    @property
    def title(self) -> str:
        """Title of the study."""
        return str(self.study["title"])

    @property
    def settings(self) -> tuple[SettingFacts, ...]:
        """The settings in the order of the study."""
        return tuple(
            SettingFacts(
                name=entry["name"],
                title=entry["title"],
                description=entry["description"],
                shifted=entry["shifted"],
                classes=None if entry["classes"] is None else tuple(entry["classes"]),
                outside=tuple(entry["outside"]),
                min_images=entry["min_images"],
            )
            for entry in self.study["settings"]
        )

    @property
    def backbones(self) -> dict[str, str]:
        """Name to title of every backbone."""
        return {entry["name"]: entry["title"] for entry in self.study["backbones"]}

    @property
    def point(self) -> Mapping[str, Any]:
        """The fixed operating point."""
        first: Mapping[str, Any] = self.study["points"][0]
        return first

    @property
    def target(self) -> float:
        """Coverage that counts as a hit."""
        return round(1.0 - float(self.point["miscoverage"]), 12)

    @property
    def seed(self) -> int:
        """The first seed, which every experiment but the main comparison uses."""
        return int(self.study["seeds"][0])

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods of the comparison; the complete one is always among them."""
        named = tuple(self.study["methods"])
        return named if COMPLETE in named else (*named, COMPLETE)

    @property
    def shown(self) -> tuple[str, ...]:
        """Methods that tables show without being asked: the comparators and the complete one, which comes last."""
        others = [name for name in self.study["comparators"] if name != COMPLETE]
        return (*(others or [name for name in self.methods if name == ORDINARY]), COMPLETE)

    @property
    def ordinary(self) -> str | None:
        """An ordinary conformal predictor to compare with: split APS, or else the first comparator."""
        if ORDINARY in self.methods:
            return ORDINARY
        return next((name for name in self.shown if name != COMPLETE), None)

    def method_title(self, method: str) -> str:
        """Name of a method in tables."""
        return title_of(method) if method in METHODS else method

    def main_rows(self, **wanted: Cell) -> list[Row]:
        """Rows of the main comparison at the fixed point and the first seed."""
        return self.chosen(
            "recent_baselines_summary", operating_point=self.point["name"], seed=self.seed, **wanted
        )

    def mean_row(self, *, scope: str, method: str) -> Row | None:
        """Averages of a method over backbones and the settings of a scope, at the fixed point."""
        found = self.chosen(
            "recent_baselines_dataset_means", operating_point=self.point["name"], scope=scope, method=method
        )
        return found[0] if found else None

    def combinations(self) -> list[tuple[SettingFacts, str]]:
        """Settings with the backbones that have results on them, setting by setting."""
        present = {(words_of(row, "setting"), words_of(row, "backbone")) for row in self.main_rows()}
        return [
            (setting, backbone)
            for setting in self.settings
            for backbone in self.backbones
            if (setting.name, backbone) in present
        ]

    def n_classes(self, setting: SettingFacts, backbone: str) -> int:
        """Size of the label space of a combination."""
        if setting.classes is not None:
            return len(setting.classes)
        features = next(entry for entry in self.study["backbones"] if entry["name"] == backbone)["features"]
        return len(features.get(setting.name, features.get(EVERY_SETTING))["classes"])


def read_output(folder: Path) -> StudyOutput:
    """Read the folder that `calcode study run` wrote.

    Parameters
    ----------
    folder : Path

    Raises
    ------
    StudyError
        If the folder holds no study.
    """
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise StudyError(
            f"folder: {folder} has no {MANIFEST_FILE}; name the output folder of 'calcode study run'"
        )
    return StudyOutput(folder=folder, manifest=json.loads(path.read_text(encoding="utf-8")))
