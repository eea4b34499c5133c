"""What a page's own script makes of it in a browser: times of its zone, and values of its curves.

Nothing but a browser is needed; where it is not called chromium, BROWSER is its path.
"""

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from support.clusters.published_cluster import BEGAN, PUBLISHED

from spotelastic.web.page.render import report_page
from spotelastic.web.view.cluster_view import cluster_view

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
POINTS_AT = """<script>
const told = [], tip = document.getElementById("tip");
for (const curve of document.querySelectorAll("svg.curve")) {
  const box = curve.getBoundingClientRect();
  const at = { bubbles: true, clientX: box.left + box.width / 2, clientY: box.top + 20 };
  curve.dispatchEvent(new PointerEvent("pointermove", at));
  told.push(tip.textContent);
}
document.querySelector(".mark-of").focus();
told.push(tip.textContent);
for (const mark of document.querySelectorAll(".mark-of")) {
  mark.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  told.push([...document.querySelectorAll(".found")].map((each) => each.textContent).join("+"));
}
document.title = told.join(" | ");
</script></body>"""


def opened(browser: str, page: str, folder: Path, zone: str) -> str:
    """The page as a browser in that zone has it once its scripts have run."""
    file = folder / "page.html"
    file.write_text(page)
    command = [browser, *QUIET, f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
    done = subprocess.run(
        [*command, file.as_uri()],
        env={**os.environ, "TZ": zone},
        capture_output=True,
        text=True,
        timeout=250,
        check=True,
    )
    return done.stdout


def test_times_are_those_of_the_browser_and_curves_tell_their_values(
    browser_path: str, tmp_path: Path
) -> None:
    rates = ((BEGAN, 0.25),)
    page = report_page(cluster_view(replace(PUBLISHED, rates=rates), BEGAN + 101))
    # The script that points at curves is no part of the page, whose policy forbids it.
    policy = r'<meta http-equiv="Content-Security-Policy"[^>]*>'
    page = re.sub(policy, "", page).replace("</body>", POINTS_AT)
    shown = opened(browser_path, page, tmp_path, "Asia/Tokyo")
    assert 'class="zone">Asia/Tokyo<' in shown
    # The first event is of 03:26:40 UTC.
    first = r'<time datetime="2026-11-27 [^"]*"[^>]*class="local"[^>]*>[^<]*12:26:40<'
    assert re.search(first, shown)
    title = re.search(r"<title>([^<]*)", shown)
    assert title is not None
    loss, step_time, nodes, goodput, price, mark, *found = title[1].split(" | ")
    assert re.fullmatch(r"step 60: 2\.4", loss)
    assert re.search(r"12:2\d:\d\d: 0\.5 s$", step_time)
    assert nodes.endswith(": 2") and goodput.endswith(" %") and price.endswith(": $0.25")
    assert mark.startswith("spot notice: i-2 · ")
    shown_as = re.findall(r'class="tip mark-of[^>]*>([^<]*)<', shown)
    assert shown_as == ["●", "▲"], "no time of an axis stands in their place"
    for told, event in zip(found, ("notice i-2", "loss i-1"), strict=True):
        assert told.endswith(event), "a mark leads to its event"
