"""The compared methods in table order. A new method needs a file and a word here."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from calcode.baselines.protocol import Method

_FILES = (
    *("top1", "temperature", "lac", "aps", "raps", "saps", "mondrian", "clustered"),
    *("local_cp", "rlcp", "conf_ot", "lcp_vlm", "cp_rvalue", "tacp", "lata"),
    *("localized_calibration", "calcode_method"),
)

#: Method by name, in table order.
METHODS: Mapping[str, Method] = MappingProxyType(
    {method.record.name: method for name in _FILES for method in import_module(f"calcode.baselines.{name}").METHODS}
)
