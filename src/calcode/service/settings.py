"""The site file: everything an operator decides, checked before anything starts."""

from __future__ import annotations

import ipaddress
import os
import tomllib
from datetime import UTC, tzinfo
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from calcode.backbones.registry import KNOWN
from calcode.errors import ServiceError
from calcode.toml_mistakes import keys_at, mistake

_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,99}$")]
#: Roles of people and programs (SERVICE.md 11).
Role = Literal["program", "clinician", "approver", "engineer", "auditor", "admin"]
_Probability = Annotated[float, Field(gt=0, le=1)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


#: Settings of a line that name files.
_PATHS = ("prompts", "model", "reference", "protocol", "signing_key")


class LineSettings(_Table):
    """A line of the service: one clinic's prompts, model, coin and rules (SERVICE.md 1)."""

    #: Requests name it. Coins and pseudonyms are keyed by it, so it must never change.
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] = "default"
    #: Prompt file (`*.prompts.safetensors`) that makes logits from embeddings.
    prompts: str
    #: The model that answers until another one is promoted.
    model: str
    #: Public keys (files or `ed25519:...`); a model needs a signature by one of them.
    trusted: list[str] = []
    allow_unsigned: bool = False
    #: Name of the backbone that made the embeddings, as the model records it.
    backbone: str | None = None
    #: ONNX file, folder of a backbone, or its name as for `calcode embed`, if the service accepts images.
    image_tower: str | None = None
    #: Feature file with the reference images, for neighbours in explanations.
    reference: str | None = None
    #: Probability with which a patient is drawn for review (SERVICE.md 8). All deferred cases are read.
    sample: _Probability = 0.1
    #: How long after a patient's first image another one may belong to the same visit; 0: the first image is the visit.
    visit_minutes: float = Field(default=60.0, ge=0, le=10080)
    #: Probability with which a reviewed case is read by a second person.
    second_reader: float = Field(default=0.1, ge=0, le=1)
    #: Days after which a case without a label counts as missing.
    due_days: int = Field(default=28, ge=1, le=3650)
    #: Names that people read instead of a class's short name: { mel = "melanoma" }.
    names: dict[str, str] = {}
    #: Address at which the site's own viewer shows a study, with {study} in it.
    viewer_url: str | None = None
    #: Protocol file: what may change and how (SERVICE.md 10).
    protocol: str | None = None
    #: Private key that signs the site models made here; its public key must be among the trusted ones.
    signing_key: str | None = None


class Limits(_Table):
    """Limits of one request and of one program."""

    queue: int = Field(default=1024, ge=1, le=65536)
    block: int = Field(default=64, ge=1, le=4096)
    body_bytes: int = Field(default=8_000_000, ge=1000)
    batch_bytes: int = Field(default=64_000_000, ge=1000)
    batch_rows: int = Field(default=4096, ge=1, le=4096)
    model_bytes: int = Field(default=2_000_000_000, ge=1000)
    #: Requests per second and program, and how many may come at once.
    rate: float = Field(default=500.0, gt=0)
    burst: int = Field(default=2000, ge=1)


class MailSettings(_Table):
    """Checkpoints by mail: a copy on paper or in a mailbox that the administrator of this machine cannot reach."""

    #: `host:port` of the hospital's mail server.
    server: str
    starttls: bool = False
    sender: str
    recipients: list[str] = Field(min_length=1)
    every_hours: float = Field(default=24.0, gt=0)


class CheckpointSettings(_Table):
    """How often the log is signed, and where the notes go."""

    #: Ed25519 private key (PEM); made in the data folder if none is named.
    key: str | None = None
    every_records: int = Field(default=1000, ge=1)
    every_seconds: float = Field(default=600.0, gt=0)
    #: Folders on other machines; each gets a file per checkpoint.
    folders: list[str] = []
    #: Syslog server: `/dev/log`, or `host:port` for UDP.
    syslog: Annotated[str, Field(pattern=r"^(/.+|[^:]+:[0-9]{1,5})$")] | None = None
    mail: MailSettings | None = None


class OidcSettings(_Table):
    """The hospital's identity provider."""

    issuer: str
    client_id: str
    #: File that holds the client's secret.
    client_secret_file: str
    #: Claim with the person's groups, and the roles of each group.
    claim: str = "groups"
    roles: dict[str, list[Role]]


_AeTitle = Annotated[str, Field(pattern=r"^[A-Z0-9_-]{1,16}$")]


class TlsSettings(_Table):
    """Our certificate, and the authority that must have issued the other side's certificate (files, PEM)."""

    certificate: str
    key: str
    ca: str


class PeerSettings(_Table):
    """A system that may send images by DICOM; everything given here must be true of it."""

    ae_title: _AeTitle
    #: Networks from which it sends.
    networks: list[str] = Field(min_length=1)
    #: SHA-256 of its own certificate, if TLS is on; an AE title alone proves nothing.
    certificate_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None

    @field_validator("networks")
    @classmethod
    def _networks(cls, values: list[str]) -> list[str]:
        return _checked_networks(values)


class DicomSettings(_Table):
    """The DICOM gateway (C-ECHO, C-STORE)."""

    host: str = "127.0.0.1"
    port: int = Field(default=11112, ge=0, le=65535)
    #: Our AE titles, each with the line that decides on images sent to it.
    titles: dict[_AeTitle, str] = Field(min_length=1)
    peers: list[PeerSettings] = Field(min_length=1)
    tls: TlsSettings | None = None
    #: Keep only the pixels and what is needed to decode them; false keeps objects unchanged.
    deidentify: bool = True
    #: Largest size of an object, and largest number of connections at a time.
    object_bytes: int = Field(default=256_000_000, ge=1000)
    associations: int = Field(default=10, ge=1)

    @model_validator(mode="after")
    def _certificates_need_tls(self) -> Self:
        if self.tls is None and any(peer.certificate_sha256 is not None for peer in self.peers):
            raise ValueError("certificate_sha256: there are no certificates without a table [dicom.tls]")
        return self


class _DeliverySettings(_Table):
    #: Named in the log and in metrics.
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")]
    #: Lines whose answers are sent; all lines if none is named.
    lines: list[str] | None = None
    #: Keep a report back while its case may still be read blind (SERVICE.md 7), until its label is due at the latest.
    #: A reading that is saved after a report has left is not blind.
    after_reading: bool = True

    def serves(self, line: str) -> bool:
        """Whether answers of a line are sent here."""
        return self.lines is None or line in self.lines


class DicomDelivery(_DeliverySettings):
    """Structured reports to a PACS by C-STORE."""

    kind: Literal["dicom"]
    host: str
    port: int = Field(ge=1, le=65535)
    called: _AeTitle
    calling: _AeTitle = "CALCODE"
    tls: TlsSettings | None = None


class _WebDelivery(_DeliverySettings):
    url: Annotated[str, Field(pattern=r"^https?://")]
    #: File with the value of the Authorization header.
    authorization_file: str | None = None
    #: Authority of the server's certificate (PEM), if the system does not know it.
    ca: str | None = None


class StowDelivery(_WebDelivery):
    """Structured reports to a DICOMweb server by STOW-RS; the URL ends before `/studies`."""

    kind: Literal["stow"]


class FhirDelivery(_WebDelivery):
    """DiagnosticReport and Observation to a FHIR R4 server, at its base URL."""

    kind: Literal["fhir"]
    #: System of the patient identifiers in requests (`urn:oid:...`).
    patient_system: str | None = None


Delivery = Annotated[DicomDelivery | StowDelivery | FhirDelivery, Field(discriminator="kind")]


class Retention(_Table):
    """Days after which personal content is due for deletion; None: it is never due by itself."""

    embedding_days: int | None = Field(default=None, ge=183)
    identity_days: int | None = Field(default=None, ge=183)
    image_days: int | None = Field(default=None, ge=1)
    comment_days: int | None = Field(default=None, ge=1)


class SiteSettings(_Table):
    """A whole site file.

    Examples
    --------
    >>> SiteSettings(name="hospital/skin", data="/tmp", lines=[{"prompts": "a", "model": "b"}]).limits.block
    64
    """

    #: Name of the log, the origin of its checkpoints.
    name: _Name
    #: Folder of the database, the keys, the models and the images.
    data: str
    #: PostgreSQL URL; SQLite in the data folder if none is given.
    database: str | None = None
    host: str = "127.0.0.1"
    port: int = Field(default=8470, ge=0, le=65535)
    #: Networks from which /health and /metrics are answered.
    local_networks: list[str] = ["127.0.0.0/8", "::1/128"]
    #: Addresses or networks of the proxies whose X-Forwarded-For and X-Forwarded-Proto are believed.
    trusted_proxies: list[str] = ["127.0.0.1", "::1"]
    #: Time zone in which pages show times: an IANA name such as "Europe/Vienna". The log itself is in UTC.
    time_zone: str = "UTC"
    #: Serve /openapi.json. It has no documentation page, because such pages load scripts from elsewhere.
    docs: bool = False
    lines: list[LineSettings] = Field(min_length=1)
    limits: Limits = Limits()
    checkpoints: CheckpointSettings = CheckpointSettings()
    oidc: OidcSettings | None = None
    retention: Retention = Retention()
    dicom: DicomSettings | None = None
    #: Receivers of answers besides the sender of the request.
    deliveries: list[Delivery] = []

    @property
    def holding(self) -> list[str]:
        """Receivers whose reports wait until their case is read."""
        return [entry.name for entry in self.deliveries if entry.after_reading]

    @field_validator("local_networks", "trusted_proxies")
    @classmethod
    def _networks(cls, values: list[str]) -> list[str]:
        return _checked_networks(values)

    @field_validator("time_zone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        try:
            if value != "UTC":
                ZoneInfo(value)
        # Names that cannot be files of the database are a ValueError, folders of it may be an OSError.
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(
                f'{value!r} is no time zone that this machine knows; write an IANA name such as "Europe/Vienna". If '
                "it knows none at all, install tzdata, from the system or by 'pip install tzdata'"
            ) from None
        return value

    @model_validator(mode="after")
    def _different_lines(self) -> Self:
        if len({line.name for line in self.lines}) < len(self.lines):
            raise ValueError("lines: two lines have the same name")
        return self

    @model_validator(mode="after")
    def _known_lines(self) -> Self:
        names = {line.name for line in self.lines}
        if len({entry.name for entry in self.deliveries}) < len(self.deliveries):
            raise ValueError("deliveries: two have the same name")
        titles = {} if self.dicom is None else self.dicom.titles
        for place, named in (
            ("dicom.titles", titles.values()),
            *((f"deliveries.{e.name}", e.lines or ()) for e in self.deliveries),
        ):
            if unknown := sorted(set(named) - names):
                raise ValueError(f"{place}: there is no line {', '.join(unknown)}")
        blind = {line.name for line in self.lines if line.image_tower is None}
        if without := sorted(blind & set(titles.values())):
            raise ValueError(f"dicom.titles: {', '.join(without)} cannot take images: there is no image_tower")
        return self

    @property
    def database_url(self) -> str:
        """URL of the database with the log."""
        return self.database or f"sqlite:///{Path(self.data).absolute() / 'log.sqlite'}"

    @property
    def zone(self) -> tzinfo:
        """Time zone of the pages; UTC needs no database of time zones."""
        return UTC if self.time_zone == "UTC" else ZoneInfo(self.time_zone)

    @property
    def speaks_dicom(self) -> bool:
        """Whether images come or reports leave by DICOM, which needs its libraries."""
        return self.dicom is not None or any(entry.kind != "fhir" for entry in self.deliveries)

    def path(self, name: str) -> Path:
        """Return the path of a file in the data folder."""
        return Path(self.data) / name


def require_files(site: SiteSettings) -> None:
    """Raise if a file that the site file names cannot be read; otherwise it would be missed later, during work.

    The models are left out, because the log says which models answer, and `Models` checks them.
    """
    named: list[tuple[str, str | None]] = []
    for line in site.lines:
        own = ("prompts", "reference", "protocol", "signing_key")
        named += [(f"{name} of the line {line.name}", getattr(line, name)) for name in own]
        tower = Path(line.image_tower or "")
        if tower.is_absolute() and not tower.is_dir():
            named.append((f"image_tower of the line {line.name}", line.image_tower))
        named += [(f"trusted of the line {line.name}", key) for key in line.trusted if not key.startswith("ed25519:")]
    if site.oidc is not None:
        named.append(("client_secret_file in [oidc]", site.oidc.client_secret_file))
    encrypted = [] if site.dicom is None else [("[dicom.tls]", site.dicom.tls)]
    for entry in site.deliveries:
        if isinstance(entry, DicomDelivery):
            encrypted.append((f"tls of the delivery {entry.name}", entry.tls))
        else:
            named.append((f"authorization_file of the delivery {entry.name}", entry.authorization_file))
            named.append((f"ca of the delivery {entry.name}", entry.ca))
    for where, tls in encrypted:
        named += [(f"{name} in {where}", path) for name, path in (tls.model_dump() if tls is not None else {}).items()]
    for setting, path in named:
        try:
            if path is not None:
                Path(path).open("rb").close()
        except OSError as error:
            raise ServiceError(
                f"{path}: cannot be read ({error.strerror}); {setting} names it in the site file: put it there, or "
                "correct the site file"
            ) from error


def _on_hub(tower: str | None, file: Path) -> bool:
    """Whether an image tower of a site file is the name of a backbone, and no file or folder."""
    if tower is None or (file.parent / tower).exists():
        return False
    return tower in KNOWN or ":" in tower or (tower.count("/") == 1 and not tower.endswith(".onnx"))


def _checked_networks(values: list[str]) -> list[str]:
    for value in values:
        ipaddress.ip_network(value)
    return values


def read_site(path: str | os.PathLike[str]) -> SiteSettings:
    """Read a site file; relative paths in it are relative to its folder.

    Raises
    ------
    ServiceError
        With every mistake of the file in one message.
    """
    file = Path(path)
    try:
        content = tomllib.loads(file.read_text())
        site = SiteSettings.model_validate(content)
    except FileNotFoundError as error:
        raise ServiceError(f"{file}: no such site file; 'calcode serve --demo' runs without one") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ServiceError(f"{file}: not TOML ({error})") from error
    except ValidationError as error:
        found = [mistake(entry, partial(keys_at, SiteSettings), top="site file") for entry in error.errors()]
        raise ServiceError(f"{file}: {'; '.join(found)}") from error

    def absolute(value: str | None) -> str | None:
        return None if value is None else str((file.parent / value).absolute())

    lines = [
        line.model_copy(
            update={
                **{name: absolute(getattr(line, name)) for name in _PATHS},
                "trusted": [key if key.startswith("ed25519:") else str(absolute(key)) for key in line.trusted],
                "image_tower": line.image_tower if _on_hub(line.image_tower, file) else absolute(line.image_tower),
            }
        )
        for line in site.lines
    ]
    notes = site.checkpoints.model_copy(
        update={
            "key": absolute(site.checkpoints.key),
            "folders": [str(absolute(folder)) for folder in site.checkpoints.folders],
        }
    )
    update: dict[str, object] = {"data": absolute(site.data), "lines": lines, "checkpoints": notes}
    if site.oidc is not None:
        secret = absolute(site.oidc.client_secret_file)
        update["oidc"] = site.oidc.model_copy(update={"client_secret_file": secret})

    def with_files(table: DicomSettings | Delivery) -> DicomSettings | Delivery:
        changed: dict[str, object] = {
            name: absolute(getattr(table, name)) for name in ("ca", "authorization_file") if hasattr(table, name)
        }
        tls = getattr(table, "tls", None)
        if tls is not None:
            changed["tls"] = TlsSettings(**{name: str(absolute(value)) for name, value in tls.model_dump().items()})
        return table.model_copy(update=changed)

    if site.dicom is not None:
        update["dicom"] = with_files(site.dicom)
    update["deliveries"] = [with_files(entry) for entry in site.deliveries]
    return site.model_copy(update=update)
