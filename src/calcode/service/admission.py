"""Turn a request body into a case to decide, or refuse it with one sentence (SERVICE.md 3, steps 1 and 2)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import lru_cache
from itertools import repeat
from json.encoder import encode_basestring as quoted
from math import inf
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema, model_validator

from calcode.service.audit.parts import SecretPart, content_digest, secret_part
from calcode.service.keys import SiteSecret
from calcode.service.problems import Problem
from calcode.service.settings import Retention

_Identifier = Annotated[str, Field(min_length=1, max_length=200)]
_Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,64}$")]
_Digest = Annotated[str, Field(max_length=64)]
_Float32 = Annotated[bytes, WithJsonSchema({"type": "string", "contentEncoding": "base64", "maxLength": 65536})]
_NOT_FLOAT32 = "embedding_f32: not base64 of little-endian float32 numbers."


class DecisionRequest(BaseModel):
    """One image to decide on: its embedding (numbers or base64 float32) or the image itself, and its identifiers."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        # Pydantic decodes base64 while parsing, in a fifth of the time that Python's own decoder takes.
        val_json_bytes="base64",
        json_schema_extra={
            "examples": [{"embedding": [0.6, 0.8], "group": "patient-17", "image_id": "1.2.840.1", "device": "cam-2"}]
        },
    )

    embedding: list[Annotated[float, Field(allow_inf_nan=False)]] | None = Field(default=None, max_length=8192)
    #: Little-endian float32, base64.
    embedding_f32: _Float32 | None = None
    #: PNG, JPEG, TIFF or DICOM, base64.
    image: str | None = None
    #: The patient, or the lesion if the patient is unknown.
    group: _Identifier | None = None
    #: The line that decides; optional if the sender has one line.
    line: _Word | None = None
    study: _Identifier | None = None
    #: SOP Instance UID or another unique name; the idempotency key if the header is missing.
    image_id: _Identifier | None = None
    site: _Word | None = None
    device: _Word | None = None
    #: Digest of the prompts that the caller expects; a request for others is refused.
    prompt_digest: _Digest | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.embedding is None) + (self.embedding_f32 is None) + (self.image is None) != 2:
            raise ValueError("give exactly one of embedding, embedding_f32 and image")
        return self


class Texts(NamedTuple):
    """The validated text fields of a request."""

    group: str | None = None
    study: str | None = None
    image_id: str | None = None
    line: str | None = None
    site: str | None = None
    device: str | None = None
    prompt_digest: str | None = None


class _Columns(BaseModel):
    """The text fields of many requests, under the same rules as in `DecisionRequest`."""

    model_config = ConfigDict(strict=True)

    group: list[_Identifier | None] = []
    study: list[_Identifier | None] = []
    image_id: list[_Identifier | None] = []
    line: list[_Word | None] = []
    site: list[_Word | None] = []
    device: list[_Word | None] = []
    prompt_digest: list[_Digest | None] = []


def texts_of(columns: Mapping[str, Sequence[Any]], n: int) -> list[Texts] | None:
    """Validate the text fields of many requests at once; None if any is invalid.

    Parameters
    ----------
    columns : mapping of str to sequence
        The values of all requests, by field.
    n : int
        Number of requests.

    Examples
    --------
    >>> texts_of({"group": ["a", "b"]}, 2)[1].group
    'b'
    >>> texts_of({"group": ["a", ""]}, 2) is None
    True
    """
    try:
        _Columns.model_validate(columns)
    except ValidationError:
        return None
    return list(map(Texts._make, zip(*(columns.get(name, repeat(None, n)) for name in Texts._fields), strict=True)))


# Not frozen: setting the fields of a frozen dataclass costs as much as hashing the request.
@dataclass(slots=True, kw_only=True)
class Case:
    """An admitted image.

    Attributes
    ----------
    line : str
        The line that decides it.
    key : str
        Pseudonym of the idempotency key.
    content : str
        Digest of everything that the answer depends on; the same key with another digest is a conflict.
    embedding : ndarray of float32, shape (d,)
        The stored vector is exactly the one decided on.
    group : str or None
        In clear text, for the model's check of known patients; never stored outside `parts`.
    group_digest, study_digest : str or None
        Pseudonyms.
    coin : float
        u of SITE.md S5.
    image_draw, second_draw : float
        Keyed numbers of the image, independent of `key`: to choose the patient's image (S1), and a second reader.
    parts : tuple of SecretPart
    deliver : mapping of str to str
        Kind of report by recipient.
    """

    line: str
    key: str
    content: str
    embedding: NDArray[np.float32]
    group: str | None
    group_digest: str | None
    study_digest: str | None
    coin: float
    image_draw: float
    second_draw: float
    site: str | None
    device: str | None
    actor: str
    traceparent: str | None
    parts: tuple[SecretPart, ...]
    deliver: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Admission:
    """The requests that a line admits.

    Parameters
    ----------
    line : str
    dimension : int
    prompt_digest : str
    secret : SiteSecret
        Secret of the line.
    retention : Retention
    deliver : mapping of str to str
        Kind of report by recipient.
    """

    line: str
    dimension: int
    prompt_digest: str
    secret: SiteSecret
    retention: Retention
    deliver: Mapping[str, str]

    def vector(self, request: DecisionRequest) -> NDArray[np.float32]:
        """Return the embedding as float32; it must be finite, non-zero and of the line's dimension."""
        if request.embedding_f32 is not None:
            if len(request.embedding_f32) % 4:
                raise Problem(422, _NOT_FLOAT32)
            vector = np.frombuffer(request.embedding_f32, dtype="<f4").astype(np.float32, copy=False)
        else:
            with np.errstate(over="ignore"):
                vector = np.asarray(request.embedding, dtype=np.float64).astype(np.float32)
        return self.checked(vector)

    def checked(self, vector: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the vector, or raise a Problem."""
        if vector.shape != (self.dimension,):
            given = "1 number" if vector.size == 1 else f"{vector.size} numbers"
            raise Problem(422, f"embedding: {given}, this line takes {self.dimension}.")
        # `np.dot` would release the GIL and get it back only after the writer's turn.
        squared = float(vector @ vector)
        if not 1e-12 < squared < inf:
            raise Problem(422, "embedding: not finite in float32, or of length zero.")
        return vector

    def key(self, request: DecisionRequest | Texts, key: str | None) -> str:
        """Return the idempotency key: `key` from the header, else one made from the image's name."""
        if request.prompt_digest not in (None, self.prompt_digest):
            raise Problem(422, f"prompt_digest: this line has the prompts {self.prompt_digest[:16]}...")
        if key is not None:
            return key
        if request.image_id is None:
            raise Problem(422, "Send an Idempotency-Key header or an image_id: a repeated request needs it.")
        return _named(request.image_id)

    def case(
        self,
        request: DecisionRequest | Texts,
        vector: NDArray[np.float32],
        *,
        key: str | None,
        actor: str,
        traceparent: str | None = None,
        image: str | None = None,
    ) -> Case:
        """Build the case of a request from its embedding; `image` is the file name of the stored picture."""
        key = self.key(request, key)
        pseudonym, group, study, image_id = self.secret.pseudonym, request.group, request.study, request.image_id
        who = []
        if group is not None:
            who.append(f'"group":{quoted(group)}')
        if image_id is not None:
            who.append(f'"image_id":{quoted(image_id)}')
        if study is not None:
            who.append(f'"study":{quoted(study)}')
        raw, identity = vector.tobytes(), f"{{{','.join(who)}}}".encode()
        rest = f"\n{request.site}\n{request.device}\n{self.line}\n".encode()
        keep = self.retention
        parts = [
            secret_part("embedding", raw, media_type="application/x-float32", delete_after=_day(keep.embedding_days))
        ]
        if who:
            day = _day(keep.identity_days)
            parts.append(secret_part("identity", identity, media_type="application/json", delete_after=day))
        if image is not None:
            # The picture is a file; the deletable part holds its name.
            day = _day(keep.image_days)
            parts.append(secret_part("image", image.encode(), media_type="text/x-file", delete_after=day))
        # An unkeyed digest is enough: nobody can guess an embedding.
        content = content_digest(identity + rest + raw)
        # Not from the request's key: a sender could repeat an image under other keys to choose what is read.
        image_draw, second_draw = self.secret.draws(content if image_id is None else _named(image_id))
        return Case(
            line=self.line,
            key=pseudonym("key", key),
            content=content,
            embedding=vector,
            group=group,
            group_digest=None if group is None else pseudonym("group", group),
            study_digest=None if study is None else pseudonym("study", study),
            coin=self.secret.coin(key if group is None else group),
            image_draw=image_draw,
            second_draw=second_draw,
            site=request.site,
            device=request.device,
            actor=actor,
            traceparent=traceparent,
            parts=tuple(parts),
            deliver={} if request.group is None else self.deliver,
        )


def _named(image_id: str) -> str:
    """The key made from an image's name; the secret of the line makes its pseudonym differ between lines."""
    return f"image_id\n{image_id}"


def parse_request(body: bytes) -> DecisionRequest:
    """Parse a JSON body; the Problem for an invalid body repeats none of its values."""
    return _valid(lambda: DecisionRequest.model_validate_json(body))


def request_of(facts: Mapping[str, Any]) -> DecisionRequest:
    """Like `parse_request`, for a request that was not sent as JSON."""
    return _valid(lambda: DecisionRequest.model_validate(facts))


def _valid(read: Callable[[], DecisionRequest]) -> DecisionRequest:
    try:
        return read()
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
        raise Problem(422, invalid_sentence(found, known=list(DecisionRequest.model_fields))) from None


def invalid_sentence(error: Mapping[str, Any], *, known: Sequence[str] = ()) -> str:
    """Describe a validation error without the sender's values or field names, which may identify a person.

    Examples
    --------
    >>> invalid_sentence({"type": "extra_forbidden", "loc": ("Anna",), "msg": "Extra inputs are not permitted"})
    'body: a field that is not known; the OpenAPI page lists those that are.'
    """
    if error["type"] == "extra_forbidden":
        listed = f"known are {', '.join(known)}" if known else "the OpenAPI page lists those that are"
        return f"body: a field that is not known; {listed}."
    if error["type"] in ("bytes_type", "bytes_invalid_encoding"):
        return _NOT_FLOAT32
    where = ".".join(str(part) for part in error["loc"]) or "body"
    return f"{where}: {error['msg'].removeprefix('Value error, ')}."


def _day(days: int | None) -> str | None:
    """The date from which content may be deleted, `days` from today."""
    return None if days is None else _date(int(time.time() // 86_400) + days)


@lru_cache(maxsize=16)
def _date(days: int) -> str:
    return (date(1970, 1, 1) + timedelta(days=days)).isoformat()
