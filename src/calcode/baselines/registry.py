"""The compared methods in table order. A new method is its file and one line here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from calcode.baselines.ablations import ABLATIONS
from calcode.baselines.aps import SplitAps
from calcode.baselines.aps_randomised import RandomisedAps
from calcode.baselines.base_lcp import BaseLcp
from calcode.baselines.calcode_method import CalcodeMethod
from calcode.baselines.clustered import Clustered
from calcode.baselines.conf_ot import ConfOt
from calcode.baselines.cp_rvalue import RECORDS, PublishedRValue, RValue
from calcode.baselines.deferral import DeferringTop1
from calcode.baselines.global_calibration import GlobalCalibration
from calcode.baselines.lac import SplitLac
from calcode.baselines.lata import Lata
from calcode.baselines.lcp_vlm import LcpVlm
from calcode.baselines.local_cp import LocalCp
from calcode.baselines.localized_calibration import LocalizedCalibration
from calcode.baselines.mean_support import MeanSupport
from calcode.baselines.mondrian import Mondrian
from calcode.baselines.no_semantic_term import NoSemanticTerm
from calcode.baselines.protocol import Method
from calcode.baselines.raps import Raps
from calcode.baselines.rlcp import Rlcp
from calcode.baselines.saps import Saps
from calcode.baselines.tacp import SoftTacp, Tacp
from calcode.baselines.temperature import TemperatureScaling
from calcode.baselines.top1 import Top1
from calcode.errors import SettingsError
from calcode.method.audit import DIAGNOSTICS

_IN_ORDER: tuple[Method, ...] = (
    Top1(),
    *(DeferringTop1(diagnostic) for diagnostic in DIAGNOSTICS),
    TemperatureScaling(),
    SplitLac(),
    SplitAps(),
    RandomisedAps(),
    Raps(),
    Saps(),
    Mondrian(),
    Clustered(),
    LocalCp(),
    BaseLcp(),
    Rlcp(),
    ConfOt(),
    LcpVlm(),
    PublishedRValue(RECORDS["k"], later=0),
    PublishedRValue(RECORDS["k+1"], later=1),
    RValue(),
    Tacp(),
    SoftTacp(),
    Lata(),
    GlobalCalibration(),
    LocalizedCalibration(),
    MeanSupport(),
    NoSemanticTerm(),
    CalcodeMethod(),
    *ABLATIONS,
)

#: Name to method, in the order of the tables.
METHODS: Mapping[str, Method] = MappingProxyType({method.record.name: method for method in _IN_ORDER})


def methods_named(names: str | Sequence[str]) -> tuple[Method, ...]:
    """Methods by name in table order; "all" for every one that can be run.

    Parameters
    ----------
    names : str or sequence of str
        "all", one name, or several.

    Examples
    --------
    >>> [method.record.title for method in methods_named(["aps", "top1"])]
    ['Top-1', 'Split APS']
    """
    wanted = [names] if isinstance(names, str) else list(names)
    if wanted == ["all"]:
        return tuple(method for method in METHODS.values() if method.record.reproducible)
    unknown = [name for name in wanted if name not in METHODS]
    if unknown:
        raise SettingsError(f"methods: {unknown} not known; choose among {list(METHODS)} or 'all'")
    return tuple(method for name, method in METHODS.items() if name in wanted)
