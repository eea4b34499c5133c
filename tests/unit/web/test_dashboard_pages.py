"""The dashboard over HTTP, with clusters that are made up."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from support.clusters.published_cluster import BEGAN, PUBLISHED, with_texts

from spotelastic.client.progress import Say
from spotelastic.errors import UsageError
from spotelastic.model.progress import ClusterSummary
from spotelastic.web.page.render import sections
from spotelastic.web.server.access import DashboardAccess
from spotelastic.web.server.app import application
from spotelastic.web.server.feed import LiveLook, facts
from spotelastic.web.server.serving import listening
from spotelastic.web.server.source import TargetSource
from spotelastic.web.view.cluster_view import cluster_view

HOSTILE = "</script><script>alert(1)</script>"


class MadeUp(TargetSource):
    """Two clusters; remembers what was commanded."""

    def __init__(self) -> None:
        self.acted: list[tuple[str, str, Mapping[str, Any]]] = []

    def clusters(self) -> Sequence[ClusterSummary]:
        return (ClusterSummary("demo", "running", 2, 1234), ClusterSummary(HOSTILE, HOSTILE))

    def look(self, name: str) -> LiveLook:
        if name not in ("demo", "odd"):
            raise UsageError(f"there is no cluster named {name}")
        it = PUBLISHED if name == "demo" else with_texts(HOSTILE)
        view = cluster_view(it, BEGAN + 101)
        return LiveLook(sections(view), HOSTILE if name == "odd" else "", facts(view))

    def output(self, name: str, rank: int | None, since: int) -> dict[str, Any]:
        line = {"id": "1", "at": BEGAN, "node": "i-1", "rank": rank or 0, "text": HOSTILE}
        return {"lines": [line], "next": since + 5}

    def act(self, name: str, action: str, given: Mapping[str, Any], say: Say) -> str:
        self.acted.append((name, action, given))
        say("asking")
        if action == "stop":
            raise UsageError("demo has ended already")
        return f"{name}: {action}"

    def metrics(self, accepted: str) -> tuple[bytes, str]:
        return b"up 1\n", accepted


class Browser:
    """What a browser does with the printed address: it keeps the cookie for its path."""

    def __init__(self, session: aiohttp.ClientSession, access: DashboardAccess) -> None:
        self.session = session
        self.access = access
        self.base = f"http://127.0.0.1:{access.port}"
        self.own = {"Origin": self.base, "Sec-Fetch-Site": "same-origin"}

    async def opens(self, query: str = "") -> str:
        async with self.session.get(self.access.url + query) as answer:
            assert answer.status == 200
            return await answer.text()

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(self.base + self.access.root + path) as answer:
            return answer.status, await answer.text()

    async def post(self, path: str, **sent: Any) -> tuple[int, str]:
        sent.setdefault("headers", self.own)
        url = self.base + self.access.root + path
        async with self.session.post(url, **sent) as answer:
            return answer.status, await answer.text()


def browsing(scenario: Callable[[Browser], Awaitable[None]], source: MadeUp | None = None) -> None:
    """Carry out a scenario against a dashboard on a port of its own."""

    async def carry_out() -> None:
        at = listening(0)
        access = DashboardAccess(at.getsockname()[1])
        runner = web.AppRunner(application(source or MadeUp(), access), shutdown_timeout=0.1)
        await runner.setup()
        await web.SockSite(runner, at).start()
        jar = aiohttp.CookieJar(unsafe=True)  # as for any address that is a number
        try:
            async with aiohttp.ClientSession(cookie_jar=jar) as session:
                await scenario(Browser(session, access))
        finally:
            await runner.cleanup()

    asyncio.run(carry_out())


def test_the_printed_address_leads_to_the_pages() -> None:
    async def scenario(browser: Browser) -> None:
        assert (await browser.get(""))[0] == 403
        first = await browser.opens("&cluster=demo")
        assert f'content="0;url={browser.access.root}c/demo"' in first
        (cookie,) = browser.session.cookie_jar
        assert (cookie["path"], cookie["samesite"]) == (browser.access.root, "Strict")
        assert cookie["httponly"]
        status, page = await browser.get("c/demo")
        assert status == 200
        for text in ("<h1>demo</h1>", "Take down…", "Logs", "spot notice"):
            assert text in page
        status, page = await browser.get("c/nobody")
        assert (status, "there is no cluster named nobody" in page) == (404, True)
        assert (await browser.get("nothing"))[0] == 404
        for name in ("style.css", "tips.js", "live.js"):
            assert (await browser.get(name))[0] == 200

    browsing(scenario)


def test_a_wrong_token_opens_nothing() -> None:
    async def scenario(browser: Browser) -> None:
        for token in ("", "?token=", "?token=x", "?token=%00"):
            async with browser.session.get(f"{browser.base}/open{token}") as answer:
                assert answer.status == 403
                assert "Set-Cookie" not in answer.headers

    browsing(scenario)


def test_metrics_need_the_token_and_no_cookie() -> None:
    async def scenario(browser: Browser) -> None:
        token = browser.access.token
        attempts: list[tuple[str, dict[str, str], int]] = [
            (f"?token={token}", {}, 200),
            ("", {"Authorization": f"Bearer {token}"}, 200),
            ("", {}, 403),
            ("?token=x", {}, 403),
            ("", {"Authorization": "Bearer x"}, 403),
        ]
        for query, headers, status in attempts:
            sent = {**headers, "Accept": "text/plain; version=0.0.4"}
            async with browser.session.get(
                f"{browser.base}/metrics{query}", headers=sent
            ) as answer:
                assert answer.status == status
                if status == 200:
                    assert await answer.read() == b"up 1\n"
                    assert answer.headers["Content-Type"] == sent["Accept"]
        elsewhere = {"Host": "evil.example", "Authorization": f"Bearer {token}"}
        async with browser.session.get(f"{browser.base}/metrics", headers=elsewhere) as answer:
            assert answer.status == 403

    browsing(scenario)


def test_every_answer_forbids_what_is_not_ours() -> None:
    async def scenario(browser: Browser) -> None:
        await browser.opens()
        root = browser.access.root
        for path in ("/", root, f"{root}c/demo", f"{root}c/demo/stream", f"{root}c/demo/output"):
            async with browser.session.get(browser.base + path) as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert answer.headers["Cache-Control"] == "no-store"
                assert answer.headers["Referrer-Policy"] == "no-referrer"

    browsing(scenario)


async def first_event(browser: Browser, path: str) -> dict[str, Any]:
    async with browser.session.get(browser.base + browser.access.root + path) as answer:
        assert answer.content_type == "text/event-stream"
        line = await answer.content.readline()
        told: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
        return told


def test_sections_come_by_the_stream_and_only_once() -> None:
    async def scenario(browser: Browser) -> None:
        await browser.opens()
        url = f"{browser.base}{browser.access.root}c/demo/stream"
        async with browser.session.get(url) as answer:
            told: list[dict[str, Any]] = []
            while len(told) < 2:
                line = await answer.content.readline()
                if line.startswith(b"data: "):
                    told.append(json.loads(line.removeprefix(b"data: ")))
        assert "demo" in told[0]["sections"]["head"]
        assert told[0]["facts"]["nodes"] == ["i-3"]
        assert told[1]["sections"] == {}, "nothing has changed"
        listed = (await first_event(browser, "stream"))["sections"]["clusters"]
        assert f'href="{browser.access.root}c/demo"' in listed
        assert "1,234" in listed
        other = await first_event(browser, "c/nobody/stream")
        assert other["trouble"] == "there is no cluster named nobody"
        assert other["facts"] == {}, "nothing can be done with it"

    browsing(scenario)


def test_a_page_that_nobody_sees_is_told_its_title_alone() -> None:
    async def scenario(browser: Browser) -> None:
        await browser.opens()
        status, told = await browser.get("c/demo/title")
        assert (status, json.loads(told)) == (
            200,
            {"title": "demo: running – spotelastic", "tone": "good"},
        )
        assert (await browser.get("c/nobody/title"))[0] == 404
        assert json.loads((await browser.get("title"))[1])["title"] == "Clusters – spotelastic"
        page = (await browser.get("c/demo"))[1]
        assert "<title>demo: running – spotelastic</title>" in page, "before any script has run"

    browsing(scenario)


def test_texts_from_outside_stay_texts() -> None:
    async def scenario(browser: Browser) -> None:
        await browser.opens()
        page = (await browser.get("c/odd"))[1]
        listed = (await first_event(browser, "stream"))["sections"]["clusters"]
        for text in (page, listed):
            assert HOSTILE not in text
            assert "&lt;/script&gt;" in text
        status, found = await browser.get("c/demo/output?rank=1&since=7")
        assert (status, json.loads(found)["next"]) == (200, 12)
        assert json.loads(found)["lines"][0]["text"] == HOSTILE, "which the page adds as text"
        for wrong in ("rank=x", "since=-1", "since=1e9"):
            assert (await browser.get(f"c/demo/output?{wrong}"))[0] == 400

    browsing(scenario)


def test_a_command_tells_how_it_goes_and_what_was_done() -> None:
    source = MadeUp()

    async def scenario(browser: Browser) -> None:
        await browser.opens()
        status, told = await browser.post("c/demo/scale", json={"min": "1", "max": "3"})
        assert status == 200
        assert [json.loads(line) for line in told.splitlines()] == [
            {"line": "asking"},
            {"done": "demo: scale"},
        ]
        told = (await browser.post("c/demo/stop", json={}))[1]
        assert json.loads(told.splitlines()[-1]) == {"failed": "demo has ended already"}

    browsing(scenario, source)
    assert source.acted == [("demo", "scale", {"min": "1", "max": "3"}), ("demo", "stop", {})]


def test_a_command_of_somebody_elses_page_is_not_carried_out() -> None:
    source = MadeUp()

    async def scenario(browser: Browser) -> None:
        body: dict[str, Any] = {"json": {}}
        assert (await browser.post("c/demo/stop", **body))[0] == 403, "without the cookie"
        await browser.opens()
        wrong: tuple[dict[str, str], ...] = (
            {},
            {"Origin": "http://evil.example"},
            {"Origin": "http://127.0.0.1:1"},
            {"Origin": browser.base, "Sec-Fetch-Site": "cross-site"},
            {"Origin": "http://evil.example", "Host": "evil.example"},
        )
        for headers in wrong:
            assert (await browser.post("c/demo/stop", headers=headers, **body))[0] == 403
        # A form of another page can send these kinds alone.
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            headers = {**browser.own, "Content-Type": kind}
            assert (await browser.post("c/demo/stop", headers=headers, data="{}"))[0] == 415
        for data in ("", "[]", "{", "null", '"x"'):
            headers = {**browser.own, "Content-Type": "application/json"}
            assert (await browser.post("c/demo/stop", headers=headers, data=data))[0] == 400
        big = {"typed": "x" * 100_000}
        assert (await browser.post("c/demo/stop", json=big))[0] == 413

    browsing(scenario, source)
    assert source.acted == []


def test_a_port_that_is_taken_is_told() -> None:
    with listening(0) as first:
        port = first.getsockname()[1]
        with pytest.raises(Exception, match=f"--port {port}: cannot listen there"):
            listening(port)
