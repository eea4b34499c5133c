"""The policies that a trace can be played under, by the name that people give."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from spotelastic_checkpoints.types import Schedule

from spotelastic.replay import baselines, intervals, play
from spotelastic.replay.outcome import ReplayOutcome
from spotelastic.replay.scenario import Scenario
from spotelastic.replay.trace import Trace

Policy = Callable[[Trace, Scenario], ReplayOutcome]
PLAYED: Mapping[str, Policy] = {
    "spotelastic": play.play,
    "torchrun": baselines.torchrun,
    "full-restart": baselines.full_restart,
}


def compare(
    trace: Trace, scenario: Scenario, policies: Sequence[str], schedule: Schedule | None
) -> tuple[ReplayOutcome, ...]:
    """`schedule` None: this product finds out how often to save as it goes, as it does in a
    cluster. The others, which leave that to people, are told what is best for all that the trace
    will bring: nobody could know that, and it favours them."""
    return tuple(PLAYED[name](trace, _saving(name, trace, scenario, schedule)) for name in policies)


def _saving(policy: str, trace: Trace, scenario: Scenario, schedule: Schedule | None) -> Scenario:
    if schedule is not None:
        return replace(scenario, schedule=schedule)
    if policy == play.NAME:
        return replace(scenario, automatic=True)
    losses = intervals.removals(trace)
    if policy == "torchrun":  # an arrival costs it as much as a loss
        losses = len(trace.changes())
    return replace(scenario, schedule=intervals.schedule(trace, scenario, losses))
