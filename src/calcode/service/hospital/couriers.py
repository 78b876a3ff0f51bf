"""Threads that empty the outbox: each receiver has one, so that a receiver that is down does not delay others."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Row, select

from calcode.files import canonical_json
from calcode.service import outbox
from calcode.service.audit.chain import Record
from calcode.service.database import STORAGE_ERRORS
from calcode.service.hospital.fhir import report_bundle
from calcode.service.hospital.senders import Refused, Unreachable, send
from calcode.service.hospital.statement import Statement
from calcode.service.in_every_answer import in_every_answer
from calcode.service.problems import Problem
from calcode.service.service import Service
from calcode.service.settings import Delivery, FhirDelivery
from calcode.service.tables import EVENT, SECRET_PART
from calcode.service.wording import audit_of, promises_in_words

_LOGGER = logging.getLogger("calcode.service")
#: Rows that are taken from the outbox at a time.
_BATCH = 16
#: Longest pause after a receiver was not reached; the pause doubles each time.
_LONGEST_SECONDS = 60.0


class Erased(Exception):
    """The personal content that a report needs was deleted: it can never be sent."""


@contextmanager
def running_couriers(service: Service, deliveries: Sequence[Delivery]) -> Iterator[None]:
    """Empty the outbox until the block ends; a report that is being sent then is finished first."""
    if service.database.sqlite:
        # No other process uses this file, so all leases are of a process that has ended.
        with service.database.writing() as connection:
            outbox.retry(connection)
    couriers = [_Courier(service, delivery) for delivery in deliveries]
    for courier in couriers:
        courier.start()
    try:
        yield
    finally:
        for courier in couriers:
            courier.stopped.set()
        for courier in couriers:
            courier.join()


class _Courier(threading.Thread):
    """Sends the rows of one receiver in the order of the log."""

    def __init__(self, service: Service, delivery: Delivery) -> None:
        super().__init__(name=f"courier-{delivery.name}", daemon=True)
        self._service, self._delivery = service, delivery
        self.stopped = threading.Event()

    def run(self) -> None:
        pause = 1.0
        while not self.stopped.wait(pause):
            try:
                reached = self._round()
            except (Problem, *STORAGE_ERRORS) as error:
                # The outbox could not be read or written; its rows are still there.
                _LOGGER.warning("outbox_not_written", extra={"error": type(error).__name__})
                reached = True
            pause = 1.0 if reached else min(2 * pause, _LONGEST_SECONDS)

    def _round(self) -> bool:
        """Send what is due; False if the receiver could not be reached."""
        database, name = self._service.database, self._delivery.name
        held = self._delivery.after_reading
        while not self.stopped.is_set():
            with database.reading() as connection:
                if not outbox.any_due(connection, name, after_reading=held):
                    return True
            with database.writing() as connection:
                rows = outbox.lease(connection, name, most=_BATCH, after_reading=held)
            for position, row in enumerate(rows):
                with database.writing() as connection:
                    if not outbox.renew(connection, row):
                        continue
                try:
                    self._send(row)
                except Unreachable as error:
                    with database.writing() as connection:
                        for kept in rows[position:]:
                            outbox.give_back(connection, kept, fault=str(error), again=True)
                    _LOGGER.warning("receiver_unreachable", extra={"target": name, "error": str(error)})
                    return False
                except Problem:
                    raise  # of our own log: it goes again, and the receiver knows its UID
                # A defect in one report must not stop the others.
                except Exception as error:
                    fault = str(error) if isinstance(error, Refused) else type(error).__name__
                    with database.writing() as connection:
                        outbox.give_back(connection, row, fault=fault, again=False)
                    _LOGGER.warning("receiver_refused", extra={"target": name, "error": fault})
        return True

    def _send(self, row: Row[Any]) -> None:
        try:
            payload = _payload(self._service, row, self._delivery)
        except Erased:
            receipt, digest = "not sent: the personal content was erased before", None
        else:
            receipt, digest = send(self._delivery, payload), hashlib.sha256(payload).hexdigest()
        self._service.change(
            lambda transaction: outbox.delivered(transaction, row, payload_digest=digest, receipt=receipt)
        )


def _payload(service: Service, row: Row[Any], delivery: Delivery) -> bytes:
    """Return the bytes of a report: the same at every attempt of one version of calcode in one time zone."""
    columns = [EVENT.c[name] for name in Record._fields]
    with service.database.reading() as connection:
        record = Record._make(connection.execute(select(*columns).where(EVENT.c.seq == row.seq)).one())
        parts = connection.execute(
            select(SECRET_PART.c.name, SECRET_PART.c.content).where(SECRET_PART.c.seq == row.seq)
        )
        secret = {part.name: bytes(part.content).decode() for part in parts if part.name in ("identity", "dicom")}
    body = json.loads(record.body)
    models = service.models.get(body["line"])
    statement = Statement.of_record(
        record,
        promises=promises_in_words(service, body["line"], body["model"]),
        names={} if models is None else models.settings.names,
        always=in_every_answer(service, body).names,
        audit=audit_of(service, body),
    )
    if isinstance(delivery, FhirDelivery):
        who = json.loads(secret.get("identity", "{}"))
        if "group" not in who:
            raise Erased
        bundle = report_bundle(
            statement,
            patient=who["group"],
            patient_system=delivery.patient_system,
            study=who.get("study") if "dicom" in secret else None,
            image=who.get("image_id") if "dicom" in secret else None,
        )
        return canonical_json(bundle).encode()
    if "dicom" not in secret:
        raise Erased
    from calcode.service.hospital.structured_report import structured_report

    return structured_report(statement, secret["dicom"])
