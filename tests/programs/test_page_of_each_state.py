"""Whatever has become of a cluster, its page says so at first sight, fits, and can be read.

`make test-dashboard`, for which a browser is all that is needed. It leaves pictures to look at in
build/pages.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.clusters.published_cluster import (
    BEGAN,
    NEW,
    NOTICE,
    POINTS,
    PUBLISHED,
    REPORT,
    STATUS,
    very_large,
)

from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import TAKEN_DOWN
from spotelastic.model.progress import Point
from spotelastic.web.page.render import report_page
from spotelastic.web.view.cluster_view import cluster_view
from spotelastic.web.view.published import PublishedCluster

playwright = pytest.importorskip("playwright.sync_api", exc_type=ImportError)
from playwright.sync_api import Browser, Page  # noqa: E402

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
PICTURES = Path("build/pages")
NAN = float("nan")
ERROR = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
FRAMES = [f'  File "train.py", line {n}, in step' for n in range(31)]
TRACE = "\n".join(["rank 0 on i-1 (exit code 1):", *FRAMES, ERROR])
DIVERGED = tuple(
    replace(point, loss=NAN) if point.step > 41 else point for point in POINTS if point.step < 98
)
STORM = replace(
    PUBLISHED,
    report=replace(
        REPORT,
        interruptions=tuple(
            replace(NOTICE, kind=tuple(InterruptionKind)[n % 6], node=f"i-{n:017x}", at=BEGAN + n)
            for n in range(120)
        ),
    ),
    points=tuple(Point(n, 3.0 - n / 400, BEGAN + 10 + n / 10) for n in range(1000)),
)
STATES: dict[str, tuple[PublishedCluster, str, str, str]] = {
    # the cluster, its pill, the colour of its headline, and what that says
    "running": (PUBLISHED, "running", "", ""),
    "booting": (NEW, "pending", "", ""),
    "none": (PublishedCluster(replace(STATUS, nodes=(), step=0, loss=None)), "running", "", ""),
    "nan": (
        replace(PUBLISHED, status=replace(STATUS, loss=None, not_finite=42), points=DIVERGED),
        *("running", "red", "since step 42"),
    ),
    "failed": (
        replace(PUBLISHED, status=replace(STATUS, state="failed", reason=TRACE, error=ERROR)),
        *("failed", "red", f"The job has failed: {ERROR}"),
    ),
    "hung": (
        replace(
            PUBLISHED,
            status=replace(
                STATUS,
                quiet="No step for 22 min: rank 1 on i-3 waits in all_reduce (train.py, line 41).",
                stepped_at=BEGAN - 1300,
            ),
        ),
        *("running", "red", "No step for 22 min"),
    ),
    "gone": (
        replace(
            PUBLISHED,
            status=replace(STATUS, state=TAKEN_DOWN, reason="taken down at step 120"),
            is_gone=True,
            goes_on_by="spotelastic up --name demo train.py",
        ),
        *("taken down", "", ""),
    ),
    "large": (very_large(), "running", "", ""),
    "interrupted-120-times": (STORM, "running", "", ""),
}
FAINT = """() => {
  const part = (c) => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const colour = (text) => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const faint = [];
  const all = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (all.nextNode()) {
    const own = all.currentNode.parentElement;
    const drawn = own.closest("svg, .shape"), style = getComputedStyle(own);
    if (!all.currentNode.textContent.trim() || !own.getClientRects().length) continue;
    if (style.visibility === "hidden" || own.closest("script, style, [disabled]")) continue;
    let ground = own, behind = [0, 0, 0, 0];
    while (ground && (behind = colour(getComputedStyle(ground).backgroundColor), behind[3] === 0))
      ground = ground.parentElement;
    const written = own.closest("svg") ? style.fill : style.color;
    const [low, high] = [light(colour(written)), light(behind)]
      .sort((one, other) => one - other);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < (drawn ? 3 : 4.5)) faint.push(`${ratio.toFixed(2)} ${own.className.baseVal ??
      own.className}: ${all.currentNode.textContent.trim().slice(0, 40)}`);
  }
  return faint;
}"""
"""Texts whose contrast is below 4.5 (in a drawing: 3), as the Web Content Accessibility Guidelines
count it.
"""

CUT = """() => [...document.querySelectorAll(".scroll, .events time, .pill, .figures div")]
  .filter((each) => each.scrollWidth > each.clientWidth + 1 && each.clientWidth ||
    each.matches("time") && each.getBoundingClientRect().height > 30)
  .map((each) => each.closest("section, header")?.id + ": " + each.textContent.slice(0, 60))"""
"""Tables and figures of which a part lies beyond their edge, and times that need two lines."""

UNSAID = """() => [...document.querySelectorAll("[role=img] [tabindex], th")]
  .filter((each) => each.tagName !== "TH" || !each.textContent.trim())
  .map((each) => each.outerHTML.slice(0, 80))"""
"""What a screen reader cannot tell: buttons within an image, and columns without a name."""


def opened(browser: Browser, page: str, folder: Path, width: int, scheme: str) -> Page:
    """A page in a window of its own, which has to have complained of nothing once it is there."""
    file = folder / "page.html"
    file.write_text(page)
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme=scheme,  # type: ignore[arg-type]
    )
    shown, complaints = context.new_page(), list[str]()
    shown.on("console", lambda message: complaints.append(message.text))
    shown.on("pageerror", lambda error: complaints.append(str(error)))
    shown.goto(file.as_uri())
    assert complaints == []
    return shown


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
@pytest.mark.parametrize("state", STATES)
def test_a_state_is_seen_at_first_sight(
    browser: Browser, state: str, width: int, scheme: str, tmp_path: Path
) -> None:
    cluster, pill, colour, line = STATES[state]
    view = cluster_view(cluster, cluster.status.at + 1)
    page = opened(browser, report_page(view), tmp_path, width, scheme)
    try:
        PICTURES.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=PICTURES / f"{state}-{width}-{scheme}.png", full_page=True)
        assert page.locator(".pill").inner_text() == pill
        headline = page.locator(".headline")
        if colour:
            assert line in headline.inner_text()
            assert re.search(rf"\b{colour}\b", headline.get_attribute("class") or "")
            box = headline.bounding_box()
            assert box is not None and box["y"] + box["height"] < 900, "without scrolling"
        else:
            assert headline.count() == 0
        whole = page.locator("html")
        assert whole.evaluate("it => it.scrollWidth <= it.clientWidth"), "nothing is cut off"
        assert page.evaluate(FAINT) == []
        assert page.evaluate(UNSAID) == []
        if width > 1000:  # a phone moves its tables sideways
            assert page.evaluate(CUT) == []
        # What is many is folded: the page of a large cluster is no roll of paper.
        assert whole.evaluate("it => it.scrollHeight") < (9_000 if width > 1000 else 14_000)
    finally:
        page.context.close()
