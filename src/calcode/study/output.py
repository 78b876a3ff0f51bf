"""The contents of a study's folder, its manifest and its tables, read once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from calcode.errors import StudyError
from calcode.metrics.wording import short_percent
from calcode.report.charts import ReferenceLine
from calcode.study.methods import COMPLETE, PAPER_SETS
from calcode.study.specification import ALL, SHIFTED, Setting, Study, checked_options

MANIFEST = "manifest.json"
#: An ordinary conformal predictor for comparison.
ORDINARY = "aps"


class StudyOutput:
    """The output folder of a study.

    Parameters
    ----------
    folder : Path
        Output of `calcode study run`.

    Attributes
    ----------
    manifest : mapping
        As written by `calcode study run`.
    study : Study
        The resolved study of the manifest.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / MANIFEST
        if not path.is_file():
            raise StudyError(f"folder: {folder} has no {MANIFEST}; name the output folder of 'calcode study run'")
        self.folder = folder
        try:
            self.manifest: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            resolved = dict(self.manifest["study"])
            resolved["options"], _ = checked_options(resolved["options"])
            self.study = Study.model_validate(resolved, strict=False)
        except (ValueError, LookupError, TypeError) as error:
            raise StudyError(
                f"{path}: truncated or altered ({type(error).__name__}); run the study again, finished work is kept"
            ) from error
        self._tables: dict[str, pd.DataFrame] = {}

    def table(self, name: str, **wanted: object) -> pd.DataFrame:
        """A table, or its rows with the wanted values; without rows if its experiment was not run."""
        from calcode.study.registry import TABLES

        if name not in self._tables:
            kept = (self.folder / "tables" / f"{name}.csv").is_file()
            schema = TABLES[name]
            self._tables[name] = schema.read(self.folder / "tables") if kept else schema.frame([])
        frame = self._tables[name]
        for column, value in wanted.items():
            frame = frame[frame[column] == value]
        return frame

    @property
    def target(self) -> float:
        """The target coverage."""
        return self.study.point.target

    @property
    def target_line(self) -> tuple[ReferenceLine]:
        """The target as a chart's reference line."""
        return (ReferenceLine(self.target, f"target {short_percent(self.target)}"),)

    @property
    def settings(self) -> tuple[Setting, ...]:
        """The settings in the order of the study."""
        return self.study.settings

    @property
    def shifted(self) -> list[str]:
        """Names of the shifted settings."""
        return [setting.name for setting in self.settings if setting.shifted]

    @property
    def average(self) -> str:
        """The average shown first: over the shifted settings, as in the paper, or over all if none is shifted."""
        return SHIFTED if self.shifted else ALL

    def averaged(self, means: pd.DataFrame) -> list[str]:
        """The averages that are shown and have rows: the first one, and the one over all settings."""
        present = set(means["scope"])
        return [scope for scope in dict.fromkeys((self.average, ALL)) if scope in present]

    def scope_words(self, scope: str) -> str:
        """A scope in words."""
        if scope == SHIFTED:
            return f"the shifted settings ({', '.join(self.shifted)})"
        return "all settings" if scope == ALL else scope

    @property
    def backbones(self) -> dict[str, str]:
        """Title of every backbone by name."""
        return {backbone.name: backbone.title for backbone in self.study.backbones}

    @property
    def shown(self) -> tuple[str, ...]:
        """Methods that tables show unfolded: the comparators, the paper's sets and, last, the complete method."""
        others = self.study.comparators or tuple(name for name in self.study.compared if name == ORDINARY)
        own = [PAPER_SETS] if PAPER_SETS in self.study.compared else []
        return (*(name for name in others if name not in own), *own, COMPLETE)

    @property
    def ordinary(self) -> str | None:
        """The ordinary conformal predictor for comparison: split APS, else the first comparator."""
        if ORDINARY in self.study.compared:
            return ORDINARY
        return next((name for name in self.shown if name not in (COMPLETE, PAPER_SETS)), None)

    @cached_property
    def main(self) -> pd.DataFrame:
        """Rows of the main comparison at the fixed point and the first seed."""
        return self.table("recent_baselines_summary", operating_point=self.study.point.name, seed=self.study.seed)

    @cached_property
    def means(self) -> pd.DataFrame:
        """Averages of the main comparison at the fixed point."""
        return self.table("recent_baselines_dataset_means", operating_point=self.study.point.name)

    def mean(self, scope: str, method: str) -> Any | None:
        """The averages of one method over a scope as a named tuple; None if there are none."""
        found = self.means[(self.means["scope"] == scope) & (self.means["method"] == method)]
        return next(found.itertuples(index=False), None)

    def combinations(self) -> list[tuple[Setting, str]]:
        """Settings with the backbones that have results for them, in the order of the settings."""
        present = set(zip(self.main["setting"], self.main["backbone"], strict=True))
        return [
            (setting, backbone)
            for setting in self.settings
            for backbone in self.backbones
            if (setting.name, backbone) in present
        ]

    def by_backbone(self, rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
        """The rows of every backbone that has any, with its title."""
        for name, title in self.backbones.items():
            own = rows[rows["backbone"] == name]
            if len(own):
                yield title, own

    def n_classes(self, setting: str, backbone: str) -> int:
        """Size of the label space of a combination."""
        place = next(entry for entry in self.settings if entry.name == setting)
        model = next(entry for entry in self.study.backbones if entry.name == backbone)
        return len(self.study.classes_of(place, model))

    def where(self, setting: str, backbone: str) -> str:
        """A combination in words; the backbone is named only if there are several."""
        return f"{setting} with {backbone}" if len(self.backbones) > 1 else setting
