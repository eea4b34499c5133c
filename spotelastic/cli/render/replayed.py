"""Shows replayed decisions: what had happened, what was decided, and the first difference."""

from collections.abc import Iterator
from datetime import datetime

from spotelastic.client.dumps.replayed import NodeReplay
from spotelastic.model.counting import counted

BECAUSE = 4
"""Most events that are shown for one decision: the last ones."""


def lines(told: NodeReplay) -> Iterator[str]:
    """Yield the lines of a node. Decisions to do nothing are counted only."""
    decisions = told.decisions
    yield f"{told.node}: {len(decisions)} decisions, recorded by spotelastic {told.version}"
    for each in decisions:
        when = datetime.fromtimestamp(each.at).strftime("%H:%M:%S.%f")[:-3]
        if each.actions or each.difference or each.closed is not None:
            more = len(each.because) - BECAUSE
            before = [counted(more, "other event")] if more > 0 else []
            reason = "; ".join([*before, *each.because[-BECAUSE:]]) or "the time has come"
            yield f"{when}  {reason}"
        for action in each.actions:
            yield f"              -> {action}"
        if each.closed is not None:
            yield f"              ended: {each.closed.rstrip() or 'as decided'}"
        if each.difference:
            yield f"              DIFFERS: {each.difference}"
    if told.difference is None:
        yield f"{told.node}: this version decides the same"
