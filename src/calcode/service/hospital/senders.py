"""The three ways to send a report: C-STORE and STOW-RS for DICOM, a POST for FHIR."""

from __future__ import annotations

import hashlib
import io
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from calcode.service.settings import Delivery, DicomDelivery, FhirDelivery, StowDelivery

if TYPE_CHECKING:
    import httpx

_SECONDS = 20.0
#: Failed SOP Sequence: a server may answer 200 and list the object here. Each item says why in its Failure Reason.
_FAILED, _REASON = "00081198", "00081197"
#: Duplicate SOP Instance, as a status of C-STORE or as a failure reason. A report has the same UID and the same bytes
#: at every attempt, so a strict archive answers this if it has stored the report before we could record it.
_ALREADY_THERE = 0x0111


class Unreachable(Exception):
    """The receiver does not answer, so all its rows wait."""


class Refused(Exception):
    """The receiver answers but does not accept this row."""


def send(delivery: Delivery, payload: bytes) -> str:
    """Send a report; return what the receiver answered.

    Raises
    ------
    Unreachable, Refused
    """
    if isinstance(delivery, DicomDelivery):
        return _stored(delivery, payload)
    if isinstance(delivery, FhirDelivery):
        return _posted(delivery, "", payload, media_type="application/fhir+json", accept="application/fhir+json")
    boundary = hashlib.sha256(payload).hexdigest()
    head = f"--{boundary}\r\nContent-Type: application/dicom\r\n\r\n".encode()
    return _posted(
        delivery,
        "/studies",
        head + payload + f"\r\n--{boundary}--\r\n".encode(),
        media_type=f'multipart/related; type="application/dicom"; boundary={boundary}',
        accept="application/dicom+json",
    )


def _stored(delivery: DicomDelivery, payload: bytes) -> str:
    """C-STORE to a PACS."""
    from pydicom import dcmread
    from pydicom.uid import ComprehensiveSRStorage, ExplicitVRLittleEndian, ImplicitVRLittleEndian
    from pynetdicom import AE

    try:
        # Checked first: a receiver that is down is the usual fault, and the library would leave its socket open.
        socket.create_connection((delivery.host, delivery.port), timeout=_SECONDS).close()
    except OSError as error:
        raise Unreachable(type(error).__name__) from error
    entity = AE(ae_title=delivery.calling)
    entity.acse_timeout = entity.dimse_timeout = entity.network_timeout = entity.connection_timeout = _SECONDS
    entity.add_requested_context(ComprehensiveSRStorage, [ExplicitVRLittleEndian, ImplicitVRLittleEndian])
    encrypted = None
    if delivery.tls is not None:
        context = ssl.create_default_context(cafile=delivery.tls.ca)
        context.load_cert_chain(delivery.tls.certificate, delivery.tls.key)
        encrypted = (context, delivery.host)
    association = entity.associate(delivery.host, delivery.port, ae_title=delivery.called, tls_args=encrypted)
    if not association.is_established:
        raise Unreachable("association rejected" if association.is_rejected else "no association")
    try:
        status = association.send_c_store(dcmread(io.BytesIO(payload)))
    finally:
        association.release()
    if "Status" not in status:
        raise Unreachable("no answer to C-STORE")
    # Warnings (0xBxxx) say that the object was stored.
    if status.Status not in (0x0000, _ALREADY_THERE) and status.Status >> 12 != 0xB:
        raise Refused(f"C-STORE status 0x{status.Status:04X}")
    return f"C-STORE 0x{status.Status:04X}"


def _posted(delivery: StowDelivery | FhirDelivery, path: str, body: bytes, *, media_type: str, accept: str) -> str:
    """POST to a DICOMweb or FHIR server."""
    import httpx

    headers = {"Content-Type": media_type, "Accept": accept}
    if delivery.authorization_file is not None:
        headers["Authorization"] = Path(delivery.authorization_file).read_text().strip()
    verify = True if delivery.ca is None else ssl.create_default_context(cafile=delivery.ca)
    try:
        with httpx.Client(verify=verify, timeout=_SECONDS, trust_env=False) as client:
            answer = client.post(delivery.url.rstrip("/") + path, content=body, headers=headers)
    except httpx.HTTPError as error:
        raise Unreachable(type(error).__name__) from error
    if answer.status_code in (502, 503, 504):
        raise Unreachable(f"HTTP {answer.status_code}")
    failures = _failures(answer) if isinstance(delivery, StowDelivery) else set()
    if failures == {_ALREADY_THERE}:
        return f"HTTP {answer.status_code}, failure reason 0x{_ALREADY_THERE:04X}"
    if not answer.is_success:
        raise Refused(f"HTTP {answer.status_code}")
    if failures:
        raise Refused(f"HTTP {answer.status_code}, object listed as failed")
    return f"HTTP {answer.status_code}"


def _failures(answer: httpx.Response) -> set[int | None]:
    """Return why a DICOMweb server refused objects; empty if it accepted all, or says nothing about them in JSON."""
    try:
        said = answer.json()
    except ValueError:
        # The status says enough: some servers answer in XML whatever was requested.
        return set()
    data_sets = said if isinstance(said, list) else [said]
    failed = [item for entry in data_sets for item in entry.get(_FAILED, {}).get("Value", [])]
    return {next(iter(item.get(_REASON, {}).get("Value", [])), None) for item in failed}
