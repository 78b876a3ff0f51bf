"""Localized calibration without a semantic term: named in the paper, defined nowhere."""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

from calcode.baselines.localized_calibration import RECORD as LOCALIZED
from calcode.baselines.protocol import Roles
from calcode.errors import SettingsError
from calcode.method.evidence import Evidence

RECORD = replace(
    LOCALIZED,
    name="no-semantic-term",
    title="Localized calibration, no semantic term (not reproducible)",
    assumes="Unknown.",
    selects="Unknown.",
    differs="The paper reports it in three supporting tables and nowhere says what the semantic term is: no formula "
    "of the method has a term of that name. Nothing is computed here.",
    reproducible=False,
)


class NoSemanticTerm:
    """A record without a method."""

    record = RECORD

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> NoReturn:
        """Always an error."""
        raise SettingsError(
            f"methods: '{RECORD.name}' cannot be run, because the paper does not define it; leave it out (\"all\" does)"
        )
