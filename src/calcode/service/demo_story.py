"""The story of the demonstration: a model from elsewhere, an alarm, the first labels, a site model, its promotion.

Nobody presses anything. A player sends photographs, a reader who knows the truth reads the cases that the coin and the
deferrals ask for, and accounts of the demonstration do what an engineer, a clinician and an approver would do.
"""

from __future__ import annotations

import http.client
import json
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import func, select

from calcode.metrics.wording import listed, percent
from calcode.service import operations
from calcode.service.alarms import close, open_alarms
from calcode.service.batches import NDJSON
from calcode.service.labels import OUTSIDE
from calcode.service.log import Transaction
from calcode.service.problems import Problem
from calcode.service.recalibration import recalibrate
from calcode.service.reviews import save, take
from calcode.service.service import Service
from calcode.service.tables import DECISION, RECALIBRATION, TASK
from calcode.service.wording import alarm_in_words

LINE = "skin"
#: Accounts of the story. A visitor may sign in as each of them but the reader, who knows the truth.
ENGINEER, CLINICIAN, APPROVER, READER = "demo-engineer", "demo-clinician", "demo-approver", "demo-reader"
#: Deferred cases that the reader leaves in the queue for visitors.
LEFT = 12
#: Answers over which the informative rate is shown.
WINDOW = 150
_WAIT_SECONDS = 0.1
#: Photographs after which people look again whether something is to be done.
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


class Photograph(NamedTuple):
    """A request and the truth about it.

    Attributes
    ----------
    body : dict
        Of the request.
    label : str
        What its reader will say: a class or "outside".
    facts : dict of str to str
        What the data set knows of it, for who reads a case by hand.
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
    """Something that happened.

    Attributes
    ----------
    image : int
        Photographs that had been decided.
    name : str
        "start", "alarm", "closed", "recalibrated", "promoted" or "end".
    sentence : str
    """

    image: int
    name: str
    sentence: str

    @property
    def title(self) -> str:
        """What it is called on pages."""
        return _TITLES[self.name]


@dataclass
class Story:
    """Plays the stream and does what people would do.

    Attributes
    ----------
    service : Service
    stream : sequence of Photograph
    port : int
    token : str
        Of the program that sends.
    pace : float
        Photographs a second.
    say : callable
        Tells each act in a sentence.
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
    told: Callable[[Act], None] | None = None
    acts: list[Act] = field(default_factory=list)
    informative: list[bool] = field(default_factory=list)
    covered: list[bool | None] = field(default_factory=list)
    _truth: dict[str, str] = field(default_factory=dict)
    _alarms: set[str] = field(default_factory=set)
    _next_look: int = 0

    def play(self) -> None:
        """Send the stream, block after block, and let the story take its course."""
        n_classes = len(self.service.models[LINE].prompts.classes)
        self._tell("start", "A model from Vienna, fitted on dermoscopy, answers for photographs from Brazil.")
        block = max(1, round(self.pace * _WAIT_SECONDS))
        began = time.monotonic()
        for start in range(0, len(self.stream), block):
            # By the clock: what people do in between does not make the story longer.
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
        before, after = (percent(rate, digits=0) for rate in self.rates)
        covered = [hit for hit in self.covered[self._last_promotion :] if hit is not None]
        self._tell(
            "end",
            f"The stream has ended. Answers that ruled something out: {before} of the first model, {after} of the "
            f"site model, whose answers hold the true diagnosis of {sum(covered):,} of {len(covered):,} photographs.",
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
        """The answers, or None when the service has ended."""
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
        """The reader opens waiting cases of the stream, blind, and says what they are; a few are left for visitors.

        Those are deferred and not drawn: nothing in the story waits for their labels.
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
        """The next step, if it is time for it."""
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
                self._tell("alarm", f"{said['says']} {said['evidence']}")
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
            return  # the protocol's next time has not come
        models = self.service.models[LINE]
        why = "as the protocol says"
        self.service.change(lambda t: models.set_shadow(t, report["digest"], actor=ENGINEER, why=why))
        models.follow()
        names = models.settings.names
        silent = [names.get(entry["name"], entry["name"]) for entry in report["classes"] if entry["in_every_set"]]
        promised = [
            f"{names.get(entry['name'], entry['name'])} {percent(entry['promised'], digits=0)}"
            for entry in report["classes"]
            if not entry["in_every_set"]
        ]
        self._tell(
            "recalibrated",
            f"{report['cases']} drawn cases have been read: a site model is made and decides in the shadow. For at "
            f"least this share of patients the answer includes the true diagnosis: {listed(promised)}. "
            + (f"Every answer includes {listed(silent)}: too few such cases were read. " if silent else "")
            + f"It expects {percent(report['expected_informative'], digits=0)} of its answers to rule something out.",
        )

    def _close(self, alarms: Sequence[dict[str, Any]]) -> None:
        """An engineer asks, a clinician agrees."""
        why = "another clinic with another camera: a model of its own is in the shadow"
        for alarm in alarms:
            for actor, role in ((ENGINEER, "engineer"), (CLINICIAN, "clinician")):

                def change(
                    transaction: Transaction, id: str = alarm["id"], actor: str = actor, role: str = role
                ) -> str:
                    return close(transaction, LINE, id, actor=actor, roles=[role], why=why, then="go_on")

                self.service.change(change)
        self.service.models[LINE].follow()
        self._tell("closed", f"An engineer and a clinician closed the alarm: {why}.")

    def _promote(self, digest: str) -> None:
        models = self.service.models[LINE]
        self.service.change(lambda t: models.propose(t, digest, actor=ENGINEER, why="all gates passed"))
        self.service.change(lambda t: models.approve(t, digest, actor=APPROVER, why="seen in the shadow"))
        models.follow()
        rate = sum(self.informative[-WINDOW:]) / max(1, len(self.informative[-WINDOW:]))
        self._tell(
            "promoted",
            f"An engineer proposed the site model and another account approved it: it answers from now on. Until "
            f"now {percent(rate, digits=0)} of the answers ruled something out.",
        )

    def _tell(self, name: str, sentence: str) -> None:
        act = Act(len(self.informative), name, sentence)
        self.acts.append(act)
        self.say(f"[{act.image:>5} images] {sentence}")
        if self.told is not None:
            self.told(act)
