"""The models of a line and their states; who answers is a row of the log (SERVICE.md 10)."""

from __future__ import annotations

import json
import shutil
import threading
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy import Row, func, select

from calcode.cohorts import read_prompts
from calcode.errors import ArtifactError, ServiceError
from calcode.files import file_sha256, replacing
from calcode.method.signatures import signature_file
from calcode.service.line import LineModel, load_line_model
from calcode.service.log import Event, Log, Transaction
from calcode.service.problems import Problem
from calcode.service.settings import SiteSettings
from calcode.service.tables import DEPLOYMENT, EVENT, MODEL, PROTOCOL, SHADOW_DECISION


class Protocol(BaseModel):
    """The protocol file: what a model must have shown before it may answer."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    #: What may change, in words, for who reads the log.
    description: str
    #: Decisions that the candidate made in the shadow.
    min_shadow_decisions: int = Field(default=200, ge=0)
    #: Age of the last restore test, in days.
    restore_test_days: int = Field(default=30, ge=1)


class InForce(NamedTuple):
    """The deployment that a block is decided under."""

    champion: LineModel
    shadow: LineModel | None
    #: Position of its record in the log.
    deployed: int


class Models:
    """The models of the site's line, those that answer loaded.

    Parameters
    ----------
    site : SiteSettings
    log : Log
    """

    def __init__(self, site: SiteSettings, log: Log) -> None:
        self._site, self._log = site, log
        self.line = site.line.name
        self.prompts = read_prompts(site.line.prompts)
        self._folder = site.path("models")
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._loaded: dict[str, LineModel] = {}
        self._following = threading.Lock()
        self._in_force: InForce | None = None

    @property
    def in_force(self) -> InForce:
        """Who answers now; one value, so that a block sees one deployment whatever changes meanwhile."""
        assert self._in_force is not None, "the service has started"
        return self._in_force

    @property
    def champion(self) -> LineModel:
        """The model that answers."""
        return self.in_force.champion

    @property
    def trusted(self) -> list[str] | None:
        """Keys that must have signed a model; None where the site file allows unsigned ones."""
        return None if self._site.line.allow_unsigned else self._site.line.trusted

    def load(self, path: Path) -> LineModel:
        """Load a model of this line, signature and golden answers included."""
        return load_line_model(path, prompts=self.prompts, backbone=self._site.line.backbone, trusted=self.trusted)

    def follow(self) -> None:
        """Take over the deployment in force; its models and the one before stay loaded for a roll-back."""
        with self._following:
            with self._log.database.reading() as connection:
                row = latest_deployment(connection, self.line)
                if row is None:
                    return
                names = {digest for digest in (row.champion, row.previous, row.shadow) if digest is not None}
                stored = {
                    entry.digest: entry for entry in connection.execute(select(MODEL).where(MODEL.c.digest.in_(names)))
                }
            for digest in names - self._loaded.keys():
                self._loaded[digest] = self._checked(stored[digest])
            self._loaded = {digest: self._loaded[digest] for digest in names}
            self._in_force = InForce(
                champion=self._loaded[row.champion],
                shadow=None if row.shadow is None else self._loaded[row.shadow],
                deployed=row.from_seq,
            )

    def _checked(self, row: Row[Any]) -> LineModel:
        loaded = self.load(self._folder / row.file)
        if loaded.digest != row.digest:
            raise ArtifactError(f"{loaded.file}: digest {loaded.digest[:16]}, the log says {row.digest[:16]}")
        if loaded.golden() != row.golden:
            raise ArtifactError(f"{loaded.file}: its golden answers are not those that the log has; do not use it here")
        return loaded

    def promises(self, digest: str) -> list[str]:
        """What a model of the line promises, also one that no longer answers."""
        loaded = self._loaded.get(digest)
        if loaded is not None:
            return list(loaded.model.promises_)
        with self._log.database.reading() as connection:
            row = model_row(connection, digest)
        return [] if row is None else list(json.loads(row.promises))

    # ------------------------------------------------------------------ changes, each made in one transaction

    def first(self) -> Callable[[Transaction], None] | None:
        """The change that makes the site file's model the first champion; None if the log has one already."""
        with self._log.database.reading() as connection:
            if latest_deployment(connection, self.line) is not None:
                return None
        source = Path(self._site.line.model)
        loaded = self._keep(source)

        def change(transaction: Transaction) -> None:
            row = {"line": self.line, "champion": loaded.digest, "previous": None, "shadow": None}
            why = "first model of the site file"
            transaction.append(
                [
                    self._added(loaded, actor="service"),
                    _state({loaded.digest: "champion"}, actor="service", why=why, deployment=row),
                ]
            )

        return change

    def add(self, path: Path, *, actor: str) -> tuple[str, Callable[[Transaction], None]]:
        """Check a model file (signature, classes, prompts, golden answers) and keep it as a candidate.

        Returns
        -------
        digest : str
        change : callable
            Records it.
        """
        loaded = self._keep(path)

        def change(transaction: Transaction) -> None:
            if model_row(transaction.connection, loaded.digest) is not None:
                raise Problem(409, "This model was added before.")
            checked = _state({loaded.digest: "candidate"}, actor=actor, why="checked")
            transaction.append([self._added(loaded, actor=actor), checked])

        return loaded.digest, change

    def _keep(self, path: Path) -> LineModel:
        """A copy of a model file and its signatures in the data folder, under its digest."""
        loaded = self.load(path)
        target = self._folder / f"{loaded.digest}.safetensors"
        if path.resolve() != target.resolve():
            for source, copy in ((path, target), (signature_file(path), signature_file(target))):
                if source.is_file():
                    with replacing(copy) as temporary:
                        shutil.copyfile(source, temporary)
        return self.load(target)

    def _added(self, loaded: LineModel, *, actor: str) -> Event:
        body = {
            "line": self.line,
            "kind": loaded.kind,
            "file": loaded.file.name,
            "file_sha256": file_sha256(loaded.file),
            "promises": list(loaded.model.promises_),
            "golden": loaded.golden(),
        }
        return Event(kind="model_added", actor=actor, subject=loaded.digest, body=body)

    def set_shadow(self, transaction: Transaction, digest: str, *, actor: str, why: str) -> None:
        """Let a candidate decide in the shadow of the champion."""
        self._require_state(transaction, digest, "candidate")
        row = latest_deployment(transaction.connection, self.line)
        assert row is not None
        states = {digest: "shadow"} | ({} if row.shadow is None else {row.shadow: "candidate"})
        deployment = {"line": self.line, "champion": row.champion, "previous": row.previous, "shadow": digest}
        transaction.append([_state(states, actor=actor, why=why, deployment=deployment)])

    def refuse(self, transaction: Transaction, digest: str, *, actor: str, why: str) -> None:
        """Take a candidate or shadow model out."""
        found = self._require_state(transaction, digest, "candidate", "shadow")
        deployment = None
        if found.state == "shadow":
            row = latest_deployment(transaction.connection, self.line)
            assert row is not None
            deployment = {"line": self.line, "champion": row.champion, "previous": row.previous, "shadow": None}
        transaction.append([_state({digest: "refused"}, actor=actor, why=why, deployment=deployment)])

    def propose(self, transaction: Transaction, digest: str, *, actor: str, why: str) -> None:
        """An engineer proposes the shadow model."""
        self._require_state(transaction, digest, "shadow")
        body = {"step": "proposal", "why": why}
        transaction.append([Event(kind="approval", actor=actor, subject=digest, body=body)])

    def approve(self, transaction: Transaction, digest: str, *, actor: str, why: str) -> None:
        """Another account approves, the protocol's gates are checked, and the model answers from the next block."""
        self._require_state(transaction, digest, "shadow")
        connection = transaction.connection
        proposal = connection.execute(
            select(EVENT.c.actor)
            .where(EVENT.c.kind == "approval", EVENT.c.subject == digest)
            .order_by(EVENT.c.seq.desc())
        ).scalar()
        if proposal is None:
            raise Problem(409, "Nobody has proposed this model; an engineer proposes first.")
        if proposal == actor:
            raise Problem(403, "Another account must approve what this one proposed.")
        failed = self.gates(connection, digest)
        if failed:
            raise Problem(409, " ".join(failed), extra={"gates": failed})
        row = latest_deployment(connection, self.line)
        assert row is not None
        deployment = {"line": self.line, "champion": digest, "previous": row.champion, "shadow": None}
        body = {"step": "approval", "why": why}
        transaction.append(
            [
                Event(kind="approval", actor=actor, subject=digest, body=body),
                _state({digest: "champion", row.champion: "retired"}, actor=actor, why=why, deployment=deployment),
            ]
        )

    def roll_back(self, transaction: Transaction, *, actor: str, why: str) -> str:
        """The champion before answers again from the next block: one account, no gate."""
        connection = transaction.connection
        row = latest_deployment(connection, self.line)
        if row is None or row.previous is None:
            raise Problem(409, "There is no earlier champion to go back to.")
        # One more step back leads to what stood before the restored model when it was promoted.
        earlier = connection.execute(
            select(DEPLOYMENT.c.previous)
            .where(DEPLOYMENT.c.line == self.line, DEPLOYMENT.c.champion == row.previous)
            .order_by(DEPLOYMENT.c.from_seq.desc())
        ).scalar()
        states = {row.champion: "retired", row.previous: "champion"}
        deployment = {"line": self.line, "champion": row.previous, "previous": earlier, "shadow": row.shadow}
        transaction.append([_state(states, actor=actor, why=why, deployment=deployment)])
        return str(row.previous)

    def gates(self, connection: Any, digest: str) -> list[str]:
        """A sentence for each gate of the protocol that the model does not pass."""
        row = connection.execute(select(PROTOCOL).order_by(PROTOCOL.c.from_seq.desc())).first()
        if row is None:
            return ["No protocol is in the log; name a protocol file in the site file."]
        protocol = parse_protocol(row.text, source="protocol")
        added = connection.execute(
            select(EVENT.c.seq).where(EVENT.c.kind == "model_added", EVENT.c.subject == digest)
        ).scalar_one()
        failed = []
        if row.from_seq > added:
            failed.append("The protocol is younger than the candidate; add the candidate again under it.")
        seen = connection.execute(
            select(func.count()).select_from(SHADOW_DECISION).where(SHADOW_DECISION.c.model == digest)
        ).scalar_one()
        if seen < protocol.min_shadow_decisions:
            failed.append(f"{seen} shadow decisions, the protocol asks for {protocol.min_shadow_decisions}.")
        tested = connection.execute(
            select(EVENT.c.at).where(EVENT.c.kind == "backup_verified").order_by(EVENT.c.seq.desc())
        ).scalar()
        limit = datetime.now(UTC) - timedelta(days=protocol.restore_test_days)
        if tested is None or datetime.fromisoformat(tested) < limit:
            failed.append(
                f"No restore test within {protocol.restore_test_days} days; run calcode service restore-test."
            )
        loaded = self._loaded.get(digest)
        stored = model_row(connection, digest)
        if loaded is None or stored is None or loaded.golden() != stored.golden:
            failed.append("The golden answers are not reproduced.")
        return failed

    def _require_state(self, transaction: Transaction, digest: str, *states: str) -> Row[Any]:
        row = model_row(transaction.connection, digest)
        if row is None:
            raise Problem(404, "No model has this digest.")
        if row.state not in states:
            raise Problem(409, f"The model is {row.state}, this step needs {' or '.join(states)}.")
        return row


def _state(states: dict[str, str], *, actor: str, why: str, deployment: dict[str, Any] | None = None) -> Event:
    body = {"states": states, "why": why, "deployment": deployment}
    return Event(kind="model_state", actor=actor, subject=next(iter(states)), body=body)


def latest_deployment(connection: Any, line: str) -> Row[Any] | None:
    """Which models answer now."""
    query = select(DEPLOYMENT).where(DEPLOYMENT.c.line == line).order_by(DEPLOYMENT.c.from_seq.desc())
    row: Row[Any] | None = connection.execute(query.limit(1)).first()
    return row


def model_row(connection: Any, digest: str) -> Row[Any] | None:
    """What is known about a model."""
    row: Row[Any] | None = connection.execute(select(MODEL).where(MODEL.c.digest == digest)).first()
    return row


def parse_protocol(text: str, *, source: str) -> Protocol:
    """Read a protocol file's text."""
    try:
        return Protocol.model_validate(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise ServiceError(f"{source}: not a protocol ({error})") from error
