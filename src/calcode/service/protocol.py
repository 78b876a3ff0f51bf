"""The protocol file: what may change on a line and how; it is logged before anything changes (SERVICE.md 10)."""

from __future__ import annotations

import tomllib
from datetime import date
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from calcode.errors import ServiceError
from calcode.toml_mistakes import keys_at, mistake

_Share = Annotated[float, Field(gt=0, lt=1)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class RecalibrationPlan(_Table):
    """When a site model may be made, from which cases and with which settings (SITE.md S6).

    These settings fix the bag, a prefix of the drawn cases, whenever somebody presses the button. A time, a seed or a
    size chosen by looking at scores would void the promise.
    """

    #: Numbers of drawn cases; each number n gives one bag, the first n cases in decision order.
    at_cases: list[Annotated[int, Field(ge=20, le=100_000)]] = []
    #: Days; each day gives one bag, the drawn cases decided before it (UTC).
    at_dates: list[date] = []
    #: Seed of the site model.
    random_state: int = Field(default=0, ge=0)
    miscoverage: _Share | dict[str, _Share] = 0.05
    rare: Literal["keep", "count", "pool"] = "keep"
    slack: Literal["keep", "thin"] = "keep"
    always_protect: list[str] = []
    #: Representatives that were not drawn and whose coin is at or above this number form the site gate: a random
    #: sample of all patients that is disjoint from the bag.
    gate_from: _Share = 0.5
    #: Share of the bag that may still wait for a label (SITE.md S5).
    most_pending: float = Field(default=0.02, ge=0, le=0.02)

    @model_validator(mode="after")
    def _some_time(self) -> Self:
        if not self.at_cases and not self.at_dates:
            raise ValueError("name at_cases or at_dates: times of recalibration stand in the protocol")
        return self


class Protocol(_Table):
    """What a model must have shown before it may answer, and what an alarm does.

    Examples
    --------
    >>> parse_protocol('description = "d"', source="protocol.toml").on_alarm
    'full_set'
    """

    #: What may change, in words, for readers of the log.
    description: str
    #: Smallest number of decisions that the candidate made in the shadow.
    min_shadow_decisions: int = Field(default=200, ge=0)
    #: Largest age of the last restore test, in days.
    restore_test_days: int = Field(default=30, ge=1)
    #: Smallest number of labelled drawn cases, decided after the candidate's cut-off, of every class that the candidate
    #: may leave out of a set.
    min_labels_per_class: int = Field(default=0, ge=0)
    #: Smallest lower confidence bound (95 %, at every look) of the candidate's coverage on those cases, all classes
    #: together; drawn cases without a label count as missed.
    min_coverage: _Share | None = None
    #: Bound on the probability of ever raising a false alarm for one bag (SITE.md S7).
    false_alarm: _Share = 0.01
    #: A site model's answer under an open alarm; a home model's answers change only with "defer_all" (SERVICE.md 9).
    on_alarm: Literal["full_set", "defer", "defer_all"] = "full_set"
    #: None: the service makes no site model.
    recalibration: RecalibrationPlan | None = None


def read_protocol(file: Path) -> str:
    """Read a protocol file, check it, and return its text."""
    try:
        text = file.read_text()
    except UnicodeDecodeError as error:
        raise ServiceError(f"{file}: not UTF-8 ({error})") from error
    parse_protocol(text, source=str(file))
    return text


def parse_protocol(text: str, *, source: str) -> Protocol:
    """Read a protocol file's text.

    Parameters
    ----------
    text : str
    source : str
        Name of the source in error messages.
    """
    try:
        return Protocol.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ServiceError(f"{source}: not TOML ({error})") from error
    except ValidationError as error:
        found = [mistake(entry, partial(keys_at, Protocol), top="protocol") for entry in error.errors()]
        raise ServiceError(f"{source}: {'; '.join(found)}") from error
