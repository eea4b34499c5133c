"""The command `replay`: a spot trace played before anything is spent."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spotelastic.cli import replay_options as options
from spotelastic.cli.capacity import capacity, limited, seconds_left
from spotelastic.cli.checks import size
from spotelastic.cli.options import AsJson
from spotelastic.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spotelastic.model.round import Schedule
    from spotelastic.replay.outcome import Outcome
    from spotelastic.replay.scenario import Machines, Scenario
    from spotelastic.replay.trace import Trace

EXAMPLES = """[bold]Examples[/]

spotelastic replay trace.csv --min 2 --max 8

spotelastic replay trace.csv --min 4 --max 32 --step-time 1.2 --state 20GB --picture trace.png

spotelastic replay trace.csv --min 4 --max 8 --on-demand fallback --spot-patience 300

spotelastic replay counts.json --min 2 --max 8 --notice 0 --policy spotelastic --json
"""
SPOT_SHARE = 0.3
"""Of the on-demand price, where no spot price is given: about what spot users report to pay."""
TYPE = "g5.xlarge"


def replay(
    file: options.TraceFile,
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
) -> None:
    """Play a spot trace: what a job would have met, in virtual time.

    Rounds and replacements are decided by the code that decides them in a cluster; beside it
    stand torchrun's elastic launcher, and restarts of everything as SkyPilot does them.
    """
    from spotelastic.replay.policies import PLAYED, compare
    from spotelastic.replay.scenario import Scenario
    from spotelastic.replay.trace import read

    names = _policies(policy or (), PLAYED)
    _check_picture(picture)
    _check_times(step_time, {"--notice": notice, "--boot": boot, "--start-time": start_time})
    trace = read(file)
    most = _maximum(trace, minimum, maximum)
    bought = capacity(on_demand, spot_patience, most, max_cost=max_cost)
    scenario = Scenario(
        minimum,
        most,
        capacity=limited(bought, seconds_left(deadline), 0.0),
        step=step_time,
        state=size("--state", state),
        sharded=sharded,
        notice=notice,
        machines=_machines(instance_type, spot_price, boot, start_time),
    )
    outcomes = compare(trace, scenario, names, _schedule(snapshot_every, checkpoint_every))
    if json:
        from spotelastic.cli.output import to_json

        print(to_json(outcomes))
    else:
        _show(trace, scenario, outcomes, instance_type, estimated=spot_price is None)
    if picture is not None:
        from spotelastic.replay.picture import draw

        draw(trace, outcomes, picture)


def _check_picture(file: Path | None) -> None:
    if file is not None and file.suffix.lower() != ".png":
        raise UsageError(f"--picture {file}: expected the name of a PNG file")


def _check_times(step: float, others: Mapping[str, float]) -> None:
    """In seconds; `others` by their flag."""
    if not 0 < step < math.inf:
        raise UsageError(f"--step-time {step:g}: expected more than 0 seconds")
    for flag, seconds in others.items():
        if not 0 <= seconds < math.inf:
            raise UsageError(f"{flag} {seconds:g}: expected 0 seconds or more")


def _policies(wanted: Sequence[str], known: Iterable[str]) -> tuple[str, ...]:
    names = tuple(known)
    for name in wanted:
        if name not in names:
            raise UsageError(f"--policy {name}: expected one of {', '.join(names)}")
    return tuple(dict.fromkeys(wanted)) or names


def _maximum(trace: "Trace", minimum: int, maximum: int | None) -> int:
    most = trace.most_nodes
    if maximum is not None and maximum < minimum:
        raise UsageError(f"--max {maximum}: is less than --min {minimum}")
    if minimum > most:
        raise UsageError(f"--min {minimum}: the trace has at most {most} nodes at a time")
    return most if maximum is None else min(most, maximum)


def _schedule(snapshot_every: int | None, checkpoint_every: int | None) -> "Schedule | None":
    from spotelastic.model.round import Schedule

    snapshots = snapshot_every or checkpoint_every
    if snapshots is None:
        return None
    return Schedule(snapshots, checkpoint_every or snapshots)


def _machines(type_: str, spot_price: float | None, boot: float, start: float) -> "Machines":
    from spotelastic.aws.prices import shipped_table
    from spotelastic.replay.scenario import Machines

    on_demand = shipped_table().usd_per_hour.get(type_)
    if on_demand is None and spot_price is None:
        raise UsageError(
            f"--instance-type {type_}: its price is not known here; give one with --spot-price"
        )
    spot = SPOT_SHARE * (on_demand or 0.0) if spot_price is None else spot_price
    return Machines(boot=boot, start=start, spot_usd=spot, on_demand_usd=on_demand or spot)


# -- what is shown -------------------------------------------------------------------------------


def _show(
    trace: "Trace",
    scenario: "Scenario",
    outcomes: "Sequence[Outcome]",
    type_: str,
    *,
    estimated: bool,
) -> None:
    from spotelastic.aws.prices import shipped_table
    from spotelastic.cli import output

    table = shipped_table()
    spot = f"${scenario.machines.spot_usd:.3g} an hour"
    price = f"{spot} a node"
    if estimated:
        price = f"{spot} for a {type_}: {SPOT_SHARE:.0%} of on demand as of {table.date}"
    notice = f"{scenario.notice:g} s of notice" if scenario.notice else "no notice"
    print(
        f"{trace.name}: {trace.length / 3600:.1f} h, at most {trace.most_nodes} nodes, "
        f"{trace.taken} taken back, {notice}\n"
        f"a job of {scenario.min_nodes} to {scenario.max_nodes} nodes: steps of "
        f"{scenario.step:g} s, {scenario.state / 1e9:g} GB; {price}\n"
    )
    output.console().print(_table(outcomes))


def _table(outcomes: "Sequence[Outcome]") -> "RenderableType":
    from spotelastic.cli import output

    numbers = (
        "goodput", "of paid", "hours\ntraining", "hours\nstopped", "node\nhours", "cost",
        "a useful\nnode hour", "steps", "steps\nlost", "starts", "saves\nevery",
    )  # fmt: skip
    table = output.table_of("policy", *numbers, right=numbers)
    for each in outcomes:
        table.add_row(
            each.policy,
            f"{each.goodput:.1%}",
            f"{each.paid:.1%}",
            f"{each.hours:.2f}",
            f"{each.stopped_hours:.2f}",
            f"{each.bill.hours:.1f}",
            output.usd(each.bill.usd),
            output.usd(each.usd_per_node_hour),
            str(each.steps),
            str(each.steps_lost),
            str(each.starts),
            f"{each.schedule.snapshot_every}",
        )
    return table
