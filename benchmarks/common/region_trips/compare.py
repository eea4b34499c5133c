"""Compares what a job makes of several regions, under policies that users can choose from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from common.region_trips import moving
from common.region_trips.travel import RegionsBound, RegionsOutcome, Travel
from common.replayed import baselines, intervals, markets
from spotelastic_checkpoints.types import Schedule

from spotelastic.errors import UsageError
from spotelastic.model.counting import HOUR
from spotelastic.replay import play
from spotelastic.replay.outcome import ReplayOutcome, allowed_anywhere, judge, kept
from spotelastic.replay.scenario import Scenario
from spotelastic.replay.trace import Trace

SINGLE = "best single region"
"""Name of this policy in results; the region is added."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcomes of several policies, and what no policy can exceed but by a little."""

    bound: RegionsBound
    outcomes: tuple[RegionsOutcome, ...]


def in_common(traces: Sequence[Trace]) -> dict[str, Trace]:
    """Return the traces by region, each until the shortest one ends.

    Raises `UsageError` if two have the same name.
    """
    length = min(trace.length for trace in traces)
    by_region = {trace.name: markets.until(trace, length) for trace in traces}
    if len(by_region) < len(traces):
        raise UsageError(
            "two traces have the same name, which is that of their region: rename one of the files"
        )
    return by_region


def compare(
    traces: Mapping[str, Trace],
    scenario: Scenario,
    travel: Travel,
    policies: Sequence[str],
    schedule: Schedule | None,
) -> Comparison:
    """Return the outcome of each policy, all with this schedule.

    Without a schedule, spotelastic chooses one as it goes, and fail-over has the best one for the
    trace on which it would lose most nodes.
    """
    bound = allowed_anywhere(tuple(traces.values()), scenario)
    length = next(iter(traces.values())).length
    automatic = schedule is None
    for_us = replace(scenario, schedule=schedule or scenario.schedule, automatic=automatic)
    return Comparison(
        RegionsBound(bound, length / HOUR, scenario.step),
        tuple(PLAYED[name](traces, for_us, travel) for name in policies),
    )


def _single(traces: Mapping[str, Trace], scenario: Scenario, travel: Travel) -> RegionsOutcome:
    """The region that turns out to be the best one for the whole time."""
    alone = {
        region: play.play(trace, _at_its_price(scenario, region, travel))
        for region, trace in traces.items()
        if allowed_anywhere((trace,), scenario).seconds
    }
    region, best = max(alone.items(), key=lambda one: one[1].useful_node_hours)
    return _beside_bound(f"{SINGLE} ({region})", best, traces, scenario)


def _fail_over(traces: Mapping[str, Trace], scenario: Scenario, travel: Travel) -> RegionsOutcome:
    if scenario.automatic:
        most = max(traces.values(), key=intervals.removals)
        best = intervals.schedule(most, scenario, intervals.removals(most))
        scenario = replace(scenario, schedule=best)
    usd = [travel.usd(region, scenario) for region in traces]
    outcome = baselines.fail_over(tuple(traces.values()), usd, scenario)
    return _beside_bound(outcome.policy, outcome, traces, scenario)


def _at_its_price(scenario: Scenario, region: str, travel: Travel) -> Scenario:
    usd = travel.usd(region, scenario)
    return replace(scenario, machines=replace(scenario.machines, spot_usd=usd))


def _beside_bound(
    name: str, outcome: ReplayOutcome, traces: Mapping[str, Trace], scenario: Scenario
) -> RegionsOutcome:
    bound = allowed_anywhere(tuple(traces.values()), scenario)
    as_saved = replace(scenario, schedule=outcome.schedule)
    again = judge(name, outcome.stretches, outcome.bill, bound, as_saved)
    length = next(iter(traces.values())).length
    return RegionsOutcome(again, length / HOUR, sum(kept(outcome.stretches)))


PLAYED: Mapping[str, Callable[[Mapping[str, Trace], Scenario, Travel], RegionsOutcome]] = {
    "spotelastic": moving.play,
    "single": _single,
    "fail-over": _fail_over,
}
"""Policies by the name that users give."""
