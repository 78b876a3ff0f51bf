"""What a fitted model has learned, to be read (names ending in an underscore)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from calcode.arrays import IntArray
from calcode.method.audit import SupportAudit
from calcode.method.bandwidth import BandwidthTrial
from calcode.method.localized import LocalizedRule
from calcode.method.promises import promises_of
from calcode.method.role_hashes import RoleLedger
from calcode.method.roles import Interface
from calcode.method.settings import Settings
from calcode.method.tail import ClassEvidence, ClassGuard, TailReason


class Learned:
    """Read-only views on the state that `calcode.Calcode` keeps after each stage of fitting."""

    settings_: Settings
    interface_: Interface
    ledger_: RoleLedger
    manifest_: dict[str, dict[str, Any]]
    audit_: SupportAudit | None
    bandwidth_: float
    bandwidth_trace_: tuple[BandwidthTrial, ...]
    tail_evidence_: tuple[ClassEvidence, ...]
    tail_reasons_: dict[str, TailReason]
    rule_: LocalizedRule
    guards_: tuple[ClassGuard, ...]
    calibration_labels_: IntArray
    versions_: dict[str, str]

    @property
    def classes_(self) -> tuple[str, ...]:
        """The label space."""
        interface: Interface = self._learned("interface_")
        return interface.classes

    @property
    def audit_name_(self) -> str | None:
        """The chosen diagnostic."""
        audit: SupportAudit | None = self._learned("audit_")
        return None if audit is None else audit.name

    @property
    def audit_auroc_(self) -> float | None:
        """AUROC of the chosen diagnostic for top-1 error on validation."""
        audit: SupportAudit | None = self._learned("audit_")
        return None if audit is None else audit.auroc

    @property
    def audit_aurocs_(self) -> dict[str, float]:
        """AUROC of every candidate."""
        audit: SupportAudit | None = self._learned("audit_")
        return {} if audit is None else dict(audit.aurocs)

    @property
    def local_level_(self) -> float | None:
        """eta of the localized rule; inf with too few calibration examples, None for "exact" and "upper"."""
        rule: LocalizedRule = self._learned("rule_")
        return rule.eta

    @property
    def tail_classes_(self) -> tuple[str, ...]:
        """Names of the protected classes, in class order."""
        return tuple(self._learned("tail_reasons_"))

    @property
    def tail_thresholds_(self) -> dict[str, float]:
        """Class-global quantile of every protected class."""
        return {guard.name: guard.quantile for guard in self._learned("guards_")}

    @property
    def n_accepted_per_class_(self) -> dict[str, int]:
        """Accepted calibration examples of every class."""
        counts = np.bincount(self._learned("calibration_labels_"), minlength=len(self.classes_))
        return {name: int(count) for name, count in zip(self.classes_, counts, strict=True)}

    @property
    def in_every_set_(self) -> dict[str, int]:
        """Classes whose threshold is +inf for every image, with their accepted calibration images.

        A set that always holds a label says nothing about it: its coverage of 100 % is no achievement.
        """
        rule: LocalizedRule = self._learned("rule_")
        if rule.always_infinite:
            return self.n_accepted_per_class_
        return {guard.name: guard.n for guard in self.guards_ if math.isinf(guard.quantile)}

    @property
    def promises_(self) -> tuple[str, ...]:
        """What this model promises and what it does not, in plain words (METHOD.md 10)."""
        self._learned("rule_")
        return promises_of(
            level=self.settings_.level,
            miscoverage=self.settings_.miscoverage,
            audit_independent=None if self.audit_ is None else self.audit_.independent,
            guards=self.guards_,
            binary_utility=self.settings_.binary_utility,
        )

    def _learned(self, attribute: str) -> Any:
        if attribute not in vars(self):
            # AttributeError is what hasattr and inspection tools expect of a property without a value.
            raise AttributeError(f"this model has no {attribute} yet: call fit first")
        return vars(self)[attribute]
