"""The experiments in page order. A new experiment is its file and a word here."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from calcode.study.experiment import Experiment
from calcode.study.tables import TableSchema

_FILES = (
    *("utility_profile", "main_comparison", "motivating_case", "classwise", "subgroups", "paired_bootstrap"),
    *("ablations", "sensitivity", "audit_stability", "site", "monitoring", "geometry", "out_of_space"),
    *("cost_risk", "operating_points", "cross_modal", "resplits", "binary_stress", "neighbours"),
)
_IN_ORDER: tuple[Experiment, ...] = tuple(
    import_module(f"calcode.study.experiments.{name}").EXPERIMENT for name in _FILES
)

#: Experiment by name.
EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType({entry.name: entry for entry in _IN_ORDER})
#: Schema of every table by name.
TABLES: Mapping[str, TableSchema] = MappingProxyType(
    {schema.name: schema for entry in _IN_ORDER for schema in entry.schemas}
)
