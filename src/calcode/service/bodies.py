"""The body of a record as canonical JSON (SERVICE.md 4); decisions, on the hot path, use a faster encoder."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from orjson import OPT_SORT_KEYS, dumps

from calcode.files import canonical_json

#: Range in which both encoders write numbers as `repr` does; outside it, exponents differ.
_LEAST, _MOST = 1e-4, 1e16


def body_text(kind: str, body: Mapping[str, Any], *, id: str, boot: str, mono: float, subject: str) -> str:
    """Return the hashed text of a record: canonical JSON of the body and of the columns that are not hashed separately.

    Examples
    --------
    >>> body_text("export", {"rows": 2}, id="i", boot="b", mono=1.5, subject="")
    '{"boot":"b","id":"i","mono":1.5,"rows":2,"subject":""}'
    """
    whole = {**body, "boot": boot, "id": id, "mono": mono, "subject": subject}
    if kind == "decision" and _written_alike(body, mono):
        return dumps(whole, option=OPT_SORT_KEYS).decode()
    return canonical_json(whole)


def _written_alike(body: Mapping[str, Any], mono: float) -> bool:
    """Whether both encoders write a decision's numbers identically, as they always do for zeros and nulls."""
    drawn = (body["u"], body["draw"], body["u_second"], body["p_sample"], body["p_second"], body["p_audit"], mono)
    numbers = list(filter(None, (*drawn, *body["scores"], *body["thresholds"])))
    return not numbers or (min(numbers) >= _LEAST and max(numbers) < _MOST)


@lru_cache(maxsize=4096)
def listed(values: tuple[str, ...]) -> str:
    """A released set as JSON; cached, because a line has few sets."""
    return canonical_json(values)
