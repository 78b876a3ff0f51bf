"""Monitors of a line, live (SITE.md S7, SERVICE.md 9): a function of the log, which a replay gives again exactly.

Nothing statistical is here: votes go to `calcode.monitor.Watch`. Representatives are measured after their answer has
left (`measured` events), so that nobody waits for a monitor, and a replay needs no embedding that may be deleted by
then. The fold reads these events and the labels in the order of the log.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import Connection, Row, func, select

from calcode.errors import ArtifactError
from calcode.files import canonical_json
from calcode.method.evidence import robust_probabilities
from calcode.monitor import Alarm, Answer, Case, Rates, Watch, miss_lines, watch_model
from calcode.service.alarms import bag_of, raised_events
from calcode.service.labels import Review, reviews_of, second_drawn, standing
from calcode.service.line import LineModel
from calcode.service.log import Event, Log, Transaction
from calcode.service.models import Models, latest_protocol
from calcode.service.protocol import parse_protocol
from calcode.service.sampling import settled_upto
from calcode.service.tables import (
    DECISION,
    DEPLOYMENT,
    EVENT,
    MONITOR,
    REVIEW,
    SECRET_PART,
    SHADOW_DECISION,
    TASK,
    of_kinds,
)

#: Of the saved state; another one is not read, and the log is replayed.
STATE_VERSION = 3
_LABEL_KINDS = ("review_saved", "review_superseded", "label_received")
#: Representatives to one `measured` event, and events to one step of the fold.
_MEASURED_ROWS = 512
_PAGE = 2000


class WatchState(NamedTuple):
    """A bag's monitors at a moment, safe to draw while the service goes on.

    Attributes
    ----------
    bag : str
        Reference of the monitors: a home model, or the bag of a site model.
    model : str
        Digest of the model that decided last.
    watch : Watch
    waiting : int
        Drawn cases that have no vote in M2 and M3 so far; the oldest without a label holds the others up.
    upto : int
        Record of the log up to which the monitors have seen it.
    """

    bag: str
    model: str
    watch: Watch
    waiting: int
    upto: int


@dataclass(eq=False)
class _Watched:
    """The monitors of one bag, and its drawn cases in decision order that wait for their vote."""

    watch: Watch
    queue: list[str] = field(default_factory=list)


class LineMonitors:
    """The monitors of one line.

    Parameters
    ----------
    log : Log
    models : Models
        Of the line.
    """

    def __init__(self, log: Log, models: Models) -> None:
        self._log, self._models = log, models
        self.line = models.line
        self._lock = threading.Lock()
        #: Record of the log up to which the monitors have seen it.
        self.upto = 0
        self._measured = 0
        self._watched: dict[str, _Watched] = {}
        self._recorded: set[tuple[str, str, Alarm]] = set()
        self._saved = 0
        self._loaded = False

    # ------------------------------------------------------------------ what the service does every second

    def step(self, change: Callable[[Callable[[Transaction], Any]], Any]) -> None:
        """Measure what was decided, let it vote, and record the alarms that follow.

        Killed anywhere, the next step does the rest: what is recorded twice is recognised by its id.

        Parameters
        ----------
        change : callable
            Carries out a change in a transaction and waits for it (`Service.change`).
        """
        with self._lock:
            if not self._loaded:
                self._load()
            while True:
                with self._log.database.reading() as connection:
                    event = self._measurements(connection)
                before = self._measured
                if event is not None:
                    change(lambda transaction, event=event: self._record(transaction, event))  # type: ignore[misc]
                alarms = [alarm for alarm in self.fold() if alarm not in self._recorded]
                if alarms:
                    change(lambda transaction, alarms=alarms: raised_events(transaction, self.line, alarms))  # type: ignore[misc]
                    self._recorded.update(alarms)
                if self._measured == before:
                    return

    def saving(self, *, least: int = 1) -> Callable[[Transaction], None] | None:
        """The change that keeps the state, so that the next start replays only what came after it.

        A cache and no event. It is made here and written by whoever writes, so that no thread waits for another.

        Parameters
        ----------
        least : int
            Records that must have come since the state was last kept; with fewer there is no change.
        """
        with self._lock:
            if self.upto - self._saved < max(1, least):
                return None
            self._saved = self.upto
            row = {"upto_seq": self.upto, "version": STATE_VERSION, "state": canonical_json(self.to_state())}

        def change(transaction: Transaction) -> None:
            connection = transaction.connection
            connection.execute(MONITOR.delete().where(MONITOR.c.line == self.line))
            connection.execute(MONITOR.insert().values(line=self.line, name="watch", **row))

        return change

    def states(self) -> list[WatchState]:
        """A snapshot of every bag's monitors, in the order in which the bags began."""
        with self._lock:
            return [
                WatchState(
                    bag=bag,
                    model=watched.watch.model_digest,
                    watch=copy.deepcopy(watched.watch),
                    waiting=len(watched.queue),
                    upto=self.upto,
                )
                for bag, watched in self._watched.items()
            ]

    def to_state(self) -> dict[str, Any]:
        """Everything that later votes depend on, as JSON values."""
        return {
            "upto": self.upto,
            "measured": self._measured,
            "bags": [
                {"bag": bag, "watch": watched.watch.to_state(), "queue": watched.queue}
                for bag, watched in self._watched.items()
            ],
        }

    def _load(self) -> None:
        """Begin with the saved state if it is one of this log and version, else with the first record."""
        self._loaded = True
        with self._log.database.reading() as connection:
            row = connection.execute(select(MONITOR).where(MONITOR.c.line == self.line)).first()
        if row is None or row.version != STATE_VERSION or row.upto_seq > self._log.head()[0]:
            return
        try:
            state = json.loads(row.state)
            self._watched = {
                entry["bag"]: _Watched(Watch.from_state(entry["watch"]), entry["queue"]) for entry in state["bags"]
            }
        except (ValueError, KeyError, ArtifactError):
            return  # a damaged cache is no cache
        self.upto, self._measured, self._saved = state["upto"], state["measured"], state["upto"]

    # ------------------------------------------------------------------ measuring

    def _measurements(self, connection: Connection) -> Event | None:
        """Distances and zero-shot scores of the next representatives that one model decided."""
        query = (
            select(DECISION)
            .where(
                DECISION.c.line == self.line,
                DECISION.c.seq > self._measured,
                DECISION.c.seq <= settled_upto(connection, self.line),
                DECISION.c.representative.is_(True),
                # A patient who calibrated the model is no stranger to it (SERVICE.md 3, step 5).
                DECISION.c.in_model.is_(False),
                DECISION.c.known_group.is_(False),
                DECISION.c.reason != "error",
            )
            .order_by(DECISION.c.seq)
            .limit(_MEASURED_ROWS)
        )
        found = connection.execute(query).all()
        if not found:
            return None
        # In the order of the log: nothing that another model decided in between is jumped over.
        rows = list(takewhile(lambda row: row.model == found[0].model, found))
        loaded = self._models.model(rows[0].model)
        vectors = embeddings_of(connection, [row.seq for row in rows])
        kept = [row for row in rows if row.seq in vectors]
        measured: list[list[Any]] = []
        if kept:
            evidence = loaded.evidence(np.stack([vectors[row.seq] for row in kept]))
            audit, trim = loaded.model.audit_, loaded.model.settings_.trim
            distances = [None] * len(kept) if audit is None else audit.distances(evidence).tolist()
            scores = (1.0 - robust_probabilities(evidence.prompt_logits, trim=trim)).tolist()
            measured = [
                [row.id, distance, own if row.u < row.p_sample else None]
                for row, distance, own in zip(kept, distances, scores, strict=True)
            ]
        body = {"line": self.line, "model": rows[0].model, "after": self._measured, "upto": rows[-1].seq}
        return Event(kind="measured", actor="service", subject=self.line, body={**body, "rows": measured})

    def _record(self, transaction: Transaction, event: Event) -> None:
        """Append the measurements unless another process has been here."""
        last = transaction.connection.execute(
            select(EVENT.c.body)
            .where(of_kinds("measured"), EVENT.c.subject == self.line)
            .order_by(EVENT.c.seq.desc())
            .limit(1)
        ).scalar()
        if (0 if last is None else json.loads(last)["upto"]) == event.body["after"]:
            transaction.append([event])

    # ------------------------------------------------------------------ folding the log

    def fold(self) -> list[tuple[str, str, Alarm]]:
        """Take in the records after `upto`; every alarm of the line so far, with its bag and model."""
        columns = [EVENT.c[name] for name in ("seq", "at", "kind", "subject", "body")]
        wanted = of_kinds("measured", *_LABEL_KINDS)
        while True:
            query = select(*columns).where(EVENT.c.seq > self.upto, wanted).order_by(EVENT.c.seq).limit(_PAGE)
            with self._log.database.reading() as connection:
                rows = connection.execute(query).all()
                for row in rows:
                    body = json.loads(row.body)
                    if body.get("line", self.line) == self.line:
                        self._take_in(connection, row, body)
                    self.upto = row.seq
            if len(rows) < _PAGE:
                break
        return [
            (bag, watched.watch.model_digest, alarm)
            for bag, watched in self._watched.items()
            for alarm in watched.watch.alarms
        ]

    def _take_in(self, connection: Connection, event: Row[Any], body: dict[str, Any]) -> None:
        if event.kind == "measured":
            self._measured = body["upto"]
            self._observe(connection, event, body)
        for watched in self._watched.values():
            if watched.queue and (event.kind == "measured" or watched.queue[0] == body["decision"]):
                self._vote(connection, watched, event)

    def _observe(self, connection: Connection, event: Row[Any], body: dict[str, Any]) -> None:
        """Let measured representatives vote in M1, and put the drawn ones into the queue for their labels."""
        loaded = self._models.model(body["model"])
        watched = self._watched_by(connection, loaded, event.seq)
        classes = loaded.model.classes_
        ids = [row[0] for row in body["rows"]]
        decided = {row.id: row for row in connection.execute(select(DECISION).where(DECISION.c.id.in_(ids)))}
        changed = select(EVENT.c.seq, EVENT.c.body).where(
            EVENT.c.seq.in_([row.seq for row in decided.values() if row.reason == "alarm"])
        )
        said = {seq: json.loads(text)["model_answer"] for seq, text in connection.execute(changed)}
        for id, distance, scores in body["rows"]:
            row = decided[id]
            # A deferral that is no empty set leaves every label possible.
            left_open = row.action == "defer" and row.reason != "empty_set"
            given = classes if left_open else json.loads(row.released_set)
            case = Case(
                labels=tuple(classes.index(name) for name in given),
                accepted=row.p_audit >= loaded.deferral_level,
                deferred=row.action == "defer",
                scores=tuple(scores or [0.0] * len(classes)),
            )
            own = said.get(row.seq)
            seen = watched.watch.observe(
                id,
                group=row.group_digest or id,
                case=case,
                distance=distance,
                when=event.at,
                drawn=scores is not None,
                own=None if own is None else Answer(own["action"] == "defer", len(own["set"])),
            )
            if seen and scores is not None:
                watched.queue.append(id)

    def _watched_by(self, connection: Connection, loaded: LineModel, seq: int) -> _Watched:
        """The monitors of the bag that a model belongs to; a new bag has new ones (SITE.md S7)."""
        bag = bag_of(connection, self.line, loaded.digest, kind=loaded.kind)
        if bag not in self._watched:
            protocol = latest_protocol(connection, self.line, before=seq)
            level = 0.01 if protocol is None else parse_protocol(protocol.text, source="protocol").false_alarm
            # The seed only breaks ties of ranks; it is fixed before the first image.
            watch = watch_model(loaded.model, false_alarm=level, random_state=int(loaded.digest[:8], 16))
            watch.shadow_rates = shadow_rates(connection, self.line, loaded)
            self._watched[bag] = _Watched(watch)
        watched = self._watched[bag]
        if watched.watch.model_digest != loaded.digest:
            watched.watch.recalibrate(lines=miss_lines(loaded.model), model_digest=loaded.digest)
            watched.watch.shadow_rates = shadow_rates(connection, self.line, loaded)
        return watched

    def _vote(self, connection: Connection, watched: _Watched, event: Row[Any]) -> None:
        """Labels vote in decision order; the first case without one stops the walk until it has one or is overdue."""
        classes = list(watched.watch.classes)
        while watched.queue:
            id = watched.queue[0]
            row = connection.execute(select(DECISION).where(DECISION.c.id == id)).one()
            task = select(TASK.c.due_at).where(TASK.c.decision == id).order_by(TASK.c.opened_at, TASK.c.id)
            due = connection.execute(task.limit(1)).scalar()
            found = standing(_in_time(connection, id, upto=event.seq, due=due), second=second_drawn(row))
            labelled = found.state in ("labelled", "outside")
            if not labelled and (due is None or event.at <= due):
                return
            vote = None
            if labelled:
                vote = -1 if found.label is None else classes.index(found.label)
            watched.watch.review(id, label=vote, when=event.at)
            watched.queue.pop(0)


def _in_time(connection: Connection, decision: str, *, upto: int, due: str | None) -> list[Review]:
    """The reviews of a decision up to a record, without those that came after its day.

    A label that was there in time counts as it was then. Who confirms it later makes no missing label of it, and who
    contradicts it later is not heard: how long the walk was held up by other cases decides nothing.
    """
    query = select(REVIEW.c.seq, REVIEW.c.saved_at).where(REVIEW.c.decision == decision)
    saved = {row.seq: row.saved_at for row in connection.execute(query)}
    reviews = takewhile(lambda review: review.seq <= upto, reviews_of(connection, decision))
    return list(takewhile(lambda review: due is None or saved[review.seq] <= due, reviews))


def shadow_rates(connection: Connection, line: str, loaded: LineModel) -> Rates | None:
    """What a model answered in the shadow, one image for a patient; None if it answered nothing there."""
    promoted = select(func.min(DEPLOYMENT.c.from_seq)).where(
        DEPLOYMENT.c.line == line, DEPLOYMENT.c.champion == loaded.digest
    )
    query = (
        select(SHADOW_DECISION.c.action, SHADOW_DECISION.c.released_set)
        .join(DECISION, DECISION.c.id == SHADOW_DECISION.c.decision)
        .where(
            SHADOW_DECISION.c.model == loaded.digest,
            SHADOW_DECISION.c.seq < connection.execute(promoted).scalar(),
            SHADOW_DECISION.c.reason != "error",
            DECISION.c.line == line,
            DECISION.c.representative.is_(True),
            DECISION.c.in_model.is_(False),
            DECISION.c.known_group.is_(False),
        )
        .order_by(SHADOW_DECISION.c.seq)
    )
    answers = connection.execute(query).all()
    rates = Rates(len(loaded.model.classes_))
    for row in answers:
        rates.update(deferred=row.action == "defer", size=len(json.loads(row.released_set)))
    return rates if answers else None


def embeddings_of(connection: Connection, seqs: Sequence[int]) -> dict[int, Any]:
    """Stored embeddings by the record that commits to them; deleted ones are missing."""
    vectors = {}
    for start in range(0, len(seqs), _MEASURED_ROWS):
        part = list(seqs[start : start + _MEASURED_ROWS])
        query = select(SECRET_PART.c.seq, SECRET_PART.c.content).where(
            SECRET_PART.c.seq.in_(part), SECRET_PART.c.name == "embedding"
        )
        for seq, content in connection.execute(query):
            vectors[seq] = np.frombuffer(content, dtype="<f4")
    return vectors
