"""The model file: one safetensors file, one JSON string, one SHA-256; no pickle anywhere."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from calcode.arrays import AnyArray
from calcode.errors import ArtifactError
from calcode.method.artifact import HOME_KEY, content_digest, read_artifact, write_artifact
from calcode.method.audit_file import audit_facts, audit_tensors, restore_audit
from calcode.method.bandwidth import BandwidthTrial
from calcode.method.home_sums import HomeSums
from calcode.method.localized import LocalizedRule
from calcode.method.model import Calcode
from calcode.method.roles import EvidenceFormat, RoleHashes
from calcode.method.settings import Settings
from calcode.method.singles import SinglesCertificate
from calcode.method.tail import ClassEvidence, TailReason

#: Version 1 had no `keep_top`: its models decide by the paper's rule, and still do.
FORMAT_VERSION = 2
#: Tensors whose values must be finite; hashes are bytes and need no such check.
_FINITE = (
    "reference",
    "calibration_embeddings",
    "calibration_scores",
    "below",
    "total",
    "gate_values",
    "gate_distances",
    "home_outer",
    "home_by_class",
    "home_scores",
)


def model_digest(model: Calcode) -> str:
    """SHA-256 over the tensors' bytes and the canonical JSON of a fitted model."""
    return content_digest(_tensors(model), _metadata(model))


def save_model(model: Calcode, path: Path) -> None:
    """Write the file under a temporary name and rename it, so that no half file is ever seen."""
    write_artifact(path, key=HOME_KEY, metadata=_metadata(model), tensors=_tensors(model))


def load_model(path: Path) -> Calcode:
    """Read and check a model file."""
    metadata, tensors = read_artifact(path, key=HOME_KEY, newest=FORMAT_VERSION)
    try:
        _require_finite(tensors, path)
        model = _restore(metadata, tensors)
    except (KeyError, TypeError, IndexError) as error:
        raise ArtifactError(f"{path}: incomplete, {error} is missing or malformed") from error
    # What the file carries, also where this version would write it differently.
    model._digest = metadata["digest"]
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
        tensors |= audit_tensors(audit)
    if model.sums_ is not None:
        tensors |= {"home_outer": model.sums_.outer, "home_by_class": model.sums_.by_class}
        tensors["home_scores"] = np.concatenate(model.sums_.scores)
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
        "audit": None if audit is None else audit_facts(audit),
        "bandwidth": model.bandwidth_,
        "bandwidth_trace": [asdict(trial) for trial in model.bandwidth_trace_],
        "rule": {"eta": rule.eta, "cut": rule.cut},
        "tail_reasons": {name: asdict(reason) for name, reason in model.tail_reasons_.items()},
        "tail_evidence": [asdict(row) for row in model.tail_evidence_],
        "sums": None
        if model.sums_ is None
        else {"n": model.sums_.n, "counts": [len(scores) for scores in model.sums_.scores]},
        "certificate": None if model.certificate_ is None else asdict(model.certificate_),
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
    model.audit_ = None
    if metadata["audit"] is not None:
        model.audit_ = restore_audit(
            metadata["audit"],
            tensors,
            n_neighbors=settings.n_neighbors,
            trim=settings.trim,
            fused=settings.fused,
        )
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
    # Files written before these were kept load all the same.
    if (sums := metadata.get("sums")) is not None:
        model.sums_ = HomeSums(
            outer=tensors["home_outer"],
            by_class=tensors["home_by_class"],
            n=sums["n"],
            scores=tuple(np.split(tensors["home_scores"], np.cumsum(sums["counts"])[:-1])),
        )
    if (certificate := metadata.get("certificate")) is not None:
        model.certificate_ = SinglesCertificate(**certificate)
    return model


def _hashes(tensors: dict[str, AnyArray]) -> dict[tuple[str, str], AnyArray]:
    hashes = {}
    for name, tensor in tensors.items():
        if name.startswith("hashes_"):
            _, role, kind = name.split("_")
            hashes[role, kind] = np.ascontiguousarray(tensor).view(f"S{tensor.shape[1]}").reshape(len(tensor))
    return hashes


def _require_finite(tensors: dict[str, AnyArray], path: Path) -> None:
    for name in _FINITE:
        if name in tensors and not np.isfinite(tensors[name]).all():
            raise ArtifactError(f"{path}: altered, tensor '{name}' holds NaN or infinity")
