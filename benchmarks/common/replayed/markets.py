"""Cuts spot traces, and tells how many nodes they have at each time."""

import itertools
import math
from collections import Counter

from spotelastic.replay.trace import Span, Trace


def changes(trace: Trace) -> tuple[float, ...]:
    """Return the times at which the number of nodes changes, in order."""
    ends = {span.end for span in trace.spans if span.end < math.inf}
    return tuple(sorted({span.start for span in trace.spans} | ends))


def counts(trace: Trace) -> tuple[tuple[float, int], ...]:
    """Return the number of nodes from each time at which it changes, in order."""
    steps = Counter(span.start for span in trace.spans)
    steps.subtract(span.end for span in trace.spans if span.end < math.inf)
    there = itertools.accumulate(steps[at] for at in sorted(steps))
    return tuple(zip(sorted(steps), there, strict=True))


def until(trace: Trace, length: float) -> Trace:
    """Return what happens in the first `length` seconds."""
    spans = (span for span in trace.spans if span.start < length)
    kept = (span if span.end <= length else Span(span.node, span.start, math.inf) for span in spans)
    return Trace(trace.name, tuple(kept), min(length, trace.length))


def since(trace: Trace, moment: float) -> Trace:
    """Return the nodes that are there at this moment or later. Times stay the same."""
    kept = (
        Span(span.node, max(span.start, moment), span.end)
        for span in trace.spans
        if span.end > moment
    )
    ordered = sorted(kept, key=lambda span: (span.start, span.end, span.node))
    return Trace(trace.name, tuple(ordered), trace.length)
