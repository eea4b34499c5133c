"""Reads spot traces from files: which nodes a spot market had, and when.

Events are read, one per line, `milliseconds,add|remove,node`; and counts per interval,
`{"metadata": {"gap_seconds": 600}, "data": [4, 4, 3]}`. A count does not say which node goes. That
is drawn at random, the same way each time.
"""

import itertools
import json
import math
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from spotelastic.errors import UsageError

LARGEST = 64 * 2**20
"""Bytes of the largest file that is read."""
MOST_NODES = 10_000
"""Largest number of nodes in a count."""
MOST_DIGITS = 15
"""Digits of the largest number of milliseconds. A longer number is no time."""
EVENT = "expected milliseconds,add|remove,node"
COUNTS = 'expected {"metadata": {"gap_seconds": SECONDS}, "data": [NODES, ...]}'


@dataclass(frozen=True, slots=True)
class Span:
    """One node of the market, from `start` until it is taken back at `end`, in seconds."""

    node: str
    start: float
    end: float
    """Infinity for a node that is never taken back."""


@dataclass(frozen=True, slots=True)
class Trace:
    """All nodes of a spot market over some time."""

    name: str
    """Name of the file."""
    spans: tuple[Span, ...]
    """The nodes in the order in which they appear."""
    length: float
    """Seconds from the beginning to the last event."""

    @property
    def most_nodes(self) -> int:
        """Largest number of nodes at the same time."""
        there = sorted(
            change for span in self.spans for change in ((span.start, 1), (span.end, -1))
        )
        return max(itertools.accumulate(step for _, step in there))

    @property
    def taken(self) -> int:
        """Number of nodes that are taken back."""
        return sum(span.end < math.inf for span in self.spans)


def read(path: Path) -> Trace:
    """Read a trace. Raises `UsageError` with file, line and what was expected there."""
    text = _text(path)
    counts = text.lstrip().startswith("{")
    trace = _counts(path, text) if counts else _events(path, text)
    if not trace.spans:
        raise UsageError(f"{path}: contains no nodes: {COUNTS if counts else EVENT}")
    if trace.length <= 0:
        raise UsageError(f"{path}: covers no time: expected events at two times at least")
    return trace


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST:
            raise UsageError(f"{path}: larger than {LARGEST >> 20} MiB: {EVENT}, or a JSON file")
        return path.read_text()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not a text file: {EVENT}, or a JSON file") from None


def _events(path: Path, text: str) -> Trace:
    spans: list[Span] = []
    since: dict[str, float] = {}
    now = 0.0
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        at, what, node = _event(path, number, line)
        if at < now:
            raise _bad(path, number, f"goes back in time, from {now:g} s to {at:g} s")
        now = at
        if (what == "add") == (node in since):
            told = "is added a second time" if what == "add" else "is not there"
            raise _bad(path, number, f"{node} {told}")
        if what == "add":
            since[node] = at
        else:
            spans.append(Span(node, since.pop(node), at))
    spans += [Span(node, start, math.inf) for node, start in since.items()]
    return Trace(path.stem, _ordered(spans), now)


def _event(path: Path, number: int, line: str) -> tuple[float, str, str]:
    fields = [field.strip() for field in line.split(",")]
    if len(fields) == 3:
        moment, what, node = fields
        counts = moment.isdecimal() and len(moment) <= MOST_DIGITS
        if counts and what in ("add", "remove") and node:
            return int(moment) / 1000, what, node
    raise _bad(path, number, f"{line.strip()[:60]!r}: {EVENT}")


def _counts(path: Path, text: str) -> Trace:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise _bad(path, getattr(error, "lineno", 1), f"not valid JSON: {COUNTS}") from None
    gap = value["metadata"].get("gap_seconds") if isinstance(value.get("metadata"), dict) else None
    data = re.search(r'"data"\s*:\s*\[([^\[\]{}]*)\]', text)
    if not isinstance(gap, int | float) or isinstance(gap, bool) or not 0 < gap < math.inf:
        raise _bad(path, _line(text, text.find('"gap_seconds"')), f"no gap_seconds: {COUNTS}")
    if data is None:
        raise _bad(path, _line(text, text.find('"data"')), f"no list of counts: {COUNTS}")
    counts = []
    for found in re.finditer(r"[^\s,]+", data[1]):
        if not found[0].isdecimal() or int(found[0]) > MOST_NODES:
            told = f"{found[0][:20]}: expected a number of nodes from 0 to {MOST_NODES}"
            raise _bad(path, _line(text, data.start(1) + found.start()), told)
        counts.append(int(found[0]))
    if "price_info" in value["metadata"]:
        raise UsageError(f"{path}: with price_info it tells of launches, not how long nodes stayed")
    return _from_counts(path.stem, [(at * gap, count) for at, count in enumerate(counts)], gap)


def _from_counts(name: str, counts: Iterable[tuple[float, int]], gap: float) -> Trace:
    """Return a trace of the numbers of nodes from each time on; the last lasts for `gap`."""
    draw = random.Random(name)
    spans: list[Span] = []
    there: list[tuple[str, float]] = []
    born, at = 0, 0.0
    for at, count in counts:
        while len(there) > count:
            node, start = there.pop(draw.randrange(len(there)))
            spans.append(Span(node, start, at))
        while len(there) < count:
            born += 1
            there.append((f"node{born}", at))
    spans += [Span(node, start, math.inf) for node, start in there]
    return Trace(name, _ordered(spans), at + gap)


def _ordered(spans: Iterable[Span]) -> tuple[Span, ...]:
    return tuple(sorted(spans, key=lambda span: (span.start, span.end, span.node)))


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, max(0, position)) + 1


def _bad(path: Path, line: int, told: str) -> UsageError:
    return UsageError(f"{path}:{line}: {told}")
