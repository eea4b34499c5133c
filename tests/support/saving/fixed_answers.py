"""Object stores on loopback that say the same to every request, or nothing."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler
from typing import Any

from support.processes.http_proxy import serving
from support.processes.patience import PATIENT


@contextmanager
def answering(
    status: int, code: str = "", heard: list[tuple[str, Message]] | None = None
) -> Iterator[str]:
    """The address of a store that answers all requests with a status and an error code.

    `heard` gets the path and the headers of each request.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if heard is not None:
                heard.append((self.path, self.headers))
            body = f"<Error><Code>{code}</Code></Error>".encode() if code else b""
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    with serving(Handler) as server:
        yield f"http://127.0.0.1:{server.server_port}"


@contextmanager
def silent() -> Iterator[str]:
    """The address of a store that takes requests and does not answer them."""
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def handle(self) -> None:
            ended.wait(PATIENT)

    with serving(Handler) as server:
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            ended.set()
