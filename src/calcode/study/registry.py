"""The experiments in the order of their tables. A new experiment is its file and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from calcode.study.experiment import Experiment
from calcode.study.experiments import (
    ablations,
    audit_stability,
    binary_stress,
    classwise,
    cost_risk,
    cross_modal,
    geometry,
    main_comparison,
    motivating_case,
    neighbours,
    operating_points,
    out_of_space,
    paired_bootstrap,
    resplits,
    sensitivity,
    subgroups,
    utility_profile,
)
from calcode.study.schema import TableSchema

_IN_ORDER: tuple[Experiment, ...] = (
    main_comparison.EXPERIMENT,
    utility_profile.EXPERIMENT,
    paired_bootstrap.EXPERIMENT,
    ablations.EXPERIMENT,
    sensitivity.EXPERIMENT,
    audit_stability.EXPERIMENT,
    geometry.EXPERIMENT,
    classwise.EXPERIMENT,
    subgroups.EXPERIMENT,
    cost_risk.EXPERIMENT,
    operating_points.EXPERIMENT,
    cross_modal.EXPERIMENT,
    binary_stress.EXPERIMENT,
    neighbours.EXPERIMENT,
    motivating_case.EXPERIMENT,
    out_of_space.EXPERIMENT,
    resplits.EXPERIMENT,
)

#: Name to experiment.
EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType({entry.name: entry for entry in _IN_ORDER})
#: Name to schema of every table.
TABLES: Mapping[str, TableSchema] = MappingProxyType(
    {schema.name: schema for entry in _IN_ORDER for schema in entry.tables}
)
