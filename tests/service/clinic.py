"""A simulated clinic: patients of a made-up world sent to one line of a service, and a reader who knows the truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from service.sites import WORLD, Site, make_site
from sqlalchemy import select

from calcode.service.admission import DecisionRequest
from calcode.service.labels import receive_label
from calcode.service.log import Event, Transaction
from calcode.service.reviews import save, take
from calcode.service.service import Service
from calcode.service.tables import DECISION, TASK

#: What a line of these tests adds to the site file.
LINE = 'protocol = "protocol.toml"\nsigning_key = "signer.key"\nvisit_minutes = 0\nsecond_reader = 0.0\n'
PROTOCOL = """description = "a site model after 60 and 120 drawn cases"
min_shadow_decisions = 10
on_alarm = "{on_alarm}"
[recalibration]
at_cases = [60, 120]
random_state = 7
miscoverage = 0.1
"""
#: The same, soon and often.
FAST_PROTOCOL = """description = "a site model after 30, 60 and 90 drawn cases"
min_shadow_decisions = 5
on_alarm = "full_set"
[recalibration]
at_cases = [30, 60, 90, 120, 150, 180]
miscoverage = 0.2
"""

Label = Callable[[str, str], str | None]


def fixed_coins(folder: Path) -> None:
    """Coins that are the same in every run."""
    (folder / "data").mkdir(mode=0o700)
    (folder / "data" / "secret.key").write_bytes(bytes(range(32)))
    (folder / "data" / "secret.key").chmod(0o600)


def clinic_site(
    folder: Path,
    *,
    sample: float = 0.5,
    on_alarm: str = "full_set",
    protocol: str | None = None,
    due_days: int = 30,
    database: str | None = None,
) -> Site:
    """A site with one line that may recalibrate."""
    (folder / "protocol.toml").write_text(protocol or PROTOCOL.format(on_alarm=on_alarm))
    fixed_coins(folder)
    return make_site(folder, line_lines=f"{LINE}sample = {sample}\ndue_days = {due_days}\n", database=database)


@dataclass
class Clinic:
    """Patients that arrive one by one; `shift` moves the clinic's images away from home, `blur` makes classes overlap.

    Attributes
    ----------
    truth : dict of str to str
        Decision to the class of its patient.
    ease : dict of str to float
        Decision to the probability that the true class has given the image: small ones are hard to read.
    """

    service: Service
    line: str = "skin"
    seed: int = 0
    shift: float = 0.7
    blur: float = 1.0
    truth: dict[str, str] = field(default_factory=dict)
    ease: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)
        self._sent = 0

    def draw(self, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Embeddings (float32, unit rows), classes and ease of n patients; shapes (n, 16), (n,) and (n,)."""
        labels = self._rng.choice(WORLD.n_classes, size=n)
        spread = self.blur * WORLD.spread * np.sqrt(WORLD.dimension / 2)
        seen = WORLD.centres()[labels] + self._rng.normal(size=(n, WORLD.dimension)) * spread
        squared = ((seen[:, None] - WORLD.centres()) ** 2).sum(axis=2) / (2 * spread**2)
        weights = np.exp(squared.min(axis=1, keepdims=True) - squared)
        ease = weights[np.arange(n), labels] / weights.sum(axis=1)
        rows = seen + self.shift
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), labels, ease

    def send(self, n: int, *, block: int = 64) -> list[str]:
        """n new patients are decided; the ids of their decisions, in order."""
        admission = self.service.admission[self.line]
        ids: list[str] = []
        for start in range(0, n, block):
            rows, labels, ease = self.draw(min(block, n - start))
            cases = []
            for row in rows:
                name = f"{self.line}-{self.seed}-{self._sent}"
                self._sent += 1
                request = DecisionRequest(embedding_f32=b"", group=f"patient {name}", image_id=f"image {name}")
                cases.append(admission.case(request, row, key=None, actor="clinic"))
            for row, answer in enumerate(self.service.writer.submit(cases).result()):
                ids.append(answer.id)
                self.truth[answer.id], self.ease[answer.id] = WORLD.classes[labels[row]], float(ease[row])
        return ids

    def read(self, label: Label | None = None, *, most: int | None = None) -> int:
        """Give every open task its label; `label` may choose another one, or None for a case that waits."""
        classes = self.service.models[self.line].prompts.classes

        def change(transaction: Transaction) -> int:
            query = select(DECISION.c.id).join(TASK, TASK.c.decision == DECISION.c.id)
            query = query.where(TASK.c.line == self.line, TASK.c.state == "open").order_by(DECISION.c.seq)
            n = 0
            for id in transaction.connection.execute(query).scalars().all():
                said = self.truth[id] if label is None else label(id, self.truth[id])
                if said is not None and id in self.truth and n != most:
                    receive_label(transaction, id, label=said, source="pathology", actor="lab", classes=classes)
                    n += 1
            return n

        read: int = self.service.change(change)
        return read

    def cannot_tell(self, ids: Sequence[str]) -> None:
        """Two readers, one after the other, say of these cases that they cannot tell."""
        classes = self.service.models[self.line].prompts.classes

        def change(transaction: Transaction) -> None:
            for reader in ("reader.one", "reader.two"):
                query = select(TASK.c.id).where(TASK.c.decision.in_(ids), TASK.c.state == "open")
                for task in transaction.connection.execute(query).scalars().all():
                    take(transaction, task, reviewer=reader)
                    save(
                        transaction, task, reviewer=reader, label="cannot_tell", sureness=1, comment="", classes=classes
                    )

        self.service.change(change)

    def drawn(self) -> list[Any]:
        """The drawn decisions of the line, in order."""
        query = select(DECISION).where(DECISION.c.line == self.line, DECISION.c.u < DECISION.c.p_sample)
        with self.service.database.reading() as connection:
            return list(connection.execute(query.order_by(DECISION.c.seq)))


def restore_tested(service: Service) -> None:
    """Let the gate of the restore test pass."""
    event = Event(kind="backup_verified", actor="operator", body={"records": 1, "good": True, "found": []})
    service.change(lambda transaction: transaction.append([event]))
