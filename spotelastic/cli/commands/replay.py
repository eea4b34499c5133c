"""Defines the command `replay`, which simulates a job on a recorded spot trace before money is
spent."""

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spotelastic.cli.options import replay as options
from spotelastic.cli.options.common import AsJson
from spotelastic.client.config.capacity_policy import capacity, seconds_left, with_deadline
from spotelastic.errors import UsageError
from spotelastic.model.counting import counted, dollars
from spotelastic.validation import size, time

if TYPE_CHECKING:
    from rich.console import RenderableType
    from spotelastic_checkpoints.types import Schedule

    from spotelastic.model.job import Capacity
    from spotelastic.replay.outcome import ReplayOutcome
    from spotelastic.replay.regions.travel import Travel
    from spotelastic.replay.scenario import NodeTimings, Scenario
    from spotelastic.replay.trace import Trace

EXAMPLES = """[bold]Examples[/]

spotelastic replay trace.csv --min 2 --max 8

spotelastic replay trace.csv --min 4 --max 32 --step-time 1.2 --state 20GB --picture trace.png

spotelastic replay trace.csv --min 4 --max 8 --on-demand fallback --spot-patience 300

spotelastic replay counts.json --min 2 --max 8 --notice 0 --policy spotelastic --json

spotelastic replay us-east-2.json us-west-2.json --min 4 --max 16 --region-patience 10m
"""
SPOT_SHARE = 0.3
"""Spot price as a share of the on-demand price if none is given: about what spot users report."""
MORE_THAN_ALLOWED = (
    "Goodput over 100%: nodes also train between their notice and their leaving, which the trace's "
    "own time does not contain."
)
TYPE = "g5.xlarge"
"""Instance type whose prices are used by default."""


def replay(
    files: options.TraceFiles,
    minimum: options.Minimum = 1,
    maximum: options.Maximum = None,
    step_time: options.StepTime = 1.0,
    state: options.State = "10GB",
    sharded: options.Sharded = False,
    notice: options.Notice = 120.0,
    boot: options.Boot = 90.0,
    start_time: options.StartTime = 3.0,
    snapshot_every: options.SnapshotEvery = None,
    checkpoint_every: options.CheckpointEvery = None,
    instance_type: options.InstanceType = TYPE,
    spot_price: options.SpotPrice = None,
    on_demand: options.OnDemand = "never",
    spot_patience: options.SpotPatience = 600.0,
    max_cost: options.MaxCost = None,
    deadline: options.Deadline = None,
    policy: options.Policies = None,
    json: AsJson = False,
    picture: options.Picture = None,
    region_patience: options.RegionPatience = "20m",
    prefer_capacity: options.PreferCapacity = True,
    moves_per_day: options.MovesPerDay = 12,
    move_time: options.MoveTime = "3m",
    scores: options.Scores = True,
    region_price: options.RegionPrices = None,
) -> None:
    """Simulate a job on a recorded spot trace, in virtual time.

    The code that decides about rounds and replacements in a cluster decides here too. For
    comparison: torchrun's elastic launcher, and full restarts as SkyPilot does them.

    Several traces are the markets of as many regions, between which the job moves.
    """
    from spotelastic.replay.scenario import Scenario

    several = len(files) > 1
    names = _policies(policy or (), several=several)
    _check_picture(picture, several=several)
    _check_times(step_time, {"--notice": notice, "--boot": boot, "--start-time": start_time})
    traces = _traces(files)
    trace = max(traces.values(), key=lambda trace: trace.most_nodes)
    asked = _asked(trace, minimum, maximum)
    bought = capacity(on_demand, spot_patience, asked, max_cost=max_cost)
    scenario = Scenario(
        minimum,
        _maximum(trace, minimum, asked, bought),
        capacity=with_deadline(bought, seconds_left(deadline), 0.0),
        step=step_time,
        state=size("--state", state),
        sharded=sharded,
        notice=notice,
        machines=_machines(instance_type, spot_price, boot, start_time),
    )
    for note in _notes(trace, scenario, asked):
        print(note, file=sys.stderr)
    saves = _schedule(snapshot_every, checkpoint_every)
    if several:
        travel = _travel(
            scenario, traces, region_patience, move_time, region_price or (),
            prefer_capacity=prefer_capacity, moves_per_day=moves_per_day, scores=scores,
        )  # fmt: skip
        _compare_regions(traces, scenario, travel, names, saves, json=json)
        return
    outcomes = _compare_policies(trace, scenario, names, saves, picture)
    if json:
        _show_json(scenario, outcomes, maximum)
    else:
        _show(trace, scenario, outcomes, instance_type, estimated=spot_price is None)


def _compare_policies(
    trace: "Trace",
    scenario: "Scenario",
    names: Sequence[str],
    saves: "Schedule | None",
    picture: Path | None,
) -> "Sequence[ReplayOutcome]":
    """Return the outcome of each policy on one trace, and draw them if there is to be a picture."""
    from spotelastic.replay.policies import compare

    outcomes = compare(trace, scenario, names, saves)
    if picture is not None:
        from spotelastic.replay.picture import draw

        draw(trace, outcomes, picture)
    return outcomes


def _travel(
    scenario: "Scenario",
    regions: Iterable[str],
    patience: str,
    move_time: str,
    prices: Sequence[str],
    *,
    prefer_capacity: bool,
    moves_per_day: int,
    scores: bool,
) -> "Travel":
    """Return when the job moves between regions, and what that takes."""
    from spotelastic.controller.model.regions import RegionPolicy
    from spotelastic.replay.regions.travel import Travel

    machines = scenario.machines
    policy = RegionPolicy(
        scenario.min_nodes,
        scenario.max_nodes,
        patience=time("--region-patience", patience),
        prefer_capacity=prefer_capacity,
        moves_per_day=moves_per_day,
        node_value=machines.on_demand_usd or 1.0,
    )
    usd = dict(_region_price(text, regions) for text in prices)
    return Travel(policy, cluster=time("--move-time", move_time), scores=scores, spot_usd=usd)


def _region_price(text: str, regions: Iterable[str]) -> tuple[str, float]:
    region, _, price = text.rpartition("=")
    try:
        usd = float(price)
    except ValueError:
        usd = math.nan
    if region not in regions or not 0 <= usd < math.inf:
        names = ", ".join(regions)
        raise UsageError(f"--region-price {text}: expected REGION=USD, with one of {names}")
    return region, usd


def _compare_regions(
    traces: "Mapping[str, Trace]",
    scenario: "Scenario",
    travel: "Travel",
    names: Sequence[str],
    saves: "Schedule | None",
    *,
    json: bool,
) -> None:
    from spotelastic.cli.render import regions, tables
    from spotelastic.replay.regions.compare import compare

    compared = compare(traces, scenario, travel, names, saves)
    if json:
        print(tables.to_json(regions.values(compared)))
        return
    print(regions.heading(traces, scenario, travel))
    tables.display(regions.table(compared))
    for line in regions.moves(compared):
        print(line)


def _check_picture(file: Path | None, *, several: bool) -> None:
    if file is not None and several:
        raise UsageError("--picture: draws one trace, and there are several")
    if file is not None and file.suffix.lower() != ".png":
        raise UsageError(f"--picture {file}: expected the name of a PNG file")


def _check_times(step: float, others: Mapping[str, float]) -> None:
    """Check durations in seconds; `others` is keyed by flag."""
    if not 0 < step < math.inf:
        raise UsageError(f"--step-time {step:g}: expected more than 0 seconds")
    for flag, seconds in others.items():
        if not 0 <= seconds < math.inf:
            raise UsageError(f"{flag} {seconds:g}: expected 0 seconds or more")


def _traces(files: Iterable[Path]) -> "Mapping[str, Trace]":
    """Return the traces by the name of their region, all of one length."""
    from spotelastic.replay.regions.compare import in_common
    from spotelastic.replay.trace import read

    return in_common([read(file) for file in files])


def _policies(wanted: Sequence[str], *, several: bool) -> tuple[str, ...]:
    from spotelastic.replay import policies
    from spotelastic.replay.regions import compare

    names = tuple(compare.PLAYED if several else policies.PLAYED)
    for name in wanted:
        if name not in names:
            raise UsageError(f"--policy {name}: expected one of {', '.join(names)}")
    return tuple(dict.fromkeys(wanted)) or names


def _asked(trace: "Trace", minimum: int, maximum: int | None) -> int:
    """Return how many nodes the job may have if capacity allows."""
    if maximum is None:
        return max(trace.most_nodes, minimum)
    if maximum < minimum:
        raise UsageError(f"--max {maximum}: is less than --min {minimum}")
    return maximum


def _maximum(trace: "Trace", minimum: int, asked: int, bought: "Capacity") -> int:
    """Return how many nodes the job can have, from the trace and on demand.

    Raises `UsageError` if that is less than --min.
    """
    most = trace.most_nodes + bought.base
    if bought.on_demand == "fallback":
        most = max(most, minimum)
    if minimum > most:
        at_most = _at_most(trace, bought)
        raise UsageError(
            f"--min {minimum}: {at_most}: lower it, or add on-demand nodes (--on-demand fallback, "
            f"--on-demand base={minimum - trace.most_nodes})"
        )
    return min(most, asked)


def _at_most(trace: "Trace", bought: "Capacity") -> str:
    text = f"the trace has at most {counted(trace.most_nodes, 'node')} at a time"
    if bought.on_demand == "fallback":
        return f"{text}, and --on-demand fallback buys none above --min"
    return f"{text}, and --on-demand base={bought.base}" if bought.base else text


def _notes(trace: "Trace", scenario: "Scenario", asked: int) -> Iterator[str]:
    """Yield a note for each way in which the replay differs from what was asked."""
    most = scenario.max_nodes
    if most < asked:
        at_most = _at_most(trace, scenario.capacity)
        yield f"--max {asked}: {at_most}: played with --max {most}"
    if scenario.min_nodes > trace.most_nodes:
        yield (
            f"--min {scenario.min_nodes}: the trace alone never has so many nodes, so there is no "
            'goodput of what it allows: see "of paid"'
        )


def _schedule(snapshot_every: int | None, checkpoint_every: int | None) -> "Schedule | None":
    from spotelastic_checkpoints.types import Schedule

    snapshots = snapshot_every or checkpoint_every
    if snapshots is None:
        return None
    return Schedule(snapshots, checkpoint_every or snapshots)


def _machines(type_: str, spot_price: float | None, boot: float, start: float) -> "NodeTimings":
    from spotelastic.aws.compute.prices import shipped_table
    from spotelastic.replay.scenario import NodeTimings

    on_demand = shipped_table().usd_per_hour.get(type_)
    if on_demand is None and spot_price is None:
        raise UsageError(
            f"--instance-type {type_}: its price is not known; give one with --spot-price"
        )
    spot = SPOT_SHARE * (on_demand or 0.0) if spot_price is None else spot_price
    return NodeTimings(boot=boot, start=start, spot_usd=spot, on_demand_usd=on_demand or spot)


# -- what is shown -------------------------------------------------------------------------------


def _show_json(
    scenario: "Scenario", outcomes: "Sequence[ReplayOutcome]", maximum: int | None
) -> None:
    """Print the outcomes, with the numbers of nodes and the --max that was asked for."""
    import msgspec

    from spotelastic.cli.render.tables import to_json

    sizes = {"min_nodes": scenario.min_nodes, "max_nodes": scenario.max_nodes}
    told = {**sizes, "max_asked": maximum}
    print(to_json([{**msgspec.to_builtins(each), **told} for each in outcomes]))


def _show(
    trace: "Trace",
    scenario: "Scenario",
    outcomes: "Sequence[ReplayOutcome]",
    type_: str,
    *,
    estimated: bool,
) -> None:
    from spotelastic.aws.compute.prices import shipped_table
    from spotelastic.cli.render import tables

    table = shipped_table()
    spot = f"${scenario.machines.spot_usd:.3g} an hour"
    price = f"{spot} a node"
    if estimated:
        price = f"{spot} for a {type_}: {SPOT_SHARE:.0%} of on-demand as of {table.date}"
    notice = f"{scenario.notice:g} s of notice" if scenario.notice else "no notice"
    print(
        f"{trace.name}: {trace.length / 3600:.1f} h, at most {counted(trace.most_nodes, 'node')}, "
        f"{trace.taken} taken back, {notice}\n"
        f"a job of {scenario.min_nodes} to {scenario.max_nodes} nodes: steps of "
        f"{scenario.step:g} s, {scenario.state / 1e9:g} GB; {price}\n"
    )
    allows = scenario.min_nodes <= trace.most_nodes
    tables.display(_table(outcomes, allows=allows))
    if allows and any(each.goodput > 1 for each in outcomes):
        print(MORE_THAN_ALLOWED)


def _table(outcomes: "Sequence[ReplayOutcome]", *, allows: bool) -> "RenderableType":
    """Return the table of outcomes. `allows`: whether the trace alone ever has enough nodes."""
    from spotelastic.cli.render import tables

    numbers = (
        "goodput", "of paid", "hours\ntraining", "hours\nstopped", "node\nhours", "cost",
        "a useful\nnode hour", "steps", "steps\nredone", "starts", "saves\nevery",
    )  # fmt: skip
    table = tables.table_of("policy", *numbers, right=numbers)
    for each in outcomes:
        table.add_row(
            each.policy,
            f"{each.goodput:.1%}" if allows else "-",
            f"{each.paid:.1%}",
            f"{each.hours:.2f}",
            f"{each.stopped_hours:.2f}",
            f"{each.bill.hours:.1f}",
            dollars(each.bill.usd),
            dollars(each.usd_per_node_hour),
            str(each.steps),
            str(each.steps_lost),
            str(each.starts),
            f"{each.schedule.snapshot_every}",
        )
    return table
