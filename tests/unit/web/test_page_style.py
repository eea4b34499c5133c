"""What all pages look like: it can be told apart without colours, and seen against its ground."""

import html
import json
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from support.clusters.published_cluster import BEGAN, PUBLISHED, STATUS, with_texts

from spotelastic.model.progress import GpuUse
from spotelastic.web.page.places import HEIGHTS
from spotelastic.web.page.render import asset, report_page, sections
from spotelastic.web.view import columns
from spotelastic.web.view.cluster_view import cluster_view
from spotelastic.web.view.timeline import STATES

GRAPHICS = (
    *("curve", "training", "booting", "waiting", "noticed", "resting"),
    *("spot", "loss", "worker", "sick", "etcd", "other", "bad"),
)
"""What is drawn, and not written."""


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """As the Web Content Accessibility Guidelines have it."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_is_drawn_is_seen_against_its_ground(scheme: str) -> None:
    style = asset("style.css")
    split = style.index("@media (prefers-color-scheme: dark)")
    light = dict(re.findall(r"--([\w-]+): (#\w{6})", style[:split]))
    end = style.index("* { box-sizing")
    dark = light | dict(re.findall(r"--([\w-]+): (#\w{6})", style[split:end]))
    given = light if scheme == "light" else dark
    for name in GRAPHICS:
        for ground in ("card", "ground"):
            assert contrast(given[name], given[ground]) >= 3.0, (name, ground)
    for name in ("text", "quiet", "link"):
        assert contrast(given[name], given["card"]) >= 4.5, name


def test_states_of_nodes_differ_by_more_than_their_colours() -> None:
    assert set(HEIGHTS) == set(STATES)
    assert len(set(HEIGHTS.values())) == len(STATES) - 1
    assert HEIGHTS["training"] == HEIGHTS["noticed"], "which has a border, as the next line says"
    assert re.search(r"\.is-noticed \{[^}]*stroke-dasharray", asset("style.css"))


def test_a_table_has_its_columns_in_the_order_of_the_words() -> None:
    busy = replace(STATUS.nodes[0], gpu=GpuUse(8, 0.5, 10**9, 4 * 10**9))
    with_gpus = replace(PUBLISHED, status=replace(STATUS, nodes=(busy, *STATUS.nodes[1:])))
    written = sections(cluster_view(with_gpus, BEGAN + 101))
    assert "50%, 1 GB of 4 GB" in written["nodes"]
    assert "GPUs" not in sections(cluster_view(PUBLISHED, BEGAN + 101))["nodes"]
    for section, given in (
        ("interruptions", columns.INTERRUPTIONS),
        ("nodes", columns.NODES),
        ("checkpoints", columns.CHECKPOINTS),
        ("costs", columns.COSTS),
    ):
        head, _, body = written[section].partition("<tbody>")
        names = re.findall(r'<th scope="col"[^>]*>(?:<span[^>]*>)?([^<]*)', head)
        assert names == [column.name for column in given]
        cells = re.findall(r"<t[dh][ >]", body.split("<tr")[1])
        assert len(cells) == len(given)


def test_ids_lead_to_logs_where_there_are_some_and_checkpoints_to_their_commands() -> None:
    view = cluster_view(PUBLISHED, BEGAN + 101)
    live, report = sections(view), report_page(view)
    for section, node in (("nodes", "i-3"), ("interruptions", "i-1"), ("interruptions", "i-2")):
        assert f'<a href="#output">{node}</a>' in live[section]
    assert '<td class="id">i-9</td>' in live["nodes"], "a control node has no lines in the logs"
    assert live["events"].count('<a href="#output" class="when">') == len(view.events)
    assert 'id="output"' not in report and 'href="#output"' not in report
    for page in (live["checkpoints"], report):
        copied = re.findall(r'data-copy="([^"]*)"[^>]*>([^<]*)', page)
        assert copied == [(f"spotelastic ckpt verify demo@{step}", step) for step in ("60", "40")]
    marks = re.findall(r'role="link" data-when="([^"]*)" data-node="([^"]*)"', live["chart"])
    assert marks == [(str(BEGAN + 40), "i-2"), (str(BEGAN + 70), "i-1")]


def test_a_command_to_copy_is_one_command_whatever_the_name() -> None:
    """Also of a cluster whose status somebody else has written."""
    view = cluster_view(with_texts("x; reboot #"), BEGAN + 101)
    (command,) = re.findall(r'data-copy="([^"]*)"', sections(view)["checkpoints"])
    assert shlex.split(html.unescape(command)) == [
        *("spotelastic", "ckpt", "verify"),
        "x; reboot #@1",
    ]


def test_nothing_can_be_commanded_before_it_is_known_what_can_be_done() -> None:
    buttons = re.findall(r"<button [^>]*data-opens[^>]*>", asset("controls.html"))
    assert len(buttons) == 5
    assert all(" disabled " in button for button in buttons)


HIDDEN_TAB = """
const asked = [], listeners = {}, timers = [];
const element = () => ({ attributes: {}, dataset: {}, classList: { toggle() {} }, textContent: "",
  getAttribute(name) { return this.attributes[name]; },
  setAttribute(name, value) { this.attributes[name] = value; } });
const parts = { "#trouble": element(), "#said": element(), "#icon": element() };
const body = element();
body.dataset.stream = "/x/c/demo/stream";
globalThis.document = { hidden: true, title: "demo", body,
  querySelector: (selector) => parts[selector] || null, querySelectorAll: () => [],
  getElementById: () => null, addEventListener: (name, does) => { listeners[name] = does; } };
globalThis.spotelasticTimes = { localTime: String, localTimes() {} };
globalThis.setInterval = (does, every) => timers.push([every, does]);
globalThis.EventSource = class { constructor(url) { asked.push(url); } close() {} };
globalThis.fetch = async (url) => {
  asked.push(url);
  return { ok: true, json: async () => ({ title: "demo: failed – spotelastic", tone: "bad" }) };
};
"""
TOLD = """
(async () => {
  const [every, glance] = timers.find(([every]) => every >= 60000);
  await glance();
  const hidden = [...asked];
  document.hidden = false;
  listeners.visibilitychange();
  await glance();
  const { title } = document, icon = parts["#icon"].attributes.href;
  console.log(JSON.stringify({ hidden, asked, title, icon }));
})();
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_a_tab_that_nobody_sees_asks_once_a_minute_for_its_title_and_its_sign(
    tmp_path: Path,
) -> None:
    script = tmp_path / "tab.js"
    script.write_text(HIDDEN_TAB + asset("live.js") + TOLD)
    done = subprocess.run(["node", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["hidden"] == ["/x/c/demo/title"], "no stream is open meanwhile"
    assert told["asked"] == ["/x/c/demo/title", "/x/c/demo/stream"], (
        "one that is seen has its stream"
    )
    assert told["title"] == "demo: failed – spotelastic"
    assert told["icon"].startswith("data:image/svg+xml,") and "d0241b" in told["icon"]


ASKED_FOR = """
const button = element(), sent = [], kept = {}, clicks = [];
button.hidden = true;
button.addEventListener = (name, does) => clicks.push(does);
parts["#notify"] = button;
globalThis.location = { pathname: "/x/c/demo" };
globalThis.localStorage = { getItem: (name) => kept[name],
  setItem(name, value) { kept[name] = value; } };
globalThis.Notification = class {
  static permission = "default";
  static async requestPermission() { Notification.permission = ANSWER; return ANSWER; }
  constructor(title) { sent.push(title); }
};
const tones = ["good", "bad", "good", "warn", "warn", "bad", "still", "busy", "warn"];
let seen = 0;
globalThis.fetch = async () => {
  const tone = tones[seen++ % tones.length];
  return { ok: true, json: async () => ({ title: `${seen}: ${tone}`, tone }) };
};
"""
GOES_ON = """
(async () => {
  const [, glance] = timers.find(([every]) => every >= 60000);
  const all = async () => {
    seen = 0;
    for (const _ of tones) await glance();
    return sent.splice(0);
  };
  const told = [await all()];
  for (let turn = 0; turn < 2; turn += 1) {
    await clicks[0]();
    told.push(button.attributes["aria-pressed"], await all());
  }
  console.log(JSON.stringify({ told, hidden: button.hidden }));
})();
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.parametrize("answer", ["granted", "denied"])
def test_a_notification_comes_when_it_gets_worse_and_was_asked_for(
    answer: str, tmp_path: Path
) -> None:
    script = tmp_path / "tab.js"
    asked = ASKED_FOR.replace("ANSWER", json.dumps(answer))
    script.write_text(HIDDEN_TAB + asked + asset("live.js") + GOES_ON)
    done = subprocess.run(["node", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    worse = ["2: bad", "4: warn", "6: bad", "9: warn"]
    if answer == "granted":
        assert told["told"] == [[], "true", worse, "false", []], "on by a click, off by another"
    else:
        assert told["told"] == [[], "false", [], "false", []]
    assert told["hidden"] is False
