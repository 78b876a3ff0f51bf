"""SITE.md S7: monitors whose alarms are valid at every look.

`Watch` combines the monitors of one model. Its parts can be used alone: `ExchangeabilityMartingale` (M1 and M2),
`CoverageProcess` (M3), `ConfidenceSequence` and `Prequential` (shown, never an alarm).
"""

from calcode.monitor.alarms import Alarm
from calcode.monitor.class_watch import ClassWatch
from calcode.monitor.confidence import ConfidenceSequence, Interval, Prequential
from calcode.monitor.coverage import CoverageProcess, labels_needed, miss_line
from calcode.monitor.martingale import ExchangeabilityMartingale
from calcode.monitor.protocol import CapitalMonitor, Reading
from calcode.monitor.rates import Rates
from calcode.monitor.replay import Replayed, miss_lines, replay, watch_model
from calcode.monitor.watch import Answer, Answers, Case, Watch

__all__ = [
    "Alarm",
    "Answer",
    "Answers",
    "CapitalMonitor",
    "Case",
    "ClassWatch",
    "ConfidenceSequence",
    "CoverageProcess",
    "ExchangeabilityMartingale",
    "Interval",
    "Prequential",
    "Rates",
    "Reading",
    "Replayed",
    "Watch",
    "labels_needed",
    "miss_line",
    "miss_lines",
    "replay",
    "watch_model",
]
