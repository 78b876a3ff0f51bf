"""Live monitors of a line (SITE.md S7, SERVICE.md 9): a function of the log, which a replay reproduces exactly.

The statistics are in `calcode.monitor.Watch`. Representatives are measured after their answers were sent, so that no
answer waits for a monitor. The measurements are recorded (`measured` events), so that a replay needs no embeddings,
which may be deleted by then. The fold reads these events and the labels in log order.
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

#: Version of the saved state; a state of another version is not read, and the log is replayed.
STATE_VERSION = 3
_LABEL_KINDS = ("review_saved", "review_superseded", "label_received")
#: Representatives per `measured` event, and events per step of the fold.
_MEASURED_ROWS = 512
_PAGE = 2000


class WatchState(NamedTuple):
    """A snapshot of a bag's monitors, safe to draw while the service goes on.

    Attributes
    ----------
    bag : str
        Reference of the monitors: a home model, or the bag of a site model.
    model : str
        Digest of the model that decided last.
    watch : Watch
    waiting : int
        Drawn cases without a vote in M2 and M3 so far; the oldest case without a label delays the others.
    upto : int
        Last record of the log that the monitors have processed.
    """

    bag: str
    model: str
    watch: Watch
    waiting: int
    upto: int


@dataclass(eq=False)
class _Watched:
    """The monitors of one bag, and its drawn cases that wait for their vote, in decision order."""

    watch: Watch
    queue: list[str] = field(default_factory=list)


class LineMonitors:
    """The monitors of one line.

    Parameters
    ----------
    log : Log
    models : Models
        Models of the line.
    """

    def __init__(self, log: Log, models: Models) -> None:
        self._log, self._models = log, models
        self.line = models.line
        self._lock = threading.Lock()
        #: Last record of the log that the monitors have processed.
        self.upto = 0
        self._measured = 0
        self._watched: dict[str, _Watched] = {}
        self._recorded: set[tuple[str, str, Alarm]] = set()
        self._saved = 0
        self._loaded = False

    # ------------------------------------------------------------------ what the service does every second

    def step(self, change: Callable[[Callable[[Transaction], Any]], Any]) -> None:
        """Measure new decisions, let them vote, and record the alarms that follow.

        If the process is killed, the next step does the rest; an alarm recorded already is recognised by its id.

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
        """Return the change that saves the state, so that the next start replays only later records.

        The saved state is a cache and not an event. This method only prepares the change and the writer carries it out,
        so that no thread waits for another.

        Parameters
        ----------
        least : int
            Least number of new records since the state was last saved; with fewer, the result is None.
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
        """Return a snapshot of every bag's monitors, in the order in which the bags began."""
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
        """Return everything that later votes depend on, as JSON values."""
        return {
            "upto": self.upto,
            "measured": self._measured,
            "bags": [
                {"bag": bag, "watch": watched.watch.to_state(), "queue": watched.queue}
                for bag, watched in self._watched.items()
            ],
        }

    def _load(self) -> None:
        """Start from the saved state if it is of this log and version, else from the first record."""
        self._loaded = True
        with self._log.database.reading() as connection:
            row = connection.execute(select(MONITOR).where(MONITOR.c.line == self.line)).first()
        if row is None or row.version != STATE_VERSION or row.upto_seq > self._log.head()[0]:
            return
        try:
            state = json.loads(row.state)
            upto, measured = int(state["upto"]), int(state["measured"])
            watched = {
                entry["bag"]: _Watched(Watch.from_state(entry["watch"]), entry["queue"]) for entry in state["bags"]
            }
        except (ValueError, KeyError, TypeError, ArtifactError):
            return  # a damaged cache is ignored
        self._watched, self.upto, self._measured, self._saved = watched, upto, measured, upto

    # ------------------------------------------------------------------ measuring

    def _measurements(self, connection: Connection) -> Event | None:
        """Return the distances and zero-shot scores of the next representatives that one model decided."""
        query = (
            select(DECISION)
            .where(
                DECISION.c.line == self.line,
                DECISION.c.seq > self._measured,
                DECISION.c.seq <= settled_upto(connection, self.line),
                DECISION.c.representative.is_(True),
                # Patients who calibrated the model are not new to it, and are left out (SERVICE.md 3, step 5).
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
        # Stop at the first decision of another model, so that decisions are measured in log order.
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
        """Append the measurements unless another process has recorded them."""
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
        """Process the records after `upto`; return every alarm of the line so far, with its bag and model."""
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
            # A deferral for any reason but an empty set leaves every label possible.
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
        """Return the monitors of the bag that a model belongs to; a new bag gets new monitors (SITE.md S7)."""
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
        """Let labels vote in decision order; a case without a label stops the walk until it has one or is overdue."""
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
    """Return the reviews of a decision up to a record, without those saved after `due`.

    A label given in time counts as it was then. A later confirmation does not make it missing, and a later
    contradiction is ignored: the result must not depend on how long other cases delayed the walk.
    """
    query = select(REVIEW.c.seq, REVIEW.c.saved_at).where(REVIEW.c.decision == decision)
    saved = {row.seq: row.saved_at for row in connection.execute(query)}
    reviews = takewhile(lambda review: review.seq <= upto, reviews_of(connection, decision))
    return list(takewhile(lambda review: due is None or saved[review.seq] <= due, reviews))


def shadow_rates(connection: Connection, line: str, loaded: LineModel) -> Rates | None:
    """Return the rates of a model's answers in the shadow, one image per patient; None if it gave no answer there."""
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
    """Return stored embeddings by the record that commits to them; deleted ones are left out."""
    vectors = {}
    for start in range(0, len(seqs), _MEASURED_ROWS):
        part = list(seqs[start : start + _MEASURED_ROWS])
        query = select(SECRET_PART.c.seq, SECRET_PART.c.content).where(
            SECRET_PART.c.seq.in_(part), SECRET_PART.c.name == "embedding"
        )
        for seq, content in connection.execute(query):
            vectors[seq] = np.frombuffer(content, dtype="<f4")
    return vectors
