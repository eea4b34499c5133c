"""Chooses the best save intervals for torchrun and full restart on a given trace, with hindsight.

Hindsight favours them. Spotelastic itself chooses intervals in a replay as in a cluster
(`rendezvous/intervals.py`).
"""

import math

from spotelastic_checkpoints.types import Schedule

from spotelastic.rendezvous.intervals import optimum
from spotelastic.replay.scenario import Scenario
from spotelastic.replay.trace import Trace

UNANNOUNCED = 500 * 3600.0
"""Node seconds between two losses without a notice, that is, failures of machines."""


def schedule(trace: Trace, scenario: Scenario, losses: int) -> Schedule:
    """Return the best schedule.

    `losses` is how often the policy goes back to a save in the trace.
    """
    length = trace.length
    nodes = sum(min(span.end, length) - span.start for span in trace.spans) / length
    machines = length * min(nodes, scenario.max_nodes) / UNANNOUNCED
    seconds = optimum(scenario.copied_within, length / (losses + machines))
    steps = max(1, round(seconds / scenario.step))
    uploaded = math.ceil(scenario.uploaded_within(scenario.min_nodes) / scenario.step)
    return Schedule(steps, max(steps, uploaded))


def removals(trace: Trace) -> int:
    """Return the number of times at which nodes are taken back."""
    return len({span.end for span in trace.spans if span.end <= trace.length})
