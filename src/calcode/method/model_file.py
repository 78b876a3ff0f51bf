"""The model file: one safetensors file, one JSON string, one SHA-256; no pickle anywhere."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from calcode.arrays import AnyArray
from calcode.errors import ArtifactError
from calcode.files import canonical_json, replacing
from calcode.kernels import NeighbourGraph, library_installed, restore_graph
from calcode.method.audit import BASE_DIAGNOSTICS, DIAGNOSTICS, SupportAudit
from calcode.method.bandwidth import BandwidthTrial
from calcode.method.localized import LocalizedRule
from calcode.method.model import Calcode
from calcode.method.roles import EvidenceFormat, RoleHashes
from calcode.method.settings import Settings
from calcode.method.tail import ClassEvidence, TailReason

#: Version 1 had no `keep_top`: its models decide by the paper's rule, and still do.
FORMAT_VERSION = 2
#: All metadata sits under one key: safetensors writes several keys in random order.
_KEY = "calcode"
#: Tensors whose values must be finite; hashes are bytes and need no such check.
_FINITE = (
    "reference",
    "calibration_embeddings",
    "calibration_scores",
    "below",
    "total",
    "gate_values",
    "gate_distances",
)


def model_digest(model: Calcode) -> str:
    """SHA-256 over the tensors' bytes and the canonical JSON of a fitted model."""
    return _digest(_tensors(model), _metadata(model))


def save_model(model: Calcode, path: Path) -> None:
    """Write the file under a temporary name and rename it, so that no half file is ever seen."""
    from safetensors.numpy import save

    tensors, metadata = _tensors(model), _metadata(model)
    metadata["digest"] = _digest(tensors, metadata)
    content = save(tensors, metadata={_KEY: _canonical(metadata)})
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def load_model(path: Path) -> Calcode:
    """Read and check a model file."""
    metadata, tensors = _read(path)
    digest = metadata.pop("digest", None)
    if digest != _digest(tensors, metadata):
        raise ArtifactError(f"{path}: altered, its content does not have the SHA-256 it carries")
    try:
        _require_finite(tensors, path)
        model = _restore(metadata, tensors)
    except (KeyError, TypeError, IndexError) as error:
        raise ArtifactError(f"{path}: incomplete, {error} is missing or malformed") from error
    # What the file carries, also where this version would write it differently.
    model._digest = digest
    return model


def _tensors(model: Calcode) -> dict[str, AnyArray]:
    rule, audit = model.rule_, model.audit_
    tensors: dict[str, AnyArray] = {
        "calibration_embeddings": rule.embeddings,
        "calibration_scores": rule.scores,
        "calibration_labels": model.calibration_labels_,
        "below": rule.below,
        "total": rule.total,
    }
    if audit is not None:
        tensors |= {"reference": audit.reference, "gate_values": audit.gate_values}
        tensors |= {f"gate_{name}": values for name, values in audit.gate_base.items()}
        if audit.gate_distances is not None:
            tensors["gate_distances"] = audit.gate_distances
        if audit.graph is not None:
            tensors |= {f"graph_{name}": values for name, values in audit.graph.arrays.items()}
    for (role, kind), hashes in model.role_hashes_.hashes.items():
        tensors[f"hashes_{role}_{kind}"] = hashes.view(np.uint8).reshape(len(hashes), -1)
    return {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}


def _metadata(model: Calcode) -> dict[str, Any]:
    audit, rule = model.audit_, model.rule_
    return {
        "format": FORMAT_VERSION,
        "versions": model.versions_,
        "settings": model.settings_.get_params(),
        "interface": asdict(model.evidence_format_),
        "manifest": model.manifest_,
        "ledger_key": model.role_hashes_.key.hex(),
        "audit": None
        if audit is None
        else {
            "name": audit.name,
            "aurocs": audit.aurocs,
            "independent": audit.independent,
            "search": audit.search,
        },
        "bandwidth": model.bandwidth_,
        "bandwidth_trace": [asdict(trial) for trial in model.bandwidth_trace_],
        "rule": {"eta": rule.eta, "cut": rule.cut},
        "tail_reasons": {name: asdict(reason) for name, reason in model.tail_reasons_.items()},
        "tail_evidence": [asdict(row) for row in model.tail_evidence_],
        "notice": "Research software, not a medical device. Embeddings are patient-derived data.",
    }


def _restore(metadata: dict[str, Any], tensors: dict[str, AnyArray]) -> Calcode:
    values = {"keep_top": False} | metadata["settings"]
    values["bandwidth"] = (
        "auto" if values["bandwidth"] is None else values["bandwidth"]
    )  # as version 1 had it
    settings = Settings(**values).checked()
    model = Calcode(**settings.get_params())
    model.settings_ = settings
    model.evidence_format_ = EvidenceFormat(
        **(metadata["interface"] | {"classes": tuple(metadata["interface"]["classes"])})
    )
    # The canonical JSON sorts names; the roles come back in the order in which they were used.
    manifest = metadata["manifest"]
    model.manifest_ = {role: manifest[role] for role in ("reference", "validation", "gate", "calibration")}
    model.role_hashes_ = RoleHashes(bytes.fromhex(metadata["ledger_key"]), _hashes(tensors))
    model.audit_ = _audit(metadata["audit"], settings, tensors)
    model.bandwidth_ = metadata["bandwidth"]
    model.bandwidth_trace_ = tuple(BandwidthTrial(**trial) for trial in metadata["bandwidth_trace"])
    model.tail_evidence_ = tuple(ClassEvidence(**row) for row in metadata["tail_evidence"])
    classes = model.evidence_format_.classes
    reasons = {name: TailReason(**reason) for name, reason in metadata["tail_reasons"].items()}
    model.tail_reasons_ = {name: reasons[name] for name in classes if name in reasons}
    rule = LocalizedRule(
        embeddings=tensors["calibration_embeddings"],
        scores=tensors["calibration_scores"],
        bandwidth=model.bandwidth_,
        miscoverage=settings.miscoverage,
        level=settings.level,
        eta=metadata["rule"]["eta"],
        cut=metadata["rule"]["cut"],
        below=tensors["below"],
        total=tensors["total"],
    )
    model.versions_ = metadata["versions"]
    model._install(rule=rule, labels=tensors["calibration_labels"])
    return model


def _audit(
    entry: dict[str, Any] | None, settings: Settings, tensors: dict[str, AnyArray]
) -> SupportAudit | None:
    if entry is None:
        return None
    return SupportAudit(
        name=entry["name"],
        aurocs={name: entry["aurocs"][name] for name in DIAGNOSTICS if name in entry["aurocs"]},
        independent=entry["independent"],
        reference=tensors["reference"],
        n_neighbors=settings.n_neighbors,
        trim=settings.trim,
        fused=settings.fused,
        gate_base={name: tensors[f"gate_{name}"] for name in BASE_DIAGNOSTICS if f"gate_{name}" in tensors},
        gate_values=tensors["gate_values"],
        gate_distances=tensors.get("gate_distances"),
        graph=_graph(entry["search"], tensors),
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


def _hashes(tensors: dict[str, AnyArray]) -> dict[tuple[str, str], AnyArray]:
    hashes = {}
    for name, tensor in tensors.items():
        if name.startswith("hashes_"):
            _, role, kind = name.split("_")
            hashes[role, kind] = np.ascontiguousarray(tensor).view(f"S{tensor.shape[1]}").reshape(len(tensor))
    return hashes


def _read(path: Path) -> tuple[dict[str, Any], dict[str, AnyArray]]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise ArtifactError(f"{path}: no such file")
    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            if _KEY not in header:
                raise ArtifactError(f"{path}: foreign, a safetensors file but not a calcode model")
            metadata = _parsed(header[_KEY], path)
            if metadata.get("format", 0) > FORMAT_VERSION:
                raise ArtifactError(
                    f"{path}: newer, format {metadata['format']} while this version reads up to {FORMAT_VERSION}; "
                    "upgrade calcode"
                )
            return metadata, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ArtifactError(f"{path}: truncated, or not a safetensors file ({error})") from error


def _parsed(text: str, path: Path) -> dict[str, Any]:
    try:
        parsed = json.loads(text, object_hook=_numbers_back)
    except json.JSONDecodeError as error:
        raise ArtifactError(f"{path}: altered, its metadata is not JSON ({error})") from error
    if not isinstance(parsed, dict):
        raise ArtifactError(f"{path}: altered, its metadata is not an object")
    return parsed


def _digest(tensors: dict[str, AnyArray], metadata: dict[str, Any]) -> str:
    digest = hashlib.sha256(_canonical(metadata).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype.str} {tensor.shape}".encode())
        digest.update(np.ascontiguousarray(tensor).data)
    return digest.hexdigest()


def _canonical(metadata: dict[str, Any]) -> str:
    return canonical_json(_numbers_out(metadata))


def _numbers_out(value: Any) -> Any:
    """JSON knows neither nan nor infinity: they travel as {"number": "inf"}."""
    if isinstance(value, dict):
        return {key: _numbers_out(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_numbers_out(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": repr(value)}
    return value


def _numbers_back(entry: dict[str, Any]) -> Any:
    return float(entry["number"]) if entry.keys() == {"number"} else entry


def _require_finite(tensors: dict[str, AnyArray], path: Path) -> None:
    for name in _FINITE:
        if name in tensors and not np.isfinite(tensors[name]).all():
            raise ArtifactError(f"{path}: altered, tensor '{name}' holds NaN or infinity")
