"""Log lines of the process: one JSON object each, with allow-listed fields only, so that no name can appear."""

from __future__ import annotations

import json
import logging
import sys
import time

#: Fields that a line may hold besides time, level, logger and event.
FIELDS = (
    "method",
    "route",
    "status",
    "ms",
    "error",
    "at_line",
    "line",
    "model",
    "seq",
    "records",
    "folder",
    "port",
    "url",
    "target",
)


class AllowListFormatter(logging.Formatter):
    """Formats a record as JSON: its unformatted message and the allow-listed fields.

    Arguments of messages, and messages of libraries, which may quote what they read, are left out: both may hold
    personal data. An exception is named by its type and place.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        ours = record.name.partition(".")[0] == "calcode" and isinstance(record.msg, str)
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.msg if ours else f"{record.funcName}:{record.lineno}",
        }
        line |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
            trace = record.exc_info[2]
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            if trace is not None:
                line["at_line"] = f"{trace.tb_frame.f_code.co_name}:{trace.tb_lineno}"
        return json.dumps(line)


def set_up_logs() -> None:
    """Send every logger of the process through the allow-list to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(AllowListFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    # Warnings too: they may quote a header of a DICOM file.
    logging.captureWarnings(True)
    logging.getLogger("calcode.service").setLevel(logging.INFO)
