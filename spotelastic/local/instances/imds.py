"""Serves the instance metadata service (IMDSv2) of every local instance, each on its own address.

One asyncio thread serves them all. A `Documents` provides the contents. Credentials of nodes are
among them, and on AWS nobody but an instance reaches its own service. Here every process of the
machine does, so those of other users are not answered.
"""

import asyncio
import secrets
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from http import HTTPStatus
from threading import Thread
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote

from spotelastic.local.base import callers

TOKEN = "x-aws-ec2-metadata-token"
TOKEN_TTL = "x-aws-ec2-metadata-token-ttl-seconds"
MAX_TTL = 21600

_HEADER_LIMIT = 16384
_IDLE = 60.0  # seconds after which an idle connection is closed

T = TypeVar("T")


class Documents(Protocol):
    """Provides the documents of instances."""

    def read(self, instance: str, path: str) -> str | None:
        """Return the text at `path` (as in `/latest/meta-data/ami-id`), or None. Must not block."""
        ...


@dataclass
class _Service:
    instance: str
    server: asyncio.Server
    tokens: dict[str, float] = field(default_factory=dict)
    """By token: when it expires (monotonic seconds)."""
    connections: set[asyncio.StreamWriter] = field(default_factory=set)


class MetadataServer:
    """The metadata services of all instances."""

    def __init__(self, documents: Documents, port: int) -> None:
        self._documents = documents
        self._port = port
        self._services: dict[str, _Service] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="imds", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def open(self, instance: str, address: str) -> None:
        """Serve `instance` on `address`. Raises `OSError` if the address cannot be bound."""
        self._run(self._open(instance, address))

    def close_address(self, address: str) -> None:
        """Stop serving an address."""
        self._run(self._close(address))

    def close(self) -> None:
        """Stop serving all addresses."""
        for address in list(self._services):
            self.close_address(address)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=10)

    async def _open(self, instance: str, address: str) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(self._services[address], reader, writer)

        server = await asyncio.start_server(serve, address, self._port, limit=_HEADER_LIMIT)
        self._services[address] = _Service(instance, server)

    async def _close(self, address: str) -> None:
        if service := self._services.pop(address, None):
            service.server.close()
            for writer in list(service.connections):
                writer.transport.abort()

    async def _serve(
        self, service: _Service, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        service.connections.add(writer)
        try:
            ends = (writer.get_extra_info(name) for name in ("peername", "sockname"))
            if not callers.are_ours(*ends):
                return
            while request := await _read_request(reader):
                status, body, extra = await self._answer(service, *request)
                writer.write(_response(status, body, extra))
                await writer.drain()
        except (OSError, ValueError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            pass  # the instance has ended, or does not speak HTTP
        finally:
            service.connections.discard(writer)
            writer.close()

    async def _answer(
        self, service: _Service, method: str, path: str, headers: dict[str, str]
    ) -> tuple[HTTPStatus, str, dict[str, str]]:
        now = time.monotonic()
        if method == "PUT" and path == "/latest/api/token":
            return _new_token(service, headers, now)
        if method not in ("GET", "HEAD"):
            return HTTPStatus.METHOD_NOT_ALLOWED, "", {}
        if service.tokens.get(headers.get(TOKEN, ""), 0.0) <= now:
            return HTTPStatus.UNAUTHORIZED, "", {}
        text = self._documents.read(service.instance, path)
        if text is None:
            return HTTPStatus.NOT_FOUND, "", {}
        return HTTPStatus.OK, text, {}


def _new_token(
    service: _Service, headers: dict[str, str], now: float
) -> tuple[HTTPStatus, str, dict[str, str]]:
    ttl = headers.get(TOKEN_TTL, "")
    if not ttl.isdigit() or not 1 <= int(ttl) <= MAX_TTL:
        return HTTPStatus.BAD_REQUEST, "", {}
    if "x-forwarded-for" in headers:  # as AWS does, against open proxies
        return HTTPStatus.FORBIDDEN, "", {}
    service.tokens = {token: end for token, end in service.tokens.items() if end > now}
    token = secrets.token_urlsafe(40)
    service.tokens[token] = now + int(ttl)
    return HTTPStatus.OK, token, {TOKEN_TTL: ttl}


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str]] | None:
    """Return method, path without query, headers in lower case; None at the connection's end."""
    async with asyncio.timeout(_IDLE):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        request, *lines = head.decode("latin-1").rstrip().split("\r\n")
        method, target, _ = request.split(" ", 2)
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        await reader.readexactly(int(headers.get("content-length") or 0))
    return method, unquote(target.partition("?")[0]), headers


def _response(status: HTTPStatus, body: str, extra: dict[str, str]) -> bytes:
    payload = body.encode()
    headers = {"Content-Type": "text/plain", "Content-Length": str(len(payload)), **extra}
    lines = [f"HTTP/1.1 {status.value} {status.phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + payload
