"""The monitors of a model: M1, M2 and M3, which share the allowed false alarms (SITE.md S7)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from calcode.errors import ArtifactError, CalcodeError, EvidenceError, SettingsError
from calcode.files import canonical_json, parsed_json, replacing, require_regular
from calcode.method.evidence import checked_classes
from calcode.method.roles import keyed_hashes
from calcode.monitor.alarms import Alarm
from calcode.monitor.class_watch import ClassWatch
from calcode.monitor.martingale import ExchangeabilityMartingale
from calcode.monitor.protocol import CapitalMonitor, State, checked_alpha, reaches
from calcode.monitor.rates import Rates

FORMAT_VERSION = 1


class Case(NamedTuple):
    """A representative as it was decided (SITE.md S1), with what a later label needs.

    Attributes
    ----------
    labels : tuple of int
        The given set as class indices; an empty set is a miss.
    accepted : bool
        Whether the support audit accepted the case; other cases have no vote in M2 and M3.
    deferred : bool
        Whether the case was deferred, for any reason.
    scores : tuple of float, K of them
        Zero-shot scores 1 - p_rob(y).
    """

    labels: tuple[int, ...]
    accepted: bool
    deferred: bool
    scores: tuple[float, ...]


class Answer(NamedTuple):
    """Whether a model deferred a case, and how many labels it named."""

    deferred: bool
    size: int


class Answers(NamedTuple):
    """Counts of the answers to observed cases; sizes and full sets only over answered cases (METHOD.md 9)."""

    n: int = 0
    deferred: int = 0
    full: int = 0
    size_sum: int = 0


def alarm_shares(false_alarm: float, *, n_classes: int, recalibrations: int) -> tuple[float, float, float]:
    """False-alarm probability of M1, and of M2 and M3 for each class (SITE.md P6 and S7).

    Examples
    --------
    >>> [round(share, 6) for share in alarm_shares(0.03, n_classes=5, recalibrations=1)]
    [0.01, 0.002, 0.001]
    """
    third = false_alarm / 3.0
    return third, third / n_classes, third / n_classes / 2.0**recalibrations


class Watch:
    """Monitors of one model: call `observe` for decided cases and `review` when their labels come.

    `false_alarm` bounds the probability that any of them ever alarms while nothing has changed (SITE.md P6). M1, M2 and
    M3 get a third each, and within M2 and M3 every class gets the same share. M3 halves its share at each
    recalibration. The first calibration of a site counts as one, so that all its shares together stay within the third.

    **One vote per group, ever.** A second image of a patient, or a second visit, is not independent of the first, and
    such votes cause false alarms (SITE.md S7). A group that has voted is ignored.

    Parameters
    ----------
    classes : sequence of str
        Two or more.
    model_digest : str
        Digest of the model that decides.
    gate : iterable of float or None
        `distance` of the gate's representatives; None turns M1 off.
    references : mapping of str to iterable of float
        Zero-shot scores of the bag's rows by class; a class that is missing here uses its first 20 cases.
    lines : mapping of str to float
        Tolerated miss rate of every class: `miss_line`.
    false_alarm : float
    recalibrations : int
        0 for a home model, 1 for the first calibration of a site.
    random_state : int
        Seeds the randomised ranks.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> watch = Watch(classes=("a", "b"), model_digest="", gate=rng.random(200), references={},
    ...               lines={"a": 0.1, "b": 0.1})
    >>> case = Case(labels=(0,), accepted=True, deferred=False, scores=(0.2, 0.8))
    >>> for i in range(30):
    ...     _ = watch.observe(f"image-{i}", group=f"patient-{i}", case=case, distance=1.0 + rng.random())
    >>> [(alarm.monitor, alarm.n) for alarm in watch.alarms]
    [('M1', 11)]
    >>> for i in range(4):
    ...     _ = watch.review(f"image-{i}", label=1)
    >>> [(alarm.monitor, alarm.name, alarm.n) for alarm in watch.alarms[1:]]
    [('M3', 'b', 4)]
    """

    def __init__(
        self,
        *,
        classes: Sequence[str],
        model_digest: str,
        gate: Iterable[float] | None,
        references: Mapping[str, Iterable[float]],
        lines: Mapping[str, float],
        false_alarm: float = 0.01,
        recalibrations: int = 0,
        random_state: int = 0,
    ) -> None:
        classes = checked_classes(classes)
        images, scores, coverage = alarm_shares(
            checked_alpha(false_alarm), n_classes=len(classes), recalibrations=recalibrations
        )
        if set(lines) != set(classes) or not set(references) <= set(classes):
            raise SettingsError("lines: every class needs a tolerated miss rate, and no other name may have one")
        self.model_digest = model_digest
        self.false_alarm = false_alarm
        self.recalibrations = recalibrations
        self.support: ExchangeabilityMartingale | None = None
        if gate is not None:
            self.support = ExchangeabilityMartingale(gate, alpha=images, seed=[random_state, 0])
        self.classes = {
            name: ClassWatch.start(
                reference=references.get(name),
                line=lines[name],
                score_alpha=scores,
                coverage_alpha=coverage,
                seed=[random_state, 1 + index],
            )
            for index, name in enumerate(classes)
        }
        self.alarms: list[Alarm] = []
        self.support_history: list[float] = []
        self.answers = Answers()
        #: Answers of the model that decides now, and its answers as a shadow model, if it was one; they never alarm.
        self.rates = Rates(len(self.classes))
        self.shadow_rates: Rates | None = None
        self.n_out_of_space = 0
        self.n_not_accepted = 0
        #: Time of the newest image, if the caller gives times.
        self.seen_until = ""
        # Ids and groups are kept as keyed hashes, so that a state file names no patient.
        self._hash_key = hashlib.sha256(model_digest.encode()).hexdigest()
        self._ids: set[str] = set()
        self._groups: set[str] = set()
        self._waiting: dict[str, tuple[Case, int]] = {}

    def knows(self, id: str) -> bool:
        """Whether this image has been seen."""
        return self._hashed(id) in self._ids

    def has_voted(self, group: str) -> bool:
        """Whether this group has already voted."""
        return self._hashed(group) in self._groups

    def note(self, id: str) -> None:
        """Remember an image that does not represent its group, so that it is recognised later."""
        self._ids.add(self._hashed(id))

    def observe(
        self,
        id: str,
        *,
        group: str,
        case: Case,
        distance: float | None,
        when: str = "",
        drawn: bool = True,
        own: Answer | None = None,
    ) -> bool:
        """Let a case vote in M1 and keep it for its label; return False if its group has voted before.

        Parameters
        ----------
        id, group : str
            Of the representative; without a group the image is its own group.
        case : Case
        distance : float or None
            `distance` of METHOD.md 4; None only if M1 is off.
        when : str
            Time of the case; part of an alarm.
        drawn : bool
            Whether a later label of the case votes; a case that was not drawn at random is not kept for its label.
        own : Answer, optional
            The model's own answer, if an open alarm changed the answer that was given.
        """
        k = len(self.classes)
        if len(case.scores) != k or not all(0 <= label < k for label in case.labels):
            raise EvidenceError(f"case: {k} scores and labels from 0 to {k - 1} are needed")
        self.note(id)
        if self.has_voted(group or id):
            return False
        if self.support is not None:
            if distance is None:
                raise EvidenceError("distance: M1 is on and needs the distance of every representative")
            self.support_history.append(self.support.update(distance).log_capital)
            self._check("M1", "", self.support, when)
        self._groups.add(self._hashed(group or id))
        if drawn:
            self._waiting[self._hashed(id)] = case, self.recalibrations
        self.rates.update(**(own or Answer(case.deferred, len(case.labels)))._asdict())
        n, deferred, full, size_sum = self.answers
        if case.deferred:
            self.answers = Answers(n + 1, deferred + 1, full, size_sum)
        else:
            is_full = len(case.labels) == k
            self.answers = Answers(n + 1, deferred, full + is_full, size_sum + len(case.labels))
        return True

    def review(self, id: str, *, label: int | None, when: str = "") -> bool:
        """Let the label of a randomly drawn case vote in M2 and M3; return False if no such case waits for one.

        Parameters
        ----------
        id : str
            A representative that was observed.
        label : int or None
            Class index, -1 outside the label space, or None for a case that stays without a label. The latter is a hit
            in M3 for every class, because its class is unknown.
        when : str
            Time of the label; part of an alarm.
        """
        names = list(self.classes)
        if label is not None and not -1 <= label < len(names):
            raise EvidenceError(f"label: {label} is neither -1 nor a class index 0 to {len(names) - 1}")
        if self._hashed(id) not in self._waiting:
            return False
        case, recalibration = self._waiting.pop(self._hashed(id))
        # A late label is about the model that decided; if that was an earlier model, its process has ended.
        current = recalibration == self.recalibrations
        if not case.accepted:
            self.n_not_accepted += 1
        elif label is None:
            for watch in self.classes.values():
                watch.unlabelled(current=current)
        elif label < 0:
            self.n_out_of_space += 1
        else:
            watch = self.classes[names[label]]
            watch.labelled(
                score=case.scores[label],
                covered=label in case.labels,
                size=len(case.labels),
                full=len(case.labels) == len(names),
                current=current,
            )
            self._check("M2", names[label], watch.scores, when)
            self._check("M3", names[label], watch.coverage, when)
        return True

    def recalibrate(self, *, lines: Mapping[str, float], model_digest: str) -> None:
        """Continue with a new model of the same, grown bag: M3 restarts with half its alpha, M1, M2 go on (SITE.md S7).

        The rates restart too, because they describe one model. A new bag needs a new `Watch`.
        """
        self.rates, self.shadow_rates = Rates(len(self.classes)), None
        for name, watch in self.classes.items():
            watch.recalibrate(line=lines[name])
        self.recalibrations += 1
        self.model_digest = model_digest

    @property
    def facts(self) -> dict[str, Any]:
        """Alarms, capitals and coverage as JSON values, for machines."""
        support = self.support
        return {
            "alarm": bool(self.alarms),
            "alarms": [alarm._asdict() | {"finding": alarm.finding, "advice": alarm.advice} for alarm in self.alarms],
            "answers": self.answers._asdict(),
            "rates": self.rates.against(self.shadow_rates),
            "support": None if support is None else support.reading._asdict() | {"alpha": support.alpha},
            "classes": {name: watch.facts for name, watch in self.classes.items()},
        }

    def save(self, path: str | Path) -> None:
        """Write the state with its SHA-256 to one JSON file, atomically."""
        state = self.to_state()
        digest = hashlib.sha256(canonical_json(state).encode()).hexdigest()
        with replacing(path) as temporary:
            temporary.write_text(canonical_json({"calcode_monitor": FORMAT_VERSION, "digest": digest, "state": state}))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a state file; raise `ArtifactError` if it is damaged, of another program, or contradictory."""
        try:
            require_regular(Path(path))
            content = parsed_json(Path(path).read_bytes(), source=str(path))
        except (CalcodeError, OSError) as error:
            raise ArtifactError(f"{path}: not a monitor state ({error}); start without --state") from error
        if not isinstance(content, dict) or "calcode_monitor" not in content:
            raise ArtifactError(f"{path}: foreign, JSON but not a monitor state")
        if content["calcode_monitor"] != FORMAT_VERSION:
            raise ArtifactError(f"{path}: format {content['calcode_monitor']!r}, this version reads {FORMAT_VERSION}")
        try:
            text = canonical_json(content.get("state"))
        except ValueError as error:
            raise ArtifactError(f"{path}: altered, it holds NaN or infinity") from error
        if content.get("digest") != hashlib.sha256(text.encode()).hexdigest():
            raise ArtifactError(f"{path}: altered, its content does not have the SHA-256 it carries")
        try:
            return cls.from_state(content["state"])
        except ArtifactError as error:
            raise ArtifactError(f"{path}: {error}") from error

    def to_state(self) -> dict[str, Any]:
        """Everything that later readings and alarms depend on, as JSON values."""
        return {
            "model_digest": self.model_digest,
            "false_alarm": self.false_alarm,
            "recalibrations": self.recalibrations,
            "support": None if self.support is None else self.support.to_state(),
            "support_history": self.support_history,
            "classes": [{"name": name, "watch": watch.to_state()} for name, watch in self.classes.items()],
            "alarms": [alarm._asdict() for alarm in self.alarms],
            "answers": self.answers._asdict(),
            "rates": self.rates.to_state(),
            "shadow_rates": None if self.shadow_rates is None else self.shadow_rates.to_state(),
            "n_out_of_space": self.n_out_of_space,
            "n_not_accepted": self.n_not_accepted,
            "seen_until": self.seen_until,
            "hash_key": self._hash_key,
            "ids": sorted(self._ids),
            "groups": sorted(self._groups),
            "waiting": {
                key: {
                    "labels": list(case.labels),
                    "accepted": case.accepted,
                    "deferred": case.deferred,
                    "scores": list(case.scores),
                    "recalibration": number,
                }
                for key, (case, number) in self._waiting.items()
            },
        }

    @classmethod
    def from_state(cls, state: Any) -> Self:
        """Restore a saved watch; raise `ArtifactError` if its state is invalid."""
        entry = State(state, name="watch")
        parts = [State(part, name="classes") for part in entry.items("classes")]
        watches = {part.text("name"): ClassWatch.from_state(part["watch"]) for part in parts}
        entry.require(len(watches) == len(parts) >= 2, "classes")
        watch = cls(
            classes=list(watches),
            model_digest=entry.text("model_digest"),
            gate=None,
            references={},
            lines=dict.fromkeys(watches, 0.5),
            false_alarm=entry.share("false_alarm"),
            recalibrations=entry.integer("recalibrations", high=1000),
        )
        watch.classes = watches
        if entry["support"] is not None:
            watch.support = ExchangeabilityMartingale.from_state(entry["support"])
        watch.support_history = entry.numbers("support_history")
        watch.alarms = [Alarm.from_state(alarm) for alarm in entry.items("alarms")]
        watch.n_out_of_space, watch.n_not_accepted = (entry.integer("n_out_of_space"), entry.integer("n_not_accepted"))
        answers = State(entry["answers"], name="answers")
        n = answers.integer("n", high=len(entry.items("groups")))
        k = len(watches)
        watch.answers = Answers(n, *(answers.integer(name, high=n * k) for name in Answers._fields[1:]))
        watch.rates = Rates.from_state(entry["rates"], n_classes=k)
        entry.require(watch.rates.sequences["deferral"].interval.n <= n, "rates")
        if entry["shadow_rates"] is not None:
            watch.shadow_rates = Rates.from_state(entry["shadow_rates"], n_classes=k)
        watch.seen_until = entry.text("seen_until")
        watch._hash_key = entry.hexadecimal("hash_key", digits=64)
        watch._ids, watch._groups = (set(entry.hashes(name)) for name in ("ids", "groups"))
        entry.require(isinstance(entry["waiting"], dict) and entry["waiting"].keys() <= watch._ids, "waiting")
        for key, values in entry["waiting"].items():
            waiting = State(values, name="waiting")
            labels = waiting.numbers("labels", low=0, high=k - 1)
            scores = waiting.numbers("scores", at_least=k)
            waiting.require(len(set(labels)) == len(labels) and all(label == int(label) for label in labels), "labels")
            waiting.require(len(scores) == k, "scores")
            flags = waiting.flag("accepted"), waiting.flag("deferred")
            case = Case(tuple(map(int, labels)), *flags, tuple(scores))
            watch._waiting[key] = case, waiting.integer("recalibration", high=watch.recalibrations)
        watch._require_agreement(entry)
        return watch

    def _require_agreement(self, entry: State) -> None:
        """Refuse a state whose shares, histories and alarms do not follow from its capitals."""
        n_votes = 0 if self.support is None else self.support.reading.n
        entry.require(len(self.support_history) == n_votes <= len(self._groups), "support_history")
        entry.require(all(alarm.name in self.classes or alarm.monitor == "M1" for alarm in self.alarms), "alarms")
        images, scores, coverage = alarm_shares(
            self.false_alarm, n_classes=len(self.classes), recalibrations=self.recalibrations
        )
        capitals: list[tuple[str, str, CapitalMonitor, list[float], float]] = []
        if self.support is not None:
            capitals.append(("M1", "", self.support, self.support_history, images))
        for name, watch in self.classes.items():
            capitals.append(("M2", name, watch.scores, watch.score_history, scores))
            capitals.append(("M3", name, watch.coverage, watch.coverage_history, coverage))
        for monitor, name, capital, history, alpha in capitals:
            n, log_capital, alarm_at = capital.reading
            own = history[len(history) - n :]  # since the last recalibration
            reached = [i for i, value in enumerate(own, start=1) if reaches(value, alpha=capital.alpha)]
            raised = [a.n for a in self.alarms if (a.monitor, a.name, a.alpha) == (monitor, name, capital.alpha)]
            entry.require(math.isclose(capital.alpha, alpha, rel_tol=1e-9), "false_alarm")
            entry.require(not own or own[-1] == log_capital, "classes" if name else "support_history")
            entry.require(reached[:1] == ([] if alarm_at is None else [alarm_at]) == raised, "alarms")

    def _check(self, monitor: str, name: str, capital: CapitalMonitor, when: str) -> None:
        """Record an alarm at the update that raised it."""
        n, log_capital, alarm_at = capital.reading
        raised = [(alarm.monitor, alarm.name, alarm.alpha) for alarm in self.alarms]
        if alarm_at is not None and (monitor, name, capital.alpha) not in raised:
            self.alarms.append(Alarm(monitor, name, n, when, log_capital, capital.alpha))

    def _hashed(self, name: str) -> str:
        (digest,) = keyed_hashes(self._hash_key.encode(), [name])
        return digest.decode()
