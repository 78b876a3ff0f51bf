"""A support audit as tensors and plain values, for the files of home and site models."""

from __future__ import annotations

from typing import Any

from calcode.arrays import AnyArray
from calcode.errors import ArtifactError
from calcode.kernels import NeighbourGraph, library_installed, restore_graph
from calcode.method.audit import BASE_DIAGNOSTICS, DIAGNOSTICS, FusedRule, SupportAudit


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
    return {
        "name": audit.name,
        "aurocs": audit.aurocs,
        "independent": audit.independent,
        "search": audit.search,
    }


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
        raise ArtifactError(
            "faiss: not installed, and this model finds neighbours in its reference with it; "
            "pip install 'calcode[ann]'"
        )
    arrays = {name: tensors[f"graph_{name}"] for name in ("levels", "offsets", "links")}
    return restore_graph(facts, arrays, reference=tensors["reference"])
