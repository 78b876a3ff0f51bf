"""The DICOM gateway and the outbox with real parts: dcmtk sends, Orthanc receives, and goes down and comes back."""

from __future__ import annotations

import datetime
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pynetdicom")
pytest.importorskip("onnxruntime")

from pydicom import Dataset, dcmread
from pydicom.uid import ComprehensiveSRStorage, RLELossless
from pynetdicom import AE, evt
from service.archives import archive, echo, require, send
from service.dicom_objects import IDENTIFIERS, encoded, photograph
from service.pictures import make_picture_site
from service.sites import Process, free_port, make_site, running, wait_until
from sqlalchemy import select

from calcode.errors import ServiceError
from calcode.service import outbox
from calcode.service.doctor import examine
from calcode.service.hospital.objects import take_apart
from calcode.service.hospital.senders import Refused, Unreachable
from calcode.service.hospital.senders import send as deliver
from calcode.service.hospital.statement import Statement
from calcode.service.hospital.structured_report import structured_report
from calcode.service.operations import erase, opened
from calcode.service.service import Service
from calcode.service.settings import DicomDelivery, StowDelivery, TlsSettings, read_site
from calcode.service.tables import DECISION, EVENT, SECRET_PART

GATEWAY = """
[dicom]
port = 0
titles = {{ CALCODE = "default" }}
{more}
[[dicom.peers]]
ae_title = "CAMERA"
networks = ["127.0.0.0/8"]
"""


def gateway(more: str = "") -> str:
    return GATEWAY.format(more=more)


@contextmanager
def listening(folder: Path, tables: str) -> Iterator[Service]:
    with running(make_picture_site(folder, tables=tables)) as (service, _):
        yield service


def decisions(service: Service) -> list[Any]:
    with service.database.reading() as connection:
        return list(connection.execute(select(DECISION).order_by(DECISION.c.seq)).all())


def refusals(service: Service) -> list[dict[str, Any]]:
    query = select(EVENT.c.body).where(EVENT.c.kind == "refused").order_by(EVENT.c.seq)
    with service.database.reading() as connection:
        return [json.loads(body) for body in connection.execute(query).scalars()]


# ---------------------------------------------------------------------- who may send, and what


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A gateway without deliveries."""
    with listening(tmp_path_factory.mktemp("plain"), gateway("object_bytes = 200_000")) as service:
        yield service


def test_only_known_titles_are_answered(plain: Service) -> None:
    assert echo(plain.dicom_port) == 0
    plain.refusals.events()
    assert echo(plain.dicom_port, calling="STRANGER") != 0
    assert echo(plain.dicom_port, called="OTHER") != 0
    # Counted and written down by the minute: a flood of strangers cannot fill the disk.
    counted = [event.body for event in plain.refusals.events() if event.actor == "dicom"]
    assert [body["counts"] for body in counted] == [{"403": 2}]


def test_a_known_title_from_another_address_is_refused(tmp_path: Path) -> None:
    tables = gateway().replace("127.0.0.0/8", "10.0.0.0/8")
    with listening(tmp_path, tables) as service:
        assert echo(service.dicom_port) != 0


def test_a_check_that_fails_lets_nobody_in(plain: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> bool:
        raise ValueError

    monkeypatch.setattr("calcode.service.hospital.gateway._Gateway._is_peer", fails)
    assert echo(plain.dicom_port) != 0


def test_two_titles_on_one_port_stand_for_two_lines(tmp_path: Path) -> None:
    tables = gateway().replace('CALCODE = "default"', 'CALCODE = "default", SECOND = "second"')
    site = make_picture_site(tmp_path)
    text = site.file.read_text()
    line = text[text.index("[[lines]]") :].replace("[[lines]]", '[[lines]]\nname = "second"')
    site.file.write_text(text + line + tables)
    with running(site) as (service, _):
        assert send(service.dicom_port, photograph(1), folder=tmp_path)[0] == 0
        assert send(service.dicom_port, photograph(1), folder=tmp_path, called="SECOND")[0] == 0
        first, second = decisions(service)
    assert (first.line, second.line) == ("default", "second")
    # Nobody can tell from the pseudonyms that it is the same patient.
    assert first.group_digest != second.group_digest


def test_an_object_is_decided_once_however_often_it_is_sent(plain: Service, tmp_path: Path) -> None:
    image = photograph(1)
    code, said = send(plain.dicom_port, image, image, folder=tmp_path)
    assert code == 0, said
    assert send(plain.dicom_port, image, folder=tmp_path)[0] == 0
    (row,) = [row for row in decisions(plain) if row.device == "CAMERA"]
    secret = plain.secret.for_line("default")
    assert row.group_digest == secret.pseudonym("group", "PATIENT-4711")
    assert row.study_digest == secret.pseudonym("study", "1.2.3.4711.1")
    other = photograph(1)
    other.PixelData = photograph(2).PixelData
    said = send(plain.dicom_port, other, folder=tmp_path)[1]
    assert "0xc001" in said, said
    assert "used before" in said


def test_compressed_objects_are_decided_like_plain_ones(plain: Service, tmp_path: Path) -> None:
    image = photograph(20)
    image.compress(RLELossless)
    image.SOPInstanceUID = image.file_meta.MediaStorageSOPInstanceUID = "1.2.3.4711.1.1.20"
    before = len(decisions(plain))
    require("storescu")
    (tmp_path / "rle.dcm").write_bytes(b"")
    image.save_as(tmp_path / "rle.dcm", enforce_file_format=True)
    command = ["storescu", "-xr", "-aet", "CAMERA", "-aec", "CALCODE", "127.0.0.1", str(plain.dicom_port)]
    assert subprocess.run([*command, str(tmp_path / "rle.dcm")], check=False).returncode == 0
    same = photograph(20)
    same.SOPInstanceUID = same.file_meta.MediaStorageSOPInstanceUID = "1.2.3.4711.1.1.21"
    assert send(plain.dicom_port, same, folder=tmp_path)[0] == 0
    first, second = decisions(plain)[before:]
    assert (first.action, first.released_set, first.p_audit) == (second.action, second.released_set, second.p_audit)


def _bomb() -> Dataset:
    """A small object that says it has four billion pixels."""
    image = photograph(30)
    image.Rows = image.Columns = 65_000
    return image


def _broken() -> Dataset:
    image = photograph(31)
    image.PixelData = image.PixelData[:100]
    return image


def _with_text() -> Dataset:
    image = photograph(32)
    image.BurnedInAnnotation = "YES"
    return image


@pytest.mark.parametrize("image", [_bomb(), _broken(), _with_text()], ids=["bomb", "broken", "text in pixels"])
def test_what_cannot_be_decided_is_refused_recorded_and_not_kept(
    plain: Service, tmp_path: Path, image: Dataset
) -> None:
    before, kept = len(refusals(plain)), sorted(Path(plain.site.data, "images").iterdir())
    decided = len(decisions(plain))
    said = send(plain.dicom_port, image, folder=tmp_path)[1]
    assert "0xc000" in said, said
    (entry,) = refusals(plain)[before:]
    assert entry["status"] == 422
    assert not any(word in json.dumps(entry) for word in IDENTIFIERS)
    assert sorted(Path(plain.site.data, "images").iterdir()) == kept
    assert len(decisions(plain)) == decided
    assert echo(plain.dicom_port) == 0


def test_an_object_above_the_limit_ends_the_association(plain: Service, tmp_path: Path) -> None:
    before = len(refusals(plain))
    code, said = send(plain.dicom_port, photograph(40, size=(400, 400)), folder=tmp_path)
    assert code != 0
    assert "abort" in said.lower(), said
    (entry,) = refusals(plain)[before:]
    assert entry["status"] == 413
    assert echo(plain.dicom_port) == 0


def test_a_site_file_whose_title_stands_for_a_line_without_a_tower_is_refused(tmp_path: Path) -> None:
    site = make_site(tmp_path, lines=gateway().replace("default", "skin"))
    with pytest.raises(ServiceError, match=r"dicom\.titles: skin cannot take images: there is no image_tower"):
        read_site(site.file)


def test_a_missing_library_is_named_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highdicom", None)
    table = '[[deliveries]]\nname = "pacs"\nkind = "dicom"\nhost = "h"\nport = 104\ncalled = "ARCHIVE"\n'
    site = make_site(tmp_path, lines=table).settings
    with pytest.raises(ServiceError, match=r"calcode\[hospital\]"), Service(site):
        pass
    (bad,) = [finding for finding in examine(site) if finding.level == "bad"]
    assert bad.about == "dicom"
    assert "pip install 'calcode[hospital]'" in bad.sentence


def test_titles_and_deliveries_name_lines_that_exist(tmp_path: Path) -> None:
    site = make_picture_site(tmp_path, tables=gateway().replace('"default"', '"eye"'))
    with pytest.raises(ServiceError, match="no line eye"):
        _ = site.settings


# ---------------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, the service's certificate, a camera's, and one of another authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder = tmp_path_factory.mktemp("certificates")
    now = datetime.datetime.now(datetime.UTC)

    def made(name: str, issuer: tuple[Any, Any] | None) -> tuple[Any, Any]:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject if issuer is None else issuer[1].subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
            .sign(key if issuer is None else issuer[0], hashes.SHA256())
        )
        (folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        (folder / f"{name}.sha256").write_text(certificate.fingerprint(hashes.SHA256()).hex())
        (folder / f"{name}.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return key, certificate

    authority = made("authority", None)
    for name in ("service", "camera", "scanner"):
        made(name, authority)
    made("forger", None)
    return folder


def test_with_tls_a_peer_needs_the_certificate_that_belongs_to_its_title(certificates: Path, tmp_path: Path) -> None:
    files = {name: str(certificates / name) for name in ("service.pem", "service.key", "authority.pem")}
    tables = gateway() + f'certificate_sha256 = "{(certificates / "camera.sha256").read_text()}"\n'
    tables += (
        f'[dicom.tls]\ncertificate = "{files["service.pem"]}"\nkey = "{files["service.key"]}"\n'
        f'ca = "{files["authority.pem"]}"\n'
    )

    def as_(name: str) -> tuple[str, ...]:
        own = ("+tls", str(certificates / f"{name}.key"), str(certificates / f"{name}.pem"))
        return (*own, "+cf", files["authority.pem"])

    with listening(tmp_path, tables) as service:
        # A peer that connects and says nothing keeps nobody waiting.
        with socket.create_connection(("127.0.0.1", service.dicom_port)):
            assert echo(service.dicom_port, tls=as_("camera")) == 0
        code, said = send(service.dicom_port, photograph(1), folder=tmp_path, tls=as_("camera"))
        assert code == 0, said
        assert len(decisions(service)) == 1
        # Of the same authority, with the camera's title; of another authority; without any certificate.
        assert echo(service.dicom_port, tls=as_("scanner")) != 0
        assert echo(service.dicom_port, tls=as_("forger")) != 0
        assert echo(service.dicom_port) != 0
        assert echo(service.dicom_port, tls=as_("camera")) == 0


def test_reports_leave_by_tls_with_our_certificate_to_a_receiver_that_has_the_right_one(
    certificates: Path, tmp_path: Path
) -> None:
    require("storescp")
    port = free_port()
    own = ("+tls", str(certificates / "service.key"), str(certificates / "service.pem"))
    command = ["storescp", *own, "+cf", str(certificates / "authority.pem"), "-od", str(tmp_path), str(port)]
    receiver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def delivery(authority: str) -> DicomDelivery:
        files = {"certificate": "camera.pem", "key": "camera.key", "ca": f"{authority}.pem"}
        tls = TlsSettings(**{name: str(certificates / file) for name, file in files.items()})
        return DicomDelivery(name="pacs", kind="dicom", host="localhost", port=port, called="ARCHIVE", tls=tls)

    report = _report()

    def sent() -> str | None:
        with suppress(Unreachable):
            return deliver(delivery("authority"), report)
        return None

    try:
        wait_until(sent)
        with pytest.raises(Unreachable):
            deliver(delivery("forger"), report)
    finally:
        receiver.kill()
        receiver.wait()
    assert len(list(tmp_path.glob("SR*"))) == 1


def _report() -> bytes:
    header = take_apart(encoded(photograph(1)), pseudonym="ab" * 32, deidentify=True).report_header
    words = {"line": "skin", "model": "m", "action": "label", "reason": "none", "promises": ()}
    at = "2026-11-15T22:00:00.000000Z"
    return structured_report(Statement(decision="1", seq=1, at=at, diagnoses=("nv",), n_classes=7, **words), header)


@pytest.mark.parametrize(("status", "taken"), [(0x0111, True), (0xB000, True), (0x0110, False), (0xA700, False)])
def test_a_report_that_the_archive_already_has_is_delivered(status: int, taken: bool) -> None:
    """After a kill between answer and record a report is sent again; a strict archive calls it a duplicate."""
    archive = AE(ae_title="ARCHIVE")
    archive.add_supported_context(ComprehensiveSRStorage)
    server = archive.start_server(("127.0.0.1", 0), block=False, evt_handlers=[(evt.EVT_C_STORE, lambda event: status)])
    assert server is not None
    port = server.socket.getsockname()[1]
    pacs = DicomDelivery(name="pacs", kind="dicom", host="127.0.0.1", port=port, called="ARCHIVE")
    try:
        if taken:
            assert deliver(pacs, _report()) == f"C-STORE 0x{status:04X}"
        else:
            with pytest.raises(Refused, match=f"0x{status:04X}"):
                deliver(pacs, _report())
    finally:
        server.shutdown()


def _failed(*reasons: int) -> bytes:
    items = [{"00081197": {"vr": "US", "Value": [reason]}} for reason in reasons]
    return json.dumps({"00081198": {"vr": "SQ", "Value": items}}).encode()


@pytest.mark.parametrize(
    ("status", "body", "taken"),
    [
        (200, b"<NativeDicomModel/>", True),
        (200, b"", True),
        (200, b"[]", True),
        (200, b'{"00081190": {"vr": "UR"}}', True),
        (200, _failed(0x0111), True),
        (409, _failed(0x0111), True),
        (200, _failed(0x0110), False),
        (202, _failed(0x0111, 0x0110), False),
        (200, b'{"00081198": {"vr": "SQ", "Value": [{}]}}', False),
        (409, b"", False),
        (400, b"<NativeDicomModel/>", False),
    ],
)
def test_what_a_web_archive_answers_says_whether_it_has_the_report(status: int, body: bytes, taken: bool) -> None:
    class Archive(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Archive) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        web = StowDelivery(name="web", kind="stow", url=f"http://127.0.0.1:{server.server_port}")
        try:
            if taken:
                assert deliver(web, b"report").startswith(f"HTTP {status}")
            else:
                with pytest.raises(Refused):
                    deliver(web, b"report")
        finally:
            server.shutdown()


# ---------------------------------------------------------------------- where identifiers are, and where not


def test_identifiers_are_in_secret_parts_only(tmp_path: Path) -> None:
    import urllib.request

    port = free_port()
    site = make_picture_site(tmp_path, tables=gateway().replace("port = 0", f"port = {port}"))
    process = Process(site).start()
    try:
        send(port, _bomb(), folder=tmp_path)
        send(port, _with_text(), folder=tmp_path)
        with urllib.request.urlopen(f"http://127.0.0.1:{process.port}/metrics", timeout=60) as answer:
            metrics = answer.read()
        assert send(port, photograph(1), folder=tmp_path)[0] == 0
    finally:
        # At once after the acknowledgement: the decision is on the disk all the same.
        process.kill()
    lines = (site.folder / "stderr.log").read_bytes()
    (stored,) = (site.folder / "data" / "images").iterdir()
    with opened(site.settings) as log, log.database.reading() as connection:
        records = "\n".join(connection.execute(select(EVENT.c.body)).scalars()).encode()
        actors = "\n".join(connection.execute(select(EVENT.c.actor)).scalars()).encode()
        parts = connection.execute(select(SECRET_PART.c.name, SECRET_PART.c.content)).all()
    assert b"dicom_listening" in lines
    for word in IDENTIFIERS:
        for content in (lines, metrics, stored.read_bytes(), records, actors):
            assert word.encode() not in content, word
    assert {part.name for part in parts} == {"embedding", "identity", "image", "dicom"}
    assert any(b"Wunderlich" in bytes(part.content) for part in parts)
    with opened(site.settings) as log:
        assert erase(site.settings, log, group="PATIENT-4711", decision=None, why="test") == 4
    assert not stored.exists()


# ---------------------------------------------------------------------- a full disk


def test_a_full_disk_answers_a700_and_takes_the_object_when_there_is_room(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small file system can only be mounted as root")
    try:
        site = make_picture_site(tmp_path, tables=gateway())
        site.file.write_text(site.file.read_text().replace('data = "data"', f'data = "{disk}"'))
        with running(site) as (service, _):
            assert send(service.dicom_port, photograph(1), folder=tmp_path)[0] == 0
            with suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
                while filler.write(bytes(4096)) == 4096:
                    pass
            said = send(service.dicom_port, photograph(2), folder=tmp_path)[1]
            assert "0xa700" in said, said
            assert len(decisions(service)) == 1
            (disk / "filler").unlink()
            assert send(service.dicom_port, photograph(2), folder=tmp_path)[0] == 0
            assert len(decisions(service)) == 2
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


# ---------------------------------------------------------------------- the way out


class Records(BaseHTTPRequestHandler):
    """A FHIR server of the one kind that is needed: transactions with conditional creates, kept by identifier."""

    def do_POST(self) -> None:
        bundle = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.headers["Content-Type"] == "application/fhir+json"
        for entry in bundle["entry"]:
            self.server.kept.setdefault(entry["request"]["ifNoneExist"], entry["resource"])  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"resourceType": "Bundle", "type": "transaction-response"}')

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def records() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Records)
    server.kept = {}  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def waits(service: Service) -> dict[str, outbox.Waiting]:
    with service.database.reading() as connection:
        return outbox.waiting(connection, holding=())


def uid_of(service: Service, decision: str) -> str:
    with service.database.reading() as connection:
        body = json.loads(connection.execute(select(EVENT.c.body).where(EVENT.c.id == decision)).scalar_one())
    words = {name: body[name] for name in ("line", "model", "action", "reason")}
    return Statement(decision=decision, seq=1, at="", diagnoses=(), n_classes=7, promises=(), **words).uid("report")


def test_answers_reach_the_archive_by_both_ways_and_the_record_by_fhir_also_after_the_archive_was_down(
    tmp_path: Path, records: ThreadingHTTPServer
) -> None:
    require("dsrdump")
    with archive(tmp_path / "first") as pacs, archive(tmp_path / "second") as web:
        tables = gateway() + (
            f'[[deliveries]]\nname = "pacs"\nkind = "dicom"\nhost = "127.0.0.1"\nport = {pacs.dicom}\n'
            f'called = "ARCHIVE"\n[[deliveries]]\nname = "web"\nkind = "stow"\nurl = "{web.web}"\n'
            f'[[deliveries]]\nname = "record"\nkind = "fhir"\nurl = "http://127.0.0.1:{records.server_port}"\n'
            'patient_system = "urn:oid:1.2.3"\n'
        ).replace("[[deliveries]]\n", "[[deliveries]]\nafter_reading = false\n")
        with listening(tmp_path, tables) as service:
            assert send(service.dicom_port, photograph(1), folder=tmp_path)[0] == 0
            wait_until(lambda: not waits(service))
            (first,) = decisions(service)
            for found in (pacs, web):
                (report,) = found.reports()
                assert report["00080018"]["Value"] == [uid_of(service, first.id)]
                assert report["0020000D"]["Value"] == ["1.2.3.4711.1"]
            (file,) = web.report_files(tmp_path)
            shown = subprocess.run(["dsrdump", "+Pl", str(file)], capture_output=True, text=True, check=True).stdout
            assert "Research software, not a medical device" in shown
            assert first.model in shown
            (reference,) = [item for item in _items(dcmread(file)) if item.ValueType == "IMAGE"]
            assert reference.ReferencedSOPSequence[0].ReferencedSOPInstanceUID == "1.2.3.4711.1.1.1"
            kept = records.kept  # type: ignore[attr-defined]
            assert sorted(resource["resourceType"] for resource in kept.values()) == ["DiagnosticReport", "Observation"]
            assert {resource["subject"]["identifier"]["value"] for resource in kept.values()} == {"PATIENT-4711"}

            # Both archives fail; objects are still taken, and what must leave waits.
            pacs.stop()
            web.stop()
            images = [photograph(seed) for seed in (2, 3)]
            assert send(service.dicom_port, *images, folder=tmp_path)[0] == 0
            wait_until(lambda: {name: w.rows for name, w in waits(service).items()} == {"pacs": 2, "web": 2})
            wait_until(lambda: all(entry.fault is not None for entry in waits(service).values()))
            wait_until(lambda: b'calcode_outbox_rows{target="pacs"} 2.0' in service.metrics.text())
            wait_until(lambda: b'calcode_outbox_age_seconds{target="pacs"} 0.0' not in service.metrics.text())
            pacs.start()
            web.start()
            wait_until(lambda: not waits(service))
            wanted = {uid_of(service, row.id) for row in decisions(service)}
            assert len(wanted) == 3
            for found in (pacs, web):
                assert {report["00080018"]["Value"][0] for report in found.reports()} == wanted
            with service.database.reading() as connection:
                rows = outbox.deliveries(connection, decisions(service)[1].id)
                events = connection.execute(select(EVENT.c.kind).where(EVENT.c.kind == "delivery")).all()
            assert {row.target: row.receipt for row in rows} == {
                "pacs": "C-STORE 0x0000",
                "web": "HTTP 200",
                "record": "HTTP 200",
            }
            assert all(row.payload_digest is not None and row.done_at is not None for row in rows)
            assert len(events) == 9


def test_an_object_without_a_patient_gets_a_report_in_the_archive_and_none_in_the_record(tmp_path: Path) -> None:
    """There is nobody whom a FHIR resource could be about; that is no erasure."""
    tables = gateway() + (
        f'[[deliveries]]\nname = "pacs"\nkind = "dicom"\nhost = "127.0.0.1"\nport = {free_port()}\ncalled = "ARCHIVE"\n'
        f'[[deliveries]]\nname = "record"\nkind = "fhir"\nurl = "http://127.0.0.1:{free_port()}"\n'
    )
    nobody = photograph(1)
    nobody.PatientID = ""
    with listening(tmp_path, tables) as service:
        assert send(service.dicom_port, nobody, photograph(2), folder=tmp_path)[0] == 0
        with service.database.reading() as connection:
            found = [outbox.deliveries(connection, row.id) for row in decisions(service)]
    assert [[row.target for row in rows] for rows in found] == [["pacs"], ["pacs", "record"]]


def _items(dataset: Dataset) -> Iterator[Dataset]:
    for item in dataset.get("ContentSequence", ()):
        yield item
        yield from _items(item)
