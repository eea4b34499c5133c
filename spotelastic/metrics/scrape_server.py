"""Serves samples to Prometheus over HTTP, on one address of this machine.

It holds up nothing: it has threads of its own, reads only values that are there already, and takes
few connections, each for a few seconds. A port that is taken is tried again; the node goes on
without. Must never happen: that it listens on an address which others than the cluster's nodes can
reach. So it takes an address, and refuses the one that stands for all.
"""

import contextlib
import ipaddress
import logging
import socket
import threading
from collections.abc import Callable
from typing import Any

from spotelastic.metrics.exposition import Read, registry

logger = logging.getLogger(__name__)

ANSWERED_WITHIN = 5.0
"""Seconds that a connection may take."""
AT_ONCE = 4
"""Connections that are served at once. Further ones are closed."""
RETRY = 5.0
"""Seconds until a port that was taken is tried again."""


class MetricsServer:
    """Serves `/metrics` on a thread of its own until it is closed."""

    def __init__(
        self,
        address: str,
        port: int,
        read: Read,
        *,
        retry: float = RETRY,
        within: float = ANSWERED_WITHIN,
        at_once: int = AT_ONCE,
        say: Callable[[str], None] = logger.warning,
    ) -> None:
        """`read` returns the samples of a moment. It is called on a thread of the server."""
        if ipaddress.ip_address(address).is_unspecified:
            raise ValueError(f"metrics are not served on {address}, which everybody may reach")
        self._address = address
        self._port = port
        self._read = read
        self._retry = retry
        self._within = within
        self._at_once = at_once
        self._say = say
        self._closed = threading.Event()
        self._listening = threading.Event()
        self._server: Any = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def __enter__(self) -> "MetricsServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def port(self, timeout: float) -> int:
        """Return the port once it is open; 0 if it is not within that time."""
        self._listening.wait(timeout)
        with self._lock:
            return 0 if self._server is None else int(self._server.server_address[1])

    def close(self) -> None:
        with self._lock:
            self._closed.set()
            server = self._server
        if server is not None:
            _cut(server.socket)  # wakes it, where it would look twice a second
            server.shutdown()
        self._thread.join(self._within)

    def _run(self) -> None:
        complained = False
        while not self._closed.is_set():
            try:
                server = _server(self._address, self._port, self._read, self._within, self._at_once)
            except Exception as error:  # the node goes on without
                if not complained:
                    self._say(f"no metrics on {self._address}:{self._port} yet: {error}")
                complained = True
                self._closed.wait(self._retry)
                continue
            with server:
                with self._lock:
                    if self._closed.is_set():
                        return
                    self._server = server
                self._listening.set()
                server.serve_forever()  # ends, also where `close` came just now
            return


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _server(address: str, port: int, read: Read, within: float, at_once: int) -> Any:
    """Return a server that listens. What it is made of is imported here, for the first time."""
    from socketserver import ThreadingMixIn
    from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

    from prometheus_client import make_wsgi_app

    free = threading.Semaphore(at_once)

    class ScrapeHandler(WSGIRequestHandler):
        """Serves one request of a connection, quietly."""

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: a scrape each second would fill the log."""

    class ScrapeListener(ThreadingMixIn, WSGIServer):
        """Serves few connections, and none for long."""

        daemon_threads = True
        block_on_close = False
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET

        def server_bind(self) -> None:
            """Bind without the look-up of the host's name, which may take long."""
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.socket.bind(self.server_address)
            self.server_address = self.socket.getsockname()
            self.server_name, self.server_port = address, self.server_address[1]
            self.setup_environ()

        def verify_request(self, request: Any, client_address: Any) -> bool:
            return free.acquire(blocking=False)

        def process_request_thread(self, request: Any, client_address: Any) -> None:
            """Serve it, and cut off who sends, or takes, one byte at a time."""
            timer = threading.Timer(within, _cut, (request,))
            timer.daemon = True
            timer.start()
            try:
                super().process_request_thread(request, client_address)
            finally:
                timer.cancel()
                free.release()

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Nothing: who asks has gone, or was too slow."""

    app = make_wsgi_app(registry(read, process=True))
    return make_server(address, port, app, ScrapeListener, ScrapeHandler)
