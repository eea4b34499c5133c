"""What a person sees on the dashboard, clicks, and sees next: in a browser, with a cluster on this
machine. `make test-dashboard`; where a browser is not called chromium, BROWSER is its path.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support.clusters.published_cluster import BEGAN, COST, PUBLISHED, with_texts

from spotelastic.web.page.render import report_page
from spotelastic.web.view.cluster_view import cluster_view

playwright = pytest.importorskip("playwright.sync_api", exc_type=ImportError)
from playwright.sync_api import Browser, Page, expect  # noqa: E402

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]
SCRIPT = Path(__file__).parents[1] / "support/scripts/train_small.py"
WAIT = 60_000
"""Milliseconds that anything may take. Nothing waits so long where all is well."""
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style></script></title><svg/onload=alert(1)>",
)


@contextmanager
def watched(browser: Browser, width: int, scheme: str, *, js: bool = True) -> Iterator[Page]:
    """A page in a window of its own; nothing is complained of, and no other place is asked."""
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme=scheme,  # type: ignore[arg-type]
        java_script_enabled=js,
    )
    page = context.new_page()
    page.set_default_timeout(WAIT)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(f"a dialog: {dialog.message}"))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    try:
        yield page
        assert complaints == []
        places = {re.sub(r"^(\w+://[^/]*).*", r"\1", url) for url in asked}
        assert len({place for place in places if not place.startswith("data:")}) <= 1, places
    finally:
        context.close()


def fits(page: Page, part: str = "html") -> bool:
    """Whether the page itself, or a part of it, need not be moved sideways."""
    return bool(page.locator(part).evaluate("part => part.scrollWidth <= part.clientWidth"))


@pytest.mark.parametrize("text", HOSTILE)
def test_a_report_runs_nothing_of_anybody_elses(
    browser: Browser, text: str, tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    file.write_text(report_page(cluster_view(with_texts(text), BEGAN + 101)))
    with watched(browser, 1280, "light") as page:
        page.goto(file.as_uri())
        expect(page.locator("h1")).to_have_text(text)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_report_is_readable(browser: Browser, width: int, scheme: str, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    small = replace(COST, usd_per_hour=0.023, total_usd=0.0068, total_usd_per_hour=0.068)
    file.write_text(report_page(cluster_view(replace(PUBLISHED, cost=small), BEGAN + 101)))
    with watched(browser, width, scheme) as page:
        page.goto(file.as_uri())
        assert fits(page) and fits(page, "#costs .scroll")
        ground = page.locator("body").evaluate("body => getComputedStyle(body).backgroundColor")
        assert (ground == "rgb(245, 246, 248)") == (scheme == "light")
        mark = page.locator("#chart text.mark-of").first
        mark.focus()
        expect(page.locator("#tip")).to_contain_text("spot notice: i-2")
        page.keyboard.press("Escape")
        expect(page.locator("#tip")).to_be_hidden()
    with watched(browser, width, scheme, js=False) as page:
        page.goto(file.as_uri())
        expect(page.locator("#interruptions")).to_contain_text("node lost")


class Board:
    """A cluster on this machine, and the dashboard that shows it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = os.environ | {"SPOTELASTIC_HOME": str(folder.parent / "home")}

    def command(self, *args: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "spotelastic", *args],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def goes_on(self, *args: str) -> Iterator["subprocess.Popen[str]"]:
        """A command that goes on beside others."""
        process = subprocess.Popen(
            [sys.executable, "-m", "spotelastic", *args],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                yield process
            finally:
                process.terminate()

    @contextmanager
    def address(self) -> Iterator[str]:
        """The dashboard's address, while it runs."""
        with self.goes_on("dashboard", "demo") as process:
            assert process.stdout is not None
            yield process.stdout.readline().strip()


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    folder = tmp_path_factory.mktemp("user") / "job"
    folder.mkdir()
    shutil.copy(SCRIPT, folder / "train.py")
    board = Board(folder)
    board.command(
        *("up", "--local", "--detach", "--name", "demo", "--min", "1", "--max", "2"),
        *("--instance-types", "m5.large", "--checkpoint-every", "40", "train.py", "100000", "0.1"),
    )
    try:
        yield board
    finally:
        if (folder.parent / "home/local.json").exists():
            board.command("down", "demo")


def test_a_cluster_is_watched_interrupted_stopped_and_taken_down(
    browser: Browser, board: Board
) -> None:
    with board.address() as address, watched(browser, 1280, "light") as page:
        page.goto(address)
        expect(page.locator("h1")).to_have_text("demo", timeout=WAIT)
        assert "token" not in page.url
        expect(page.locator(".pill")).to_have_text("running", timeout=WAIT)
        expect(page.locator("#chart svg.curve")).to_be_visible(timeout=WAIT)
        expect(page).to_have_title("demo: running – spotelastic")
        _interrupts(page)
        _reads_logs(page)
        _is_led_on(page)
        _sees_a_mistake(page)
        page.set_viewport_size({"width": 390, "height": 844})
        assert fits(page)
        page.set_viewport_size({"width": 1280, "height": 900})
        _stops_and_restarts(page)
        _takes_down(page)


def _interrupts(page: Page) -> None:
    page.get_by_role("button", name="Interrupt a node").click()
    dialog = page.locator("#do-interrupt")
    node = dialog.locator("[name=node]").input_value()
    dialog.locator("[name=seconds]").fill("5")
    dialog.get_by_role("button", name="Interrupt").click()
    expect(page.locator("#done")).to_have_text(f"{node} will be taken away in 5 s", timeout=WAIT)
    row = page.locator("#interruptions tbody tr").first
    expect(row).to_contain_text(node, timeout=WAIT)
    lane = page.locator(".lane", has_text=node)
    expect(lane.locator(".is-noticed")).to_have_count(1, timeout=WAIT)
    page.locator("#chart text.mark-of").first.hover()
    expect(page.locator("#tip")).to_contain_text(f"spot notice: {node}")


def _reads_logs(page: Page) -> None:
    lines = page.locator("#output .lines li:visible")
    expect(lines.first).to_contain_text("begins at", timeout=WAIT)
    page.get_by_label("Only lines with").fill("no such words")
    expect(lines).to_have_count(0)
    page.get_by_label("Only lines with").fill("")
    expect(lines.first).to_be_visible()
    page.locator("#output").get_by_label("Rank").select_option("0")
    expect(lines.first).to_contain_text("rank 0", timeout=WAIT)
    expect(lines.filter(has_text="rank 1")).to_have_count(0)


def _is_led_on(page: Page) -> None:
    node, words = page.locator("#nodes td.id a").first, page.get_by_label("Only lines with")
    name = node.inner_text()
    node.click()
    expect(words).to_have_value(name)
    page.locator("#events a.when").last.click()
    expect(words).to_have_value("")
    expect(page.get_by_label("Follow")).not_to_be_checked()
    page.get_by_label("Follow").check()
    page.locator("#chart text.mark-of").first.click()
    expect(page.locator(".found")).to_have_count(1)


def _sees_a_mistake(page: Page) -> None:
    page.get_by_role("button", name="Scale").click()
    dialog = page.locator("#do-scale")
    expect(dialog.get_by_label("Maximum")).to_have_value("2")
    dialog.get_by_label("Minimum").fill("3")
    dialog.get_by_role("button", name="Scale").click()
    expect(dialog.get_by_role("alert")).to_have_text("Minimum 3 is above Maximum 2", timeout=WAIT)
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_be_hidden()


def _stops_and_restarts(page: Page) -> None:
    page.get_by_role("button", name="Stop").click()
    page.locator("#do-stop").get_by_role("button", name="Stop").click()
    expect(page.locator(".pill")).to_have_text("stopped", timeout=WAIT)
    page.get_by_role("button", name="Restart").click()
    page.locator("#do-restart").get_by_role("button", name="Restart").click()
    expect(page.locator("#done")).to_contain_text("restarted", timeout=WAIT)
    expect(page.locator(".pill")).to_have_text("running", timeout=WAIT)


def _takes_down(page: Page) -> None:
    page.get_by_role("button", name="Take down").click()
    dialog = page.locator("#do-down")
    goes = dialog.get_by_role("button", name="Take down")
    expect(goes).to_be_disabled()
    dialog.get_by_role("textbox").fill("dem")
    expect(goes).to_be_disabled()
    dialog.get_by_role("textbox").fill("demo")
    goes.click()
    expect(page.locator("#done")).to_have_text(
        "demo is taken down; its checkpoints stay", timeout=WAIT
    )
    expect(page.locator(".pill")).to_have_text("taken down", timeout=WAIT)
    expect(page.get_by_text("This cluster is gone.")).to_be_visible(timeout=WAIT)
    expect(page.get_by_role("button", name="Take down")).to_be_disabled()
