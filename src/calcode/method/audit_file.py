"""A support audit as tensors and plain values, for the files of home and site models."""

from __future__ import annotations

import math
from typing import Any

from calcode.arrays import AnyArray
from calcode.errors import EngineError
from calcode.kernels import NeighbourGraph, library_installed, restore_graph
from calcode.method.artifact import TensorRule, has_type, refuse
from calcode.method.audit import BASE_DIAGNOSTICS, DIAGNOSTICS, FusedRule, SupportAudit

_SLACK = 1e-9
#: Ascending gate values of each diagnostic, with their range.
_GATES = {
    "distance": (-_SLACK, 2.0 + _SLACK),
    "energy": (-1e300, 1e300),
    "msp": (-1.0 - _SLACK, 0.0),
    "prompt": (-_SLACK, 1e300),
    "fused": (-_SLACK, 1.0),
}
_GRAPH = {"graph_levels": "<i4", "graph_offsets": "<u8", "graph_links": "<i4"}


def audit_tensors(audit: SupportAudit) -> dict[str, AnyArray]:
    """The arrays of an audit by name."""
    tensors: dict[str, AnyArray] = {"reference": audit.reference, "gate_values": audit.gate_values}
    tensors |= {f"gate_{name}": values for name, values in audit.gate_base.items()}
    if audit.gate_distances is not None:
        tensors["gate_distances"] = audit.gate_distances
    if audit.graph is not None:
        tensors |= {f"graph_{name}": values for name, values in audit.graph.arrays.items()}
    return tensors


def audit_facts(audit: SupportAudit) -> dict[str, Any]:
    """What else is needed to restore it, apart from the settings."""
    return {"name": audit.name, "aurocs": audit.aurocs, "independent": audit.independent, "search": audit.search}


def audit_rules(facts: Any, *, with_distances: bool) -> dict[str, TensorRule]:
    """Rules for the tensors of an audit with these facts; what is wrong with the facts themselves is refused.

    Sizes: "r" images of the reference, "g" that give the p-values, "b" that give the ranks inside `fused`.
    """
    refuse({"the audit's facts are no object": not isinstance(facts, dict)})
    name, aurocs = facts["name"], facts["aurocs"]
    refuse(
        {
            "the audit's AUROCs are not numbers": not has_type(aurocs, dict[str, float]),
            f"the audit's diagnostic {name!r} is none of its candidates": name not in aurocs,
            "the audit has an unknown candidate": not aurocs.keys() <= set(DIAGNOSTICS),
            "the audit's AUROCs are not shares": not all(
                math.isnan(area) or 0.0 <= area <= 1.0 for area in aurocs.values()
            ),
            "the audit's independence is neither true nor false": type(facts["independent"]) is not bool,
            "the audit's search is no object": not isinstance(facts["search"], dict),
        }
    )
    rules = {"reference": TensorRule("r d", unit=True)}
    rules["gate_values"] = TensorRule("g", *_GATES[name], ascending=True)
    if name == "fused":
        rules |= {f"gate_{base}": TensorRule("b", *_GATES[base], ascending=True) for base in BASE_DIAGNOSTICS}
    if with_distances:
        rules["gate_distances"] = TensorRule("m", *_GATES["distance"], ascending=True)
    if facts["search"].get("kind") != "exact":
        rules |= {key: TensorRule(f"{key}", -1, 2**62, dtype=dtype) for key, dtype in _GRAPH.items()}
    return rules


def restore_audit(
    facts: dict[str, Any], tensors: dict[str, AnyArray], *, n_neighbors: int, trim: int, fused: FusedRule
) -> SupportAudit:
    """The audit that `audit_tensors` and `audit_facts` were made of."""
    return SupportAudit(
        name=facts["name"],
        aurocs={name: facts["aurocs"][name] for name in DIAGNOSTICS if name in facts["aurocs"]},
        independent=facts["independent"],
        reference=tensors["reference"],
        n_neighbors=n_neighbors,
        trim=trim,
        fused=fused,
        gate_base={name: tensors[f"gate_{name}"] for name in BASE_DIAGNOSTICS if f"gate_{name}" in tensors},
        gate_values=tensors["gate_values"],
        gate_distances=tensors.get("gate_distances"),
        graph=_graph(facts["search"], tensors),
    )


def _graph(facts: dict[str, Any], tensors: dict[str, AnyArray]) -> NeighbourGraph | None:
    if facts["kind"] == "exact":
        return None
    if not library_installed():
        raise EngineError(
            "faiss: not installed, and this model finds neighbours in its reference with it; pip install 'calcode[ann]'"
        )
    arrays = {name: tensors[f"graph_{name}"] for name in ("levels", "offsets", "links")}
    return restore_graph(facts, arrays, reference=tensors["reference"])
