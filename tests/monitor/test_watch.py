from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calcode.errors import ArtifactError, CalcodeError, EvidenceError
from calcode.files import canonical_json
from calcode.monitor import Case, Watch

CLASSES = ("bcc", "mel", "nv")


def make_watch(**changes: Any) -> Watch:
    rng = np.random.default_rng(0)
    values: dict[str, Any] = {
        "classes": CLASSES,
        "model_digest": "m1",
        "gate": rng.random(100),
        "references": {"nv": rng.random(40)},
        "lines": {"bcc": 0.1, "mel": 0.24, "nv": 0.12},
    }
    return Watch(**(values | changes))


def case(*labels: int, accepted: bool = True, scores: tuple[float, ...] = (0.2, 0.5, 0.3)) -> Case:
    return Case(labels, accepted, not accepted or not labels, scores)


def play(watch: Watch, rows: range, *, seed: int = 1) -> None:
    """Observe some images and review most of them, late."""
    rng = np.random.default_rng(seed)
    draws = rng.random((1000, 8))
    for i in rows:
        a = draws[i]
        labels = tuple(int(j) for j in np.flatnonzero(a[:3] < 0.6))
        watch.observe(
            f"i{i}", group=f"g{i // 2}", case=case(*labels, scores=tuple(a[3:6])), distance=float(a[6]), when=f"t{i}"
        )
        if i >= 10:
            late = draws[i - 10, 7]
            watch.review(f"i{i - 10}", label=None if late < 0.05 else int(late * 7) % 4 - 1, when=f"t{i}")


def test_false_alarms_are_divided_as_written() -> None:
    watch = make_watch(false_alarm=0.03)
    assert watch.support is not None
    assert watch.support.alpha == pytest.approx(0.01)
    assert {entry.scores.alpha for entry in watch.classes.values()} == {0.03 / 3 / 3}
    assert {entry.coverage.alpha for entry in watch.classes.values()} == {0.03 / 3 / 3}
    site = make_watch(false_alarm=0.03, recalibrations=1)
    assert {entry.scores.alpha for entry in site.classes.values()} == {0.03 / 3 / 3}
    spent = 0.0
    for number in range(30):
        spent += site.classes["mel"].coverage.alpha
        site.recalibrate(lines=dict.fromkeys(CLASSES, 0.1), model_digest=f"m{number}")
    assert spent <= 0.03 / 3 / 3


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ((), "holds fewer than two classes"),
        (("mel",), "holds fewer than two classes"),
        (("mel", "nv", "mel"), "named more than once"),
    ],
)
def test_classes_are_two_or_more_different_names(classes: tuple[str, ...], message: str) -> None:
    with pytest.raises(EvidenceError, match=f"^classes: .*{message}"):
        make_watch(classes=classes, references={}, lines=dict.fromkeys(classes, 0.1))


def test_a_group_votes_once_whatever_it_sends_later() -> None:
    watch = make_watch()
    assert watch.observe("a", group="p", case=case(0), distance=0.5)
    assert not watch.observe("b", group="p", case=case(0), distance=0.9)
    assert watch.support is not None
    assert watch.support.reading.n == 1
    assert watch.knows("b")
    assert not watch.review("b", label=0)
    assert watch.review("a", label=0)
    assert not watch.review("a", label=0)
    assert watch.classes["bcc"].counts.n == 1


def test_a_case_that_was_not_drawn_is_not_kept_for_a_label() -> None:
    watch = make_watch()
    assert watch.observe("a", group="p", case=case(0), distance=0.5, drawn=False)
    assert watch.answers.n == 1
    assert watch.to_state()["waiting"] == {}
    assert not watch.review("a", label=0)
    assert watch.classes["bcc"].counts.n == 0


def test_an_image_without_a_group_is_its_own() -> None:
    watch = make_watch()
    assert watch.observe("a", group="", case=case(0), distance=0.5)
    assert watch.observe("b", group="", case=case(0), distance=0.5)
    assert not watch.observe("b", group="", case=case(0), distance=0.5)


def test_what_counts_where() -> None:
    watch = make_watch()
    cases = {
        "covered": (case(1, 2), 1),
        "missed": (case(2), 1),
        "empty": (case(), 1),
        "full": (case(0, 1, 2), 1),
        "deferred": (case(2, accepted=False), 1),
        "outside": (case(2), -1),
        "unlabelled": (case(2), None),
    }
    for name, (decided, label) in cases.items():
        watch.observe(name, group=name, case=decided, distance=0.5)
        assert watch.review(name, label=label)
    mel, nv = watch.classes["mel"], watch.classes["nv"]
    assert tuple(mel.counts) == (2, 2, 1)  # covered and full; missed and empty; unlabelled
    assert (mel.size_sum, mel.n_full) == (6, 1)
    assert (mel.coverage.misses, mel.coverage.reading.n) == (2, 5)
    assert mel.scores.reading.n == 4
    assert tuple(nv.counts) == (0, 0, 1)
    assert (watch.n_out_of_space, watch.n_not_accepted) == (1, 1)
    # Answered: all but the empty and the deferred one.
    assert tuple(watch.answers) == (7, 2, 1, 2 + 1 + 3 + 1 + 1)


def test_a_late_label_of_a_model_that_is_gone_leaves_the_new_process_alone() -> None:
    watch = make_watch(recalibrations=1)
    watch.observe("old", group="old", case=case(0), distance=0.5)
    watch.recalibrate(lines=dict.fromkeys(CLASSES, 0.2), model_digest="m2")
    watch.observe("new", group="new", case=case(0), distance=0.5)
    watch.review("old", label=1)
    watch.review("new", label=1)
    mel = watch.classes["mel"]
    assert mel.coverage.reading.n == 1
    assert mel.scores.reading.n == mel.counts.n == 2


def test_alarms_name_their_time_class_and_evidence_once() -> None:
    watch = make_watch()
    for i in range(60):
        watch.observe(f"i{i}", group=f"g{i}", case=case(0), distance=2.0 + i, when=f"day {i}")
    for i in range(60):
        watch.review(f"i{i}", label=1, when=f"day {60 + i}")
    support, coverage = watch.alarms
    assert (support.monitor, support.name, support.when) == ("M1", "", f"day {support.n - 1}")
    assert support.log_capital >= np.log(300)
    assert (coverage.monitor, coverage.name, coverage.when) == ("M3", "mel", f"day {59 + coverage.n}")
    assert "'mel' is missed" in coverage.finding
    assert "'mel'" in coverage.advice


def test_without_a_gate_support_is_off() -> None:
    watch = make_watch(gate=None)
    assert watch.support is None
    assert watch.observe("a", group="p", case=case(0), distance=None)
    with pytest.raises(CalcodeError, match="distance"):
        make_watch().observe("a", group="p", case=case(0), distance=None)


def test_a_watch_resumed_from_its_file_is_the_uninterrupted_one(tmp_path: Path) -> None:
    path = tmp_path / "monitor.json"
    whole, cut = make_watch(), make_watch()
    play(whole, range(400))
    for start in range(0, 400, 80):
        play(cut, range(start, start + 80))
        cut.save(path)
        cut = Watch.load(path)
    assert cut.to_state() == whole.to_state()
    assert cut.alarms == whole.alarms
    assert [entry.name for entry in tmp_path.iterdir()] == ["monitor.json"]


def test_no_id_or_group_is_in_the_file(tmp_path: Path) -> None:
    watch = make_watch()
    watch.observe("Ada Example", group="patient Ada", case=case(0), distance=0.5)
    watch.save(tmp_path / "monitor.json")
    assert "Ada" not in (tmp_path / "monitor.json").read_text()


def _set(state: dict[str, Any], *path: str | int, value: object) -> None:
    target: Any = state
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("false_alarm",), 2.0),
        (("classes",), []),
        (("classes", 1, "name"), "bcc"),
        (("classes", 0, "watch", "n_full"), 10**6),
        (("classes", 0, "watch", "counts", "hits"), 3),
        (("classes", 0, "watch", "as_hits", "values"), [2.0]),
        (("support", "values"), "abc"),
        (("support_history",), []),
        (("alarms",), [{"monitor": "M9"}]),
        (("ids",), ["x"]),
        (("groups",), [1]),
        (("waiting",), {"0" * 32: {}}),
        (("recalibrations",), 10**9),
        (("hash_key",), None),
    ],
)
def test_a_state_that_makes_no_sense_is_refused_though_its_digest_is_right(
    tmp_path: Path, path: tuple[str | int, ...], value: object
) -> None:
    import hashlib

    watch = make_watch()
    play(watch, range(60))
    state = json.loads(canonical_json(watch.to_state()))
    _set(state, *path, value=value)
    digest = hashlib.sha256(canonical_json(state).encode()).hexdigest()
    file = tmp_path / "monitor.json"
    file.write_text(canonical_json({"calcode_monitor": 1, "digest": digest, "state": state}))
    with pytest.raises(ArtifactError, match=r"monitor\.json"):
        Watch.load(file)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"calcode_monitor": 2}',
        b'{"calcode_monitor": 1}',
        b'{"calcode_monitor": 1, "digest": "0", "state": NaN}',
        b"[" * 100_000,
    ],
)
def test_a_file_that_is_no_state_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "monitor.json"
    file.write_bytes(content)
    with pytest.raises(ArtifactError, match=r"monitor\.json"):
        Watch.load(file)


def test_an_altered_state_is_refused(tmp_path: Path) -> None:
    watch = make_watch()
    play(watch, range(60))
    file = tmp_path / "monitor.json"
    watch.save(file)
    file.write_text(file.read_text().replace('"n_full":', '"n_full":1', 1))
    with pytest.raises(ArtifactError, match="altered"):
        Watch.load(file)


def test_lines_must_be_those_of_the_classes() -> None:
    with pytest.raises(CalcodeError, match="lines"):
        make_watch(lines={"mel": 0.1})
