"""All methods that CALCoDe is compared with: one file per method, one protocol, one registry."""

from __future__ import annotations

from calcode.baselines.protocol import Method, Prediction, Record, Roles
from calcode.baselines.registry import METHODS

__all__ = ["METHODS", "Method", "Prediction", "Record", "Roles"]
