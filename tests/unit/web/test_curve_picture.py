"""The loss curve as an image of its own."""

import re
from dataclasses import replace
from xml.etree import ElementTree

from support.clusters.published_cluster import BEGAN, LOSS, NOTICE, POINTS, PUBLISHED

from spotelastic.web.page.render import curve_picture, section
from spotelastic.web.view.cluster_view import cluster_view

NOW = BEGAN + 101
SVG = "{http://www.w3.org/2000/svg}"


def _paths(text: str) -> list[str]:
    return re.findall(r'<path d="([^"]+)"', text)


def test_it_draws_what_the_page_draws() -> None:
    report = PUBLISHED.report
    assert report is not None
    picture = curve_picture(PUBLISHED.points, report.interruptions, PUBLISHED.events, NOW)
    page = str(section("chart", cluster_view(PUBLISHED, NOW), is_live=False))
    assert _paths(picture) == _paths(page) != []
    root = ElementTree.fromstring(picture)
    assert root.tag == f"{SVG}svg"
    marks = [each for each in root.iter(f"{SVG}text") if "mark-of" in each.get("class", "")]
    assert len(marks) == len(report.interruptions) > 0
    assert "var(" not in picture, "a program that is no browser knows no variables"


def test_what_a_node_is_called_is_text_in_it() -> None:
    named = replace(LOSS, node='</title><script>alert("1")</script>&')
    root = ElementTree.fromstring(curve_picture(POINTS, (NOTICE, named), (), NOW))
    assert not list(root.iter(f"{SVG}script"))


def test_without_losses_it_says_so() -> None:
    root = ElementTree.fromstring(curve_picture((), (NOTICE,), (), NOW))
    assert "".join(root.itertext()).count("No loss was reported.") == 2
    assert not list(root.iter(f"{SVG}path"))
