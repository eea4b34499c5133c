"""How often other products save where nobody says: best for what the trace holds (pure).

With hindsight, which favours them. What this product chooses is chosen as in a cluster
(`rendezvous/intervals.py`).
"""

import math

from spotelastic_checkpoints.types import Schedule

from spotelastic.rendezvous.intervals import optimum
from spotelastic.replay.scenario import Scenario
from spotelastic.replay.trace import Trace

UNANNOUNCED = 500 * 3600.0
"""Node seconds between two losses that no notice announces: failures of machines."""


def schedule(trace: Trace, scenario: Scenario, losses: int) -> Schedule:
    """`losses`: times within the trace at which the policy goes back to what was saved."""
    length = trace.length
    nodes = sum(min(span.end, length) - span.start for span in trace.spans) / length
    machines = length * min(nodes, scenario.max_nodes) / UNANNOUNCED
    seconds = optimum(scenario.copied_within, length / (losses + machines))
    steps = max(1, round(seconds / scenario.step))
    uploaded = math.ceil(scenario.uploaded_within(scenario.min_nodes) / scenario.step)
    return Schedule(steps, max(steps, uploaded))


def removals(trace: Trace) -> int:
    """Moments at which nodes are taken back."""
    return len({span.end for span in trace.spans if span.end <= trace.length})
