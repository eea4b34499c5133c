"""Ranges of objects, from the socket straight into memory that the caller gives.

A presigned URL needs no client library, and `recv_into` needs no buffer: a GiB costs a fifth of a
second of CPU, and no memory, where S3 clients take a second or more and copy twice.
"""

import http.client
import ssl
import threading
import time
from collections.abc import Callable
from urllib.parse import SplitResult, urlsplit

CONNECT_WITHIN = 5.0
MOST_IDLE = 16
"""Connections that are kept."""
SILENCE = 20.0
"""Seconds without a byte after which a connection counts as broken."""


class Ranges:
    """Thread-safe; connections are kept for the next range. Raises `FileNotFoundError`, or
    `OSError` with the status in its text."""

    def __init__(self, sign: Callable[[str], str], within: float) -> None:
        self._sign = sign
        self._within = within
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def read(self, key: str, offset: int, target: memoryview) -> int:
        """Bytes read: fewer than `target` takes only where the object ends."""
        if not target:
            return 0
        url = urlsplit(self._sign(key))
        headers = {"Range": f"bytes={offset}-{offset + len(target) - 1}"}
        deadline = time.monotonic() + self._within
        connection, answer = self._asked(url, headers)
        try:
            filled = self._fill(answer, offset, target, deadline)
        except http.client.HTTPException as error:
            connection.close()
            raise ConnectionError(f"{type(error).__name__}: {error}") from error
        except OSError:
            connection.close()
            raise
        with self._lock:
            if len(self._idle) < MOST_IDLE:
                self._idle.append(connection)
                return filled
        connection.close()
        return filled

    def close(self) -> None:
        with self._lock:
            for connection in self._idle:
                connection.close()
            self._idle.clear()

    def _asked(
        self, url: SplitResult, headers: dict[str, str]
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        while True:
            with self._lock:
                kept = self._idle.pop() if self._idle else None
            connection = kept or _connect(url)
            try:
                connection.request("GET", f"{url.path}?{url.query}", headers=headers)
                return connection, connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                # A server may have ended a connection that was idle.
                if kept is None:
                    raise ConnectionError(f"{type(error).__name__}: {error}") from error

    @staticmethod
    def _fill(
        answer: http.client.HTTPResponse, offset: int, target: memoryview, deadline: float
    ) -> int:
        if answer.status == 416:
            answer.read()
            return 0
        if answer.status == 404:
            text = answer.read().decode(errors="replace")
            raise FileNotFoundError(f"status code: 404 {text}")
        # Some servers answer 200 to a range; what they sent stands in Content-Range.
        partial = answer.status == 206 or (
            answer.status == 200 and answer.getheader("Content-Range")
        )
        if not partial and not (answer.status == 200 and offset == 0):
            text = answer.read().decode(errors="replace")
            raise OSError(f"status code: {answer.status} {text}")
        filled = 0
        while filled < len(target):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{filled} of {len(target)} bytes came before the deadline")
            count = answer.readinto(target[filled:])
            if not count:
                break
            filled += count
        if answer.read(1):
            raise ConnectionError("more bytes came than were asked for")
        if answer.length:
            raise ConnectionError(f"{answer.length} bytes of the range did not come")
        return filled


def _connect(url: SplitResult) -> http.client.HTTPConnection:
    assert url.hostname is not None
    made: http.client.HTTPConnection
    if url.scheme == "https":
        made = http.client.HTTPSConnection(
            url.hostname, url.port, timeout=CONNECT_WITHIN, context=ssl.create_default_context()
        )
    else:
        made = http.client.HTTPConnection(url.hostname, url.port, timeout=CONNECT_WITHIN)
    made.connect()
    made.sock.settimeout(SILENCE)
    return made
