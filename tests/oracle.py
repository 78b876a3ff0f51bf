"""A slow, plain reading of METHOD.md, used by the tests as an oracle.

Everything is numpy float64 on plain arrays. Functions stand in the order of METHOD.md's sections, whose numbers
are given in the docstrings. Nothing here imports the package under test.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import KFold, StratifiedKFold

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

LABEL, SET, DEFER = 0, 1, 2
NONE, LOW_SUPPORT, EMPTY_SET, FULL_SET = 0, 1, 2, 3

DIAGNOSTICS = ("distance", "energy", "msp", "prompt", "fused")
SHARES = (0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.4, 0.8)
LEVEL_TOLERANCE = 1e-12
RANK_TOLERANCE = 1e-9
SMALLEST_BANDWIDTH, LARGEST_BANDWIDTH = 1e-6, 1e6
DEFAULT_GUARD_MISCOVERAGE = 0.05

DEFAULTS: dict[str, Any] = {
    "miscoverage": 0.05,
    "guard_miscoverage": DEFAULT_GUARD_MISCOVERAGE,
    "discovery_margin": 0.05,
    "deferral_level": 0.05,
    "trim": 1,
    "n_neighbors": 10,
    "bandwidth": "auto",
    "support_budget": 0.25,
    "level": "loo",
    "level_grid": 1001,
    "n_folds": 5,
    "min_class_count": 10,
    "class_local_min": 50,
    "audit": DIAGNOSTICS,
    "fused": "paper",
    "protect": "discovered",
    "always_protect": (),
    "keep_top": True,
    "binary_utility": False,
    "random_state": 0,
}

COST_REGIMES: dict[str, tuple[float, float, float]] = {
    "balanced": (10.0, 1.0, 1.0),
    "safety-heavy": (25.0, 1.0, 0.5),
    "deferral-expensive": (10.0, 1.0, 5.0),
    "efficiency-heavy": (10.0, 3.0, 1.0),
}
TARGET_COVERAGES = (0.90, 0.925, 0.95)
DEFERRAL_LEVELS = (0.01, 0.02, 0.05, 0.10)


class Role(NamedTuple):
    """The rows of one data role; labels of -1 lie outside the label space."""

    embeddings: NDArray[Any]
    prompt_logits: NDArray[Any]
    labels: NDArray[Any]


class Candidate(NamedTuple):
    """One line of the bandwidth trace."""

    share: float
    bandwidth: float
    infinite_share: float
    coverage: float


class OracleResult(NamedTuple):
    """All that the fitted model and its decisions are compared on."""

    audit_name: str | None
    audit_auroc: float
    bandwidth: float
    bandwidth_trace: list[Candidate]
    local_level: float | None
    tail: list[int]
    tail_thresholds: dict[int, float]
    p_audit: Floats
    scores: Floats
    localized_threshold: Floats
    threshold: Floats
    localized_sets: Booleans
    sets: Booleans
    action: Integers
    reason: Integers
    label: Integers
    answered: Booleans
    margin: Floats
    level_margin: float


class OperatingPoint(NamedTuple):
    """One scored point of the grid of section 9."""

    target_coverage: float
    deferral_level: float
    bandwidth: float
    risk: float
    coverage: float
    worst_class_coverage: float
    mean_set_size: float
    deferral: float
    accepted: int
    informative_rate: float


class OracleOperatingPoint(NamedTuple):
    """The chosen point, every point, and the constraints that had to be dropped (in the order dropped)."""

    target_coverage: float
    deferral_level: float
    points: list[OperatingPoint]
    relaxed: tuple[str, ...]


def complete_settings(*, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the defaults filled in."""
    unknown = set(settings) - set(DEFAULTS)
    if unknown:
        raise ValueError(f"unknown settings: {sorted(unknown)}")
    return {**DEFAULTS, **settings}


# Section 1: data roles.


def unit_rows(*, embeddings: NDArray[Any]) -> Floats:
    """Section 1: rows renormalised in float64."""
    rows = np.asarray(embeddings, dtype=np.float64)
    norms = np.sqrt((rows**2).sum(axis=1))
    if not np.all(np.isfinite(norms)) or np.any(norms == 0.0):
        raise ValueError("an embedding is zero or not finite")
    return np.asarray(rows / norms[:, None])


def check_labels(*, labels: NDArray[Any], n_classes: int) -> Integers:
    """Section 1: labels of validation and calibration lie in the label space."""
    whole = np.asarray(labels).astype(np.int64)
    if np.any(whole < 0) or np.any(whole >= n_classes):
        raise ValueError("a label lies outside the label space")
    return whole


def cosine_distances(*, point: Floats, others: Floats) -> Floats:
    """1 - cos from one unit row to many."""
    return 1.0 - others @ point


# Section 2: prompt evidence.


def softmax(*, logits: Floats) -> Floats:
    """Softmax over the last axis."""
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))


def prompt_probabilities(*, prompt_logits: NDArray[Any]) -> Floats:
    """Section 2: p_m(y | x), shape (n, prompts, classes)."""
    return softmax(logits=np.asarray(prompt_logits, dtype=np.float64))


def robust_probabilities(*, prompt_logits: NDArray[Any], trim: int) -> Floats:
    """Section 2: the trimmed mean over prompts, renormalised."""
    probabilities = prompt_probabilities(prompt_logits=prompt_logits)
    n_images, n_prompts, n_classes = probabilities.shape
    if n_prompts == 1:
        trim = 0
    if 2 * trim >= n_prompts:
        raise ValueError("2 trim must be smaller than the number of prompts")
    robust = np.empty((n_images, n_classes))
    for image in range(n_images):
        ordered = np.sort(probabilities[image], axis=0)
        averages = ordered[trim : n_prompts - trim].mean(axis=0)
        robust[image] = averages / (averages.sum() + 1e-12)
    return robust


# Section 3: the APS score.


def aps_scores(*, probabilities: Floats) -> Floats:
    """Section 3: deterministic APS scores of every label; the last-ranked label scores exactly one."""
    n_images, n_classes = probabilities.shape
    scores = np.empty((n_images, n_classes))
    for image in range(n_images):
        ranking = sorted(range(n_classes), key=lambda label: (-probabilities[image, label], label))
        total = 0.0
        for label in ranking:
            total += probabilities[image, label]
            scores[image, label] = min(total, 1.0)
        scores[image, ranking[-1]] = 1.0
    return scores


def top_labels(*, probabilities: Floats) -> Integers:
    """The most probable label, ties to the lower class index."""
    return np.asarray(np.argmax(probabilities, axis=1), dtype=np.int64)


# Section 4: the support audit.


def distance_diagnostic(*, embeddings: Floats, reference: Floats, n_neighbors: int) -> Floats:
    """Section 4: median of the smallest cosine distances to the reference."""
    values = np.empty(len(embeddings))
    for image, point in enumerate(embeddings):
        nearest = np.sort(cosine_distances(point=point, others=reference))[:n_neighbors]
        values[image] = np.median(nearest)
    return values


def energy_diagnostic(*, prompt_logits: NDArray[Any]) -> Floats:
    """Section 4: minus the log-sum-exp of the prompt-averaged logits."""
    averaged = np.asarray(prompt_logits, dtype=np.float64).mean(axis=1)
    largest = averaged.max(axis=1)
    return np.asarray(-(largest + np.log(np.exp(averaged - largest[:, None]).sum(axis=1))))


def msp_diagnostic(*, probabilities: Floats) -> Floats:
    """Section 4: minus the largest robust probability."""
    return np.asarray(-probabilities.max(axis=1))


def prompt_diagnostic(*, prompt_logits: NDArray[Any], probabilities: Floats) -> Floats:
    """Section 4: mean divergence of the prompts from the robust probabilities."""
    each = prompt_probabilities(prompt_logits=prompt_logits)
    values = np.empty(len(each))
    for image in range(len(each)):
        logarithm = np.log(np.maximum(probabilities[image], 1e-12))
        divergences = [float((row * (np.log(np.maximum(row, 1e-12)) - logarithm)).sum()) for row in each[image]]
        values[image] = sum(divergences) / len(divergences)
    return values


def gate_ranks(*, values: Floats, gate_values: Floats) -> Floats:
    """Section 4: (1 + #{gate >= value}) / (n_gate + 1), with the tolerance."""
    ranks = np.empty(len(values))
    for image, value in enumerate(values):
        count = int((gate_values >= value - RANK_TOLERANCE).sum())
        ranks[image] = (1 + count) / (len(gate_values) + 1)
    return ranks


def base_diagnostics(*, role: Role, reference: Floats, settings: Mapping[str, Any]) -> dict[str, Floats]:
    """Section 4: the four base diagnostics of a role."""
    probabilities = robust_probabilities(prompt_logits=role.prompt_logits, trim=settings["trim"])
    return {
        "distance": distance_diagnostic(
            embeddings=unit_rows(embeddings=role.embeddings), reference=reference, n_neighbors=settings["n_neighbors"]
        ),
        "energy": energy_diagnostic(prompt_logits=role.prompt_logits),
        "msp": msp_diagnostic(probabilities=probabilities),
        "prompt": prompt_diagnostic(prompt_logits=role.prompt_logits, probabilities=probabilities),
    }


def fused_diagnostic(*, base: Mapping[str, Floats], rank_base: Mapping[str, Floats]) -> Floats:
    """Section 4: one minus the smallest gate rank over the four base diagnostics."""
    ranks = [gate_ranks(values=base[name], gate_values=rank_base[name]) for name in DIAGNOSTICS[:4]]
    return np.asarray(1.0 - np.min(ranks, axis=0))


def auroc(*, values: Floats, positive: Booleans) -> float:
    """Section 4: share of (positive, negative) pairs in the right order, ties half."""
    positives, negatives = values[positive], values[~positive]
    doubled = 0
    for value in positives:
        doubled += 2 * int((negatives < value).sum()) + int((negatives == value).sum())
    return doubled / (2 * len(positives) * len(negatives))


class Audit(NamedTuple):
    """The frozen audit: its diagnostic and the gate values behind p_audit and behind the fused ranks."""

    name: str | None
    auroc: float
    reference: Floats
    rank_base: dict[str, Floats]
    gate_values: Floats


def fit_audit(*, reference: Role, validation: Role, gate: Role, n_classes: int, settings: Mapping[str, Any]) -> Audit:
    """Section 4: choose the diagnostic on validation and freeze the gate."""
    reference_rows = unit_rows(embeddings=reference.embeddings)
    if settings["audit"] is None:
        return Audit(None, math.nan, reference_rows, {}, np.empty(0))
    candidates = [name for name in DIAGNOSTICS if name in tuple(settings["audit"])]

    validation_base = base_diagnostics(role=validation, reference=reference_rows, settings=settings)
    gate_base = base_diagnostics(role=gate, reference=reference_rows, settings=settings)
    n_gate = len(gate.embeddings)
    if settings["fused"] == "split":
        shuffled = np.random.default_rng(settings["random_state"]).permutation(n_gate)
        rank_rows, audit_rows = shuffled[: n_gate // 2], shuffled[n_gate // 2 :]
    elif settings["fused"] == "paper":
        rank_rows = audit_rows = np.arange(n_gate)
    else:
        raise ValueError("fused is 'paper' or 'split'")
    rank_base = {name: values[rank_rows] for name, values in gate_base.items()}
    validation_values = dict(validation_base)
    gate_values = dict(gate_base)
    if "fused" in candidates:
        validation_values["fused"] = fused_diagnostic(base=validation_base, rank_base=rank_base)
        gate_values["fused"] = fused_diagnostic(base=gate_base, rank_base=rank_base)

    probabilities = robust_probabilities(prompt_logits=validation.prompt_logits, trim=settings["trim"])
    labels = check_labels(labels=validation.labels, n_classes=n_classes)
    wrong = top_labels(probabilities=probabilities) != labels
    chosen, best = candidates[0], math.nan
    if wrong.any() and not wrong.all():
        best = -1.0
        for name in candidates:
            area = auroc(values=validation_values[name], positive=wrong)
            if area > best:
                chosen, best = name, area
    return Audit(chosen, best, reference_rows, rank_base, gate_values[chosen][audit_rows])


def audit_p_values(*, audit: Audit, role: Role, settings: Mapping[str, Any]) -> Floats:
    """Section 4: p_audit of every image of a role; one where there is no audit."""
    if audit.name is None:
        return np.ones(len(role.embeddings))
    base = base_diagnostics(role=role, reference=audit.reference, settings=settings)
    if audit.name == "fused":
        values = fused_diagnostic(base=base, rank_base=audit.rank_base)
    else:
        values = base[audit.name]
    return gate_ranks(values=values, gate_values=audit.gate_values)


# Section 5: the localized threshold.


def needed_rank(*, n_points: int, miscoverage: float) -> int:
    """k = ceil((n + 1)(1 - delta))."""
    return math.ceil((n_points + 1) * (1 - miscoverage))


def kernel_weights(*, distances: Floats, bandwidth: float) -> Floats:
    """Section 5: H = exp(-d^2 / h^2), one everywhere for an infinite h."""
    if math.isinf(bandwidth):
        return np.ones_like(distances)
    return np.exp(-(distances**2) / bandwidth**2)


class LocalizedRule(NamedTuple):
    """Section 5 fitted on accepted examples: strict sums A, whole sums B, rank k and the frozen level."""

    embeddings: Floats
    scores: Floats
    bandwidth: float
    level_rule: str
    grid: int | None
    rank: int
    strict_sums: Floats
    whole_sums: Floats
    level: float | None
    level_margin: float


def fit_localized_rule(
    *, embeddings: Floats, scores: Floats, bandwidth: float, miscoverage: float, level_rule: str, grid: int | None
) -> LocalizedRule:
    """Section 5: sums A_i and B_i, and the level where one number serves all points."""
    n_points = len(scores)
    strict_sums, whole_sums = np.empty(n_points), np.empty(n_points)
    for i in range(n_points):
        distances = cosine_distances(point=embeddings[i], others=embeddings)
        weights = kernel_weights(distances=distances, bandwidth=bandwidth)
        weights[i] = 1.0
        strict_sums[i] = weights[scores < scores[i]].sum()
        whole_sums[i] = weights.sum()
    rank = needed_rank(n_points=n_points, miscoverage=miscoverage)
    level: float | None = None
    level_margin = math.inf
    if level_rule in ("loo", "certified"):
        level = math.inf
        if rank <= n_points and level_rule == "certified":
            level = float(np.sort((strict_sums + 1.0) / (whole_sums + 1.0))[rank - 1])
        elif rank <= n_points and grid is None:
            level = float(np.sort(strict_sums / whole_sums)[rank - 1])
        elif rank <= n_points and grid is not None:
            level, level_margin = grid_level(ratios=strict_sums / whole_sums, rank=rank, grid=grid)
    elif level_rule not in ("exact", "upper"):
        raise ValueError(f"unknown level rule {level_rule!r}")
    return LocalizedRule(
        embeddings, scores, bandwidth, level_rule, grid, rank, strict_sums, whole_sums, level, level_margin
    )


def grid_level(*, ratios: Floats, rank: int, grid: int) -> tuple[float, float]:
    """Section 5: the smallest grid level that covers `rank` points, and how near the choice was to another."""
    decisive = float(np.sort(ratios)[rank - 1])
    previous = -math.inf
    for step in range(grid):
        level = step / (grid - 1)
        if int((ratios < level - LEVEL_TOLERANCE).sum()) >= rank:
            return level, min(abs(level - decisive), abs(decisive - previous))
        previous = level
    raise AssertionError("every ratio lies below one, so level one always serves")


def localized_threshold(*, rule: LocalizedRule, point: Floats) -> tuple[float, float]:
    """Section 5: tau(x), and the smallest distance of a cumulative weight to the level it is compared with."""
    n_points = len(rule.scores)
    if rule.rank > n_points:
        return math.inf, math.inf
    distances = cosine_distances(point=point, others=rule.embeddings)
    weights = kernel_weights(distances=distances, bandwidth=rule.bandwidth)
    if rule.level_rule == "exact":
        return exact_threshold(rule=rule, weights=weights)

    # F_x at each distinct calibration score.
    order = np.argsort(rule.scores, kind="stable")
    values = rule.scores[order]
    last_of_ties = np.append(values[1:] != values[:-1], True)
    atoms = values[last_of_ties]
    cumulative = np.cumsum(weights[order])[last_of_ties] / (1.0 + weights.sum())

    if rule.level_rule == "upper":
        ratios = (rule.strict_sums + weights) / (rule.whole_sums + weights)
        level = float(np.sort(ratios)[rule.rank - 1])
    else:
        assert rule.level is not None
        level = rule.level
    if rule.level_rule == "loo" and rule.grid is not None:
        reached = cumulative >= level - LEVEL_TOLERANCE
    else:
        reached = cumulative > level + LEVEL_TOLERANCE
    threshold = float(atoms[reached][0]) if reached.any() else math.inf
    return threshold, float(np.abs(cumulative - level).min())


def exact_threshold(*, rule: LocalizedRule, weights: Floats) -> tuple[float, float]:
    """Local CP (docs/baselines.md), the simpler form: the largest V_k with S_k < 1 - delta.

    S_k does not decrease in k, so k is found by bisection. The margin is how far all the ratios could move together
    before k changes: at k and at the next one, the distance between theta~_k and the ratio that decides the count.
    """
    atoms = np.append(np.unique(rule.scores), math.inf)
    lower = rule.strict_sums / (rule.whole_sums + weights)
    upper = (rule.strict_sums + weights) / (rule.whole_sums + weights)
    total = 1.0 + weights.sum()

    def gaps(position: int) -> Floats:
        below = rule.scores < atoms[position]
        reached = weights[below].sum() / total
        return np.asarray(reached - np.where(below, lower, upper))

    def admits(position: int) -> bool:
        return int((gaps(position) > LEVEL_TOLERANCE).sum()) < rule.rank

    def decisive_gap(position: int) -> float:
        return abs(float(np.sort(gaps(position))[::-1][rule.rank - 1]))

    if admits(len(atoms) - 1):
        return math.inf, decisive_gap(len(atoms) - 1)
    yes, no = 0, len(atoms) - 1
    while no - yes > 1:
        middle = (yes + no) // 2
        if admits(middle):
            yes = middle
        else:
            no = middle
    return float(atoms[yes]), min(decisive_gap(yes), decisive_gap(no))


# Section 6: the bandwidth.


def bandwidth_of_share(*, embeddings: Floats, share: float) -> float:
    """Section 6: the h at which the median neighbour mass is share (n - 1), by bisection in log h."""
    n_points = len(embeddings)
    # The second operand is a copy because some BLAS builds fail on a product of a large array with itself.
    distances = 1.0 - embeddings @ embeddings.T.copy()
    np.fill_diagonal(distances, math.inf)
    squared = distances**2
    target = share * (n_points - 1)
    low, high = math.log(SMALLEST_BANDWIDTH), math.log(LARGEST_BANDWIDTH)
    while math.exp(high - low) - 1.0 > 1e-9:
        middle = 0.5 * (low + high)
        masses = np.exp(-squared / math.exp(middle) ** 2).sum(axis=1)
        if np.median(masses) < target:
            low = middle
        else:
            high = middle
    return math.exp(0.5 * (low + high))


class Pilot(NamedTuple):
    """Held-out results of the cross-fitted pilot, in the order of the accepted validation rows."""

    thresholds: Floats
    covered: Booleans
    sets: Booleans


def cross_fitted_pilot(
    *,
    embeddings: Floats,
    scores: Floats,
    labels: Integers,
    bandwidth: float,
    miscoverage: float,
    settings: Mapping[str, Any],
) -> Pilot:
    """Section 7: the `loo` rule fitted on the other folds, applied to each fold."""
    n_folds, seed = settings["n_folds"], settings["random_state"]
    if max(np.bincount(labels)) < n_folds:
        folds = KFold(n_splits=n_folds, shuffle=True, random_state=seed)
    else:
        folds = StratifiedKFold(n_splits=n_folds, shuffle=True, random_state=seed)
    true_scores = scores[np.arange(len(labels)), labels]
    thresholds = np.empty(len(labels))
    for others, held_out in quiet_split(folds=folds, labels=labels):
        rule = fit_localized_rule(
            embeddings=embeddings[others],
            scores=true_scores[others],
            bandwidth=bandwidth,
            miscoverage=miscoverage,
            level_rule="loo",
            grid=settings["level_grid"],
        )
        for image in held_out:
            thresholds[image], _ = localized_threshold(rule=rule, point=embeddings[image])
    return Pilot(thresholds, true_scores <= thresholds, scores <= thresholds[:, None])


def quiet_split(*, folds: KFold | StratifiedKFold, labels: Integers) -> list[tuple[Integers, Integers]]:
    """The folds, without the warning about classes rarer than the number of folds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return list(folds.split(np.zeros((len(labels), 1)), labels))


def choose_bandwidth(
    *,
    embeddings: Floats,
    scores: Floats,
    labels: Integers,
    miscoverage: float,
    settings: Mapping[str, Any],
    whole_trace: bool = True,
) -> tuple[float, list[Candidate]]:
    """Section 6: the first candidate whose pilot is supported and covers; the last if there is none."""
    if settings["bandwidth"] != "auto":
        return float(settings["bandwidth"]), []
    n_points = len(labels)
    if n_points == 0:
        raise ValueError("no accepted validation example")
    needed = 1 - miscoverage - math.sqrt(miscoverage * (1 - miscoverage) / n_points)
    trace: list[Candidate] = []
    chosen: float | None = None
    for share in SHARES:
        bandwidth = bandwidth_of_share(embeddings=embeddings, share=share)
        pilot = cross_fitted_pilot(
            embeddings=embeddings,
            scores=scores,
            labels=labels,
            bandwidth=bandwidth,
            miscoverage=miscoverage,
            settings=settings,
        )
        infinite_share = int(np.isinf(pilot.thresholds).sum()) / n_points
        coverage = int(pilot.covered.sum()) / n_points
        trace.append(Candidate(share, bandwidth, infinite_share, coverage))
        if chosen is None and infinite_share <= settings["support_budget"] and coverage >= needed:
            chosen = bandwidth
            if not whole_trace:
                break
    return (trace[-1].bandwidth if chosen is None else chosen), trace


# Section 7: class-tail discovery.


def discover_tail(
    *,
    embeddings: Floats,
    scores: Floats,
    labels: Integers,
    bandwidth: float,
    classes: Sequence[str],
    settings: Mapping[str, Any],
) -> list[int]:
    """Section 7: the protected classes."""
    n_classes = len(classes)
    if settings["protect"] == "all":
        return list(range(n_classes))
    if settings["protect"] == "none":
        return []
    if settings["protect"] != "discovered":
        raise ValueError("protect is 'discovered', 'all' or 'none'")
    pilot = cross_fitted_pilot(
        embeddings=embeddings,
        scores=scores,
        labels=labels,
        bandwidth=bandwidth,
        miscoverage=settings["miscoverage"],
        settings=settings,
    )
    needed = 1 - settings["miscoverage"] - settings["discovery_margin"]
    tail: list[int] = []
    for label, name in enumerate(classes):
        members = labels == label
        count = int(members.sum())
        named = name in settings["always_protect"]
        scarce = count < settings["min_class_count"]
        missed = count > 0 and int(pilot.covered[members].sum()) / count < needed - 1e-12
        if named or scarce or missed:
            tail.append(label)
    return tail


# Section 8: the guard.


def class_quantile(*, scores: Floats, miscoverage: float) -> float:
    """Section 8: the k_y-th smallest class score, infinite if there are too few."""
    rank = needed_rank(n_points=len(scores), miscoverage=miscoverage)
    return math.inf if rank > len(scores) else float(np.sort(scores)[rank - 1])


def guard_miscoverage_of(*, name: str, settings: Mapping[str, Any]) -> float:
    """Section 8: delta_y, the same for all or given per class."""
    given = settings["guard_miscoverage"]
    if isinstance(given, Mapping):
        return float(given.get(name, DEFAULT_GUARD_MISCOVERAGE))
    return float(given)


# Section 9: the decision.


def decide(*, p_audit: Floats, sets: Booleans, settings: Mapping[str, Any]) -> tuple[Integers, Integers, Integers]:
    """Section 9: action, reason and label of every image; label -1 unless the action is LABEL."""
    n_images, n_classes = sets.shape
    action = np.full(n_images, SET, dtype=np.int64)
    reason = np.full(n_images, NONE, dtype=np.int64)
    label = np.full(n_images, -1, dtype=np.int64)
    for image in range(n_images):
        size = int(sets[image].sum())
        if settings["audit"] is not None and p_audit[image] < settings["deferral_level"]:
            action[image], reason[image] = DEFER, LOW_SUPPORT
        elif size == 0:
            action[image], reason[image] = DEFER, EMPTY_SET
        elif settings["binary_utility"] and n_classes == 2 and size == 2:
            action[image], reason[image] = DEFER, FULL_SET
        elif size == 1:
            action[image] = LABEL
            label[image] = int(np.flatnonzero(sets[image])[0])
    return action, reason, label


def accepted_rows(*, p_audit: Floats, deferral_level: float, settings: Mapping[str, Any]) -> Booleans:
    """Section 4: accepted iff p_audit >= deferral level; everything where there is no audit."""
    if settings["audit"] is None:
        return np.ones(len(p_audit), dtype=bool)
    return p_audit >= deferral_level


def role_scores(*, role: Role, settings: Mapping[str, Any]) -> Floats:
    """Sections 2 and 3 together."""
    return aps_scores(probabilities=robust_probabilities(prompt_logits=role.prompt_logits, trim=settings["trim"]))


def oracle_fit_decide(
    *,
    reference: Role,
    validation: Role,
    gate: Role,
    calibration: Role,
    test: Role,
    classes: Sequence[str],
    settings: Mapping[str, Any],
) -> OracleResult:
    """METHOD.md from end to end: audit, bandwidth and tail frozen first, then calibration, then the test images.

    `margin` is, for each test image, the smallest distance of a cumulative weight to its level over the localized
    rule and the class rules of the guard; `level_margin` is how near the grid level itself was to another one.
    """
    settings = complete_settings(settings=settings)
    n_classes = len(classes)

    audit = fit_audit(reference=reference, validation=validation, gate=gate, n_classes=n_classes, settings=settings)

    kept = accepted_rows(
        p_audit=audit_p_values(audit=audit, role=validation, settings=settings),
        deferral_level=settings["deferral_level"],
        settings=settings,
    )
    validation_rows = unit_rows(embeddings=validation.embeddings)[kept]
    validation_scores = role_scores(role=validation, settings=settings)[kept]
    validation_labels = check_labels(labels=validation.labels, n_classes=n_classes)[kept]
    bandwidth, trace = choose_bandwidth(
        embeddings=validation_rows,
        scores=validation_scores,
        labels=validation_labels,
        miscoverage=settings["miscoverage"],
        settings=settings,
    )
    tail = discover_tail(
        embeddings=validation_rows,
        scores=validation_scores,
        labels=validation_labels,
        bandwidth=bandwidth,
        classes=classes,
        settings=settings,
    )

    kept = accepted_rows(
        p_audit=audit_p_values(audit=audit, role=calibration, settings=settings),
        deferral_level=settings["deferral_level"],
        settings=settings,
    )
    calibration_rows = unit_rows(embeddings=calibration.embeddings)[kept]
    calibration_labels = check_labels(labels=calibration.labels, n_classes=n_classes)[kept]
    calibration_scores = role_scores(role=calibration, settings=settings)[kept]
    true_scores = calibration_scores[np.arange(len(calibration_labels)), calibration_labels]
    rule = fit_localized_rule(
        embeddings=calibration_rows,
        scores=true_scores,
        bandwidth=bandwidth,
        miscoverage=settings["miscoverage"],
        level_rule=settings["level"],
        grid=settings["level_grid"],
    )
    tail_thresholds: dict[int, float] = {}
    class_rules: dict[int, LocalizedRule] = {}
    for label in tail:
        members = calibration_labels == label
        miscoverage = guard_miscoverage_of(name=classes[label], settings=settings)
        tail_thresholds[label] = class_quantile(scores=true_scores[members], miscoverage=miscoverage)
        if int(members.sum()) >= settings["class_local_min"]:
            class_rules[label] = fit_localized_rule(
                embeddings=calibration_rows[members],
                scores=true_scores[members],
                bandwidth=bandwidth,
                miscoverage=miscoverage,
                level_rule=settings["level"],
                grid=settings["level_grid"],
            )

    p_audit = audit_p_values(audit=audit, role=test, settings=settings)
    scores = role_scores(role=test, settings=settings)
    n_test = len(scores)
    localized = np.empty(n_test)
    threshold = np.empty((n_test, n_classes))
    margin = np.empty(n_test)
    for image, point in enumerate(unit_rows(embeddings=test.embeddings)):
        localized[image], margin[image] = localized_threshold(rule=rule, point=point)
        threshold[image] = localized[image]
        for label in tail:
            class_threshold = tail_thresholds[label]
            if label in class_rules:
                class_local, class_margin = localized_threshold(rule=class_rules[label], point=point)
                class_threshold = max(class_threshold, class_local)
                margin[image] = min(margin[image], class_margin)
            threshold[image, label] = max(localized[image], class_threshold)
    localized_sets = scores <= localized[:, None]
    if settings["keep_top"]:
        tops = top_labels(probabilities=robust_probabilities(prompt_logits=test.prompt_logits, trim=settings["trim"]))
        for image, top in enumerate(tops):
            localized_sets[image, top] = True
            if threshold[image, top] < scores[image, top]:
                threshold[image, top] = scores[image, top]
    sets = scores <= threshold
    action, reason, label_of = decide(p_audit=p_audit, sets=sets, settings=settings)
    level_margins = [rule.level_margin] + [each.level_margin for each in class_rules.values()]
    return OracleResult(
        audit_name=audit.name,
        audit_auroc=audit.auroc,
        bandwidth=bandwidth,
        bandwidth_trace=trace,
        local_level=rule.level,
        tail=tail,
        tail_thresholds=tail_thresholds,
        p_audit=p_audit,
        scores=scores,
        localized_threshold=localized,
        threshold=threshold,
        localized_sets=localized_sets,
        sets=sets,
        action=action,
        reason=reason,
        label=label_of,
        answered=action != DEFER,
        margin=margin,
        level_margin=min(level_margins),
    )


def worst_class_coverage(*, covered: Booleans, labels: Integers, n_classes: int, min_n: int = 20) -> float:
    """Section 11: the smallest class coverage among classes with 20 answered, or among all where none has as many."""
    members = {label: labels == label for label in range(n_classes) if (labels == label).any()}
    large = {label: rows for label, rows in members.items() if int(rows.sum()) >= min_n}
    return min(int(covered[rows].sum()) / int(rows.sum()) for rows in (large or members).values())


def score_operating_point(
    *,
    target_coverage: float,
    deferral_level: float,
    bandwidth: float,
    pilot: Pilot,
    labels: Integers,
    n_validation: int,
    costs: tuple[float, float, float],
) -> OperatingPoint:
    """Section 9: the numbers and the risk of one point, over answered images: accepted, set not empty."""
    error_cost, set_cost, deferral_cost = costs
    n_classes = pilot.sets.shape[1]
    sizes = pilot.sets.sum(axis=1)
    answered = sizes > 0  # the pilot holds accepted examples only
    count = int(answered.sum())
    deferral = (n_validation - count) / n_validation
    informative_rate = int(((sizes > 0) & (sizes < n_classes)).sum()) / n_validation
    if count == 0:
        return OperatingPoint(
            target_coverage,
            deferral_level,
            bandwidth,
            deferral_cost * deferral,
            math.nan,
            math.nan,
            math.nan,
            deferral,
            len(sizes),
            informative_rate,
        )
    coverage = int(pilot.covered[answered].sum()) / count
    worst = worst_class_coverage(covered=pilot.covered[answered], labels=labels[answered], n_classes=n_classes)
    size = int(sizes[answered].sum()) / count
    loss = error_cost * (1 - coverage) + error_cost / 2 * (1 - worst) + set_cost * (size - 1) / (n_classes - 1)
    risk = (1 - deferral) * loss + deferral_cost * deferral
    return OperatingPoint(
        target_coverage, deferral_level, bandwidth, risk, coverage, worst, size, deferral, len(sizes), informative_rate
    )


def oracle_operating_point(
    *,
    reference: Role,
    validation: Role,
    gate: Role,
    costs: str | tuple[float, float, float],
    settings: Mapping[str, Any],
) -> OracleOperatingPoint:
    """Section 9: the operating point on validation alone; the bandwidth is chosen anew at every point."""
    settings = complete_settings(settings=settings)
    prices = COST_REGIMES[costs] if isinstance(costs, str) else costs
    n_classes = np.asarray(validation.prompt_logits).shape[2]
    audit = fit_audit(reference=reference, validation=validation, gate=gate, n_classes=n_classes, settings=settings)
    p_audit = audit_p_values(audit=audit, role=validation, settings=settings)
    rows = unit_rows(embeddings=validation.embeddings)
    scores = role_scores(role=validation, settings=settings)
    labels = check_labels(labels=validation.labels, n_classes=n_classes)

    points: list[OperatingPoint] = []
    for target_coverage in TARGET_COVERAGES:
        for deferral_level in DEFERRAL_LEVELS:
            miscoverage = round(1 - target_coverage, 12)
            kept = accepted_rows(p_audit=p_audit, deferral_level=deferral_level, settings=settings)
            bandwidth, _ = choose_bandwidth(
                embeddings=rows[kept],
                scores=scores[kept],
                labels=labels[kept],
                miscoverage=miscoverage,
                settings=settings,
                whole_trace=False,
            )
            pilot = cross_fitted_pilot(
                embeddings=rows[kept],
                scores=scores[kept],
                labels=labels[kept],
                bandwidth=bandwidth,
                miscoverage=miscoverage,
                settings=settings,
            )
            points.append(
                score_operating_point(
                    target_coverage=target_coverage,
                    deferral_level=deferral_level,
                    bandwidth=bandwidth,
                    pilot=pilot,
                    labels=labels[kept],
                    n_validation=len(labels),
                    costs=prices,
                )
            )

    constraints: dict[str, Callable[[OperatingPoint], bool]] = {
        "informative": lambda point: point.informative_rate >= 0.02,
        "count": lambda point: point.accepted >= 50,
        "coverage": lambda point: point.coverage >= 0.95,
    }
    names = list(constraints)
    for n_dropped in range(len(names) + 1):
        required = [constraints[name] for name in names[n_dropped:]]
        feasible = [point for point in points if all(holds(point) for holds in required)]
        if feasible:
            best = min(feasible, key=lambda point: (point.risk, -point.target_coverage, point.deferral_level))
            return OracleOperatingPoint(best.target_coverage, best.deferral_level, points, tuple(names[:n_dropped]))
    raise AssertionError("with every constraint dropped every point is feasible")
