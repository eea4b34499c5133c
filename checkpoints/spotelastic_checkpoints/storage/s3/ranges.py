"""Reads ranges of S3 objects from the socket straight into memory that the caller gives.

A presigned URL needs no client library, and `recv_into` needs no buffer. One GiB costs a fifth of a
second of CPU and no memory. S3 clients take a second or more, and copy twice.
"""

import base64
import http.client
import ipaddress
import ssl
import threading
import time
from collections.abc import Callable
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from spotelastic_checkpoints.errors import StorageRefused
from spotelastic_checkpoints.storage.limits import DEFAULT_LIMITS, Limits

CONNECT_WITHIN = 5.0
MOST_IDLE = 16
"""Number of idle connections that are kept."""


class Ranges:
    """Reads ranges of objects over kept connections; thread-safe.

    Calls raise `FileNotFoundError`, `OSError` with the HTTP status in its text, or `StorageRefused`
    for a proxy that cannot be used.
    """

    def __init__(self, sign: Callable[[str], str], limits: Limits = DEFAULT_LIMITS) -> None:
        self._sign = sign
        self._limits = limits
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def read(self, key: str, offset: int, target: memoryview) -> int:
        """Fill `target` from `offset` on, and return the number of bytes read.

        It is smaller than `target` only where the object ends.
        """
        if not target:
            return 0
        url = urlsplit(self._sign(key))
        span = f"bytes={offset}-{offset + len(target) - 1}"
        deadline = time.monotonic() + self._limits.part
        connection, answer = self._asked(url, span)
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
        self, url: SplitResult, span: str
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        proxy = proxy_of(url)
        what, headers = f"{url.path}?{url.query}", {"Range": span}
        if proxy is not None and url.scheme == "http":
            what, headers = url.geturl(), headers | _authorization(proxy)
        while True:
            with self._lock:
                kept = self._idle.pop() if self._idle else None
            connection = kept or self._connected(url, proxy)
            try:
                connection.request("GET", what, headers=headers)
                return connection, connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                # A server may have closed an idle connection; a new one is tried then.
                if kept is None:
                    raise ConnectionError(f"{type(error).__name__}: {error}") from error

    def _connected(self, url: SplitResult, proxy: SplitResult | None) -> http.client.HTTPConnection:
        made = connection_to(url, proxy, CONNECT_WITHIN)
        try:
            made.connect()
        except http.client.HTTPException as error:  # the proxy refused the tunnel
            made.close()
            raise ConnectionError(f"{type(error).__name__}: {error}") from error
        made.sock.settimeout(self._limits.silence)
        return made

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
        # Some servers answer 200 to a range, and say in Content-Range which bytes they sent.
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
            raise ConnectionError("the server sent more bytes than were asked for")
        if answer.length:
            raise ConnectionError(f"the last {answer.length} bytes of the range are missing")
        return filled


def connection_to(
    url: SplitResult, proxy: SplitResult | None, within: float
) -> http.client.HTTPConnection:
    """Return a connection that is not connected yet.

    Through a proxy, a request for an http URL has to name the whole URL.
    """
    assert url.hostname is not None
    near = proxy or url
    assert near.hostname is not None
    port = _port(near)
    if url.scheme != "https":
        return http.client.HTTPConnection(near.hostname, port, timeout=within)
    context = ssl.create_default_context()
    made = http.client.HTTPSConnection(near.hostname, port, timeout=within, context=context)
    if proxy is not None:
        made.set_tunnel(url.hostname, _port(url), _authorization(proxy))
    return made


def proxy_of(url: SplitResult) -> SplitResult | None:
    """Return the proxy that the environment names for a URL, by the rules of S3's own client.

    Raises `StorageRefused` for a proxy that is not reached by http.
    """
    proxies = getproxies()
    named = proxies.get(url.scheme) or proxies.get("all")
    if not named or _is_exempt(url, proxies.get("no", "")):
        return None
    proxy = urlsplit(named if "://" in named else f"http://{named}")
    if proxy.scheme != "http" or not proxy.hostname:
        # The message leaves out the proxy's URL, as that may hold a password.
        raise StorageRefused(
            f"the proxy for {url.scheme}:// is one of {proxy.scheme}://: name one of http:// in "
            f"{url.scheme.upper()}_PROXY, or {url.hostname} in NO_PROXY"
        )
    return proxy


def _is_exempt(url: SplitResult, exempt: str) -> bool:
    """Return whether NO_PROXY names the host or its network. urllib does not know networks."""
    if proxy_bypass(url.netloc):
        return True
    try:
        address = ipaddress.ip_address(url.hostname or "")
    except ValueError:
        return False
    return any(_holds(network.strip(), address) for network in exempt.split(","))


def _holds(network: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    try:
        return address in ipaddress.ip_network(network, strict=False)
    except ValueError:  # `network` is a host name
        return False


def _port(url: SplitResult) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


def _authorization(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    user = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(user.encode()).decode()}"}
