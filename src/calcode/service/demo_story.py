"""The story of the demonstration: a model from elsewhere, an alarm, the first labels, a site model, its promotion.

The story runs by itself. A player sends photographs, a reader who knows the true diagnoses reads drawn and deferred
cases, and accounts of the demonstration act as an engineer, a clinician and an approver.
"""

from __future__ import annotations

import http.client
import json
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Connection, func, select

from calcode.metrics.wording import counted, listed, percent
from calcode.service import operations
from calcode.service.alarms import close, open_alarms
from calcode.service.batches import NDJSON
from calcode.service.labels import OUTSIDE
from calcode.service.log import Transaction
from calcode.service.problems import Problem
from calcode.service.recalibration import recalibrate, report_of, shadow_comparison, shadowed_answers
from calcode.service.reviews import save, take
from calcode.service.service import Service
from calcode.service.tables import DECISION, RECALIBRATION, TASK
from calcode.service.wording import alarm_in_words

LINE = "skin"
#: Accounts of the story. A visitor may sign in as any of them except the reader, who knows the true diagnoses.
ENGINEER, CLINICIAN, APPROVER, READER = "demo-engineer", "demo-clinician", "demo-approver", "demo-reader"
#: Deferred cases that the reader leaves in the queue for visitors.
LEFT = 12
#: Last answers over which the informative rate is shown.
WINDOW = 150
_WAIT_SECONDS = 0.1
#: Photographs between two checks whether people have to act.
_LOOK = 20
PROTOCOL = """description = "Demonstration: a site model after 100 and 200 drawn cases, approved by two."
min_shadow_decisions = 100
min_coverage = 0.7
on_alarm = "full_set"
[recalibration]
at_cases = [100, 200]
random_state = 0
rare = "count"
slack = "thin"
"""


class Shadowed(NamedTuple):
    """A candidate and the model that answered, compared on the photographs that both decided.

    Attributes
    ----------
    photographs : int
    ruled_out : (float, float)
        Share of them for which the answer ruled something out: model that answered, candidate.
    judged : int
        Photographs that both answered and whose diagnosis both know.
    included : (int, int)
        How many of these answers include the true diagnosis, in the same order.
    """

    photographs: int
    ruled_out: tuple[float, float]
    judged: int
    included: tuple[int, int]


class Photograph(NamedTuple):
    """A request and its true label.

    Attributes
    ----------
    body : dict
        Body of the request.
    label : str
        Label that its reader will give: a class or "outside".
    facts : dict of str to str
        What the data set records about it, for visitors who read the case.
    """

    body: dict[str, Any]
    label: str
    facts: dict[str, str]


_TITLES = {
    "start": "The start",
    "alarm": "An alarm",
    "closed": "The alarm is closed",
    "recalibrated": "A site model",
    "promoted": "Promotion",
    "end": "The end",
}


class Act(NamedTuple):
    """An event of the story.

    Attributes
    ----------
    image : int
        Photographs decided before it.
    name : str
        "start", "alarm", "closed", "recalibrated", "promoted" or "end".
    sentence : str
    """

    image: int
    name: str
    sentence: str

    @property
    def title(self) -> str:
        """The title on pages."""
        return _TITLES[self.name]


@dataclass
class Story:
    """Plays the stream and acts for the people involved.

    Attributes
    ----------
    service : Service
    stream : sequence of Photograph
    port : int
    token : str
        Token of the sending program.
    pace : float
        Photographs per second.
    say : callable
        Receives a sentence for each act.
    acts : list of Act
    informative : list of bool
        Whether each answer ruled something out: it held at least one diagnosis and not all of them.
    covered : list of bool or None
        Whether each answer held the true diagnosis; None for a deferral and for a diagnosis outside the label space.
    """

    service: Service
    stream: Sequence[Photograph]
    port: int
    token: str
    pace: float
    say: Callable[[str], None]
    stopped: threading.Event = field(default_factory=threading.Event)
    on_act: Callable[[Act], None] | None = None
    acts: list[Act] = field(default_factory=list)
    informative: list[bool] = field(default_factory=list)
    covered: list[bool | None] = field(default_factory=list)
    _truth: dict[str, str] = field(default_factory=dict)
    _alarms: set[str] = field(default_factory=set)
    _next_look: int = 0

    def play(self) -> None:
        """Send the stream in blocks, and take each step of the story when it is due."""
        n_classes = len(self.service.models[LINE].prompts.classes)
        self._add_act(
            "start", "A model fitted on dermoscopy from Vienna and Queensland answers for photographs from Brazil."
        )
        block = max(1, round(self.pace * _WAIT_SECONDS))
        began = time.monotonic()
        for start in range(0, len(self.stream), block):
            # Paced by the clock, so that steps in between do not make the story longer.
            if self.stopped.wait(max(0.0, began + (start + block) / self.pace - time.monotonic())):
                return
            sent = self.stream[start : start + block]
            answers = self._send([photograph.body for photograph in sent])
            if answers is None:
                return
            for photograph, answer in zip(sent, answers, strict=True):
                self._truth[answer["id"]] = photograph.label
                self.informative.append(0 < len(answer["set"]) < n_classes)
                judged = answer["action"] != "defer" and photograph.label != OUTSIDE
                self.covered.append(photograph.label in answer["set"] if judged else None)
            self.service.change(self._read)
            self.service.watch()
            if len(self.informative) >= self._next_look:
                self._next_look += _LOOK
                self._go_on()
        self._add_act("end", self.summary)

    @property
    def summary(self) -> str:
        """What the last site model did with the photographs since its promotion, each counted once."""
        before, after = (percent(rate, digits=0) for rate in self.rates)
        since = self._last_promotion
        found = self.covered[since:]
        judged = [hit for hit in found if hit is not None]
        outside = sum(photograph.label == OUTSIDE for photograph in self.stream[since : len(self.covered)])
        return (
            f"The stream has ended. Answers that ruled something out: {before} of the first model, {after} of the last "
            f"site model. Since its promotion this one decided {counted(len(found), 'photograph')}: {outside:,} show a "
            f"diagnosis that it does not know, it left {len(found) - outside - len(judged):,} of the others to a "
            f"clinician and answered {len(judged):,}. {sum(judged):,} of these {len(judged):,} answers include "
            "the true diagnosis."
        )

    @property
    def rates(self) -> tuple[float, float]:
        """Informative rate before the first promotion and since the last one."""
        first = min((act.image for act in self.acts if act.name == "promoted"), default=len(self.informative))
        before, after = self.informative[:first], self.informative[self._last_promotion :]
        return sum(before) / max(1, len(before)), sum(after) / max(1, len(after))

    @property
    def _last_promotion(self) -> int:
        return max((act.image for act in self.acts if act.name == "promoted"), default=len(self.informative))

    def _send(self, bodies: Sequence[dict[str, Any]]) -> list[dict[str, Any]] | None:
        """Send a batch; return its answers, or None if the service has ended."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": NDJSON}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            content = "\n".join(map(json.dumps, bodies))
            connection.request("POST", "/v1/decisions/batch", body=content, headers=headers)
            return [json.loads(line) for line in connection.getresponse().read().splitlines()]
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def _read(self, transaction: Transaction) -> None:
        """Read waiting cases blind, with their true labels; leave a few for visitors.

        The cases left are deferred and not drawn, so the story does not wait for their labels.
        """
        classes = self.service.models[LINE].prompts.classes
        waiting = (
            select(TASK.c.id, TASK.c.decision, DECISION.c.u < DECISION.c.p_sample)
            .join(DECISION, DECISION.c.id == TASK.c.decision)
            .where(TASK.c.state == "open", TASK.c.lease_by.is_(None), TASK.c.why.in_(("deferred", "sample")))
            .order_by(TASK.c.opened_at, TASK.c.id)
        )
        left = 0
        for task, decision, drawn in transaction.connection.execute(waiting).all():
            if not drawn and left < LEFT:
                left += 1
            elif decision in self._truth:
                take(transaction, task, reviewer=READER)
                label = self._truth[decision]
                save(transaction, task, reviewer=READER, label=label, sureness=3, comment="", classes=classes)

    # ------------------------------------------------------------------ what people do

    def _go_on(self) -> None:
        """Take the next step of the story if it is due."""
        models = self.service.models[LINE]
        with self.service.database.reading() as connection:
            alarms = open_alarms(connection, LINE)
            shadow = models.in_force.shadow
            failed = [] if shadow is None else models.gates(connection, shadow.digest)
            made = connection.execute(select(func.count()).select_from(RECALIBRATION)).scalar_one()
        for alarm in alarms:
            if alarm["id"] not in self._alarms:
                self._alarms.add(alarm["id"])
                said = alarm_in_words(alarm, models.settings.names)
                self._add_act("alarm", f"{said['says']} {said['evidence']}")
        if shadow is None:
            self._recalibrate()
        elif alarms and made:
            self._close(alarms)
        elif any("restore test" in sentence for sentence in failed):
            with tempfile.TemporaryDirectory() as folder:
                backup = Path(folder) / "backup.sqlite"
                operations.back_up(self.service.log, backup)
                operations.restore_test(self.service.site, self.service.log, str(backup))
        elif not failed:
            self._promote(shadow.digest)

    def _recalibrate(self) -> None:
        try:
            report = recalibrate(self.service, LINE, actor=ENGINEER)
        except Problem:
            return  # not yet allowed by the protocol
        models = self.service.models[LINE]
        why = "as the protocol says"
        self.service.change(lambda t: models.set_shadow(t, report["digest"], actor=ENGINEER, why=why))
        models.follow()
        with self.service.database.reading() as connection:
            before = report_of(connection, LINE, models.champion.digest)
        self._add_act("recalibrated", recalibrated_in_words(report, before, names=models.settings.names))

    def _close(self, alarms: Sequence[dict[str, Any]]) -> None:
        """The engineer requests closing, the clinician agrees."""
        why = "another clinic with another camera: a model of its own is in the shadow"
        for alarm in alarms:
            for actor, role in ((ENGINEER, "engineer"), (CLINICIAN, "clinician")):

                def change(
                    transaction: Transaction, id: str = alarm["id"], actor: str = actor, role: str = role
                ) -> str:
                    return close(transaction, LINE, id, actor=actor, roles=[role], why=why, then="go_on")

                self.service.change(change)
        self.service.models[LINE].follow()
        self._add_act("closed", f"An engineer and a clinician closed the alarm: {why}.")

    def _promote(self, digest: str) -> None:
        models = self.service.models[LINE]
        with self.service.database.reading() as connection:
            reports = [report_of(connection, LINE, name) for name in (models.champion.digest, digest)]
            shadowed = self._shadowed(connection, digest)
        self.service.change(lambda t: models.propose(t, digest, actor=ENGINEER, why="all gates passed"))
        self.service.change(lambda t: models.approve(t, digest, actor=APPROVER, why="seen in the shadow"))
        models.follow()
        self._add_act("promoted", promoted_in_words(shadowed, *reports, names=models.settings.names))

    def _shadowed(self, connection: Connection, digest: str) -> Shadowed:
        rates = shadow_comparison(connection, LINE, digest, n_classes=len(self.service.models[LINE].prompts.classes))
        judged = [
            (self._truth[row.id], row)
            for row in shadowed_answers(connection, LINE, digest)
            if "defer" not in (row.action, row.shadow_action) and self._truth.get(row.id, OUTSIDE) != OUTSIDE
        ]
        return Shadowed(
            photographs=rates["decisions"],
            ruled_out=(rates["champion"]["informative"], rates["candidate"]["informative"]),
            judged=len(judged),
            included=(
                sum(label in json.loads(row.released_set) for label, row in judged),
                sum(label in json.loads(row.shadow_set) for label, row in judged),
            ),
        )

    def _add_act(self, name: str, sentence: str) -> None:
        act = Act(len(self.informative), name, sentence)
        self.acts.append(act)
        self.say(f"[{act.image:>5} images] {sentence}")
        if self.on_act is not None:
            self.on_act(act)


def recalibrated_in_words(report: dict[str, Any], before: dict[str, Any] | None, *, names: Mapping[str, str]) -> str:
    """Describe what a site model was made from, promises and expects.

    Parameters
    ----------
    report : dict
        Report of its recalibration.
    before : dict or None
        The report of the model that answers, if it was made here too.
    names : mapping of str to str
        Full names of the diagnoses.
    """
    silent = _silent(report, names)
    promised = [
        f"{names.get(entry['name'], entry['name'])} {percent(entry['promised'], digits=0)} ({entry['labels']})"
        for entry in report["classes"]
        if not entry["in_every_set"]
    ]
    expected = f"It expects {percent(report['expected_informative'], digits=0)} of its answers to rule something out"
    if before is not None:
        share = percent(before["expected_informative"], digits=0)
        expected += f"; the model before, made from {before['cases']} cases, expected {share}"
    return (
        f"{report['cases']} drawn cases have been read: a site model is made and decides in the shadow. For at least "
        f"this share of patients the answer includes the true diagnosis (in brackets: how many cases of it were read): "
        f"{listed(promised)}. "
        + (f"Every answer includes {listed(silent)}: too few such cases were read. " if silent else "")
        + f"{expected}."
    )


def promoted_in_words(
    shadowed: Shadowed, before: dict[str, Any] | None, report: dict[str, Any] | None, *, names: Mapping[str, str]
) -> str:
    """Describe a promotion: what the site model did in the shadow, and what speaks for it and against it.

    Parameters
    ----------
    shadowed : Shadowed
    before, report : dict or None
        Reports of the recalibrations that made the previous and the new model; None for a model from elsewhere.
    names : mapping of str to str
        Full names of the diagnoses.
    """
    (ruled_out, rules_out), (included, includes) = shadowed.ruled_out, shadowed.included
    gains = ["it ruled something out more often"] if rules_out > ruled_out else []
    gains += ["it missed the true diagnosis less often"] if includes > included else []
    if before is not None and report is not None:
        still = _silent(report, names)
        new = [name for name in _silent(before, names) if name not in still]
        gains += (
            [f"it promises something for {listed(new)}, which the model before put into every answer"] if new else []
        )
        gains += [f"it was made from {report['cases']} read cases, the model before from {before['cases']}"]
    return (
        "An engineer proposed the site model and another account approved it: it answers from now on. It ruled "
        f"something out for {percent(rules_out, digits=0)} of the {counted(shadowed.photographs, 'photograph')} of its "
        f"shadow; the model before: {percent(ruled_out, digits=0)}. Of the {shadowed.judged:,} that both answered and "
        f"whose diagnosis both know, its answers include the true one for {includes:,}; the model before: "
        f"{included:,}. "
        + (
            "To rule out less is no reason against a model: the protocol asks what it misses. "
            * (rules_out < ruled_out)
        )
        + ("An answer that rules nothing out misses nothing. " * (rules_out > ruled_out and includes < included))
        + (f"What speaks for the new one: {'; '.join(gains)}." if gains else "")
    ).strip()


def _silent(report: dict[str, Any], names: Mapping[str, str]) -> list[str]:
    """Full names of the diagnoses that are in every answer of a model."""
    return [names.get(entry["name"], entry["name"]) for entry in report["classes"] if entry["in_every_set"]]
