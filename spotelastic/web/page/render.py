"""Writes what a person sees of a cluster as HTML.

That is sections that the dashboard renews, and a report that is one file.

Templates escape whatever they are given. So a name, a log line or an error can hold anything.
"""

import base64
import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache, partial
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from spotelastic.model.counting import counted
from spotelastic.model.progress import ClusterSummary, Event, Interruption, Point
from spotelastic.version import __version__
from spotelastic.web.page import places
from spotelastic.web.view import cluster_view, columns, rows, words
from spotelastic.web.view.chart import loss_chart
from spotelastic.web.view.cluster_view import ClusterView
from spotelastic.web.view.timeline import round_starts

SECTIONS = (
    *("head", "warnings", "figures", "chart", "history", "timeline", "interruptions"),
    *("costs", "checkpoints", "nodes", "events"),
)
"""Parts of a cluster's page, each in an element of this id."""


def section(name: str, view: ClusterView, *, is_live: bool) -> Markup:
    """Return one section of a cluster's page; a live one has logs, to which others lead."""
    template = environment().get_template(f"sections/{name}.html")
    return Markup(template.render(view=view, is_live=is_live))


def sections(view: ClusterView) -> dict[str, str]:
    """Return all sections of a cluster's page, by the id of their element."""
    return {name: str(section(name, view, is_live=True)) for name in SECTIONS}


def report_page(view: ClusterView) -> str:
    """Return a page that needs nothing else: no file, no server, no network."""
    style, script = asset("style.css"), asset("tips.js")
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        environment()
        .get_template("report.html")
        .render(
            view=view,
            section=lambda name: section(name, view, is_live=False),
            policy=policy,
            style=Markup(style),
            script=Markup(script),
            version=__version__,
        )
    )


class SvgPicture(str):
    """An SVG image as text, which a notebook shows as an image."""

    def _repr_svg_(self) -> str:
        return str(self)


def curve_picture(
    points: Sequence[Point],
    interruptions: Sequence[Interruption],
    events: Sequence[Event],
    now: float,
) -> SvgPicture:
    """Return the loss curve of the page as an image of its own.

    Programs that draw SVG and are no browsers know no variables, so colours stand in it.
    """
    style = asset("style.css")
    colours = dict(re.findall(r"(--[\w-]+): (#\w+)", style[: style.index("@media")]))
    rules = re.findall(
        r"^(?:svg|\.grid|\.curve|\.marks|\.kind|\.wild|\.band).*$", style, re.MULTILINE
    )
    coloured = re.sub(r"var\((--[\w-]+)\)", lambda name: colours[name[1]], "\n".join(rules))
    chart = loss_chart(points, interruptions, round_starts(events), now)
    template = environment().get_template("curve.svg")
    return SvgPicture(
        template.render(chart=chart, style=Markup(coloured), ground=colours["--card"])
    )


def live_page(template: str, **values: object) -> str:
    """Return a page of the dashboard, which asks for its sections again and again."""
    return environment().get_template(template).render(section=partial(_shown, values), **values)


def clusters_section(clusters: Sequence[ClusterSummary], root: str, now: float) -> str:
    """Return the list of clusters."""
    tones = {"red": "bad", "yellow": "warn"}
    shown = [
        (
            rows.cluster(row, now),
            tones.get(row.colour) or cluster_view.TONES.get(row.state, "still"),
        )
        for row in clusters
    ]
    template = environment().get_template("sections/clusters.html")
    return template.render(rows=shown, total=rows.total(clusters), root=root)


def message_page(title: str, text: str, *, goes_to: str = "") -> str:
    """Return a page that says one thing, and may go on to another page at once."""
    template = environment().get_template("message.html")
    return template.render(title=title, text=words.plain(text), goes_to=goes_to)


def _shown(values: Mapping[str, Any], name: str) -> Markup:
    """Return a section that was written before; empty if nothing was seen yet."""
    return Markup(values["sections"].get(name, ""))


@cache
def asset(name: str) -> str:
    """Return one of the files that pages are made with."""
    return files("spotelastic.web.page").joinpath("templates", name).read_text("utf-8")


@cache
def environment() -> Environment:
    """Return the templates. An unknown name is an error, and every value is escaped."""
    made = Environment(
        loader=PackageLoader("spotelastic.web.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"code": _code, "counted": counted}
    made.globals |= {
        "places": places,
        "columns": columns,
        "quoted": shlex.quote,
    }
    return made


def _code(text: str) -> Markup:
    """Return a text for a page, in which what is between two backticks is code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # one has no other
        return escape(text)
    code = Markup("<code>{}</code>").format
    return Markup("").join(code(part) if i % 2 else part for i, part in enumerate(parts))


def _hash(text: str) -> str:
    """Return the source expression that allows exactly this text to be run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
