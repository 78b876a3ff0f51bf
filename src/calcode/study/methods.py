"""Names for groups of methods, and CALCoDe at an operating point."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from calcode.baselines.calcode_method import ABLATIONS, CalcodeMethod
from calcode.baselines.protocol import Method
from calcode.baselines.registry import METHODS
from calcode.errors import StudyError

#: The method that comparisons, ablations and sensitivity analyses are about.
COMPLETE = "calcode"
#: The same method with the paper's sets (METHOD.md 9, `keep_top=False`).
PAPER_SETS = "calcode-paper-sets"
ABLATION_NAMES = tuple(method.record.name for method in ABLATIONS)
#: The rows of the paper's main table; its CP r-value row uses the ordering of the released code.
PAPER = (
    *("aps", "mondrian", "local-cp", "conf-ot", "lcp-vlm", "cp-rvalue-k", "tacp", "stacp", "lata"),
    *((PAPER_SETS,) if PAPER_SETS in METHODS else ()),
    COMPLETE,
)
#: A group has the same meaning wherever methods are named: in study files, in `compare` and in Python.
GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "all": tuple(
            name
            for name, method in METHODS.items()
            if method.record.reproducible and (name not in ABLATION_NAMES or name == PAPER_SETS)
        ),
        "paper": PAPER,
        "deferring": tuple(name for name in METHODS if name.startswith("top1-")),
        "split": ("lac", "aps", "aps-randomised", "raps", "saps", "mondrian", "clustered"),
        "local": ("local-cp", "base-lcp", "rlcp", "lcp-vlm"),
        "transductive": tuple(name for name, method in METHODS.items() if method.record.transductive),
        "reconstructions": tuple(
            name for name, method in METHODS.items() if method.record.reconstruction and method.record.reproducible
        ),
        "ablations": ABLATION_NAMES,
    }
)


def named_methods(names: Sequence[str]) -> tuple[str, ...]:
    """Names of methods in table order, with groups resolved.

    Parameters
    ----------
    names : sequence of str
        Names of the registry and of `GROUPS`; "all" is every runnable method except ablations.

    Examples
    --------
    >>> named_methods(["aps", "top1"])
    ('top1', 'aps')
    """
    wanted: set[str] = set()
    for name in names:
        if name not in GROUPS and name not in METHODS:
            near = difflib.get_close_matches(name, [*GROUPS, *METHODS], n=1)
            advice = f"did you mean {near[0]!r}? " if near else ""
            raise StudyError(f"no method {name!r}; {advice}Groups: {', '.join(GROUPS)}. Methods: {', '.join(METHODS)}")
        if name in METHODS and not METHODS[name].record.reproducible:
            raise StudyError(f"{name!r} cannot be run, because no paper defines it; leave it out")
        wanted.update(GROUPS.get(name, (name,)))
    return tuple(name for name in METHODS if name in wanted)


def title_of(method: str) -> str:
    """Title of a method in tables; the title of a reconstruction says so."""
    return METHODS[method].record.title if method in METHODS else method


def changes_of(method: Method) -> dict[str, Any]:
    """Settings in which an ablation differs from the complete method; empty for other methods."""
    return dict(method.changes) if isinstance(method, CalcodeMethod) else {}


def at_point(method: Method, options: Mapping[str, Any]) -> Method:
    """CALCoDe and its ablations with the point's guard and deferral level; other methods have neither."""
    if not isinstance(method, CalcodeMethod):
        return method
    levels = {name: options[name] for name in ("guard_miscoverage", "deferral_level")}
    return CalcodeMethod(method.record, levels | changes_of(method))
