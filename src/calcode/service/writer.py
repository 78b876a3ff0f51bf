"""The one thread that decides and writes (SERVICE.md 3, steps 3 to 9): a block is answered once it is on disk.

While a block is being committed, the next one fills: group commit without a timer. The answers to a block are sent
before the next block begins, because they are ready and their receivers can then send the next cases.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from queue import SimpleQueue
from typing import Any

import numpy as np
from sqlalchemy import select

from calcode.errors import CalcodeError
from calcode.kernels.threads import products_on_one_core, stay_on_this_core
from calcode.service.admission import Case
from calcode.service.alarms import answer_under_alarm
from calcode.service.audit.chain import Record
from calcode.service.database import STORAGE_ERRORS, storage_fault
from calcode.service.line import LineModel
from calcode.service.log import Event, Log, Transaction
from calcode.service.metrics import Metrics
from calcode.service.models import InForce, Models
from calcode.service.problems import Problem
from calcode.service.refusals import refusal
from calcode.service.sampling import Place, Policy, Visits, due_on
from calcode.service.tables import EVENT

_LOGGER = logging.getLogger("calcode.service")
#: How often a block is decided again because a champion changed meanwhile.
_ATTEMPTS = 5
#: How long the next block waits for answers to be sent if their event loop is busy.
_LEAVING_SECONDS = 0.01


# Not frozen: setting the fields of a frozen dataclass costs as much as a hash.
@dataclass(slots=True)
class Answer:
    """The answer to one case.

    Attributes
    ----------
    record : Record
        The record of the decision.
    id : str
    body : mapping
        The content of the record's body.
    replay : bool
        Whether the answer was stored before this request.
    """

    record: Record
    id: str
    body: Mapping[str, Any]
    replay: bool = False


@dataclass(slots=True)
class _Job:
    """The cases of one request, or a change that needs a transaction of its own.

    A thread waits for a concurrent future `done`, a coroutine for an asyncio future.
    """

    cases: Sequence[Case]
    done: Future[Any] | asyncio.Future[Any]
    change: Callable[[Transaction], Any] | None = None


class Writer:
    """The writer: takes the waiting cases, at most a block, and never waits for more.

    Parameters
    ----------
    log : Log
    models : mapping of str to Models
        The models of each line.
    metrics : Metrics
    queue : int
        Cases that may wait; more are refused with 503.
    block : int
        Largest number of cases that are decided and committed together, of all lines.
    """

    def __init__(self, log: Log, models: Mapping[str, Models], metrics: Metrics, *, queue: int, block: int) -> None:
        self._log, self._models, self._metrics = log, models, metrics
        self._limit, self._block = queue, block
        #: The last job is followed by None. `_next` is a job that was taken out already for the next block.
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._next: _Job | None = None
        self._n_waiting = 0
        self._counting = threading.Lock()
        self._stopping = False
        #: Monotonic time of the last COMMIT, and why the last attempt failed.
        self.committed_at = time.monotonic()
        self.fault: str | None = None
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Answer what is waiting, then end."""
        with self._counting:
            self._stopping = True
            self._jobs.put(None)
        self._thread.join()

    @property
    def n_waiting(self) -> int:
        """Cases in the queue."""
        return self._n_waiting

    def submit(self, cases: Sequence[Case]) -> Future[list[Answer | Problem]]:
        """Queue the cases of one request; the future holds their answers once they are durable."""
        done: Future[list[Answer | Problem]] = Future()
        self._put(_Job(cases, done))
        return done

    def change(self, change: Callable[[Transaction], Any]) -> Future[Any]:
        """Queue a change that is not a decision; it gets a transaction of its own."""
        done: Future[Any] = Future()
        self._put(_Job((), done, change))
        return done

    async def decided(self, cases: Sequence[Case]) -> list[Answer | Problem]:
        """Return the answers to one request's cases, for a coroutine; one call wakes all coroutines of a block."""
        done: asyncio.Future[list[Answer | Problem]] = asyncio.get_running_loop().create_future()
        self._put(_Job(cases, done))
        return await done

    async def changed(self, change: Callable[[Transaction], Any]) -> Any:
        """Return the result of a change that is not a decision, for a coroutine."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._put(_Job((), done, change))
        return await done

    def _put(self, job: _Job) -> None:
        with self._counting:
            if self._stopping or self._n_waiting + len(job.cases) > max(self._limit, len(job.cases)):
                what = "The service is ending" if self._stopping else "The queue is full"
                sentence = f"{what}: nothing was recorded. Repeat the request with the same key."
                raise Problem(503, sentence, headers={"Retry-After": "1"})
            self._n_waiting += len(job.cases)
            self._jobs.put(job)

    def _take(self) -> list[_Job]:
        """Take what is waiting, at most a block of cases; a change goes alone. After the last job, take nothing."""
        job, self._next = self._next or self._jobs.get(), None
        taken: list[_Job] = []
        n = 0
        while job is not None and (job.change is None or not taken):
            taken.append(job)
            n += len(job.cases)
            if job.change is not None or n >= self._block or self._jobs.empty():
                break
            job = self._jobs.get()
        else:
            if job is None:
                self._jobs.put(None)
            self._next = job
        with self._counting:
            self._n_waiting -= n
        return taken

    def _run(self) -> None:
        # A block is small: on several cores it takes up to 1.4 times the CPU, which requests need meanwhile.
        stay_on_this_core()
        # BLAS threads spin for a while after each product: with 512 dimensions they take more CPU than the rest.
        with products_on_one_core():
            while self._write_next():
                pass

    def _write_next(self) -> bool:
        """Write what is waiting, then answer it; return False at the end.

        This is a separate function so that cases and answers are freed when it returns. Otherwise an idle service would
        hold patients' data, and the next block would pay for freeing it.
        """
        jobs = self._take()
        if not jobs:
            return False
        started = time.perf_counter()
        cases = [case for job in jobs for case in job.cases]
        try:
            if jobs[0].change is not None:
                with self._log.transaction() as transaction:
                    result = jobs[0].change(transaction)
                self._committed(started)
                _hand_back(jobs, [result])
                return True
            answers = self._decide_and_record(cases)
            self._committed(started)
            self._count(answers)
        except STORAGE_ERRORS as error:
            status, sentence = storage_fault(error)
            _LOGGER.error("not_written", extra={"status": status, "error": type(error).__name__})
            # A 422 is a fault of the request: the database works, and repeating the request is no use.
            again = {} if status == 422 else {"Retry-After": "2"}
            if again:
                self.fault = sentence
            _hand_back(jobs, [Problem(status, sentence, headers=again) for _ in jobs])
            return True
        except Exception as error:
            # A Problem answers a request that is not allowed; it is not an error to report.
            if not isinstance(error, Problem):
                _LOGGER.error("change_failed", extra={"error": type(error).__name__})
            _hand_back(jobs, [error] * len(jobs))
            return True
        left = iter(answers)
        _hand_back(jobs, [list(islice(left, len(job.cases))) for job in jobs])
        try:
            self._shadow(cases, answers)
        except Exception as error:
            # Nobody waits for a shadow, so a fault in it must not stop the next block.
            _LOGGER.error("shadow_failed", extra={"error": type(error).__name__})
        return True

    def _committed(self, started: float) -> None:
        self.committed_at, self.fault = time.monotonic(), None
        self._metrics.commit_seconds.observe(time.perf_counter() - started)

    def _count(self, answers: Sequence[Answer | Problem]) -> None:
        """Count the recorded answers; a repeated request adds nothing."""
        said: dict[tuple[str, str], int] = {}
        for answer in answers:
            if isinstance(answer, Problem):
                said["", "refused"] = said.get(("", "refused"), 0) + 1
            elif not answer.replay:
                what = answer.body["line"], answer.body["action"]
                said[what] = said.get(what, 0) + 1
        for (line, action), n in said.items():
            self._metrics.decided(line, action).inc(n)

    # ------------------------------------------------------------------ deciding

    def _decide_and_record(self, cases: Sequence[Case]) -> list[Answer | Problem]:
        """Return the answers in the order of the cases; every decision among them is committed."""
        for _ in range(_ATTEMPTS):
            in_force = {line: self._models[line].in_force for line in {case.line for case in cases}}
            outcomes = _by_line({line: state.champion for line, state in in_force.items()}, cases)
            # The transaction holds the log's lock: nobody takes a key or changes a model before it ends.
            with self._log.transaction() as transaction:
                if all(state.deployed == transaction.deployed for state in in_force.values()):
                    return self._record(transaction, cases, outcomes, in_force)
            self._follow(in_force)
        raise Problem(503, "The model changes too often to answer.", headers={"Retry-After": "1"})

    def _follow(self, lines: Iterable[str]) -> None:
        """Load the models that answer now; without one the answer is 503, because 500 says: deferred and recorded."""
        try:
            for line in lines:
                self._models[line].follow()
        except CalcodeError as error:
            _LOGGER.error("model_not_loaded", extra={"line": line, "error": type(error).__name__})
            sentence = "The model that answers cannot be loaded: nothing was recorded. Repeat the request later."
            raise Problem(503, sentence, headers={"Retry-After": "2"}) from error

    def _record(
        self,
        transaction: Transaction,
        cases: Sequence[Case],
        outcomes: Sequence[dict[str, Any] | Problem],
        in_force: Mapping[str, InForce],
    ) -> list[Answer | Problem]:
        known = transaction.decisions_with([case.key for case in cases])
        visits = Visits(transaction, {case.group_digest for case in cases if case.group_digest is not None})
        answers: list[Answer | Problem | None] = [None] * len(cases)
        events: list[Event] = []
        first: dict[str, int] = {}
        for row, (case, outcome) in enumerate(zip(cases, outcomes, strict=True)):
            if case.key in known:
                answers[row] = self._stored(transaction, case, known[case.key], events)
            elif case.key in first:
                # The same key twice in one block: the second case gets the answer of the first, which is not ready yet.
                if cases[first[case.key]].content != case.content:
                    answers[row] = _conflict(case, events)
            elif isinstance(outcome, Problem):
                answers[row] = outcome
                events.append(refusal(case.actor, outcome))
            else:
                first[case.key] = row
                force = in_force[case.line]
                policy = force.policy
                if force.alarm is not None:
                    outcome = answer_under_alarm(
                        outcome,
                        alarm=force.alarm,
                        on_alarm=force.on_alarm,
                        kind=force.champion.kind,
                        classes=force.champion.prompts.classes,
                    )
                place = visits.place(case.group_digest, case.study_digest, visit_minutes=policy.visit_minutes)
                events.append(_decision_event(case, outcome, place=place, policy=policy, now=transaction.at))
        if not events:
            return [answer for answer in answers if answer is not None]
        for record, event in zip(transaction.append(events), events, strict=True):
            if event.kind == "decision":
                answers[first[event.body["key"]]] = Answer(record, event.id, event.body)
        for row, case in enumerate(cases):
            if answers[row] is None:
                answer = answers[first[case.key]]
                assert isinstance(answer, Answer)
                answers[row] = replace(answer, replay=True)
        return [answer for answer in answers if answer is not None]

    def _stored(self, transaction: Transaction, case: Case, row: Any, events: list[Event]) -> Answer | Problem:
        if row.content != case.content:
            return _conflict(case, events)
        columns = [EVENT.c[name] for name in Record._fields]
        stored = transaction.connection.execute(select(*columns).where(EVENT.c.seq == row.seq)).one()
        return Answer(Record._make(stored), row.id, json.loads(stored.body), replay=True)

    # ------------------------------------------------------------------ shadow

    def _shadow(self, cases: Sequence[Case], answers: Sequence[Answer | Problem]) -> None:
        """Let the shadow model decide the same block after the answers were sent; nobody waits for it."""
        lines = {case.line for case in cases}
        active = {line: shadow for line in lines if (shadow := self._models[line].in_force.shadow) is not None}
        if not active:
            return
        fresh = [
            (case, answer)
            for case, answer in zip(cases, answers, strict=True)
            if isinstance(answer, Answer) and not answer.replay and case.line in active
        ]
        if not fresh:
            return
        outcomes = _by_line(active, [case for case, _ in fresh])
        events = [
            Event(
                kind="shadow_decision",
                actor="service",
                subject=answer.id,
                body={name: outcome[name] for name in ("model", "action", "reason", "set", "p_audit")},
            )
            for (_, answer), outcome in zip(fresh, outcomes, strict=True)
            if not isinstance(outcome, Problem)
        ]
        try:
            with self._log.transaction() as transaction:
                transaction.append(events)
        except STORAGE_ERRORS as error:
            self.fault = storage_fault(error)[1]


def _hand_back(jobs: Sequence[_Job], outcomes: Sequence[Any]) -> None:
    """Give each job its outcome, and wake the coroutines; an exception is raised where the outcome is awaited.

    The coroutines of a block are woken together, because waking each one separately would interrupt their loop.
    """
    coroutines: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for job, outcome in zip(jobs, outcomes, strict=True):
        if isinstance(job.done, asyncio.Future):
            coroutines.setdefault(job.done.get_loop(), []).append((job.done, outcome))
        else:
            _settle(job.done, outcome)
    for loop, waiting in coroutines.items():
        left = threading.Lock()
        left.acquire()
        # Nobody waits any more in a loop that was closed.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle_all, waiting, left)
            # Otherwise the next block would take the GIL from the coroutines, and be smaller than it could be.
            left.acquire(timeout=_LEAVING_SECONDS)


def _settle_all(waiting: Sequence[tuple[asyncio.Future[Any], Any]], left: threading.Lock) -> None:
    for done, outcome in waiting:
        _settle(done, outcome)
    # This runs after the coroutines that were woken here.
    asyncio.get_running_loop().call_soon(left.release)


def _settle(done: Future[Any] | asyncio.Future[Any], outcome: Any) -> None:
    # A caller that no longer waits may have cancelled the future, perhaps just now.
    with suppress(InvalidStateError, asyncio.InvalidStateError):
        if isinstance(outcome, Exception):
            done.set_exception(outcome)
        else:
            done.set_result(outcome)


def _decision_event(case: Case, outcome: dict[str, Any], *, place: Place, policy: Policy, now: str) -> Event:
    drawn = place.representative and case.coin < policy.sample
    task = "deferred" if outcome["action"] == "defer" else "sample" if drawn else None
    body = {
        **outcome,
        "key": case.key,
        "content": case.content,
        "group": case.group_digest,
        "study": case.study_digest,
        "line": case.line,
        "u": case.coin,
        "p_sample": policy.sample,
        "representative": place.representative,
        "visit": place.visit,
        "draw": case.image_draw,
        "u_second": case.second_draw,
        "p_second": policy.second_reader,
        "site": case.site,
        "device": case.device,
        "task": task,
        "parts": {part.name: part.digest for part in case.parts},
    }
    if task is not None:
        body["due_at"] = due_on(now, days=policy.due_days)
    if case.traceparent is not None:
        body["traceparent"] = case.traceparent
    if case.deliver:
        body["deliver"] = case.deliver
    return Event(kind="decision", actor=case.actor, body=body, parts=case.parts)


def _conflict(case: Case, events: list[Event]) -> Problem:
    """Return the problem of a key that was used for other content; record the refusal."""
    problem = Problem(
        409,
        "The id was used before for another content (the Idempotency-Key or, without one, image_id); send a new one.",
    )
    events.append(refusal(case.actor, problem))
    return problem


def _by_line(models: Mapping[str, LineModel], cases: Sequence[Case]) -> list[dict[str, Any] | Problem]:
    """Return what each case's line says about it, in the order of the cases; each line decides in one call."""
    if len(models) == 1:
        (only,) = models.values()
        return _outcomes(only, cases)
    rows: dict[str, list[int]] = {}
    for row, case in enumerate(cases):
        rows.setdefault(case.line, []).append(row)
    outcomes: dict[int, dict[str, Any] | Problem] = {}
    for line, own in rows.items():
        outcomes.update(zip(own, _outcomes(models[line], [cases[row] for row in own]), strict=True))
    return [outcomes[row] for row in range(len(cases))]


def _outcomes(line: LineModel, cases: Sequence[Case]) -> list[dict[str, Any] | Problem]:
    """Return what the model says about each case; a bad row never spoils its block, an internal error is a deferral."""
    try:
        return list(
            line.answers(
                # This takes half the time of `np.stack`, which looks at every row separately.
                np.concatenate([case.embedding for case in cases]).reshape(len(cases), -1),
                groups=[case.group for case in cases],
                group_digests=[case.group_digest for case in cases],
            )
        )
    except Exception as error:
        if len(cases) > 1:
            return [outcome for case in cases for outcome in _outcomes(line, [case])]
        if isinstance(error, CalcodeError):
            return [Problem(422, "The model refuses this embedding; check backbone and preprocessing.")]
        _LOGGER.error("decide_failed", extra={"error": type(error).__name__, "model": line.digest[:16]})
        return [
            {
                "action": "defer",
                "reason": "error",
                "label": None,
                "set": [],
                "p_audit": None,
                "scores": [],
                "thresholds": [],
                "in_model": False,
                "known_group": False,
                "model": line.digest,
            }
        ]
