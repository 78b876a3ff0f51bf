"""Words that stand for several methods."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from calcode.baselines.ablations import ABLATIONS
from calcode.baselines.registry import METHODS, methods_named
from calcode.errors import StudyError

ABLATION_NAMES = tuple(method.record.name for method in ABLATIONS)
#: The rows of the paper's main table.
PAPER = (
    "aps",
    "mondrian",
    "local-cp",
    "conf-ot",
    "lcp-vlm",
    "cp-rvalue-k",
    "tacp",
    "stacp",
    "lata",
    "calcode",
)
GROUPS: dict[str, tuple[str, ...]] = {
    "all": tuple(
        method.record.name for method in methods_named("all") if method.record.name not in ABLATION_NAMES
    ),
    "ablations": ABLATION_NAMES,
    "paper": PAPER,
}


def named_methods(names: Sequence[str], *, where: str) -> tuple[str, ...]:
    """Names of methods, groups resolved, in table order.

    Parameters
    ----------
    names : sequence of str
        Names of the registry; "all" for everything that can be run but the ablations, "ablations" for those,
        "paper" for the rows of the paper's main table.
    where : str
        The key they come from, for messages.

    Examples
    --------
    >>> named_methods(["aps", "top1"], where="methods.run")
    ('top1', 'aps')
    """
    wanted: set[str] = set()
    for name in names:
        if name not in GROUPS and name not in METHODS:
            near = difflib.get_close_matches(name, [*GROUPS, *METHODS], n=1)
            advice = f"did you mean {near[0]!r}?" if near else f"groups: {', '.join(GROUPS)}"
            raise StudyError(f"{where}: no method {name!r}; {advice} Methods: {', '.join(METHODS)}")
        wanted.update(GROUPS.get(name, (name,)))
    for name in wanted:
        if not METHODS[name].record.reproducible:
            raise StudyError(f"{where}: {name!r} cannot be run, because no paper defines it; leave it out")
    return tuple(name for name in METHODS if name in wanted)
