"""The models of a line and their states; the log records which model answers (SERVICE.md 10)."""

from __future__ import annotations

import errno
import json
import logging
import shutil
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sqlalchemy import Connection, Row, select

from calcode.cohorts import Cohort, open_features, read_prompts
from calcode.errors import ArtifactError, CalcodeError, MismatchError, OutputError
from calcode.files import file_sha256, replacing
from calcode.method.signatures import signature_file
from calcode.service.alarms import alarm_in_force
from calcode.service.gates import added_at, failed_gates
from calcode.service.line import LineModel, load_line_model
from calcode.service.log import Event, Log, Transaction
from calcode.service.problems import Problem
from calcode.service.protocol import parse_protocol
from calcode.service.sampling import Policy, policy_in_force, policy_of
from calcode.service.settings import LineSettings
from calcode.service.tables import DEPLOYMENT, EVENT, HEAD, MODEL, PROTOCOL, of_kinds

_LOGGER = logging.getLogger("calcode.service")
#: States in which a model may be added again, because it decides nothing.
_IDLE = ("added", "candidate", "refused", "retired")


@contextmanager
def room_for_model() -> Iterator[None]:
    """Refuse with 507 if a model file cannot be written, for lack of space, quota or permission; nothing is kept."""
    try:
        yield
    except (OutputError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _LOGGER.error("model_not_kept", extra={"error": type(error).__name__})
        sentence = (
            "The data folder has no room for the model's file: nothing was kept. Make room and repeat the request."
        )
        raise Problem(507, sentence, headers={"Retry-After": "2"}) from error


class InForce(NamedTuple):
    """The models and rules under which a line decides a block."""

    champion: LineModel
    shadow: LineModel | None
    policy: Policy
    #: The alarm in force about the champion's bag, and what the protocol says to answer under an alarm.
    alarm: str | None
    on_alarm: str
    #: Value of `head.deployed` when this was read; a block is recorded only if the value has not changed.
    deployed: int


class Models:
    """The models of one line; the models in use are loaded.

    Parameters
    ----------
    settings : LineSettings
    log : Log
    folder : Path
        Where model files are kept under their digests.
    """

    def __init__(self, settings: LineSettings, log: Log, *, folder: Path) -> None:
        self.settings, self._log, self.folder = settings, log, folder
        self.line = settings.name
        self.prompts = read_prompts(settings.prompts)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._loaded: dict[str, LineModel] = {}
        self._earlier: dict[str, LineModel] = {}
        self._following = threading.Lock()
        self._in_force: InForce | None = None
        #: Why this process cannot answer on the line; None if it can.
        self.fault: str | None = None

    @property
    def in_force(self) -> InForce:
        """The models and rules in force: one value, so that a block sees one deployment, even while it changes."""
        assert self._in_force is not None, "the service has started"
        return self._in_force

    @property
    def champion(self) -> LineModel:
        """The model that answers."""
        return self.in_force.champion

    @cached_property
    def reference(self) -> Cohort | None:
        """The images among which explanations show the nearest; None if the site file names none.

        Raises
        ------
        CalcodeError
            If the file is damaged, lacks a label, or has images of another length.
        """
        path = self.settings.reference
        if path is None:
            return None
        features = open_features(path)
        found = features.read(role="reference") if "reference" in features.role_counts else features.read()
        dimension = found.evidence.embeddings.shape[1]
        if dimension != self.prompts.dimension:
            raise MismatchError(
                f"{path}: {dimension} numbers an image, the line {self.line} takes {self.prompts.dimension}"
            )
        return found

    @property
    def trusted(self) -> list[str] | None:
        """Keys, one of which must have signed a model; None if the site file allows unsigned models."""
        return None if self.settings.allow_unsigned else self.settings.trusted

    def load(self, path: Path) -> LineModel:
        """Load a model file of this line; check its signature and that it can decide."""
        return load_line_model(path, prompts=self.prompts, backbone=self.settings.backbone, trusted=self.trusted)

    def follow(self) -> None:
        """Load the deployment and policy in force; the previous champion stays loaded for a roll-back.

        The shadow and the previous champion are not needed to answer: a damaged file of theirs is logged and left out.

        Raises
        ------
        CalcodeError
            If the champion cannot be loaded; the deployment that this process has used so far stays.
        """
        with self._following:
            with self._log.database.reading() as connection:
                # Read first: a change between these queries makes `head.deployed` differ, so that it is read again.
                deployed = connection.execute(select(HEAD.c.deployed)).scalar_one()
                row = latest_deployment(connection, self.line)
                if row is None:
                    return
                policy = policy_in_force(connection, self.line)
                protocol = latest_protocol(connection, self.line)
                names = {digest for digest in (row.champion, row.previous, row.shadow) if digest is not None}
                stored = {
                    entry.digest: entry
                    for entry in connection.execute(
                        select(MODEL).where(MODEL.c.line == self.line, MODEL.c.digest.in_(names))
                    )
                }
                alarm = alarm_in_force(connection, self.line, row.champion, kind=stored[row.champion].kind)
            try:
                loaded = {row.champion: self._taken(stored[row.champion])}
            except CalcodeError:
                self.fault = f"The model that answers on the line {self.line} cannot be loaded: {row.champion}."
                raise
            self.fault = None
            for digest in names - loaded.keys():
                try:
                    loaded[digest] = self._taken(stored[digest])
                except CalcodeError as error:
                    _LOGGER.error("model_not_loaded", extra={"model": digest, "error": type(error).__name__})
            self._loaded = loaded
            self._in_force = InForce(
                champion=loaded[row.champion],
                shadow=loaded.get(row.shadow),
                policy=policy or policy_of(self.settings),
                alarm=alarm,
                on_alarm="full_set" if protocol is None else parse_protocol(protocol.text, source="protocol").on_alarm,
                deployed=deployed,
            )

    def _taken(self, row: Row[Any]) -> LineModel:
        """Return a model from memory, or load it from its file."""
        earlier = self._earlier.pop(row.digest, None)
        return self._loaded.get(row.digest) or earlier or self._checked(row)

    def _checked(self, row: Row[Any]) -> LineModel:
        loaded = self.load(self.folder / row.file)
        if loaded.digest != row.digest:
            raise ArtifactError(f"{loaded.file}: digest {loaded.digest[:16]}, the log says {row.digest[:16]}")
        if loaded.golden() != row.golden:
            raise ArtifactError(f"{loaded.file}: its golden answers are not those that the log has; do not use it here")
        return loaded

    def loaded(self, digest: str) -> LineModel | None:
        """Return the champion, the previous champion or the shadow by its digest; None for any other model."""
        return self._loaded.get(digest)

    def model(self, digest: str) -> LineModel:
        """Return any model of the line, also an early champion whose cases may still get labels."""
        found = self._loaded.get(digest) or self._earlier.get(digest)
        if found is None:
            with self._log.database.reading() as connection:
                row = model_row(connection, self.line, digest)
            if row is None:
                raise ArtifactError(f"{digest[:16]}: no model of the line {self.line} has this digest")
            found = self._earlier[digest] = self._checked(row)
        return found

    def home(self, connection: Any) -> LineModel:
        """Return the home model that answered last: the prior of the line's site models (SITE.md S2)."""
        query = (
            select(DEPLOYMENT.c.champion)
            .join(MODEL, (MODEL.c.digest == DEPLOYMENT.c.champion) & (MODEL.c.line == DEPLOYMENT.c.line))
            .where(DEPLOYMENT.c.line == self.line, MODEL.c.kind == "home")
            .order_by(DEPLOYMENT.c.from_seq.desc())
        )
        digest = connection.execute(query.limit(1)).scalar()
        if digest is None:
            raise Problem(409, "No home model has answered on this line; a site model needs one as its prior.")
        return self.model(digest)

    # ------------------------------------------------------------------ changes, each made in one transaction

    def first(self) -> Callable[[Transaction], None] | None:
        """Return the change that makes the site file's model the first champion; None if the log has a champion."""
        with self._log.database.reading() as connection:
            if latest_deployment(connection, self.line) is not None:
                return None
        loaded = self._keep(Path(self.settings.model))

        def change(transaction: Transaction) -> None:
            row = {"line": self.line, "champion": loaded.digest, "previous": None, "shadow": None}
            why = "first model of the site file"
            transaction.append(
                [
                    self._added(loaded, actor="service", new=True),
                    self._state({loaded.digest: "champion"}, actor="service", why=why, deployment=row),
                ]
            )

        return change

    def add(self, path: Path, *, actor: str) -> tuple[str, Callable[[Transaction], None]]:
        """Check a model file (signature, classes, prompts, golden answers) and keep it as a candidate.

        A refused, retired or untried model may be added again, to use a newer protocol or to answer again.

        Returns
        -------
        digest : str
        change : callable
            Records the model.
        """
        with room_for_model():
            loaded = self._keep(path)

        def change(transaction: Transaction) -> None:
            row = model_row(transaction.connection, self.line, loaded.digest)
            if row is not None and row.state not in _IDLE:
                raise Problem(409, f"This model was added before and is {row.state} now.")
            checked = self._state({loaded.digest: "candidate"}, actor=actor, why="checked")
            transaction.append([self._added(loaded, actor=actor, new=row is None), checked])

        return loaded.digest, change

    def _keep(self, path: Path) -> LineModel:
        """Copy a model file and its signatures to the data folder under its digest, and load the copy."""
        loaded = self.load(path)
        target = self.folder / f"{loaded.digest}.safetensors"
        if path.resolve() != target.resolve():
            for source, copy in ((path, target), (signature_file(path), signature_file(target))):
                if source.is_file():
                    with replacing(copy) as temporary:
                        shutil.copyfile(source, temporary)
        return self.load(target)

    def _added(self, loaded: LineModel, *, actor: str, new: bool) -> Event:
        body = {
            "line": self.line,
            "new": new,
            "kind": loaded.kind,
            "file": loaded.file.name,
            "file_sha256": file_sha256(loaded.file),
            "promises": loaded.promises,
            "golden": loaded.golden(),
        }
        return Event(kind="model_added", actor=actor, subject=loaded.digest, body=body)

    def set_shadow(self, transaction: Transaction, digest: str, *, actor: str, why: str) -> None:
        """Let a candidate decide in the shadow of the champion."""
        self._require_file(self._require_state(transaction, digest, "candidate"))
        row = latest_deployment(transaction.connection, self.line)
        assert row is not None
        states = {digest: "shadow"} | ({} if row.shadow is None else {row.shadow: "candidate"})
        deployment = {"line": self.line, "champion": row.champion, "previous": row.previous, "shadow": digest}
        transaction.append([self._state(states, actor=actor, why=why, deployment=deployment)])

    def refuse(self, transaction: Transaction, digest: str, *, actor: str, why: str) -> None:
        """Refuse a candidate or shadow model."""
        found = self._require_state(transaction, digest, "candidate", "shadow")
        deployment = None
        if found.state == "shadow":
            row = latest_deployment(transaction.connection, self.line)
            assert row is not None
            deployment = {"line": self.line, "champion": row.champion, "previous": row.previous, "shadow": None}
        transaction.append([self._state({digest: "refused"}, actor=actor, why=why, deployment=deployment)])

    def propose(self, transaction: Transaction, digest: str, *, actor: str, why: str) -> None:
        """Record an engineer's proposal to promote the shadow model."""
        self._require_state(transaction, digest, "shadow")
        body = {"line": self.line, "step": "proposal", "why": why}
        transaction.append([Event(kind="approval", actor=actor, subject=digest, body=body)])

    def promote(
        self, transaction: Transaction, digest: str, *, actor: str, roles: Collection[str], why: str
    ) -> Literal["shadow", "champion"]:
        """Approve what another account proposed, or propose it, as the account's roles allow; return the new state."""
        self._require_state(transaction, digest, "shadow")
        proposed = self._proposer(transaction.connection, digest) not in (None, actor)
        if "approver" in roles and (proposed or "engineer" not in roles):
            self.approve(transaction, digest, actor=actor, why=why)
            return "champion"
        self.propose(transaction, digest, actor=actor, why=why)
        return "shadow"

    def approve(self, transaction: Transaction, digest: str, *, actor: str, why: str) -> None:
        """Record another account's approval if the protocol's gates pass; the model answers from the next block on."""
        found = self._require_state(transaction, digest, "shadow")
        connection = transaction.connection
        proposer = self._proposer(connection, digest)
        if proposer is None:
            raise Problem(409, "Nobody has proposed this model; an engineer proposes first.")
        if proposer == actor:
            raise Problem(403, "Another account must approve what this one proposed.")
        failed = self.gates(connection, digest)
        if failed:
            raise Problem(409, " ".join(failed), extra={"gates": failed})
        self._require_file(found)
        row = latest_deployment(connection, self.line)
        assert row is not None
        deployment = {"line": self.line, "champion": digest, "previous": row.champion, "shadow": None}
        body = {"line": self.line, "step": "approval", "why": why}
        transaction.append(
            [
                Event(kind="approval", actor=actor, subject=digest, body=body),
                self._state({digest: "champion", row.champion: "retired"}, actor=actor, why=why, deployment=deployment),
            ]
        )

    def _proposer(self, connection: Connection, digest: str) -> str | None:
        """Return who proposed the model last; a proposal from before it was last added does not count."""
        since = added_at(connection, self.line, digest)
        approvals = connection.execute(
            select(EVENT.c.actor, EVENT.c.body)
            .where(of_kinds("approval"), EVENT.c.subject == digest, EVENT.c.seq > since)
            .order_by(EVENT.c.seq.desc())
        )
        return next((row.actor for row in approvals if json.loads(row.body).get("line", self.line) == self.line), None)

    def roll_back(self, transaction: Transaction, *, actor: str, why: str, champion: str | None = None) -> str:
        """Go back to the previous champion from the next block on; one account suffices and no gate is checked.

        `champion` is the model to replace: with it, a second click, or a second person, does not go back further.
        """
        connection = transaction.connection
        row = latest_deployment(connection, self.line)
        if row is None or row.previous is None:
            raise Problem(409, "There is no earlier champion to go back to.")
        if champion not in (None, row.champion):
            raise Problem(409, "Another model answers by now; look at the models again.")
        before = model_row(connection, self.line, row.previous)
        assert before is not None
        self._require_file(before)
        # The next step back leads to the model that the restored model replaced when it was promoted.
        *_, earlier = [None, *_promoted(connection, self.line)[:-2]]
        states = {row.champion: "retired", row.previous: "champion"}
        # The restored model may have been added again and be the shadow; it cannot be its own shadow.
        shadow = None if row.shadow == row.previous else row.shadow
        deployment = {"line": self.line, "champion": row.previous, "previous": earlier, "shadow": shadow}
        transaction.append([self._state(states, actor=actor, why=why, deployment=deployment)])
        return str(row.previous)

    def gates(self, connection: Any, digest: str, *, upto: float = inf) -> list[str]:
        """Return a sentence for each gate of the protocol that the model fails; only cases up to `upto` count."""
        row = latest_protocol(connection, self.line)
        if row is None:
            return ["No protocol is in the log; name a protocol file in the site file."]
        try:
            loaded = self.model(digest)
        except CalcodeError:
            loaded = None
        return failed_gates(
            connection,
            self.line,
            digest,
            protocol=parse_protocol(row.text, source="protocol"),
            protocol_seq=row.from_seq,
            loaded=loaded,
            names=self.settings.names,
            upto=upto,
        )

    def _require_state(self, transaction: Transaction, digest: str, *states: str) -> Row[Any]:
        row = model_row(transaction.connection, self.line, digest)
        if row is None:
            raise Problem(404, "No model of this line has this digest.")
        if row.state not in states:
            raise Problem(409, f"The model is {row.state}, this step needs {' or '.join(states)}.")
        return row

    def _require_file(self, row: Row[Any]) -> None:
        """Check that the file of a model can be loaded, before the model is deployed.

        It is loaded even if the model is in memory, because other processes and the next start have only the file.
        """
        try:
            self._earlier[row.digest] = self._checked(row)
        except CalcodeError as error:
            reason = str(error).replace(f"{self.folder}/", "")
            raise Problem(
                409, f"The model's file cannot be used, so nothing was changed: {reason}. Add the model once more."
            ) from error

    def _state(
        self, states: dict[str, str], *, actor: str, why: str, deployment: dict[str, Any] | None = None
    ) -> Event:
        body = {"line": self.line, "states": states, "why": why, "deployment": deployment}
        return Event(kind="model_state", actor=actor, subject=next(iter(states)), body=body)


def _promoted(connection: Connection, line: str) -> list[str]:
    """Return the champions that a line could go back to, oldest first, and the current champion at the end.

    A model may be listed twice: if it was promoted, replaced, and promoted again.
    """
    found: list[str] = []
    events = select(EVENT.c.subject, EVENT.c.body).where(of_kinds("model_state")).order_by(EVENT.c.seq)
    for subject, body in connection.execute(events):
        said = json.loads(body)
        deployment = said["deployment"]
        if said.get("line", line) != line or deployment is None or found[-1:] == [deployment["champion"]]:
            continue
        # The subject of a promotion is the new champion, the subject of a roll-back the champion that is replaced.
        if subject != deployment["champion"]:
            del found[-2:]
        found.append(deployment["champion"])
    return found


def latest_deployment(connection: Any, line: str) -> Row[Any] | None:
    """Return the deployment of a line that is in force."""
    query = select(DEPLOYMENT).where(DEPLOYMENT.c.line == line).order_by(DEPLOYMENT.c.from_seq.desc())
    row: Row[Any] | None = connection.execute(query.limit(1)).first()
    return row


def latest_protocol(connection: Any, line: str, *, before: int | None = None) -> Row[Any] | None:
    """Return the protocol in force on a line; with `before`, the protocol in force at that record."""
    query = select(PROTOCOL).where(PROTOCOL.c.line.in_((line, ""))).order_by(PROTOCOL.c.from_seq.desc())
    if before is not None:
        query = query.where(PROTOCOL.c.from_seq < before)
    row: Row[Any] | None = connection.execute(query.limit(1)).first()
    return row


def model_row(connection: Any, line: str, digest: str) -> Row[Any] | None:
    """Return the row of a model of a line."""
    query = select(MODEL).where(MODEL.c.line == line, MODEL.c.digest == digest)
    row: Row[Any] | None = connection.execute(query).first()
    return row
