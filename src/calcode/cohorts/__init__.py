"""Cohorts on disk and in memory: feature files, prompts, data roles and decision files."""

from __future__ import annotations

from calcode.cohorts.cohort import Cohort
from calcode.cohorts.decision_reader import decisions_from, read_decisions
from calcode.cohorts.decisions import DecisionWriter, decisions_table, write_decisions
from calcode.cohorts.feature_writer import write_features, write_roles
from calcode.cohorts.features import FeatureFile, open_features
from calcode.cohorts.prompts import Prompts, prompt_digest, read_prompts, write_prompts
from calcode.cohorts.roles import ROLES, RoleCounts, role_counts, split_roles

__all__ = [
    "ROLES",
    "Cohort",
    "DecisionWriter",
    "FeatureFile",
    "Prompts",
    "RoleCounts",
    "decisions_from",
    "decisions_table",
    "open_features",
    "prompt_digest",
    "read_decisions",
    "read_prompts",
    "role_counts",
    "split_roles",
    "write_decisions",
    "write_features",
    "write_prompts",
    "write_roles",
]
