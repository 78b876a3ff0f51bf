"""Run a service: open it, serve it over HTTP, and end it in order on a signal."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import uvicorn
from fastapi import APIRouter

from calcode.errors import ServiceError
from calcode.service.app import make_app
from calcode.service.logs import set_up_logs
from calcode.service.service import Service
from calcode.service.settings import SiteSettings

_LOGGER = logging.getLogger("calcode.service")


class _Server(uvicorn.Server):
    """A server that reports when it listens, with the port that the system chose if 0 was requested."""

    def __init__(self, config: uvicorn.Config, listening: Callable[[int], None]) -> None:
        super().__init__(config)
        self._listening = listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.servers:
            self._listening(self.servers[0].sockets[0].getsockname()[1])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        # Otherwise uvicorn would send the signal again and end the process before the log has its last record.
        self._captured_signals.clear()


def serve(
    site: SiteSettings, *, listening: Callable[[int, Service], None] | None = None, more: Sequence[APIRouter] = ()
) -> None:
    """Serve until SIGTERM or Ctrl-C; then answer waiting requests and record `stopped` and the last checkpoint.

    Parameters
    ----------
    site : SiteSettings
    listening : callable, optional
        Called with the port and the service once requests are taken.
    more : sequence of APIRouter
        Further pages.
    """
    set_up_logs()
    # Bind the address first, because a start that cannot answer anybody should leave no record.
    with ExitStack() as stack:
        sockets = [stack.enter_context(entry) for entry in _bound(site.host, site.port)]
        service = stack.enter_context(Service(site))
        service.settle()
        config = uvicorn.Config(
            make_app(service, more=more),
            host=site.host,
            port=site.port,
            access_log=False,
            log_config=None,
            server_header=False,
            forwarded_allow_ips=site.trusted_proxies,
            # Requests of a closed connection are still decided and recorded. A restart need not wait for idle clients.
            timeout_keep_alive=30,
            timeout_graceful_shutdown=10,
        )

        def started(port: int) -> None:
            _LOGGER.info("listening", extra={"port": port})
            if listening is not None:
                listening(port, service)

        _Server(config, started).run(sockets)


def _bound(host: str, port: int) -> list[socket.socket]:
    """Bind sockets on every address of a host; nobody can connect before the server listens."""
    bound: list[socket.socket] = []
    try:
        found = dict.fromkeys(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        for family, kind, protocol, _, address in found:
            entry = socket.socket(family, kind, protocol)
            bound.append(entry)
            # A quick restart must not wait for connections that are long closed.
            entry.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                entry.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            entry.bind(address)
    except OSError as error:
        for entry in bound:
            entry.close()
        what = "another program listens there" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        raise ServiceError(
            f"{host}:{port}: the service cannot listen there ({what}); stop the other program, or choose another host "
            "or port in the site file (with --demo: --port)"
        ) from error
    return bound
