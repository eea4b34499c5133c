"""A page may be closed at any time, also between its question and the answer's first byte."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from unittest.mock import AsyncMock, Mock

from aiohttp import StreamReader
from aiohttp.test_utils import make_mocked_request

from spotelastic.client.progress import Say
from spotelastic.web.server.access import DashboardAccess
from spotelastic.web.server.app import application
from spotelastic.web.server.source import TargetSource


class Commanded(TargetSource):
    """Remembers what was commanded; has no cluster."""

    def __init__(self) -> None:
        self.acted: list[str] = []

    def act(self, name: str, action: str, given: Mapping[str, Any], say: Say) -> str:
        self.acted.append(f"{action} {name}")
        return "done"


async def asked(source: TargetSource, method: str, path: str, given: object = None) -> None:
    """Ask from a page that is closed by the time that it is answered."""
    access = DashboardAccess(1)
    app = application(source, access)
    writer = Mock(write_headers=AsyncMock(side_effect=ConnectionResetError("closing transport")))
    body = StreamReader(Mock(), 2**16, loop=asyncio.get_running_loop())
    body.feed_data(json.dumps(given).encode())
    body.feed_eof()
    request = make_mocked_request(
        method,
        access.root + path,
        {"Content-Type": "application/json"},
        app=app,
        writer=writer,
        payload=body,
    )
    found = await app.router.resolve(request)
    request.match_info.update(found)
    await found.handler(request)
    writer.write_headers.assert_awaited()


def test_a_page_that_was_closed_is_no_error() -> None:
    asyncio.run(asked(Commanded(), "GET", "stream"))


def test_a_command_of_a_page_that_was_closed_is_carried_out() -> None:
    source = Commanded()
    asyncio.run(asked(source, "POST", "c/demo/stop", {}))
    assert source.acted == ["stop demo"]
