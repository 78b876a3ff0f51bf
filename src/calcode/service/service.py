"""One running service: what it opens, checks and records at its start, what it does every second, how it ends."""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from calcode import __version__
from calcode.errors import CalcodeError
from calcode.service import outbox, schema
from calcode.service.admission import Admission
from calcode.service.agreement import backlog
from calcode.service.alarms import open_alarms
from calcode.service.checkpoints import Checkpoints
from calcode.service.database import STORAGE_ERRORS, Database, one_start, only_service
from calcode.service.keys import checkpoint_key, make_missing_keys, require_same_coins, site_secret
from calcode.service.log import Event, Log, Transaction, utc
from calcode.service.metrics import Metrics
from calcode.service.models import Models, latest_protocol, model_row
from calcode.service.monitoring import LineMonitors
from calcode.service.people import Limiter, Tokens
from calcode.service.problems import Problem
from calcode.service.protocol import read_protocol
from calcode.service.refusals import Refusals
from calcode.service.sampling import close_visits, policy_event, policy_in_force, policy_of, visits_over
from calcode.service.settings import SiteSettings, require_files
from calcode.service.tables import PULSE
from calcode.service.writer import Writer

if TYPE_CHECKING:
    from calcode.service.images import Images

_LOGGER = logging.getLogger("calcode.service")
#: A service is ready if it committed something within this time; without traffic it writes a pulse.
READY_SECONDS = 10.0
_PULSE_SECONDS = 4.0
#: How often the last use of tokens is stored.
_USE_SECONDS = 60.0
#: How often the state of the monitors is saved; after a crash only later records are replayed.
_MONITOR_SECONDS = 60.0


class Service:
    """A service on one site file; a context manager.

    Parameters
    ----------
    site : SiteSettings
    """

    def __init__(self, site: SiteSettings) -> None:
        self.site = site
        self._stack = ExitStack()
        self._stopped = threading.Event()
        #: Length of the log when the housekeeping last looked.
        self.seen_records = 0
        #: The state that the housekeeping logged last, by subject; empty while all is well.
        self._states: dict[str, str] = {}
        #: Lines whose monitors do not run, each with a sentence that says so; empty while all is well.
        self.monitor_faults: dict[str, str] = {}
        self._used_at = time.monotonic() - _USE_SECONDS
        self._monitors_at = time.monotonic()

    def __enter__(self) -> Self:
        site = self.site
        require_files(site)
        Path(site.data).mkdir(parents=True, exist_ok=True, mode=0o700)
        self.database = Database(site.database_url)
        try:
            with self.database.readable_errors():
                self._open()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _open(self) -> None:
        """Open everything that the service needs, and start its threads."""
        site = self.site
        self._stack.callback(self.database.close)
        self._stack.enter_context(only_service(self.database))
        # Checked before the lock, because a database of another encoding cannot even give a lock.
        schema.current(self.database)
        with one_start(self.database):
            self._begin()
        for models in self.models.values():
            models.follow()
        self.refusals = Refusals()
        self.tokens = Tokens(self.database)
        self.tokens.reload()
        self.limiter = Limiter(rate=site.limits.rate, burst=site.limits.burst)
        # Limits of wrong passwords: for one account from one address, and for all accounts from one address.
        self.logins = Limiter(rate=0.2, burst=5)
        self.guesses = Limiter(rate=1.0, burst=100)
        self.admission = {
            line: Admission(
                line=line,
                dimension=models.prompts.dimension,
                prompt_digest=models.prompts.digest,
                secret=self.secret.for_line(line),
                retention=site.retention,
                deliver={e.name: e.kind for e in site.deliveries if e.kind == "fhir" and e.serves(line)},
            )
            for line, models in self.models.items()
        }
        self.monitors = {line: LineMonitors(self.log, models) for line, models in self.models.items()}
        self.writer = Writer(self.log, self.models, self.metrics, queue=site.limits.queue, block=site.limits.block)
        self.writer.start()
        self._stack.callback(self._end)
        # Without this, health and metrics would say "no records" for a second.
        self._measure()
        self._keeper = threading.Thread(target=self._keep_house, name="housekeeping", daemon=True)
        self._keeper.start()
        if site.deliveries:
            from calcode.service.hospital.couriers import running_couriers

            self._stack.enter_context(running_couriers(self, site.deliveries))
        #: Port of the DICOM gateway; 0 without a gateway.
        self.dicom_port = 0
        if site.dicom is not None:
            from calcode.service.hospital.gateway import opened_gateway

            self.dicom_port = self._stack.enter_context(opened_gateway(self, site.dicom))

    def _begin(self) -> None:
        """Check the log and what the site file names, and record the start."""
        site = self.site
        if schema.current(self.database) is None:
            schema.upgrade(self.database)
        schema.require_current(self.database)
        self.log = Log(self.database)
        with self.database.reading() as connection:
            make_missing_keys(connection, site)
            self.secret = site_secret(site)
            require_same_coins(connection, site, self.secret)
        self.checkpoints = Checkpoints(self.log, origin=site.name, key=checkpoint_key(site), settings=site.checkpoints)
        self.checkpoints.compare()
        self.metrics = Metrics()
        folder = site.path("models")
        self.models = {line.name: Models(line, self.log, folder=folder) for line in site.lines}
        # Done here so that a champion or reference images that cannot be read are found before the start is recorded.
        for models in self.models.values():
            models.follow()
            _ = models.reference
        self.images: dict[str, Images] = {}
        towers = {line.image_tower for line in site.lines if line.image_tower is not None}
        if towers:
            from calcode.service.images import opened_images

            deidentify = site.dicom is None or site.dicom.deidentify
            opened = {
                tower: self._stack.enter_context(opened_images(tower, site.path("images"), deidentify=deidentify))
                for tower in towers
            }
            self.images = {line.name: opened[line.image_tower] for line in site.lines if line.image_tower}
        if site.speaks_dicom:
            from calcode.service.hospital import require_libraries

            require_libraries()
        self._record_start()

    def settle(self) -> None:
        """Prepare memory and disk for a long time of work, so that the first decisions do not wait for this."""
        # Modules and models are no garbage: scanning them again and again costs a twelfth of a block's time.
        gc.collect()
        gc.freeze()
        self.database.make_room()

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _end(self) -> None:
        self._stopped.set()
        self._keeper.join()
        try:
            self._keep_monitors()
            self.refusals.write(self.change)
            self.change(lambda transaction: transaction.append([Event(kind="stopped", actor="service", body={})]))
            # Cover the decisions since the last checkpoint before the service is down.
            self._checkpoint()
        except (Problem, *STORAGE_ERRORS) as error:
            # A full disk, or a database that is gone: the next start finds a log without `stopped`.
            _LOGGER.warning("end_not_recorded", extra={"error": type(error).__name__})
        finally:
            self.writer.stop()

    # ------------------------------------------------------------------ start

    def _record_start(self) -> None:
        """Record the start, and what the site file changed since the last start."""
        site = self.site
        events = [
            Event(
                kind="started",
                actor="service",
                body={
                    "version": __version__,
                    "settings_sha256": hashlib.sha256(site.model_dump_json().encode()).hexdigest(),
                    "secret_sha256": self.secret.digest,
                    "lines": sorted(line.name for line in site.lines),
                },
            )
        ]
        for line in site.lines:
            with self.database.reading() as connection:
                # The site file's last policy: if the file has not changed, a policy that a person set since then stays.
                policy = policy_in_force(connection, line.name, set_by="service")
                protocol = latest_protocol(connection, line.name)
            if policy != policy_of(line):
                events.append(policy_event(line.name, policy_of(line), actor="service", why="the site file"))
            if line.protocol is not None:
                text = read_protocol(Path(line.protocol))
                digest = hashlib.sha256(text.encode()).hexdigest()
                if protocol is None or digest != protocol.digest:
                    said = {"line": line.name, "text": text}
                    events.append(Event(kind="protocol_set", actor="service", subject=digest, body=said))
        firsts = [models.first() for models in self.models.values()]
        with self.log.transaction() as transaction:
            transaction.append(events)
            for first in firsts:
                if first is not None:
                    first(transaction)

    # ------------------------------------------------------------------ while it runs

    def change(self, change: Callable[[Transaction], Any]) -> Any:
        """Carry out a change in the writer's thread and wait until it is durable."""
        return self.writer.change(change).result()

    def promises(self, line: str, digest: str) -> list[str]:
        """Return the promises of a model, also if it no longer answers or its line is no longer served."""
        loaded = self.models[line].loaded(digest) if line in self.models else None
        if loaded is not None:
            return loaded.promises
        with self.database.reading() as connection:
            row = model_row(connection, line, digest)
        return [] if row is None else list(json.loads(row.promises))

    @property
    def fault(self) -> str | None:
        """Why decisions cannot be written or made; None if they can."""
        return self.writer.fault or next((models.fault for models in self.models.values() if models.fault), None)

    def ready(self) -> bool:
        """Whether a write was committed within the last ten seconds, and every line has its model."""
        return self.fault is None and time.monotonic() - self.writer.committed_at < READY_SECONDS

    def _keep_house(self) -> None:
        while not self._stopped.wait(1.0):
            # Metrics are measured even if the housekeeping fails, because they must show a full disk.
            for name, step in (("housekeeping", self._tidy), ("metrics", self._measure)):
                try:
                    step()
                except Problem:
                    continue  # the queue or the disk is full; the writer reports it
                except Exception as error:  # checkpoints and visits must go on after any error
                    if self._changed(name, type(error).__name__):
                        _LOGGER.warning(f"{name}_failed", extra={"error": type(error).__name__})
                else:
                    self._changed(name, "")

    def _tidy(self) -> None:
        """Do what is due: a pulse, tokens, refusals, models that failed, visits, monitors, a checkpoint."""
        self._pulse()
        if self.tokens.used and time.monotonic() - self._used_at > _USE_SECONDS:
            self._used_at = time.monotonic()
            self.change(self.tokens.write_use)
        if self.refusals.due():
            self.refusals.write(self.change)
        self.tokens.reload()
        for models in self.models.values():
            if models.fault is not None:
                with suppress(CalcodeError):
                    models.follow()  # its file may be good again
        if visits_over(self.database):
            self.change(close_visits)
        self.watch()
        if time.monotonic() - self._monitors_at > _MONITOR_SECONDS:
            self._keep_monitors()
        self._checkpoint()

    def watch(self) -> None:
        """Let the monitors of every line process what is new (SERVICE.md 9).

        A fault, such as a missing model file, stops only the monitors of its line: other monitors, answers and
        checkpoints go on. `monitor_faults` names the fault until it is repaired.
        """
        faults: dict[str, str] = {}
        for line, monitors in self.monitors.items():
            fault = ""
            try:
                monitors.step(self.change)
            except (Problem, *STORAGE_ERRORS):
                raise
            except Exception as error:
                fault = type(error).__name__
                faults[line] = f"The monitors of the line {line} do not run ({fault})."
            if self._changed(f"monitors of {line}", fault) and fault:
                _LOGGER.error("monitors_failed", extra={"line": line, "error": fault})
        self.monitor_faults = faults

    def _keep_monitors(self) -> None:
        self._monitors_at = time.monotonic()
        for monitors in self.monitors.values():
            # The state grows with the log: it is written when the log has grown by a tenth, and at the end.
            change = monitors.saving(least=1 if self._stopped.is_set() else monitors.upto // 10)
            if change is not None:
                self.change(change)

    def _pulse(self) -> None:
        if self.writer.fault is None and time.monotonic() - self.writer.committed_at < _PULSE_SECONDS:
            return

        def write(transaction: Transaction) -> None:
            row = {"boot": self.log.boot, "at": utc(time.time())}
            connection = transaction.connection
            if connection.execute(PULSE.update().where(PULSE.c.boot == row["boot"]).values(**row)).rowcount == 0:
                connection.execute(PULSE.insert().values(**row))

        self.change(write)

    def _checkpoint(self) -> None:
        notes = self.site.checkpoints
        due = self.checkpoints.due(every_records=notes.every_records, every_seconds=notes.every_seconds)
        if due or self._stopped.is_set():
            event = self.checkpoints.next_event()
            self.change(lambda transaction: self.checkpoints.record(transaction, event))
            self.checkpoints.recorded(event)
            self.checkpoints.send()
        elif self.checkpoints.down or self.checkpoints.sent < self.checkpoints.size:
            self.checkpoints.send()  # a place that was down may be back
        down = ", ".join(self.checkpoints.down)
        if self._changed("checkpoints", down):
            if down:
                _LOGGER.warning("checkpoint_not_sent", extra={"target": down})
            else:
                _LOGGER.info("checkpoints_sent_again")

    def _changed(self, about: str, state: str) -> bool:
        """Whether a state differs from that of a second ago, so that a lasting fault is logged once, when it begins."""
        before, self._states[about] = self._states.get(about, ""), state
        return state != before

    def _measure(self) -> None:
        metrics = self.metrics
        metrics.ready.set(self.ready())
        size = self.seen_records = self.log.head()[0]
        with self.database.reading() as connection:
            queues = [backlog(connection, line) for line in self.models]
            waiting = outbox.waiting(connection, holding=self.site.holding)
            for line in self.models:
                metrics.open_alarms.labels(line).set(len(open_alarms(connection, line)))
        oldest = min((since for _, since in queues if since), default=None)
        metrics.open_tasks.set(sum(n for n, _ in queues))
        metrics.oldest_task.set(time.time() - datetime.fromisoformat(oldest).timestamp() if oldest else 0.0)
        for delivery in self.site.deliveries:
            found = waiting.get(delivery.name)
            since = None if found is None else found.since
            age = 0.0 if since is None else time.time() - datetime.fromisoformat(since).timestamp()
            metrics.outbox_rows.labels(delivery.name).set(0 if found is None else found.rows)
            metrics.outbox_age.labels(delivery.name).set(max(0.0, age))
        metrics.waiting.set(self.writer.n_waiting)
        metrics.records.set(size)
        metrics.exposed.set(size - self.checkpoints.sent)
        metrics.checkpoint_age.set(time.monotonic() - self.checkpoints.made_at)
        metrics.target_down.set(len(self.checkpoints.down))
        metrics.free_bytes.set(shutil.disk_usage(self.site.data).free)
