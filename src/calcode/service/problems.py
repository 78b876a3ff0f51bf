"""Answers to requests that cannot be served: `application/problem+json` (RFC 9457) with one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field

MEDIA_TYPE = "application/problem+json"

_TITLES = {
    400: "Bad request",
    401: "Not signed in",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    413: "Too large",
    415: "Unsupported media type",
    422: "Refused",
    429: "Too many requests",
    500: "Internal error",
    501: "Not configured",
    503: "Busy",
    507: "Disk full",
}


class Problem(Exception):
    """A request that cannot be served.

    Parameters
    ----------
    status : int
        HTTP status.
    detail : str
        One sentence, without personal data.
    headers : mapping of str to str, optional
    extra : mapping, optional
        Further members of the answer.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = dict(headers or {})
        self.extra = dict(extra or {})

    def body(self) -> dict[str, Any]:
        """Return the members of the answer."""
        title = _TITLES.get(self.status, "Error")
        return {"type": "about:blank", "title": title, "status": self.status, "detail": self.detail, **self.extra}


class ProblemBody(BaseModel):
    """The body of a problem, for OpenAPI."""

    type: str = "about:blank"
    title: str = Field(examples=["Refused"])
    status: int = Field(examples=[422])
    detail: str = Field(examples=["embedding: 3 numbers, this line takes 128."])


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI entry of an endpoint's problems."""
    return {
        status: {"description": _TITLES[status], "content": {MEDIA_TYPE: {"schema": ProblemBody.model_json_schema()}}}
        for status in statuses
    }
