"""The site model's file (SITE.md S11): sums, reviewed rows and settings; no home image unless the audit needs it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from calcode.arrays import AnyArray
from calcode.errors import ArtifactError
from calcode.method.artifact import (
    HOME_KEY,
    SITE_KEY,
    artifact_key,
    content_digest,
    read_artifact,
    write_artifact,
)
from calcode.method.audit_file import audit_facts, audit_tensors, restore_audit
from calcode.method.model import Calcode
from calcode.method.roles import EvidenceFormat
from calcode.method.singles import SinglesCertificate
from calcode.site.known_groups import KnownGroups
from calcode.site.model import SiteModel
from calcode.site.p_values import Bag
from calcode.site.settings import SiteSettings

FORMAT_VERSION = 1
#: Plain attributes that travel as they are.
_FACTS = (
    "home_digest_",
    "sharp_",
    "deferral_level_",
    "audit_kind_",
    "look_",
    "n_unlabelled_",
    "n_outside_",
    "n_rejected_",
    "n_trainers_",
    "unlabelled_share_",
)
#: How far M, W and h recomputed on another machine may lie from those that the file carries.
_RECOMPUTED = 1e-8


def load_model(path: str | Path) -> Calcode | SiteModel:
    """Read a model file of either kind: home or site."""
    home = artifact_key(Path(path)) == HOME_KEY
    return Calcode.load(path) if home else SiteModel.load(path)


def site_digest(model: SiteModel) -> str:
    """SHA-256 over the tensors' bytes and the canonical JSON of a fitted site model."""
    return content_digest(_tensors(model), _metadata(model))


def save_site(model: SiteModel, path: Path) -> None:
    """Write the file under a temporary name and rename it, so that no half file is ever seen."""
    write_artifact(path, key=SITE_KEY, metadata=_metadata(model), tensors=_tensors(model))


def load_site(path: Path) -> SiteModel:
    """Read and check a site model; adapter, fits and leverages are recomputed and compared."""
    metadata, tensors = read_artifact(path, key=SITE_KEY, newest=FORMAT_VERSION)
    try:
        for name, tensor in tensors.items():
            if tensor.dtype.kind == "f" and not np.isfinite(tensor).all():
                raise ArtifactError(f"{path}: altered, tensor '{name}' holds NaN or infinity")
        model = _restore(metadata, tensors)
        weights = model.ranking_.adapter.weights
        if np.abs(weights - tensors["weights"]).max() > _RECOMPUTED:
            raise ArtifactError(f"{path}: altered, its adapter is not the one that its reviewed rows give")
    except (KeyError, TypeError, IndexError) as error:
        raise ArtifactError(f"{path}: incomplete, {error} is missing or malformed") from error
    model._digest = metadata["digest"]
    return model


def _tensors(model: SiteModel) -> dict[str, AnyArray]:
    bag = model.bag_
    tensors: dict[str, AnyArray] = {
        "prior_outer": model.prior_outer_,
        "prior_by_class": model.prior_by_class_,
        "features": bag.features,
        "labels": bag.labels,
        "zero_shot_scores": model.zero_shot_scores_,
        "weights": model.ranking_.adapter.weights,
    }
    if bag.weights is not None:
        tensors["review_weights"] = bag.weights
    if model.gate_distances_ is not None:
        tensors["site_gate_distances"] = model.gate_distances_
    if model.audit_ is not None:
        tensors |= audit_tensors(model.audit_)
    for role, hashes in model.known_.hashes.items():
        tensors[f"known_{role}"] = hashes.view(np.uint8).reshape(len(hashes), -1)
    return {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}


def _metadata(model: SiteModel) -> dict[str, Any]:
    audit = model.audit_
    return {
        "format": FORMAT_VERSION,
        "versions": model.versions_,
        "settings": model.settings_.to_dict(),
        "evidence_format": asdict(model.evidence_format_),
        "counts": model.counts_,
        "spent_failure": model.spent_failure_,
        "known_key": model.known_.key.hex(),
        "audit": None
        if audit is None
        else audit_facts(audit)
        | {"n_neighbors": audit.n_neighbors, "trim": audit.trim, "fused": audit.fused},
        "certificate": None if model.certificate_ is None else asdict(model.certificate_),
        "notice": "Research software, not a medical device. Embeddings are patient-derived data: keep this file at "
        "the site.",
    } | {name: getattr(model, name) for name in _FACTS}


def _restore(metadata: dict[str, Any], tensors: dict[str, AnyArray]) -> SiteModel:
    values = metadata["settings"]
    expected = EvidenceFormat(
        **(metadata["evidence_format"] | {"classes": tuple(metadata["evidence_format"]["classes"])})
    )
    # JSON has lists where the settings have tuples, and the canonical form sorts the classes.
    for name in ("sampling", "miscoverage"):
        values[name] = {key: values[name][key] for key in expected.classes}
    settings = SiteSettings(**(values | {"always_protect": tuple(values["always_protect"])}))
    model = SiteModel(None, **(settings.to_dict()))
    model.from_file = True
    model.settings_, model.evidence_format_ = settings, expected
    model.versions_ = metadata["versions"]
    for name in _FACTS:
        setattr(model, name, metadata[name])
    model.bag_ = Bag(
        features=tensors["features"],
        labels=tensors["labels"],
        calibrates=np.ones(len(tensors["labels"]), dtype=np.bool_),
        weights=tensors.get("review_weights"),
    )
    model.bag_ids_ = None
    model.prior_outer_, model.prior_by_class_ = tensors["prior_outer"], tensors["prior_by_class"]
    model.zero_shot_scores_ = tensors["zero_shot_scores"]
    model.gate_distances_ = tensors.get("site_gate_distances")
    hashes = {
        name.removeprefix("known_"): np.ascontiguousarray(tensor)
        .view(f"S{tensor.shape[1]}")
        .reshape(len(tensor))
        for name, tensor in tensors.items()
        if name.startswith("known_")
    }
    model.known_ = KnownGroups(bytes.fromhex(metadata["known_key"]), settings.unit, hashes)
    facts = metadata["audit"]
    model.audit_ = None
    if facts is not None:
        model.audit_ = restore_audit(
            facts, tensors, n_neighbors=facts["n_neighbors"], trim=facts["trim"], fused=facts["fused"]
        )
    certificate = metadata["certificate"]
    model.certificate_ = None if certificate is None else SinglesCertificate(**certificate)
    model._install()
    return model
