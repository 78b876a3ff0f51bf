"""The model file: one safetensors file, one JSON string, one SHA-256; no pickle anywhere."""

from __future__ import annotations

import math
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from calcode.arrays import AnyArray
from calcode.method.artifact import (
    FORMATS,
    HOME_KEY,
    Artifact,
    TensorRule,
    as_hashes,
    check_tensors,
    content_digest,
    has_type,
    is_sha256,
    making_sense,
    metadata_text,
    plain_metadata,
    refuse,
    restored,
    write_artifact,
)
from calcode.method.audit_file import audit_facts, audit_rules, audit_tensors, restore_audit
from calcode.method.bandwidth import NEIGHBOUR_SHARES, BandwidthTrial
from calcode.method.cross_fit import MIN_EXAMPLES, coverage_floor
from calcode.method.evidence import checked_classes
from calcode.method.home_sums import HomeSums
from calcode.method.localized import LocalizedRule
from calcode.method.model import Calcode
from calcode.method.roles import EvidenceFormat, RoleHashes, embeddings_digest
from calcode.method.settings import SETTINGS, Settings
from calcode.method.singles import SinglesCertificate
from calcode.method.tail import ClassEvidence, discover_tail

_ROLES = ("reference", "validation", "gate", "calibration")
#: Tensors of calibration and of home's sums; those of the audit are in `audit_file`.
_CALIBRATION = {
    "calibration_embeddings": TensorRule("n d", unit=True),
    "calibration_scores": TensorRule("n", 0.0, 1.0 + 1e-9, ascending=True),
    "below": TensorRule("n", 0.0),
    "total": TensorRule("n", 0.0),
}
#: A_i and B_i of a guard's points among their class; files written before they were kept lack them.
_GUARDS = {"guard_below": TensorRule("n", 0.0), "guard_total": TensorRule("n", 0.0)}
_SUMS = {"home_outer": TensorRule("p p"), "home_by_class": TensorRule("p K"), "home_scores": TensorRule("N", 0.0, 1.0)}
#: How far sums from another machine may be off.
_ROUNDING = 1e-6
#: What a version says about itself need not be what this one would say.
_FREE = frozenset({"format", "versions", "settings", "notice"})


def model_digest(model: Calcode) -> str:
    """SHA-256 over the tensors' bytes and the canonical JSON of a fitted model."""
    return content_digest(_tensors(model), _metadata(model))


def save_model(model: Calcode, path: Path) -> None:
    """Write the file, after the checks that reading it makes."""
    metadata, tensors = _metadata(model), _tensors(model)
    with making_sense(f"{path}: not written, the model makes no sense"):
        _restore(plain_metadata(metadata), tensors)
    write_artifact(path, key=HOME_KEY, metadata=metadata, tensors=tensors)


def model_from(artifact: Artifact) -> Calcode:
    """The model in a file that was read, after the check that its parts make sense together."""
    artifact.require(HOME_KEY)
    with making_sense(f"{artifact.path}: altered"):
        model = _restore(artifact.metadata, artifact.tensors)
        kept = tuple(artifact.tensors[name] for name in _GUARDS if name in artifact.tensors)
        masses = (kept[0], kept[1]) if kept else None
        model._install(rule=model.rule_, labels=artifact.tensors["calibration_labels"], masses=masses)
        refuse(
            {
                f"the masses around the calibration points of {guard.name!r} are others": not guard.local.masses_hold()
                for guard in model.guards_
                if masses is not None and guard.local is not None
            }
            | {"masses are kept for guards that there are not": bool(kept) and not any(g.local for g in model.guards_)}
        )
    # What the file carries, also where this version would write it differently.
    model._digest = artifact.digest
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
    if any(guard.local is not None for guard in model.guards_):
        # Every point has one class: one number each holds what all guards need.
        tensors |= {name: np.zeros(len(rule.scores)) for name in _GUARDS}
        for guard in model.guards_:
            if guard.local is not None:
                tensors["guard_below"][guard.members] = guard.local.below
                tensors["guard_total"][guard.members] = guard.local.total
    if audit is not None:
        tensors |= audit_tensors(audit)
    if model.sums_ is not None:
        tensors |= {"home_outer": model.sums_.outer, "home_by_class": model.sums_.by_class}
        tensors["home_scores"] = np.concatenate(model.sums_.scores)
    for (role, kind), hashes in model.role_hashes_.hashes.items():
        tensors[f"hashes_{role}_{kind}"] = hashes.view(np.uint8).reshape(len(hashes), hashes.itemsize)
    return {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}


def _metadata(model: Calcode) -> dict[str, Any]:
    audit, rule = model.audit_, model.rule_
    return {
        "format": FORMATS[HOME_KEY],
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
    """The model that `_metadata` and `_tensors` were made of, without guards; what follows from the rest is compared.

    Scores and gate values are not: they need images. A_i and B_i are for some rows only where there are many.
    """
    values = metadata["settings"]
    if metadata["format"] == 1:
        values = {"keep_top": False} | values | ({"bandwidth": "auto"} if values["bandwidth"] is None else {})
    refuse({"settings are missing": not SETTINGS.keys() <= values.keys()})
    settings = Settings(**values).checked()
    model = Calcode(**settings.get_params())
    model.settings_ = settings
    expected = model.evidence_format_ = restored(EvidenceFormat, metadata["interface"])
    classes = checked_classes(expected.classes)
    settings.require_classes(classes)
    settings.require_prompts(expected.n_prompts)
    refuse({"the images have no prompts or no dimension": min(expected.n_prompts, expected.dimension) < 1})

    facts, sums = metadata["audit"], metadata.get("sums")
    hashed = {f"hashes_{role}_{kind}": (role, kind) for role in _ROLES for kind in ("ids", "groups")}
    rules = _CALIBRATION | {"calibration_labels": TensorRule("n", 0, len(classes) - 1, dtype="<i8")}
    rules |= {
        name: TensorRule(f"{name} 32", ord("0"), ord("f"), dtype="|u1", ascending=True)
        for name in hashed.keys() & tensors.keys()
    }
    if _GUARDS.keys() & tensors.keys():
        rules |= _GUARDS
    if facts is not None:
        rules |= audit_rules(facts, with_distances="gate_distances" in tensors)
    if sums is not None:
        rules |= _SUMS
    sizes = {"K": len(classes), "d": expected.dimension, "p": 1 + expected.dimension + len(classes)}
    check_tensors(tensors, rules, sizes=sizes)

    # The canonical JSON sorts names; the roles come back in the order in which they were used.
    model.manifest_ = {role: metadata["manifest"][role] for role in _ROLES}
    model.role_hashes_ = RoleHashes(
        bytes.fromhex(metadata["ledger_key"]),
        {entry: as_hashes(tensors[name]) for name, entry in hashed.items() if name in tensors},
    )
    model.audit_ = None
    if facts is not None:
        model.audit_ = restore_audit(
            facts, tensors, n_neighbors=settings.n_neighbors, trim=settings.trim, fused=settings.fused
        )
    model.bandwidth_ = SETTINGS["bandwidth"].check(metadata["bandwidth"])
    model.bandwidth_trace_ = tuple(restored(BandwidthTrial, trial) for trial in metadata["bandwidth_trace"])
    model.tail_evidence_ = tuple(restored(ClassEvidence, row) for row in metadata["tail_evidence"])
    model.tail_reasons_ = discover_tail(
        model.tail_evidence_,
        min_class_count=settings.min_class_count,
        protect=settings.protect,
        always_protect=settings.always_protect,
    )
    model.versions_ = metadata["versions"]
    # Files written before these were kept load all the same.
    if sums is not None:
        refuse({"the images behind the sums are not counted": not has_type(sums["counts"], tuple[int, ...])})
        model.sums_ = HomeSums(
            outer=tensors["home_outer"],
            by_class=tensors["home_by_class"],
            n=sums["n"],
            scores=tuple(np.split(tensors["home_scores"], np.cumsum(sums["counts"])[:-1])),
        )
    if (certificate := metadata.get("certificate")) is not None:
        model.certificate_ = restored(SinglesCertificate, certificate)
    refuse(_contradictions(model))
    rule = LocalizedRule.from_masses(
        tensors["calibration_embeddings"],
        tensors["calibration_scores"],
        below=tensors["below"],
        total=tensors["total"],
        bandwidth=model.bandwidth_,
        miscoverage=settings.miscoverage,
        level=settings.level,
        grid=settings.level_grid,
    )
    said = {"n": int, "embeddings": str} | ({} if metadata["format"] == 1 else {"ids": int, "groups": int})
    refuse(
        {
            "there are more calibration points than images": len(rule.scores) > model.manifest_["calibration"]["n"],
            "the masses around the calibration points are others": not rule.masses_hold(),
            "the manifest does not say what it should of each role": any(
                not all(has_type(entry.get(name), kind) for name, kind in said.items())
                or not entry.keys() <= {"n", "embeddings", "ids", "groups"}
                for entry in model.manifest_.values()
            ),
            "the notice is no text": not isinstance(metadata["notice"], str),
        }
    )
    model.rule_ = rule
    again = _metadata(model)
    missing = set() if metadata["format"] == 1 else again.keys() - metadata.keys()
    refuse(
        {
            f"'{name}' is not what follows from the rest of the file": name in missing
            or metadata_text(metadata[name]) != metadata_text(again.get(name))
            for name in sorted((metadata.keys() | missing) - _FREE)
        }
    )
    return model


def _contradictions(model: Calcode) -> dict[str, bool]:
    """What must not be so among settings, manifest, hashes, audit, bandwidth and evidence, and whether it is."""
    settings, audit, sums, manifest = model.settings_, model.audit_, model.sums_, model.manifest_
    trace, rows = model.bandwidth_trace_, model.tail_evidence_
    n = {role: entry["n"] for role, entry in manifest.items()}
    n_kept = sum(row.n for row in rows)
    found = {
        "the manifest lacks numbers of images": not has_type(n, dict[str, int]) or min(n.values()) < 1,
        "the manifest lacks digests": not all(is_sha256(entry["embeddings"]) for entry in manifest.values()),
        "the key of the hashes is another one": model.role_hashes_.key.hex() != manifest["reference"]["embeddings"],
        "hashes of ids or groups are missing, or there are others": any(
            entry.get(kind, n_hashes) != n_hashes
            for role, entry in manifest.items()
            for kind in ("ids", "groups")
            for n_hashes in [len(model.role_hashes_.hashes.get((role, kind), ()))]
        ),
        "the versions are no texts": not has_type(model.versions_, dict[str, str]) or not model.versions_,
        "the held-out coverage is of other classes": tuple(row.name for row in rows) != model.classes_,
        "the held-out coverage is of other images": any(row.n < 0 for row in rows) or n_kept > n["validation"],
        "a held-out coverage is no share of its images": any(
            not math.isnan(row.coverage)
            if row.n == 0 or n_kept < MIN_EXAMPLES
            else not 0.0 <= row.coverage <= 1.0 or abs(row.coverage * row.n % 1.0 - 0.5) < 0.5 - _ROUNDING
            for row in rows
        ),
        "the bound of the held-out coverage is another one": any(
            abs(row.bound - (1.0 - settings.miscoverage - settings.discovery_margin)) > _ROUNDING for row in rows
        ),
        "the audit is not the one of the settings": (audit is None) != (settings.audit is None),
    }
    if settings.bandwidth != "auto":
        found["the bandwidth is not the one that was given"] = bool(trace) or model.bandwidth_ != settings.bandwidth
    else:
        floor = coverage_floor(n_kept, miscoverage=settings.miscoverage)
        within = [t.infinite_share <= settings.support_budget and t.coverage >= floor for t in trace]
        found["the bandwidth is not the one that the trials chose"] = (
            tuple(trial.share for trial in trace) != NEIGHBOUR_SHARES[: len(trace)]
            or not all(0.0 <= share <= 1.0 for trial in trace for share in (trial.infinite_share, trial.coverage))
            or not all(0.0 < one.bandwidth <= other.bandwidth for one, other in pairwise(trace))
            or within != [trial.accepted for trial in trace]
            or any(within[:-1])
            or not (within[-1] or len(trace) == len(NEIGHBOUR_SHARES))
            or model.bandwidth_ != trace[-1].bandwidth
        )
    if audit is not None and settings.audit is not None:
        n_ranking = n["gate"] // 2 if settings.fused == "split" else n["gate"]
        n_calibrating = n["gate"] - n_ranking if settings.fused == "split" else n["gate"]
        best = max(audit.aurocs, key=lambda name: audit.aurocs[name])
        unclear = any(map(math.isnan, audit.aurocs.values()))
        found |= {
            "the audit had other candidates": audit.aurocs.keys() != set(settings.audit),
            "the audit's diagnostic is not the best": audit.name != (next(iter(audit.aurocs)) if unclear else best),
            "the audit is called independent, or is not": audit.independent
            != (settings.fused == "split" or "fused" not in settings.audit),
            "the gate has other images": len(audit.gate_values) != n_calibrating
            or any(len(values) != n_ranking for values in audit.gate_base.values())
            or (audit.gate_distances is not None and not 0 < len(audit.gate_distances) <= n["gate"]),
            "the reference is another one": embeddings_digest(audit.reference) != manifest["reference"]["embeddings"],
        }
    if sums is not None:
        found["home's sums contradict each other"] = not sums.sound(
            most=n["reference"] + n["validation"] + n["calibration"], least=n["validation"] + n["calibration"]
        )
    return found
