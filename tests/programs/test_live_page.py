"""The live page in a browser, with a cluster that is made up: what a person must not miss.

`make test-dashboard`, for which a browser is all that is needed.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from aiohttp import web
from support.clusters.published_cluster import BEGAN, PUBLISHED

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

playwright = pytest.importorskip("playwright.sync_api", exc_type=ImportError)
from playwright.sync_api import Browser, expect  # noqa: E402

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]
LONGEST = "ablation-of-the-warm-up-with-large-batch"[:39]


class Refusing(TargetSource):
    """One cluster, which refuses a command once it may answer."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()

    def clusters(self) -> Sequence[ClusterSummary]:
        return (ClusterSummary("demo", "running", 2, 1234), ClusterSummary(LONGEST, "failed"))

    def look(self, name: str) -> LiveLook:
        view = cluster_view(PUBLISHED, BEGAN + 101)
        return LiveLook(sections(view), "", facts(view))

    def output(self, name: str, rank: int | None, since: int) -> dict[str, Any]:
        line = {"id": "1", "at": BEGAN, "node": "i-3", "rank": 0, "text": "step 120 loss 0.95"}
        return {"lines": [line], "next": since + 5}

    def act(self, name: str, action: str, given: Mapping[str, Any], say: Say) -> str:
        assert self.may_answer.wait(60)
        raise UsageError("demo has ended already")


@contextmanager
def served(source: TargetSource) -> Iterator[DashboardAccess]:
    """Serve a dashboard from a thread."""
    at, ready = listening(0), threading.Event()
    access = DashboardAccess(at.getsockname()[1])
    ends: list[Callable[[], object]] = []

    async def serve() -> None:
        over, loop = asyncio.Event(), asyncio.get_running_loop()
        ends.append(lambda: loop.call_soon_threadsafe(over.set))
        runner = web.AppRunner(application(source, access), shutdown_timeout=0.1)
        await runner.setup()
        await web.SockSite(runner, at).start()
        ready.set()
        await over.wait()
        await runner.cleanup()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(30)
    try:
        yield access
    finally:
        ends[0]()
        thread.join()


def test_nothing_is_missed_on_a_live_page(browser: Browser) -> None:
    source = Refusing()
    with served(source) as access:
        page = browser.new_page(viewport={"width": 390, "height": 844})
        # On a phone the longest name leaves room for the state.
        page.goto(access.url)
        pill = page.locator("#clusters .pill", has_text="failed")
        expect(pill).to_be_visible()
        box = pill.bounding_box()
        assert box is not None and box["x"] + box["width"] < 390, "seen without a move"
        page.get_by_role("link", name="demo").click()
        # A search in the logs that finds nothing says so.
        words, none = page.get_by_label("Only lines with"), page.locator("#output .empty")
        expect(page.locator("#output li")).to_have_count(1)
        words.fill("no such words")
        expect(none).to_have_text("No line has these words.")
        words.fill("LOSS")
        expect(none).to_be_hidden()
        # A command that fails behind a closed dialog is told of.
        page.get_by_role("button", name="Stop").click()
        page.locator("#do-stop").get_by_role("button", name="Stop").click()
        page.keyboard.press("Escape")
        expect(page.locator("#do-stop")).to_be_hidden()
        source.may_answer.set()
        expect(page.locator("#done")).to_have_text("demo has ended already")
        # So is one that reaches nobody.
        page.route("**/interrupt", lambda route: route.abort())
        page.get_by_role("button", name="Interrupt a node").click()
        dialog = page.locator("#do-interrupt")
        dialog.get_by_role("button", name="Interrupt").click()
        expect(dialog.get_by_role("alert")).to_contain_text("The dashboard does not answer")
