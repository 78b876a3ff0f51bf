"""What a site model file says, decided the slow way: from its tensors and settings, by refitting, without calcode."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
from oracle import Audit, Role, audit_p_values, robust_probabilities
from scipy.stats import beta, binom
from site_refits import deleted_scores, refit, score

from calcode import Evidence

TOLERANCE = 1e-12
ABSENT, LABEL, SET, DEFER = -1, 0, 1, 2
NONE, LOW_SUPPORT, EMPTY_SET = 0, 1, 2


def site_phi(evidence: Evidence, *, trim: int) -> np.ndarray:
    """phi of SITE.md S2; shape (n, 1 + d + K)."""
    logs = np.log(robust_probabilities(prompt_logits=evidence.prompt_logits, trim=trim) + 1e-6)
    ones = np.ones((len(evidence.embeddings), 1))
    return np.hstack([ones, 4 * evidence.embeddings, 0.5 * (logs - logs.mean(axis=1, keepdims=True))])


def own_row(metadata: dict[str, Any], tensors: dict[str, np.ndarray], evidence: Evidence, image: int) -> int:
    """Row of the bag that belongs to the image's group, or to the image itself; -1 where there is none (S1)."""
    columns = [("known_bag", evidence.groups), ("known_bag_ids", evidence.ids)]
    if metadata["settings"]["unit"] == "image":
        del columns[0]
    for name, column in columns:
        if column is None or not column[image]:
            continue
        key = bytes.fromhex(metadata["known_key"])
        digest = hashlib.blake2b(str(column[image]).encode(), key=key, digest_size=16).hexdigest()
        rows = [row for row, stored in enumerate(tensors[name]) if bytes(stored) == digest.encode()]
        if rows:
            return rows[-1]
    return ABSENT


def needed(delta: float) -> int:
    return math.ceil(1 / delta - 1e-9) - 1


def full_p_values(
    settings: dict[str, Any],
    prior: tuple[np.ndarray, np.ndarray],
    bag: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    image: np.ndarray,
    *,
    image_weight: float,
    unlabelled: int,
) -> tuple[np.ndarray, np.ndarray]:
    """p-values and levels of one image (S3 to S5); the bag is phi, y, who calibrates, weights."""
    features, labels, calibrates, weights = bag
    classes, delta = list(settings["miscoverage"]), np.array(list(settings["miscoverage"].values()))
    p_values, levels = np.ones(len(classes)), delta.copy()
    for k, name in enumerate(classes):
        together, given = np.vstack([features, image]), np.append(labels, k)
        counts = np.bincount(given, minlength=len(classes))
        protected = [classes.index(other) for other in settings["always_protect"]]
        ranked = calibrates & (labels == k)
        share = np.ones(len(classes))
        if settings["rare"] == "pool":
            rare = [j for j in range(len(classes)) if counts[j] <= needed(delta[j]) and j not in protected]
            if k in rare:
                ranked = calibrates & np.isin(labels, rare)
                share = (counts + 1) / (len(labels) + 1 + len(classes))
        n = int((labels == k).sum())
        if settings["rare"] == "count" and n < needed(delta[k]) and n >= 9 and name not in settings["always_protect"]:
            levels[k] = 1 / (n + 1)
        if ranked.sum() + unlabelled < needed(levels[k]) or not np.isfinite(image_weight):
            continue
        scores = deleted_scores(prior, together, given, sharpness=settings["sharpness"])
        scores = 1 - (1 - scores) / share[given]
        above = weights[ranked & (scores[:-1] >= scores[-1] - TOLERANCE)].sum() + unlabelled
        p_values[k] = (image_weight + above) / (image_weight + weights[ranked].sum() + unlabelled)
    return p_values, levels


def assured_p_values(
    settings: dict[str, Any],
    prior: tuple[np.ndarray, np.ndarray],
    bag: tuple[np.ndarray, np.ndarray],
    image: np.ndarray,
    *,
    look: int,
    removed: int,
) -> np.ndarray:
    """The smallest levels at which the labels of one image leave the set (S6)."""
    features, labels = bag
    order = np.random.default_rng(settings["random_state"]).permutation(len(labels))
    n_training = round(0.4 * len(labels))
    training, calibrating = (part[part != removed] for part in (order[:n_training], order[n_training:]))
    weights = refit(*prior, features[training], labels[training])
    failure = (1 - settings["assurance"]) / (look * (look + 1))
    p_values = np.ones(len(settings["miscoverage"]))
    for k in range(len(p_values)):
        own = [score(weights, features[i], k, settings["sharpness"]) for i in calibrating if labels[i] == k]
        below = sum(value < score(weights, image, k, settings["sharpness"]) - TOLERANCE for value in own)
        if below:
            p_values[k] = 1 - beta.ppf(failure, below, len(own) + 1 - below)
    return p_values


def site_audit(metadata: dict[str, Any], tensors: dict[str, np.ndarray], evidence: Evidence) -> np.ndarray:
    """p_audit of every image with the gate that the file holds (S8)."""
    facts = metadata["audit"]
    if facts is None or metadata["audit_kind_"] == "off":
        return np.ones(len(evidence.embeddings))
    ranks = {
        name: tensors[f"gate_{name}"] for name in ("distance", "energy", "msp", "prompt") if facts["name"] == "fused"
    }
    audit = Audit(facts["name"], math.nan, tensors["reference"], ranks, tensors["gate_values"])
    settings = {"trim": metadata["settings"]["trim"], "n_neighbors": facts["n_neighbors"]}
    role = Role(evidence.embeddings, evidence.prompt_logits, np.zeros(len(evidence.embeddings), dtype=int))
    return audit_p_values(audit=audit, role=role, settings=settings)


def decisions_of(
    metadata: dict[str, Any], tensors: dict[str, np.ndarray], evidence: Evidence, e: np.ndarray | None
) -> dict[str, np.ndarray]:
    """Sets, actions, reasons, labels, p-values and p_audit of every image (S8, S17)."""
    settings = metadata["settings"]
    prior = tensors["prior_outer"], tensors["prior_by_class"]
    features, labels = tensors["features"], tensors["labels"]
    weights = tensors.get("review_weights", np.ones(len(labels)))
    delta = np.array(list(settings["miscoverage"].values()))
    calibrates = np.ones(len(labels), dtype=bool)
    if settings["slack"] == "thin":
        order = np.random.default_rng([settings["random_state"], 1]).permutation(len(labels))
        for k in range(len(delta)):
            own = order[labels[order] == k]
            steps = math.floor((len(own) + 1) * delta[k] + 1e-9)
            calibrates[own[math.ceil(steps / delta[k] - 1e-9) - 1 :] if steps else own[:0]] = False
    unlabelled = metadata["n_unlabelled_"] if settings["unlabelled"] == "inf" else 0
    p_audit = site_audit(metadata, tensors, evidence)
    certificate = metadata["certificate"]
    single_is_widened = certificate is not None and not (
        certificate["n"] > 0
        and binom.cdf(certificate["wrong"], certificate["n"], certificate["risk"]) <= 1 - certificate["confidence"]
    )
    found: dict[str, list[Any]] = {name: [] for name in ("sets", "scores", "action", "reason", "label", "top_label")}
    for i, image in enumerate(site_phi(evidence, trim=settings["trim"])):
        row = own_row(metadata, tensors, evidence, i)
        kept = np.arange(len(labels)) != row
        if settings["assurance"] is not None:
            p = assured_p_values(settings, prior, (features, labels), image, look=metadata["look_"], removed=row)
            levels = delta
            order = np.random.default_rng(settings["random_state"]).permutation(len(labels))
            trained = kept & np.isin(np.arange(len(labels)), order[: round(0.4 * len(labels))])
        else:
            bag = features[kept], labels[kept], calibrates[kept], weights[kept]
            weight = 1.0 if e is None else np.inf if e[i] == 0 else 1 / e[i]
            p, levels = full_p_values(settings, prior, bag, image, image_weight=weight, unlabelled=unlabelled)
            trained = kept
        chosen = p > levels + TOLERANCE
        supported = p_audit[i] >= metadata["deferral_level_"]
        if single_is_widened and supported and chosen.sum() == 1:
            chosen[np.where(chosen, -np.inf, p).argmax()] = True
        answered = supported and chosen.any()
        found["sets"].append(chosen)
        found["scores"].append(1 - p)
        found["action"].append(DEFER if not answered else LABEL if chosen.sum() == 1 else SET)
        found["reason"].append(NONE if answered else EMPTY_SET if supported else LOW_SUPPORT)
        found["label"].append(int(chosen.argmax()) if answered and chosen.sum() == 1 else ABSENT)
        found["top_label"].append(int((image @ refit(*prior, features[trained], labels[trained])).argmax()))
    return {name: np.array(values) for name, values in found.items()} | {"p_audit": p_audit}
