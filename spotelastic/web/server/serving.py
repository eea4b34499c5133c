"""Serves the dashboard on loopback until the process is told to end."""

import asyncio
import logging
import socket
from collections.abc import Callable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from spotelastic.errors import EnvironmentFailure
from spotelastic.web.server.access import DashboardAccess
from spotelastic.web.server.app import application
from spotelastic.web.server.source import TargetSource

LOOPBACK = "127.0.0.1"
GRACE = 0.1
"""Seconds that open pages have at the end, twice. A command that was given goes on to its end."""


_heard = logging.getLogger(__name__)
# Whoever finds the port may send what is no HTTP, as a browser does with https. That is no failure.
_heard.addFilter(lambda told: not isinstance((told.exc_info or (0, 0))[1], HttpProcessingError))


def listening(port: int) -> socket.socket:
    """Return a socket on loopback; 0 takes a free port. Raises `EnvironmentFailure`."""
    try:
        return socket.create_server((LOOPBACK, port))
    except OSError as error:
        raise EnvironmentFailure(
            f"--port {port}: cannot listen there ({error.strerror}): name another one, or leave it "
            "out for one that is free"
        ) from error


def serve(source: TargetSource, at: socket.socket, ready: Callable[[str], None]) -> None:
    """Serve until the process is interrupted; `ready` is called with the address to open."""
    access = DashboardAccess(at.getsockname()[1])
    asyncio.run(_serve(application(source, access), at, lambda: ready(access.url)))


async def _serve(app: web.Application, at: socket.socket, ready: Callable[[], None]) -> None:
    runner = web.AppRunner(app, access_log=None, logger=_heard, shutdown_timeout=GRACE)
    await runner.setup()
    try:
        await web.SockSite(runner, at).start()
        ready()
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
