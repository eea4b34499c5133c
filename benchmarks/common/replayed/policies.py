"""Lists the policies that a trace can be replayed under, and compares several of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from common.replayed import baselines, intervals, markets
from spotelastic_checkpoints.types import Schedule

from spotelastic.replay import play
from spotelastic.replay.outcome import ReplayOutcome
from spotelastic.replay.scenario import Scenario
from spotelastic.replay.trace import Trace

Policy = Callable[[Trace, Scenario], ReplayOutcome]
"""Computes the outcome of a trace and a scenario."""
PLAYED: Mapping[str, Policy] = {
    "spotelastic": play.play,
    "torchrun": baselines.torchrun,
    "full-restart": baselines.full_restart,
}
"""Policies by the name that users give."""


def compare(
    trace: Trace, scenario: Scenario, policies: Sequence[str], schedule: Schedule | None
) -> tuple[ReplayOutcome, ...]:
    """Return the outcome of each policy, all with this schedule.

    Without a schedule, spotelastic chooses one as it goes, as in a cluster. The others leave that
    to their users, and get the best for all that the trace will bring. No user could know that, so
    it favours them.
    """
    return tuple(PLAYED[name](trace, _saving(name, trace, scenario, schedule)) for name in policies)


def _saving(policy: str, trace: Trace, scenario: Scenario, schedule: Schedule | None) -> Scenario:
    if schedule is not None:
        return replace(scenario, schedule=schedule)
    if policy == play.NAME:
        return replace(scenario, automatic=True)
    losses = intervals.removals(trace)
    if policy == "torchrun":  # An arrival costs torchrun as much as a loss.
        losses = len(markets.changes(trace))
    return replace(scenario, schedule=intervals.schedule(trace, scenario, losses))
