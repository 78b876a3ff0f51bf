"""False alarms of M1, M2 and M3 over shift-free streams, and of twins that break one rule each (SITE.md S7)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from monitor_streams import LEVEL, MOST_FALSE_ALARMS, N_IMAGES, N_STREAMS, Floats, jumper_peak, rank_p_values

from calcode.metrics.intervals import wilson_interval
from calcode.monitor import Case, CoverageProcess, ExchangeabilityMartingale, Watch

#: A twin shows itself in fewer streams than it takes to trust a monitor.
N_TWINS = 50


def alarms(gates: Iterable[Floats], streams: Iterable[Floats], *, n_first: int = 0) -> int:
    """Streams in which a martingale at LEVEL ever alarms."""
    count = 0
    for seed, (gate, stream) in enumerate(zip(gates, streams, strict=True)):
        martingale = ExchangeabilityMartingale(gate, alpha=LEVEL, seed=seed, n_first=n_first)
        for value in stream.tolist():
            martingale.update(value)
        count += martingale.reading.alarm_at is not None
    return count


def test_support_keeps_its_level() -> None:
    rng = np.random.default_rng(0)
    gates = rng.gamma(3.0, size=(N_STREAMS, 300))
    assert alarms(gates, rng.gamma(3.0, size=(N_STREAMS, N_IMAGES))) <= MOST_FALSE_ALARMS


def test_scores_keep_their_level_with_the_first_cases_as_reference() -> None:
    rng = np.random.default_rng(1)
    # Many ties: scores of a sure model pile up at 0.
    streams = rng.beta(0.3, 2.0, size=(N_STREAMS, N_IMAGES)).round(2)
    assert alarms([np.empty(0)] * N_STREAMS, streams, n_first=20) <= MOST_FALSE_ALARMS


def test_coverage_keeps_its_level_at_the_line_itself() -> None:
    rng = np.random.default_rng(2)
    false = 0
    for misses in rng.random((N_STREAMS, N_IMAGES)) < 0.1:
        process = CoverageProcess(line=0.1, alpha=LEVEL)
        for missed in misses.tolist():
            process.update(missed)
        false += process.reading.alarm_at is not None
    assert false <= MOST_FALSE_ALARMS


def test_twin_ranks_in_a_fixed_gate_raise_false_alarms() -> None:
    rng = np.random.default_rng(3)
    gates, streams = rng.normal(size=(N_STREAMS, 50)), rng.normal(size=(N_STREAMS, N_IMAGES))
    uniform = rng.random((N_STREAMS, N_IMAGES))
    fixed = [rank_p_values(*row, growing=False) for row in zip(streams, gates, uniform, strict=True)]
    assert (jumper_peak(np.array(fixed)) >= 1 / LEVEL).sum() > 2 * MOST_FALSE_ALARMS
    growing = [rank_p_values(*row) for row in zip(streams[:N_TWINS], gates, uniform, strict=False)]
    assert (jumper_peak(np.array(growing)) >= 1 / LEVEL).sum() <= 4  # P(Binomial(50, 0.01) > 4) = 2e-4


def test_twin_a_wilson_interval_at_every_look_raises_false_alarms() -> None:
    rng = np.random.default_rng(4)
    misses = np.cumsum(rng.random((N_STREAMS, N_IMAGES)) < 0.1, axis=1)
    low, _ = wilson_interval(misses, np.arange(1, N_IMAGES + 1), confidence=1 - LEVEL)
    assert (low > 0.1).any(axis=1).sum() > 2 * MOST_FALSE_ALARMS


@pytest.mark.parametrize("votes", [3, 20], ids=["images of a lesion", "visits of a patient"])
def test_twin_several_votes_of_a_group_raise_false_alarms(votes: int) -> None:
    rng = np.random.default_rng(5)
    gates = rng.normal(size=(N_TWINS, 300))
    groups = rng.normal(size=(N_TWINS, 600))
    # Images of a lesion follow each other; visits of a patient lie close together in time.
    several = np.repeat(groups, votes, axis=1)[:, :N_IMAGES]
    several = several + 0.1 * rng.normal(size=several.shape)
    assert alarms(gates, several) > N_TWINS // 2
    assert alarms(gates, groups) <= 4


def test_twin_the_home_gate_alarms_at_an_unchanged_site_and_the_site_gate_does_not() -> None:
    rng = np.random.default_rng(6)
    home, site = rng.normal(size=(N_TWINS, 300)), rng.normal(loc=1.0, size=(N_TWINS, 300))
    stream = rng.normal(loc=1.0, size=(N_TWINS, 500))
    assert alarms(home, stream) == N_TWINS
    assert alarms(site, stream) <= 4


def test_all_monitors_together_keep_the_level_of_the_watch() -> None:
    rng = np.random.default_rng(7)
    n_streams, n_images, level = 100, 150, 0.2
    false = 0
    for stream in range(n_streams):
        watch = Watch(
            classes=("a", "b", "c"),
            model_digest="",
            gate=rng.random(50),
            references={"a": rng.random(20)},
            lines={"a": 0.1, "b": 0.2, "c": 0.3},
            false_alarm=level,
            random_state=stream,
        )
        for image in range(n_images):
            label = int(rng.integers(3))
            missed = rng.random() < (0.1, 0.2, 0.3)[label]
            case = Case(() if missed else (label,), True, missed, tuple(rng.random(3).tolist()))
            watch.observe(str(image), group=str(image), case=case, distance=float(rng.random()))
            watch.review(str(image), label=label)
        false += bool(watch.alarms)
    assert false <= 33  # P(Binomial(100, 0.2) > 33) = 0.001
    assert false > 0  # a bound of 0.2 that nothing ever reaches would hide a monitor that never speaks


def test_real_images_of_another_camera_are_seen_within_twenty_images() -> None:
    pytest.importorskip("calcode_demo_data", reason="the demonstration data are a distribution of their own")
    from calcode.demo.cohorts import demo_features
    from calcode.method.audit import neighbour_distance

    images = demo_features().read()
    parts = {name: images.with_role(name).evidence for name in ("reference", "gate", "test", "external")}
    values = {
        name: neighbour_distance(part.embeddings, reference=parts["reference"].embeddings, n_neighbors=10)
        for name, part in parts.items()
        if name != "reference"
    }
    rng = np.random.default_rng(8)

    def one_each(name: str) -> Floats:
        shuffled = rng.permutation(len(values[name]))
        _, first = np.unique(np.asarray(parts[name].groups)[shuffled], return_index=True)
        return values[name][shuffled[rng.permutation(first)]]

    delays = []
    for stream in range(30):
        martingale = ExchangeabilityMartingale(one_each("gate"), alpha=LEVEL, seed=stream)
        for value in [*one_each("test")[:300], *one_each("external")[:100]]:
            martingale.update(value)
        delays.append(martingale.reading.alarm_at or np.inf)
    assert 300 < np.median(delays) <= 320
