"""The DICOM gateway: C-ECHO and C-STORE (PS3.4 A and B). An object is acknowledged when its decision is on the disk.

Success (0x0000) means decided and durable; no acknowledged object waits in memory. Any other status means that the
sender keeps the object and may send it again: a repeated object gets the stored decision.
"""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import socket
import ssl
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pydicom import Dataset
from pynetdicom import AE, evt
from pynetdicom.transport import ThreadedAssociationServer

from calcode.errors import ServiceError
from calcode.files import canonical_json
from calcode.service.admission import Case, DecisionRequest
from calcode.service.audit.parts import secret_part
from calcode.service.cases import drop_unrecorded
from calcode.service.database import STORAGE_ERRORS, storage_fault
from calcode.service.hospital.conformance import (
    CANNOT_UNDERSTAND,
    FAILURE,
    OTHER_CONTENT,
    OUT_OF_RESOURCES,
    SOP_CLASSES,
    SUCCESS,
    UNKNOWN_CALLED,
    UNKNOWN_CALLING,
    VERIFICATION,
    offered_syntaxes,
)
from calcode.service.hospital.objects import take_apart
from calcode.service.problems import Problem
from calcode.service.refusals import COUNTED, refusal
from calcode.service.service import Service
from calcode.service.settings import DicomSettings

_LOGGER = logging.getLogger("calcode.service")
#: How long a peer may be silent.
_SECONDS = 60


@contextmanager
def opened_gateway(service: Service, settings: DicomSettings) -> Iterator[int]:
    """Listen for DICOM until the block ends; yield the port.

    Raises
    ------
    ServiceError
        If the port is in use.
    """
    # Messages of these libraries quote what was sent.
    for library in ("pynetdicom", "pydicom", "highdicom"):
        logging.getLogger(library).setLevel(logging.CRITICAL + 1)
    entity = AE(ae_title=next(iter(settings.titles)))
    entity.maximum_associations = settings.associations
    entity.acse_timeout, entity.dimse_timeout, entity.network_timeout = 10, _SECONDS, _SECONDS
    entity.add_supported_context(VERIFICATION)
    for uid in SOP_CLASSES:
        entity.add_supported_context(uid, offered_syntaxes())
    context, gateway = _tls(settings), _Gateway(service, settings)
    handlers: list[Any] = [
        (evt.EVT_REQUESTED, gateway.requested),
        (evt.EVT_DATA_RECV, gateway.received),
        (evt.EVT_C_ECHO, lambda event: SUCCESS),
        (evt.EVT_C_STORE, gateway.store),
    ]
    try:
        server = entity.start_server(
            (settings.host, settings.port), block=False, evt_handlers=handlers, ssl_context=context
        )
    except OSError as error:
        raise ServiceError(f"[dicom] port {settings.port}: {error.strerror or error}") from error
    assert isinstance(server, ThreadedAssociationServer)
    assert server.socket is not None
    port = int(server.socket.getsockname()[1])
    _LOGGER.info("dicom_listening", extra={"port": port})
    try:
        yield port
    finally:
        server.shutdown()
        for association in entity.active_associations:
            # An association that is not established yet ends by itself.
            if association.is_established:
                association.abort()
                association.join(timeout=_SECONDS)


class _LazyHandshake(ssl.SSLContext):
    """A context whose connections shake hands in their own threads, so that a silent peer does not block others."""

    def wrap_socket(
        self,
        sock: socket.socket,
        server_side: bool = False,
        do_handshake_on_connect: bool = True,
        suppress_ragged_eofs: bool = True,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLSocket:
        """Return the socket, encrypted from its first byte on."""
        sock.settimeout(_SECONDS)
        return super().wrap_socket(sock, server_side, False, suppress_ragged_eofs, server_hostname, session)


def _tls(settings: DicomSettings) -> ssl.SSLContext | None:
    """Return a context that requires of every peer a certificate of the site's own authority; None without TLS."""
    if settings.tls is None:
        return None
    context = _LazyHandshake(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls.certificate, settings.tls.key)
        context.load_verify_locations(settings.tls.ca)
    except OSError as error:
        files = ", ".join(settings.tls.model_dump().values())
        raise ServiceError(
            f"[dicom.tls] {files}: not a certificate, its key and an authority in PEM ({error})"
        ) from error
    context.verify_mode = ssl.CERT_REQUIRED
    return context


class _Gateway:
    """The handlers of one gateway; each association calls them in a thread of its own."""

    def __init__(self, service: Service, settings: DicomSettings) -> None:
        self._service, self._settings = service, settings
        self._ended: weakref.WeakSet[Any] = weakref.WeakSet()

    def requested(self, event: Any) -> None:
        """Reject an association whose titles, address or certificate are not in the site file."""
        wanted = event.assoc.requestor.primitive
        calling, called = str(wanted.calling_ae_title).strip(), str(wanted.called_ae_title).strip()
        try:
            if called in self._settings.titles and self._is_peer(calling, event.assoc):
                return
        # After an error here, the library would go on and accept the association.
        except Exception:
            _LOGGER.exception("dicom_failed")
        self._service.refusals.count("dicom", 403)
        event.assoc.acse.send_reject(*(UNKNOWN_CALLING if called in self._settings.titles else UNKNOWN_CALLED))
        event.assoc.kill()

    def _is_peer(self, calling: str, association: Any) -> bool:
        address = ipaddress.ip_address(association.requestor.address.partition("%")[0])
        certificate = None
        if self._settings.tls is not None:
            shown = association.dul.socket.socket.getpeercert(binary_form=True)
            certificate = hashlib.sha256(shown or b"").hexdigest()
        return any(
            peer.ae_title == calling
            and any(address in ipaddress.ip_network(network) for network in peer.networks)
            and peer.certificate_sha256 in (None, certificate)
            for peer in self._settings.peers
        )

    def received(self, event: Any) -> None:
        """End an association that sends an object above the limit, before the object is whole."""
        message, limit = event.assoc.dimse.message, self._settings.object_bytes
        if message is not None and message.data_set.tell() > limit and event.assoc not in self._ended:
            self._ended.add(event.assoc)
            event.assoc.abort(block=False)
            self._refused("dicom", Problem(413, f"An object is larger than {limit:,} bytes."))

    def store(self, event: Any) -> Dataset:
        """Decide on one object and answer when the decision is durable."""
        status = Dataset()
        requestor = event.assoc.requestor
        actor = f"dicom:{_word(requestor.ae_title)}"
        try:
            try:
                line = self._settings.titles[requestor.primitive.called_ae_title.strip()]
                case = self._admitted(event.encoded_dataset(), line=line, device=_word(requestor.ae_title), actor=actor)
            except Problem as problem:
                self._refused(actor, problem)
                raise
            (answer,) = self._service.writer.submit([case]).result()
            drop_unrecorded(self._service.site.path("images"), case, answer)
            if isinstance(answer, Problem):
                raise answer
            status.Status = SUCCESS
        except Problem as problem:
            known = {409: OTHER_CONTENT, 422: CANNOT_UNDERSTAND, 503: OUT_OF_RESOURCES, 507: OUT_OF_RESOURCES}
            status.Status, status.ErrorComment = known.get(problem.status, FAILURE), problem.detail[:64]
        except STORAGE_ERRORS as error:
            status.Status, status.ErrorComment = OUT_OF_RESOURCES, storage_fault(error)[1][:64]
            _LOGGER.error("not_written", extra={"status": status.Status, "error": type(error).__name__})
        except Exception:
            status.Status, status.ErrorComment = FAILURE, "An internal error; the log of the service names its place."
            _LOGGER.exception("dicom_failed")
        return status

    def _admitted(self, content: bytes, *, line: str, device: str, actor: str) -> Case:
        service, admission = self._service, self._service.admission[line]
        name = admission.secret.pseudonym("object", hashlib.sha256(content).hexdigest())
        image = take_apart(content, pseudonym=name, deidentify=self._settings.deidentify)
        kept, vector = service.images[line].embed(image.stored, admission.checked)
        request = DecisionRequest(
            image="", group=image.patient, study=image.study, image_id=image.instance, device=device
        )
        case = admission.case(request, vector, key=None, actor=actor, image=kept)
        # Objects are compared by their content, not their embedding: a tower may change between two sendings.
        same = canonical_json([image.pixels, image.patient, image.study, image.instance, line])
        case.content = hashlib.sha256(same.encode()).hexdigest()
        day = next(part.delete_after for part in case.parts if part.name == "identity")
        header = image.report_header.encode()
        case.parts += (secret_part("dicom", header, media_type="application/dicom+json", delete_after=day),)
        archives = {e.name: e.kind for e in service.site.deliveries if e.kind != "fhir" and e.serves(line)}
        # Archives get a report on every object. FHIR servers, which are in the case already, only on a patient.
        case.deliver = {**case.deliver, **archives}
        return case

    def _refused(self, actor: str, problem: Problem) -> None:
        """Record a refusal before it is answered; a service that cannot write still refuses."""
        if problem.status in COUNTED:
            self._service.refusals.count(actor, problem.status)
            return
        event = refusal(actor, problem)
        with suppress(Problem, *STORAGE_ERRORS):
            self._service.change(lambda transaction: transaction.append([event]))


def _word(title: str) -> str:
    """Return an AE title as the log writes it for a device."""
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in title.strip())
