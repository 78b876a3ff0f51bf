"""Run a service: open it, put HTTP in front of it, and end it in order when the machine asks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import uvicorn
from fastapi import APIRouter

from calcode.service.app import make_app
from calcode.service.logs import set_up_logs
from calcode.service.service import Service
from calcode.service.settings import SiteSettings

_LOGGER = logging.getLogger("calcode.service")


class _Server(uvicorn.Server):
    """Tells when it listens, with the port that the system chose where 0 was asked for."""

    def __init__(self, config: uvicorn.Config, listening: Callable[[int], None]) -> None:
        super().__init__(config)
        self._listening = listening

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        await super().startup(sockets)  # type: ignore[arg-type]
        if self.servers:
            self._listening(self.servers[0].sockets[0].getsockname()[1])

    async def shutdown(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        await super().shutdown(sockets)  # type: ignore[arg-type]
        # Sent again by uvicorn, the signal would end the process before the log has its last record.
        self._captured_signals.clear()


def serve(
    site: SiteSettings, *, listening: Callable[[int, Service], None] | None = None, more: Sequence[APIRouter] = ()
) -> None:
    """Serve until SIGTERM or Ctrl-C: waiting requests are answered, then come `stopped` and the last checkpoint.

    Parameters
    ----------
    site : SiteSettings
    listening : callable, optional
        Called with the port and the service once requests are taken.
    more : sequence of APIRouter
        Further pages.
    """
    set_up_logs()
    with Service(site) as service:
        service.settle()
        config = uvicorn.Config(
            make_app(service, more=more),
            host=site.host,
            port=site.port,
            access_log=False,
            log_config=None,
            server_header=False,
            # A closed connection's requests are still decided and recorded; a new start waits for no idle client.
            timeout_keep_alive=30,
            timeout_graceful_shutdown=10,
        )

        def started(port: int) -> None:
            _LOGGER.info("listening", extra={"port": port})
            if listening is not None:
                listening(port, service)

        _Server(config, started).run()
