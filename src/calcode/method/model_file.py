"""The model file: one safetensors file, one JSON string, one SHA-256; no pickle anywhere."""

from __future__ import annotations

import math
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calcode.arrays import AnyArray
from calcode.errors import EngineError
from calcode.files import canonical_json
from calcode.kernels import library_installed, restore_graph
from calcode.method.artifact import (
    FORMATS,
    HOME_KEY,
    Artifact,
    Sha256,
    TensorRule,
    check_tensors,
    content_digest,
    has_type,
    making_sense,
    numbers_out,
    plain_metadata,
    read_artifact,
    refuse,
    restored,
    write_artifact,
)
from calcode.method.audit import BASE_DIAGNOSTICS, DIAGNOSTICS, FusedRule, SupportAudit
from calcode.method.bandwidth import MIN_EXAMPLES, NEIGHBOUR_SHARES, BandwidthTrial
from calcode.method.evidence import checked_classes, embeddings_digest
from calcode.method.home_sums import EMBEDDING_SCALE, HomeSums
from calcode.method.localized import LocalizedRule
from calcode.method.model import Calcode
from calcode.method.quantiles import coverage_floor
from calcode.method.roles import FITTED_ROLES, EvidenceFormat, RoleHashes
from calcode.method.settings import SETTINGS, Settings
from calcode.method.singles import SinglesCertificate
from calcode.method.tail import ClassEvidence, discover_tail

if TYPE_CHECKING:
    from calcode.site import SiteModel

_SLACK = 1e-9
#: Rules for the tensors of a model without those of its audit: "n" calibration points, "K" classes, "d" dimensions and
#: "p" = 1 + d + K features of a site.
_CALIBRATION = {
    "calibration_embeddings": TensorRule("n d", unit=True),
    "calibration_scores": TensorRule("n", 0.0, 1.0 + _SLACK, ascending=True),
    "below": TensorRule("n", 0.0),
    "total": TensorRule("n", 0.0),
}
#: A_i and B_i of a guard's points within their class; older files lack them.
_GUARDS = {"guard_below": TensorRule("n", 0.0), "guard_total": TensorRule("n", 0.0)}
_SUMS = {"home_outer": TensorRule("p p"), "home_by_class": TensorRule("p K"), "home_scores": TensorRule("N", 0.0, 1.0)}
_HASHES = {(role, kind): f"hashes_{role}_{kind}" for role in FITTED_ROLES for kind in ("ids", "groups")}
#: Range of the ascending gate values of each diagnostic.
_GATES = {
    "distance": (-_SLACK, 2.0 + _SLACK),
    "energy": (-1e300, 1e300),
    "msp": (-1.0 - _SLACK, 0.0),
    "prompt": (-_SLACK, 1e300),
    "fused": (-_SLACK, 1.0),
}
_GRAPH = {"graph_levels": "<i4", "graph_offsets": "<u8", "graph_links": "<i4"}
#: Allowed difference of sums computed on another machine.
_ROUNDING = 1e-6
#: Entries of the metadata that may differ from what this version would write.
_FREE = frozenset({"format", "versions", "settings", "notice"})


def load_model(path: str | Path) -> Calcode | SiteModel:
    """Read a model file of either kind: home or site."""
    artifact = read_artifact(Path(path))
    if artifact.key == HOME_KEY:
        return model_from(artifact)
    from calcode.site.model_file import site_from

    return site_from(artifact)


def model_digest(model: Calcode) -> str:
    """SHA-256 over the tensors' bytes and the canonical JSON of a fitted model."""
    return content_digest(sorted(_tensors(model).items()), _metadata(model)).result()


def save_model(model: Calcode, path: Path) -> None:
    """Write the file after the same checks as on reading."""
    metadata, tensors = _metadata(model), _tensors(model)
    written = Artifact(path, HOME_KEY, plain_metadata(metadata), tensors, digest="")
    model_from(written, fault="not written, the model makes no sense")
    write_artifact(path, key=HOME_KEY, metadata=metadata, tensors=tensors)


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
        # Every point has one class, so one number per point holds what all guards need.
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
    for entry, hashes in model.role_hashes_.hashes.items():
        # Sorted, so that the order reveals nothing about the rows.
        tensors[_HASHES[entry]] = np.array(sorted(hashes), dtype="S32").view(np.uint8).reshape(len(hashes), 32)
    return {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}


def _metadata(model: Calcode) -> dict[str, Any]:
    rule, sums = model.rule_, model.sums_
    return {
        "format": FORMATS[HOME_KEY],
        "versions": model.versions_,
        "settings": vars(model.settings_),
        "interface": asdict(model.evidence_format_),
        "manifest": model.manifest_,
        "ledger_key": model.role_hashes_.key.hex(),
        "audit": None if model.audit_ is None else model.audit_.facts,
        "bandwidth": model.bandwidth_,
        "bandwidth_trace": [asdict(trial) for trial in model.bandwidth_trace_],
        "rule": {"eta": rule.eta, "cut": rule.cut},
        "tail_reasons": {name: asdict(reason) for name, reason in model.tail_reasons_.items()},
        "tail_evidence": [asdict(row) for row in model.tail_evidence_],
        "sums": None if sums is None else {"n": sums.n, "counts": [len(scores) for scores in sums.scores]},
        "certificate": None if model.certificate_ is None else asdict(model.certificate_),
        "notice": "Research software, not a medical device. Embeddings are patient-derived data.",
    }


def model_from(artifact: Artifact, *, fault: str = "altered") -> Calcode:
    """Build the model from a file and check that its parts are consistent; derived values are recomputed and compared.

    Scores and gate values are not checked: they need images. With many points, A_i and B_i are checked for some rows.

    Parameters
    ----------
    artifact : Artifact
    fault : str
        What the error says of an inconsistent model.
    """
    metadata, tensors = artifact.metadata, dict(artifact.tensors)
    with making_sense(artifact, fault=fault):
        # Settings, classes and each tensor.
        values = metadata["settings"]
        if metadata["format"] == 1:
            values = {"keep_top": False} | values | ({"bandwidth": "auto"} if values["bandwidth"] is None else {})
        refuse({"settings are missing": not SETTINGS.keys() <= values.keys()})
        expected = restored(EvidenceFormat, metadata["interface"])
        classes = checked_classes(expected.classes)
        settings = Settings(**values).checked(classes, n_prompts=expected.n_prompts)
        refuse({"the images have no prompts or no dimension": min(expected.n_prompts, expected.dimension) < 1})
        model = Calcode(**vars(settings))
        model.settings_, model.evidence_format_, model.classes_ = settings, expected, expected.classes
        sizes = {"K": len(classes), "d": expected.dimension, "p": 1 + expected.dimension + len(classes)}
        model.audit_ = None
        if metadata["audit"] is not None:
            model.audit_ = restore_audit(
                metadata["audit"],
                tensors,
                n_neighbors=settings.n_neighbors,
                trim=settings.trim,
                fused=settings.fused,
                sizes=sizes,
            )
        sums = metadata.get("sums")
        rules = _CALIBRATION | {"calibration_labels": TensorRule("n", 0, len(classes) - 1, dtype="<i8")}
        rules |= {
            name: TensorRule(f"{name} 32", ord("0"), ord("f"), dtype="|u1", ascending=True)
            for name in _HASHES.values()
            if name in tensors
        }
        rules |= _GUARDS if _GUARDS.keys() & tensors.keys() else {}
        rules |= {} if sums is None else _SUMS
        check_tensors(tensors, rules, sizes=sizes)
        labels = tensors["calibration_labels"]

        # The parts of the model, and whether they fit together. The canonical JSON sorts names; here the roles get back
        # the order in which they were used.
        model.manifest_ = {role: metadata["manifest"][role] for role in FITTED_ROLES}
        model.role_hashes_ = RoleHashes(
            bytes.fromhex(metadata["ledger_key"]),
            {
                entry: frozenset(tensors[name].view("S32")[:, 0].tolist())
                for entry, name in _HASHES.items()
                if name in tensors
            },
        )
        model.bandwidth_ = SETTINGS["bandwidth"].kind.check("bandwidth", metadata["bandwidth"])
        model.bandwidth_trace_ = tuple(restored(BandwidthTrial, trial) for trial in metadata["bandwidth_trace"])
        model.tail_evidence_ = tuple(restored(ClassEvidence, row) for row in metadata["tail_evidence"])
        model.versions_ = metadata["versions"]
        # Older files without these values load too.
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
        refuse(_contradictions(model, counts_names=metadata["format"] > 1))
        refuse({"the notice is no text": not isinstance(metadata["notice"], str)})

        # Protected classes, level, cut and guards are computed again from their inputs.
        model.tail_reasons_ = discover_tail(
            model.tail_evidence_,
            min_class_count=settings.min_class_count,
            protect=settings.protect,
            always_protect=settings.always_protect,
        )
        rule = LocalizedRule.fit(
            tensors["calibration_embeddings"],
            tensors["calibration_scores"],
            bandwidth=model.bandwidth_,
            miscoverage=settings.miscoverage,
            level=settings.level,
            grid=settings.level_grid,
            masses=(tensors["below"], tensors["total"]),
        )
        refuse(
            {
                "there are more calibration points than images": len(labels) > model.manifest_["calibration"]["n"],
                "the masses around the calibration points are others": not rule.masses_hold(),
            }
        )
        model.rule_ = rule
        again = _metadata(model)
        missing = set() if metadata["format"] == 1 else again.keys() - metadata.keys()
        refuse(
            {
                f"'{name}' is not what follows from the rest of the file": name in missing
                or canonical_json(numbers_out(metadata[name])) != canonical_json(numbers_out(again.get(name)))
                for name in sorted((metadata.keys() | missing) - _FREE)
            }
        )
        kept = (tensors["guard_below"], tensors["guard_total"]) if "guard_below" in tensors else None
        model._install(rule=rule, labels=labels, masses=kept)
        local = {guard.name: guard.local for guard in model.guards_ if guard.local is not None}
        if kept is not None:
            refuse({"masses are kept for guards that there are not": not local})
            refuse(
                {
                    f"the masses around the calibration points of {name!r} are others": not own.masses_hold()
                    for name, own in local.items()
                }
            )
    # Keep the file's digest, even if this version would write the file differently.
    if artifact.digest:
        model.digest_ = artifact.digest
    return model


def _contradictions(model: Calcode, *, counts_names: bool) -> dict[str, bool]:
    """Faults among settings, manifest, hashes, audit, bandwidth and evidence, each with whether it is present.

    The manifest of format 1 does not count ids and groups.
    """
    settings, audit, sums, manifest = model.settings_, model.audit_, model.sums_, model.manifest_
    trace, rows = model.bandwidth_trace_, model.tail_evidence_
    said = {"n": int, "embeddings": Sha256} | ({"ids": int, "groups": int} if counts_names else {})
    n = {role: entry["n"] for role, entry in manifest.items()}
    n_kept = sum(row.n for row in rows)
    found = {
        "the manifest does not say what it should of each role": any(
            not all(has_type(entry.get(name), kind) for name, kind in said.items())
            or not entry.keys() <= {"n", "embeddings", "ids", "groups"}
            or entry["n"] < 1
            for entry in manifest.values()
        ),
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
        counts, outer, by_class = np.array([len(scores) for scores in sums.scores]), sums.outer, sums.by_class
        images = slice(1, 1 + model.evidence_format_.dimension)
        # phi begins with 1 and holds the embedding times 4.
        found["home's sums contradict each other"] = not (
            len(counts) == by_class.shape[1]
            and counts.sum() == sums.n
            and n["validation"] + n["calibration"] <= sums.n <= n["reference"] + n["validation"] + n["calibration"]
            and all((scores[1:] >= scores[:-1]).all() for scores in sums.scores)
            and np.allclose(outer, outer.T, rtol=1e-9, atol=1e-9 * sums.n)
            and np.allclose(by_class[0], counts)
            and np.allclose(by_class.sum(axis=1), outer[0], rtol=_ROUNDING, atol=_ROUNDING * sums.n)
            and np.isclose(outer[0, 0], sums.n)
            and np.isclose(np.trace(outer[images, images]), EMBEDDING_SCALE**2 * sums.n)
        )
    return found


def audit_tensors(audit: SupportAudit) -> dict[str, AnyArray]:
    """The arrays of an audit by name."""
    tensors: dict[str, AnyArray] = {"reference": audit.reference, "gate_values": audit.gate_values}
    tensors |= {f"gate_{name}": values for name, values in audit.gate_base.items()}
    if audit.gate_distances is not None:
        tensors["gate_distances"] = audit.gate_distances
    if audit.graph is not None:
        tensors |= {f"graph_{name}": values for name, values in audit.graph.arrays.items()}
    return tensors


def restore_audit(
    facts: Any, tensors: dict[str, AnyArray], *, n_neighbors: int, trim: int, fused: FusedRule, sizes: dict[str, int]
) -> SupportAudit:
    """Rebuild the audit from `audit_tensors` and `SupportAudit.facts`; its tensors are removed from `tensors`.

    Sizes: "r" reference images, "g" gate images for the p-values, "b" gate images for the ranks inside `fused`.
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
    exact = facts["search"]["kind"] == "exact"
    rules = {"reference": TensorRule("r d", unit=True)}
    rules["gate_values"] = TensorRule("g", *_GATES[name], ascending=True)
    if name == "fused":
        rules |= {f"gate_{base}": TensorRule("b", *_GATES[base], ascending=True) for base in BASE_DIAGNOSTICS}
    if "gate_distances" in tensors:
        rules["gate_distances"] = TensorRule("m", *_GATES["distance"], ascending=True)
    if not exact:
        rules |= {key: TensorRule(key, -1, 2**62, dtype=dtype) for key, dtype in _GRAPH.items()}
    own = {key: tensors.pop(key) for key in rules if key in tensors}
    check_tensors(own, rules, sizes=sizes)
    if not exact and not library_installed():
        raise EngineError(
            "faiss: not installed, and this model finds neighbours in its reference with it; pip install 'calcode[ann]'"
        )
    arrays = {key.removeprefix("graph_"): own[key] for key in _GRAPH if key in own}
    return SupportAudit(
        name=name,
        aurocs={candidate: aurocs[candidate] for candidate in DIAGNOSTICS if candidate in aurocs},
        independent=facts["independent"],
        reference=own["reference"],
        n_neighbors=n_neighbors,
        trim=trim,
        fused=fused,
        gate_base={base: own[f"gate_{base}"] for base in BASE_DIAGNOSTICS if f"gate_{base}" in own},
        gate_values=own["gate_values"],
        gate_distances=own.get("gate_distances"),
        graph=None if exact else restore_graph(facts["search"], arrays, reference=own["reference"]),
    )
