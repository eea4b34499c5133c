"""The report as a page: one file, which runs nothing and loads nothing of anybody's."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support.clusters.published_cluster import BEGAN, NEW, PUBLISHED, with_texts

from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.web.page.render import SECTIONS, asset, report_page, sections
from spotelastic.web.reading import write_html
from spotelastic.web.view.cluster_view import cluster_view
from spotelastic.web.view.published import PublishedCluster

NOW = BEGAN + 101
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</style></title></textarea><svg/onload=alert(1)>",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:alert(1)//\u2028\u202e<!--",
    "&lt;b&gt; &amp; \x00\x1b]0;title\x07 \ud800",
)
KNOWN = (
    "html head meta title style script body main header footer section div p span h1 h2 dl dt dd "
    "small b code pre figure figcaption svg g line text path rect i table thead tbody tr th td "
    "time ol li use button"
)
ATTRIBUTES = (
    "lang charset http-equiv content name id class aria-label role tabindex hidden scope title "
    "datetime width height viewbox preserveaspectratio x y x1 x2 y1 y2 dx dy cx cy r rx d "
    "text-anchor data-tip data-key data-at data-up data-across data-unit aria-hidden "
    "data-copy data-node data-when href type"
)


class Elements(HTMLParser):
    """The elements and attributes of a page, as a browser would make them out."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def page(it: PublishedCluster) -> str:
    return report_page(cluster_view(it, NOW))


def test_it_has_every_section_and_needs_nothing_else() -> None:
    written = page(PUBLISHED)
    found = Elements(written)
    ids = [value for name, value in found.attributes if name == "id"]
    assert [each for each in ids if each in SECTIONS] == list(SECTIONS)
    assert set(found.tags) <= set(KNOWN.split())
    assert {name for name, _ in found.attributes} <= set(ATTRIBUTES.split()), (
        "no src, no style, no on…"
    )
    leads = [value for name, value in found.attributes if name == "href"]
    assert leads and set(leads) == {"#struck"} and ("id", "struck") in found.attributes
    # No src, no style, nothing that begins with "on".
    assert not re.search(r"https?:|//[a-z]|@import|url\(", written), "it names no other place"
    for text in ("demo", "running", "train.py", "spot notice", "3.50 s", "$0.030", "i-3"):
        assert text in found.text
    assert len(written) < 100_000


def test_the_browser_runs_its_own_script_alone() -> None:
    policy = next(
        value for name, value in Elements(page(PUBLISHED)).attributes if "default-src" in value
    )
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_from_outside_stay_texts(text: str) -> None:
    usual, found = Elements(page(PUBLISHED)), Elements(page(with_texts(text)))
    assert set(found.tags) <= set(usual.tags) | {"pre"}
    assert found.tags.count("script") == 1
    assert {name for name, _ in found.attributes} <= set(ATTRIBUTES.split())
    kept = text.translate({0: 0xFFFD, 0x1B: 0xFFFD, 7: 0xFFFD, 0x202E: 0xFFFD, 0xD800: 0xFFFD})
    assert kept.replace("\u2028", "") in found.text.replace("\u2028", "")


def test_without_anything_to_show_it_says_so() -> None:
    text = Elements(page(NEW)).text
    for empty in (
        "No loss yet. It appears here once the script reports one.",
        "No node has been launched yet.",
        "None so far.",
        "Not known yet.",
        "Not listed.",
    ):
        assert empty in text


def test_a_section_changes_only_where_its_values_do() -> None:
    first, later = (sections(cluster_view(PUBLISHED, NOW + after)) for after in (0.0, 1.0))
    assert {name for name in SECTIONS if first[name] != later[name]} <= {"figures", "checkpoints"}


def test_what_no_file_can_hold_is_written_all_the_same(tmp_path: Path) -> None:
    file = tmp_path / "new/report.html"
    write_html("a \ud800 b", file)
    assert file.read_bytes() == b"a \\ud800 b"


def test_every_kind_of_interruption_has_its_colour() -> None:
    rules = asset("style.css")
    for kind in (*(each.value for each in InterruptionKind), "other"):
        assert re.search(rf"\.kind-{kind}\b[^{{]*\{{ fill", rules), kind
