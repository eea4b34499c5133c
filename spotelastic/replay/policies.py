"""The policies that a trace can be played under, by the name that people give."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from spotelastic.model.round import Schedule
from spotelastic.replay import baselines, intervals, play
from spotelastic.replay.outcome import Outcome
from spotelastic.replay.scenario import Scenario
from spotelastic.replay.trace import Trace

Policy = Callable[[Trace, Scenario], Outcome]
PLAYED: Mapping[str, Policy] = {
    "spotelastic": play.play,
    "torchrun": baselines.torchrun,
    "full-restart": baselines.full_restart,
}


def compare(
    trace: Trace, scenario: Scenario, policies: Sequence[str], schedule: Schedule | None
) -> tuple[Outcome, ...]:
    """`schedule` None: each policy saves as often as is best for what it has to fear."""
    return tuple(
        PLAYED[name](
            trace, replace(scenario, schedule=schedule or _schedule(name, trace, scenario))
        )
        for name in policies
    )


def _schedule(policy: str, trace: Trace, scenario: Scenario) -> Schedule:
    announced = policy == "spotelastic" and scenario.notice > 0
    losses = 0 if announced else intervals.removals(trace)
    if policy == "torchrun":  # an arrival costs it as much as a loss
        losses = len(trace.changes())
    return intervals.schedule(trace, scenario, losses)
