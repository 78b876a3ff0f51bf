"""M2 and M3 of SITE.md S7 read word by word from the events of a log, slowly and without `calcode.monitor`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import stats

STAKES = [0.999 * share for share in (0.1, 0.25, 0.5, 0.75, 0.95)]


def line_of(n: int, delta: float, gamma: float) -> float:
    """max(delta + gamma, the 0.995-quantile of 1 - Beta(k, n + 1 - k)), where the class can be excluded at all."""
    k = math.ceil((n + 1) * (1 - delta) - 1e-9)
    return max(delta + gamma, float(stats.beta.ppf(0.995, n + 1 - k, k))) if k <= n else delta + gamma


def jumper(reference: list[float], values: list[float], *, n_first: int, seed: list[int]) -> float:
    """Logarithm of the simple jumper's capital on smoothed ranks among the reference and all earlier values."""
    seen, chance = list(reference), np.random.Generator(np.random.PCG64(seed))
    accounts = {-1: 1 / 3, 0: 1 / 3, 1: 1 / 3}
    for t, value in enumerate(values):
        if t >= n_first:
            greater, equal = sum(other > value for other in seen), sum(other == value for other in seen)
            p = (greater + chance.random() * (1 + equal)) / (len(seen) + 1)
            total = sum(accounts.values())
            accounts = {
                e: (0.99 * own + 0.01 * total / 3) * (1 + 0.999 * e * (2 * p - 1)) for e, own in accounts.items()
            }
        seen.append(value)
    return math.log(sum(accounts.values()))


def misses(xs: list[bool], line: float) -> float:
    """Logarithm of the mean over the stakes of prod (1 + lambda (x - line)), lambda = stake / line."""
    return math.log(np.mean([math.prod(1 + stake / line * (x - line) for x in xs) for stake in STAKES]))


@dataclass
class Bag:
    """What one reference has seen: its model now, the drawn cases that wait, and the votes."""

    first_model: str
    model: str
    #: (decision, model that decided it, zero-shot scores), in decision order.
    waiting: list[tuple[str, str, list[float]]] = field(default_factory=list)
    scores: dict[str, list[float]] = field(default_factory=dict)
    missed: dict[str, list[bool]] = field(default_factory=dict)


def bags_of(events: Iterable[tuple[str, str, str]], *, levels: Mapping[str, float]) -> dict[str, Bag]:
    """The votes of every reference.

    Parameters
    ----------
    events : iterable of (kind, id, body)
        Of one line, in the order of the log.
    levels : mapping
        Model to the smallest p_audit that it accepts.
    """
    decided: dict[str, dict[str, Any]] = {}
    labels: dict[str, str] = {}
    bag_of: dict[str, str] = {}
    bags: dict[str, Bag] = {}
    voted: dict[str, set[str]] = {}
    for kind, id, text in events:
        body = json.loads(text)
        if kind == "decision":
            decided[id] = body
        elif kind == "recalibration":
            bag_of[body["report"]["digest"]] = body["report"]["bag"]
        elif kind == "label_received":
            labels[body["decision"]] = body["label"]
        elif kind == "measured":
            name = bag_of.get(body["model"], f"home-{body['model'][:16]}")
            bag = bags.setdefault(name, Bag(body["model"], body["model"]))
            if bag.model != body["model"]:
                bag.model, bag.missed = body["model"], {}
            for decision, _, scores in body["rows"]:
                patient = decided[decision]["group"]
                if patient not in voted.setdefault(name, set()):
                    voted[name].add(patient)
                    if decided[decision]["u"] < decided[decision]["p_sample"]:
                        bag.waiting.append((decision, body["model"], scores))
        else:
            continue
        for bag in bags.values():
            while bag.waiting and bag.waiting[0][0] in labels:
                decision, model, scores = bag.waiting.pop(0)
                answer, label = decided[decision], labels[decision]
                if answer["p_audit"] < levels[model]:
                    continue
                bag.scores.setdefault(label, []).append(scores[int(label[1:])])
                if model == bag.model:
                    open_ = answer["action"] == "defer" and answer["reason"] != "empty_set"
                    bag.missed.setdefault(label, []).append(not open_ and label not in answer["set"])
    return bags
