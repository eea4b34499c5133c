"""A proxy on loopback in front of a real S3 server, which misbehaves on demand."""

import http.client
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from support.processes.patience import PATIENT

_CODES = {
    301: "PermanentRedirect",
    400: "RequestTimeout",
    403: "AccessDenied",
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    500: "InternalError",
    503: "SlowDown",
}
_HOP = {"connection", "transfer-encoding", "host"}


@dataclass(frozen=True, slots=True)
class Fault:
    """For the next request with this method whose path contains `part`; both may be empty."""

    method: str = ""
    part: str = ""
    status: int = 0
    """Answered without asking the server; 0: ask it, and then"""
    keep: int = 0
    """pass on so many bytes of its answer, and hang up."""
    late: float = 0.0
    """Ask the server so many seconds later, and pass on its answer."""
    deaf: bool = False
    """Hang up without asking the server."""
    flip: bool = False
    """Change one bit of the request's body on the way."""
    hold: "Hold | None" = None
    """Ask the server only once the test says so."""

    def is_for(self, method: str, path: str) -> bool:
        return self.method in ("", method) and self.part in path


class Hold:
    """A request that is kept from the server."""

    def __init__(self) -> None:
        self.there = threading.Event()
        self.go_on = threading.Event()


class FaultyS3:
    """Faults are used up in order; without one everything passes. `url` is the storage behind."""

    def __init__(self, endpoint: str, url: str) -> None:
        self.url = url
        self._upstream = urlsplit(endpoint).netloc
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._uploading = threading.Lock()
        self.away = False
        """Hangs up on everybody."""
        self.shard_takes = 0.0
        """Seconds that it takes at least to write a file of a checkpoint."""
        self.given: Counter[str] = Counter()
        """Bytes of answers to GET, by path."""
        self.requests: list[str] = []
        """All there were, by method and path."""
        self.latest: list[bytes] = []
        """Every content that LATEST has had, in order."""
        self.failed: Counter[str] = Counter()
        """How often each path met a fault that comes again and again."""
        self._ahead: tuple[int, Fault] | None = None
        self._again: tuple[int, Fault] | None = None
        self._passed = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, method: str, part: str, status: int) -> None:
        self._faults.append(Fault(method, part, status))

    def lose_answer(self, method: str, part: str) -> None:
        self._faults.append(Fault(method, part))

    def truncate(self, method: str, part: str, keep: int) -> None:
        self._faults.append(Fault(method, part, keep=keep))

    def flip(self, method: str, part: str) -> None:
        self._faults.append(Fault(method, part, flip=True))

    def hold(self, method: str, part: str) -> Hold:
        hold = Hold()
        self._faults.append(Fault(method, part, hold=hold))
        return hold

    def forget(self) -> None:
        """Faults that no request has met."""
        self._faults.clear()

    def strike(self, after: int, fault: Fault) -> None:
        """At the request that comes after so many others."""
        with self._lock:
            self._ahead = after, fault

    def strike_again(self, every: int, fault: Fault) -> None:
        """At each so many-th of the requests that it is for."""
        self._again = every, fault

    @property
    def struck(self) -> bool:
        """Whether that request has come."""
        return self._ahead is None

    def take(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self.requests.append(f"{method} {path}")
            if self._ahead is not None:
                left, fault = self._ahead
                self._ahead = (left - 1, fault) if left else None
                if not left:
                    return fault
            for fault in self._faults:
                if fault.is_for(method, path):
                    self._faults.remove(fault)
                    return fault
            if self._again is not None and self._again[1].is_for(method, path):
                self._passed += 1
                if self._passed % self._again[0] == 0:
                    self.failed[path] += 1
                    return self._again[1]
        return None

    def gave(self, path: str, nbytes: int) -> None:
        with self._lock:
            self.given[path] += nbytes

    def given_of_shards(self, step: int) -> int:
        """Bytes that were read of a checkpoint's shards."""
        with self._lock:
            files = [path for path in self.given if path.endswith(".distcp")]
            return sum(self.given[path] for path in files if f"/step-{step:08}/" in path)

    def ask(self, method: str, path: str, body: bytes, headers: Any) -> http.client.HTTPResponse:
        moves = method == "PUT" and path.partition("?")[0].endswith("/LATEST")
        # One at a time, so that their order is known; and since moto fails to abort an upload
        # that a part comes to meanwhile.
        lock = self._lock if moves else self._uploading if "uploadId=" in path else nullcontext()
        with lock:
            connection = http.client.HTTPConnection(self._upstream, timeout=PATIENT)
            kept = {name: value for name, value in headers.items() if name.lower() not in _HOP}
            connection.request(method, path, body, kept)
            answer = connection.getresponse()
            if moves and answer.status == 200:
                self.latest.append(body)
        return answer


def _handler(proxy: FaultyS3) -> Callable[..., BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def serve(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = self.rfile.read(length)
            if len(body) < length:  # given up by who sent it; the server would wait for the rest
                self.close_connection = True
                return
            fault = proxy.take(self.command, self.path)
            if fault is not None and fault.hold is not None:
                fault.hold.there.set()
                fault.hold.go_on.wait(PATIENT)
                fault = None
            if fault is not None and fault.late:
                time.sleep(fault.late)
                fault = None
            if fault is not None and fault.flip:
                middle = len(body) // 2
                body = body[:middle] + bytes([body[middle] ^ 8]) + body[middle + 1 :]
                fault = None
            if proxy.away or (fault is not None and fault.deaf):
                self.close_connection = True
                return
            if fault is not None and fault.status:
                self._refuse(fault.status)
                return
            if self.command == "PUT" and ".distcp" in self.path:
                time.sleep(proxy.shard_takes)
            answer = proxy.ask(self.command, self.path, body, self.headers)
            data = answer.read()
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _HOP | {"content-length"}:
                    self.send_header(name, value)
            whole = answer.getheader("Content-Length") if self.command == "HEAD" else None
            self.send_header("Content-Length", whole or str(len(data)))
            if fault is not None:
                self.close_connection = True
                if not fault.keep:
                    return
                data = data[: fault.keep]
            self.end_headers()
            if self.command == "GET":  # before who asked may look
                proxy.gave(urlsplit(self.path).path, len(data))
            self.wfile.write(data)

        def _refuse(self, status: int) -> None:
            data = f"<Error><Code>{_CODES[status]}</Code><Message>injected</Message></Error>"
            self.send_response_only(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data.encode())

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = serve

    return Handler
