"""The file of a site model (SITE.md S11): sums, reviewed rows, settings; home images only if the audit needs them."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from calcode.arrays import AnyArray
from calcode.files import canonical_json
from calcode.method.artifact import (
    FORMATS,
    SITE_KEY,
    Artifact,
    Sha256,
    TensorRule,
    check_tensors,
    content_digest,
    has_type,
    making_sense,
    numbers_out,
    plain_metadata,
    refuse,
    restored,
    write_artifact,
)
from calcode.method.evidence import checked_classes, embeddings_digest
from calcode.method.home_sums import read_features
from calcode.method.model_file import audit_tensors, restore_audit
from calcode.method.roles import EvidenceFormat
from calcode.method.settings import SETTINGS
from calcode.method.singles import SinglesCertificate
from calcode.site.audit import MIN_GATE
from calcode.site.fitted import FittedSite
from calcode.site.known_groups import KnownGroups
from calcode.site.model import MOST_LOOKS, SiteModel
from calcode.site.promises import AUDITS
from calcode.site.ranking import Bag
from calcode.site.settings import SiteChoices

#: Plain attributes that are stored unchanged, with their types.
_FACTS = {
    "home_digest_": str,
    "sharp_": bool,
    "deferral_level_": float,
    "audit_kind_": str,
    "look_": int,
    "n_unlabelled_": int,
    "n_outside_": int,
    "n_rejected_": int,
    "n_trainers_": int,
    "n_added_": int,
    "unlabelled_share_": float,
}
_TENSORS = {
    "prior_outer": TensorRule("p p"),
    "prior_by_class": TensorRule("p K"),
    "features": TensorRule("n p"),
    "zero_shot_scores": TensorRule("n", -1e-9, 1.0 + 1e-9),
    "weights": TensorRule("p K"),
    "known_bag": TensorRule("n 32", 0, ord("f"), dtype="|u1"),
    "known_bag_ids": TensorRule("n 32", 0, ord("f"), dtype="|u1"),
}
_OPTIONAL_TENSORS = {
    "review_weights": TensorRule("n", 1.0),
    "site_gate_distances": TensorRule("m_site", -1e-9, 2.0 + 1e-9, ascending=True),
    "known_gate": TensorRule("gates 32", 0, ord("f"), dtype="|u1", ascending=True),
    "known_trainers": TensorRule("trainers 32", 0, ord("f"), dtype="|u1", ascending=True),
}
#: Allowed difference between M, W and h recomputed on another machine and those in the file.
_RECOMPUTED = 1e-8
#: Allowed difference of other sums.
_ROUNDING = 1e-6
_HASH = re.compile(rb"[0-9a-f]{32}")
#: Entries of the metadata that may differ from what this version would write.
_FREE = frozenset({"format", "versions", "notice"})


def site_digest(model: FittedSite) -> str:
    """SHA-256 over the tensors' bytes and the canonical JSON of a fitted site model."""
    return content_digest(sorted(_tensors(model).items()), _metadata(model)).result()


def save_site(model: FittedSite, path: Path) -> None:
    """Write the file after the same checks as on reading."""
    metadata, tensors = _metadata(model), _tensors(model)
    written = Artifact(path, SITE_KEY, plain_metadata(metadata), tensors, digest="")
    site_from(written, fault="not written, the model makes no sense")
    write_artifact(path, key=SITE_KEY, metadata=metadata, tensors=tensors)


def site_from(artifact: Artifact, *, fault: str = "altered") -> SiteModel:
    """Build the site model from a file and check that its parts are consistent; `fault` as in `model_from`."""
    with making_sense(artifact, fault=fault):
        model = _restore(artifact.metadata, dict(artifact.tensors))
    model._digest = artifact.digest
    return model


def _tensors(model: FittedSite) -> dict[str, AnyArray]:
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
        tensors[f"known_{role}"] = hashes.view(np.uint8).reshape(len(hashes), hashes.itemsize)
    return {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}


def _metadata(model: FittedSite) -> dict[str, Any]:
    audit = model.audit_
    return {
        "format": FORMATS[SITE_KEY],
        "versions": model.versions_,
        "settings": model.settings_.to_dict(),
        "evidence_format": asdict(model.evidence_format_),
        "counts": model.counts_,
        "spent_failure": model.spent_failure_,
        "known_key": model.known_.key.hex(),
        "audit": None
        if audit is None
        else audit.facts | {"n_neighbors": audit.n_neighbors, "trim": audit.trim, "fused": audit.fused},
        "certificate": None if model.certificate_ is None else asdict(model.certificate_),
        "notice": "Research software, not a medical device. Embeddings are patient-derived data: keep this file at "
        "the site.",
    } | {name: getattr(model, name) for name in _FACTS}


def _restore(metadata: dict[str, Any], tensors: dict[str, AnyArray]) -> SiteModel:
    """Rebuild the model from `_metadata` and `_tensors`; derived values are recomputed and compared."""
    expected = restored(EvidenceFormat, metadata["evidence_format"])
    classes = checked_classes(expected.classes)
    settings = SiteChoices(**metadata["settings"]).checked(classes=classes, trim=metadata["settings"]["trim"])
    refuse({"the images have no prompts or no dimension": min(expected.n_prompts, expected.dimension) < 1})
    sizes = {"K": len(classes), "d": expected.dimension, "p": 1 + expected.dimension + len(classes)}
    facts, audit = metadata["audit"], None
    if facts is not None:
        audit = restore_audit(
            facts,
            tensors,
            n_neighbors=SETTINGS["n_neighbors"].check(facts["n_neighbors"]),
            trim=settings.trim,
            fused=SETTINGS["fused"].check(facts["fused"]),
            sizes=sizes,
        )
    rules = _TENSORS | {name: rule for name, rule in _OPTIONAL_TENSORS.items() if name in tensors}
    rules["labels"] = TensorRule("n", 0, len(classes) - 1, dtype="<i8")
    check_tensors(tensors, rules, sizes=sizes)

    model = SiteModel(None, **(settings.to_dict()))
    model.from_file = True
    model.settings_, model.evidence_format_ = settings, expected
    model.versions_ = metadata["versions"]
    for name, kind in _FACTS.items():
        refuse({f"'{name}' is no {kind.__name__}": not has_type(metadata[name], kind)})
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
        name.removeprefix("known_"): tensor.view("S32")[:, 0]
        for name, tensor in tensors.items()
        if name.startswith("known_")
    }
    model.known_ = KnownGroups(bytes.fromhex(metadata["known_key"]), settings.unit, hashes)
    model.audit_ = audit
    refuse(_contradictions(model))
    model._install(model.ranking_for(model.bag_))
    if (certificate := metadata["certificate"]) is not None:
        model.certificate_ = restored(SinglesCertificate, certificate)
        refuse({"the certificate has no sample": not has_type(model.certificate_.sample_digest, Sha256)})
    weights, again = model.ranking_.adapter.weights, _metadata(model)
    refuse(
        {
            "its adapter is not the one that its reviewed rows give": bool(
                np.abs(weights - tensors["weights"]).max() > _RECOMPUTED
            )
        }
        | {
            f"'{name}' is not what follows from the rest of the file": canonical_json(numbers_out(metadata[name]))
            != canonical_json(numbers_out(again.get(name)))
            for name in sorted((again.keys() | metadata.keys()) - _FREE)
        }
    )
    return model


def _contradictions(model: SiteModel) -> dict[str, bool]:
    """Faults among settings, bag, prior, audit and counts, each with whether it is present."""
    settings, bag, audit, known = model.settings_, model.bag_, model.audit_, model.known_.hashes
    n, outer, by_class = len(bag), model.prior_outer_, model.prior_by_class_
    counts = (model.n_unlabelled_, model.n_outside_, model.n_rejected_, model.n_trainers_, model.n_added_)
    sound, robust = read_features(bag.features, n_classes=by_class.shape[1])
    home_weight = 0.0 if model.sharp_ else settings.home_weight
    slack = _ROUNDING * (1.0 + outer[0, 0])
    np.linalg.cholesky(outer - (1.0 - _ROUNDING) * settings.ridge * np.eye(len(outer)))  # raises unless positive
    own = settings.audit or ("site" if "gate" in known else "off")
    digests = np.concatenate(list(known.values())).tolist()
    gates, trainers = (len(known.get(role, ())) for role in ("gate", "trainers"))
    others = np.concatenate([known["bag"][:0], *(known[role] for role in ("gate", "trainers") if role in known)])
    return {
        "there are no reviewed cases": n == 0,
        "the versions are not texts": not has_type(model.versions_, dict[str, str]),
        "the home model's digest is none": bool(model.home_digest_) == model.sharp_
        or (bool(model.home_digest_) and not has_type(model.home_digest_, Sha256))
        or len(set(model.home_digest_)) == 1,
        "the deferral level is no share": not 0.0 <= model.deferral_level_ <= 1.0,
        "the look is none": not 1 <= model.look_ <= MOST_LOOKS,
        "a count is negative": min(counts) < 0,
        "the share without a label is another one": model.unlabelled_share_
        != model.n_unlabelled_ / (model.n_unlabelled_ + n),
        "the reviewed rows are no features of images": not sound,
        "the zero-shot scores are others": not np.allclose(
            model.zero_shot_scores_, 1.0 - robust[np.arange(n), bag.labels], rtol=0.0, atol=_ROUNDING
        ),
        "review weights are missing, or not wanted": (bag.weights is None) == (settings.calibrate_with == "weighted"),
        "the prior is not symmetric": not np.allclose(outer, outer.T, rtol=_RECOMPUTED, atol=_RECOMPUTED * outer[0, 0]),
        "the prior has another weight": abs(outer[0, 0] - settings.ridge - home_weight - model.n_trainers_) > slack
        or abs(by_class[0].sum() - home_weight - model.n_trainers_) > slack,
        "the trainers are not known": trainers > model.n_trainers_ or (trainers == 0) != (model.n_trainers_ == 0),
        "the hash of an image or a group is none": not all(
            _HASH.fullmatch(digest) and len(set(digest)) > 1 for digest in digests
        ),
        "the key of the hashes is another one": model.n_added_ >= n
        or model.known_.key.hex() != embeddings_digest(bag.features[: n - model.n_added_]),
        "a group has several reviewed cases": len(np.unique(known["bag"])) < n,
        "a group is among the reviewed cases and elsewhere": bool(np.isin(known["bag"], others).any()),
        "the audit is not the one of the settings": model.audit_kind_ != own or model.audit_kind_ not in AUDITS,
        "the audit is missing": audit is None and model.audit_kind_ != "off",
        "the gate is missing": "gate" not in known
        and (model.audit_kind_ == "site" or model.gate_distances_ is not None),
        "the gate is too small": model.audit_kind_ == "site" and gates < MIN_GATE,
        "the gate has fewer images than groups": model.audit_kind_ == "site"
        and audit is not None
        and len(audit.gate_values) < gates,
        "the gate has other distances": model.gate_distances_ is not None
        and (len(model.gate_distances_) > gates or (settings.unit == "group" and len(model.gate_distances_) < gates)),
    }
