"""The dashboard's pages and what they ask for, over HTTP.

A page is made here whole, then renewed section by section: a stream of server-sent events carries
those that have changed. Browsers connect such a stream again by themselves.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from aiohttp import web

from spotelastic.clock import Clock, steady, wall
from spotelastic.errors import SpotelasticError
from spotelastic.web.page.render import asset, clusters_section, live_page, message_page
from spotelastic.web.server.access import COOKIE, HEADERS, METRICS, OPEN, DashboardAccess
from spotelastic.web.server.feed import EVERY, list_facts
from spotelastic.web.server.source import TargetSource

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
ASSETS = {"style.css": "text/css", "tips.js": "text/javascript", "live.js": "text/javascript"}
HEARTBEAT = 5.0
"""Seconds after which a page is told that an answer is awaited."""
MOST_BYTES = 16_384
"""Of what a page sends."""


def application(source: TargetSource, access: DashboardAccess) -> web.Application:
    """Return the application. It holds no connection of a cluster's while nobody looks."""
    pages = _DashboardPages(source, access)
    app = web.Application(middlewares=[pages.guard], client_max_size=MOST_BYTES)
    root = access.root
    app.add_routes(
        [
            web.get(OPEN, pages.open),
            web.get(METRICS, pages.metrics),
            web.get(root, pages.overview),
            web.get(f"{root}stream", pages.overview_stream),
            web.get(f"{root}title", pages.overview_title),
            web.get(f"{root}c/{{name}}", pages.cluster),
            web.get(f"{root}c/{{name}}/stream", pages.cluster_stream),
            web.get(f"{root}c/{{name}}/title", pages.cluster_title),
            web.get(f"{root}c/{{name}}/output", pages.output),
            web.post(f"{root}c/{{name}}/{{action}}", pages.act),
            *(web.get(f"{root}{name}", pages.asset) for name in ASSETS),
        ]
    )
    return app


@dataclass(frozen=True, slots=True)
class _DashboardPages:
    source: TargetSource
    access: DashboardAccess
    clock: Clock = steady

    @property
    def guard(self) -> Any:
        """Refuse whoever has no access, and turn errors into pages."""

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            cookie = request.cookies.get(COOKIE, "")
            refused = self.access.refusal(request.method, request.path, request.headers, cookie)
            if refused:
                return _message(403, "No access", refused)
            try:
                answer = await handler(request)
            except web.HTTPException as error:
                answer = _message(error.status, error.reason, "There is no such page.")
            except SpotelasticError as error:
                answer = _message(404, "Not found", str(error))
            if not answer.prepared:
                answer.headers.update(HEADERS)
            return answer

        return guarded

    # -- pages -----------------------------------------------------------------------------------

    async def open(self, request: web.Request) -> web.StreamResponse:
        """Give the browser its cookie, and go on to the first page.

        By a page, not by a redirect: a browser that follows a link of another site's sends no
        strict cookie with the redirect.
        """
        if not self.access.opens(request.query.get("token", "")):
            return _message(403, "No access", "This address is not of a dashboard that runs now.")
        name = request.query.get("cluster", "")
        path = self.access.root + (f"c/{name}" if name.replace("-", "").isalnum() else "")
        answer = _page(message_page("Opening", "The dashboard opens.", goes_to=path))
        answer.set_cookie(
            COOKIE, self.access.cookie, path=self.access.root, httponly=True, samesite="Strict"
        )
        return answer

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        """Return what all clusters publish, as Prometheus reads it."""
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not self.access.opens(request.query.get("token") or bearer):
            return _message(403, "No access", "Metrics need the token of this dashboard's address.")
        accepted = request.headers.get("Accept", "")
        body, content_type = await asyncio.to_thread(self.source.metrics, accepted)
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def overview(self, request: web.Request) -> web.StreamResponse:
        """Show all clusters."""
        return _page(live_page("clusters.html", root=self.access.root))

    async def cluster(self, request: web.Request) -> web.StreamResponse:
        """Show one cluster."""
        name = request.match_info["name"]
        look = await asyncio.to_thread(self.source.look, name)
        return _page(
            live_page(
                "cluster_live.html",
                root=self.access.root,
                name=name,
                title=look.facts.get("title", ""),
                sections=look.sections,
                trouble=look.trouble,
            )
        )

    async def asset(self, request: web.Request) -> web.StreamResponse:
        """Return a style or a script."""
        name = request.path.removeprefix(self.access.root)
        return web.Response(text=asset(name), content_type=ASSETS[name], charset="utf-8")

    # -- what pages ask for ----------------------------------------------------------------------

    async def overview_title(self, request: web.Request) -> web.StreamResponse:
        """Return the title of the list, for a page that nobody sees."""
        return web.json_response(list_facts(await asyncio.to_thread(self.source.clusters)))

    async def cluster_title(self, request: web.Request) -> web.StreamResponse:
        """Return the title of a cluster's page, for one that nobody sees."""
        look = await asyncio.to_thread(self.source.look, request.match_info["name"])
        return web.json_response({key: look.facts.get(key, "") for key in ("title", "tone")})

    async def overview_stream(self, request: web.Request) -> web.StreamResponse:
        """Send the list of clusters whenever it has changed."""

        def look() -> dict[str, Any]:
            try:
                found = self.source.clusters()
                listed = clusters_section(found, self.access.root, wall())
            except Exception as error:  # the page stays, and says why
                return {"sections": {}, "trouble": f"Cannot list the clusters: {error}"}
            return {"sections": {"clusters": listed}, "trouble": "", "facts": list_facts(found)}

        return await self._stream(request, look)

    async def cluster_stream(self, request: web.Request) -> web.StreamResponse:
        """Send what has changed of a cluster, each second."""
        name = request.match_info["name"]

        def look() -> dict[str, Any]:
            try:
                return asdict(self.source.look(name))
            except SpotelasticError as error:
                return {"sections": {}, "trouble": str(error), "facts": {}}

        return await self._stream(request, look)

    async def _stream(
        self, request: web.Request, look: Callable[[], dict[str, Any]]
    ) -> web.StreamResponse:
        answer = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        shown: dict[str, str] = {}
        answered = self.clock()
        with suppress(ConnectionError):  # the page was closed
            await answer.prepare(request)
            while True:
                async for told in self._looking(look, answered):
                    if not told["trouble"]:
                        answered = self.clock()
                    sections = told.get("sections", {})
                    changed = {
                        key: text for key, text in sections.items() if shown.get(key) != text
                    }
                    shown |= changed
                    await answer.write(_event({**told, "sections": changed}))
                await asyncio.sleep(EVERY)
        return answer

    async def _looking(
        self, look: Callable[[], dict[str, Any]], answered: float
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield what is seen; before that, while it is awaited, since when there was no answer."""
        looking = asyncio.create_task(asyncio.to_thread(look))
        while not (await asyncio.wait([looking], timeout=HEARTBEAT))[0]:
            yield {"trouble": f"No answer from the cluster for {self.clock() - answered:.0f} s."}
        yield looking.result()

    async def output(self, request: web.Request) -> web.StreamResponse:
        """Return new lines of the workers."""
        rank, since = request.query.get("rank", ""), request.query.get("since", "0")
        if not (rank or "0").isdecimal() or not since.isdecimal():
            raise web.HTTPBadRequest
        name = request.match_info["name"]
        try:
            page = await asyncio.to_thread(
                self.source.output, name, int(rank) if rank else None, int(since)
            )
        except SpotelasticError as error:
            return web.json_response({"trouble": str(error)})
        return web.json_response(page)

    async def act(self, request: web.Request) -> web.StreamResponse:
        """Carry out a command; send a line for each thing to tell, and last what was done.

        It goes on when the page is closed meanwhile.
        """
        if request.content_type != "application/json":
            raise web.HTTPUnsupportedMediaType
        try:
            given = await request.json()
        except json.JSONDecodeError:
            raise web.HTTPBadRequest from None
        if not isinstance(given, dict):
            raise web.HTTPBadRequest
        answer = web.StreamResponse(headers={**HEADERS, "Content-Type": "application/x-ndjson"})
        told: asyncio.Queue[Mapping[str, Any] | None] = asyncio.Queue()
        doing = asyncio.create_task(self._carry_out(request, given, told))
        with suppress(ConnectionError):
            await answer.prepare(request)
            while (line := await told.get()) is not None:
                await answer.write(json.dumps(line).encode() + b"\n")
        await doing
        return answer

    async def _carry_out(
        self,
        request: web.Request,
        given: Mapping[str, Any],
        told: "asyncio.Queue[Mapping[str, Any] | None]",
    ) -> None:
        loop = asyncio.get_running_loop()

        def say(line: str) -> None:
            loop.call_soon_threadsafe(told.put_nowait, {"line": line})

        name, action = request.match_info["name"], request.match_info["action"]
        try:
            done = await asyncio.to_thread(self.source.act, name, action, given, say)
            told.put_nowait({"done": done})
        except Exception as error:  # whatever it is, the page says so
            told.put_nowait({"failed": str(error) or type(error).__name__})
        finally:
            told.put_nowait(None)


def _page(text: str, status: int = 200) -> web.Response:
    body = text.encode("utf-8", "backslashreplace")
    return web.Response(body=body, status=status, content_type="text/html", charset="utf-8")


def _message(status: int, title: str, text: str) -> web.Response:
    answer = _page(message_page(title, text), status)
    answer.headers.update(HEADERS)
    return answer


def _event(value: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()
