"""Metrics for Prometheus: counts and times, never personal data."""

from __future__ import annotations

from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


class Metrics:
    """The metrics of one service."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        decisions = Counter("calcode_decisions", "Decisions recorded", ["line", "action"], registry=registry)
        requests = Counter("calcode_requests", "Requests answered", ["route", "status"], registry=registry)
        seconds = Histogram(
            "calcode_request_seconds", "From request to answer", ["route"], buckets=_SECONDS, registry=registry
        )
        #: Metrics by (line, action), by (route, status) and by route; cached, because every answer needs them.
        self.decided, self.requests = cache(decisions.labels), cache(requests.labels)
        self.request_seconds = cache(seconds.labels)
        self.commit_seconds = Histogram(
            "calcode_commit_seconds", "Deciding and committing one block", buckets=_SECONDS, registry=registry
        )
        self.waiting = Gauge("calcode_queue_cases", "Cases waiting in the queue", registry=registry)
        self.ready = Gauge("calcode_ready", "1 if a write was committed within the last 10 seconds", registry=registry)
        self.records = Gauge("calcode_log_records", "Records in the log", registry=registry)
        self.exposed = Gauge(
            "calcode_exposed_records",
            "Records after the last checkpoint that was sent; all of them where no place for checkpoints is named",
            registry=registry,
        )
        self.checkpoint_age = Gauge("calcode_checkpoint_age_seconds", "Age of the last checkpoint", registry=registry)
        self.target_down = Gauge(
            "calcode_checkpoint_targets_down", "Folders that did not take the last note", registry=registry
        )
        self.open_tasks = Gauge("calcode_open_tasks", "Cases that wait for a reviewer", registry=registry)
        self.oldest_task = Gauge("calcode_oldest_task_seconds", "How long the oldest has waited", registry=registry)
        self.open_alarms = Gauge("calcode_open_alarms", "Alarms that nobody has closed", ["line"], registry=registry)
        self.outbox_rows = Gauge("calcode_outbox_rows", "Reports that wait", ["target"], registry=registry)
        self.outbox_age = Gauge(
            "calcode_outbox_age_seconds", "How long the oldest report has waited", ["target"], registry=registry
        )
        self.free_bytes = Gauge("calcode_free_bytes", "Free disk space of the data folder", registry=registry)

    def text(self) -> bytes:
        """Return the text of /metrics."""
        return generate_latest(self.registry)
