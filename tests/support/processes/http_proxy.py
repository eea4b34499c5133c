"""An HTTP proxy on loopback, as companies use, which answers every request from one server."""

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from support.processes.patience import PATIENT


class HttpProxy:
    """`asked` are method and target of all requests, `allowed` what each said to be let through."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.address = f"127.0.0.1:{server.server_port}"
        self.asked: list[str] = []
        self.allowed: list[str | None] = []


@contextmanager
def serving(
    handler: Callable[..., BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None
) -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        if tls is not None:  # before its thread may look at the socket
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def http_proxy(port: int) -> Iterator[HttpProxy]:
    """In front of the server on this port, whatever host it is asked for."""
    found: list[HttpProxy] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._note()
            far = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENT)
            path = "/" + self.path.partition("://")[2].partition("/")[2]
            far.request("GET", path, headers=dict(self.headers.items()))
            answer = far.getresponse()
            data = answer.read()
            far.close()
            self.send_response_only(answer.status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_CONNECT(self) -> None:
            self._note()
            self.close_connection = True
            self.send_response_only(200)
            self.end_headers()
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENT) as far:
                back = threading.Thread(target=_pump, args=(far, self.connection), daemon=True)
                back.start()
                _pump(self.connection, far)
                back.join(5)

        def _note(self) -> None:
            found[0].asked.append(f"{self.command} {self.path}")
            found[0].allowed.append(self.headers.get("Proxy-Authorization"))

        def log_message(self, *_: Any) -> None:
            pass

    with serving(Handler) as server:
        found.append(HttpProxy(server))
        yield found[0]


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
