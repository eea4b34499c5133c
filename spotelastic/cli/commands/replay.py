"""Defines the command `replay`, which simulates a job on a recorded spot trace.

The simulation comes before money is spent.
"""

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotelastic.cli.options.common import AsJson
from spotelastic.errors import UsageError
from spotelastic.model.counting import counted, dollars
from spotelastic.validation import size

TraceFile = Annotated[
    Path,
    typer.Argument(
        metavar="TRACE",
        help="Lines of milliseconds,add|remove,node; or JSON with a node count per interval.",
    ),
]
Minimum = Annotated[int, typer.Option("--min", min=1, help="Minimum number of nodes.")]
Maximum = Annotated[
    int | None,
    typer.Option(
        "--max", min=1, help="Maximum number of nodes.", show_default="the trace's maximum"
    ),
]
StepTime = Annotated[float, typer.Option(help="Seconds per step.")]
State = Annotated[str, typer.Option(metavar="SIZE", help="Size of model and optimizer, e.g. 20GB.")]
Sharded = Annotated[
    bool, typer.Option("--sharded", help="Each node holds only a part of the state (FSDP).")
]
Notice = Annotated[
    float, typer.Option(min=0, help="Seconds of notice before a node is taken; 0: none.")
]
Boot = Annotated[float, typer.Option(min=0, help="Seconds from launch until a node is ready.")]
SnapshotEvery = Annotated[
    int | None,
    typer.Option(min=1, help="Steps between snapshots.", show_default="the best for the trace"),
]
CheckpointEvery = Annotated[
    int | None,
    typer.Option(min=1, help="Steps between checkpoints.", show_default="as for snapshots"),
]
InstanceType = Annotated[str, typer.Option(help="Instance type whose prices are used.")]
SpotPrice = Annotated[
    float | None,
    typer.Option(min=0, help="US dollars per node and hour.", show_default="30 % of on-demand"),
]


if TYPE_CHECKING:
    from rich.console import RenderableType
    from spotelastic_checkpoints.types import Schedule

    from spotelastic.replay.outcome import ReplayOutcome
    from spotelastic.replay.scenario import NodeTimings, Scenario
    from spotelastic.replay.trace import Trace

EXAMPLES = """[bold]Examples[/]

spotelastic replay trace.csv --min 2 --max 8

spotelastic replay trace.csv --min 4 --max 32 --step-time 1.2 --state 20GB

spotelastic replay counts.json --min 2 --max 8 --notice 0 --json
"""
SPOT_SHARE = 0.3
"""Spot price as a share of the on-demand price if none is given: about what spot users report."""
TYPE = "g5.xlarge"
"""Instance type whose prices are used by default."""


def replay(
    file: TraceFile,
    minimum: Minimum = 1,
    maximum: Maximum = None,
    step_time: StepTime = 1.0,
    state: State = "10GB",
    sharded: Sharded = False,
    notice: Notice = 120.0,
    boot: Boot = 90.0,
    snapshot_every: SnapshotEvery = None,
    checkpoint_every: CheckpointEvery = None,
    instance_type: InstanceType = TYPE,
    spot_price: SpotPrice = None,
    json: AsJson = False,
) -> None:
    """Simulate a job on a recorded spot trace, in virtual time.

    The code that decides about rounds and replacements in a cluster decides here too.
    """
    from spotelastic.replay.play import play
    from spotelastic.replay.scenario import Scenario
    from spotelastic.replay.trace import read

    _check_times(step_time, {"--notice": notice, "--boot": boot})
    trace = read(file)
    asked = _asked(trace, minimum, maximum)
    saves = _schedule(snapshot_every, checkpoint_every)
    scenario = Scenario(
        minimum,
        min(trace.most_nodes, asked),
        step=step_time,
        state=size("--state", state),
        sharded=sharded,
        notice=notice,
        machines=_machines(instance_type, spot_price, boot),
        **({"automatic": True} if saves is None else {"schedule": saves}),
    )
    if (most := scenario.max_nodes) < asked:
        print(f"--max {asked}: {_at_most(trace)}: played with --max {most}", file=sys.stderr)
    outcome = play(trace, scenario)
    if json:
        _show_json(scenario, outcome, maximum)
    else:
        _show(trace, scenario, outcome, instance_type, estimated=spot_price is None)


def _check_times(step: float, others: Mapping[str, float]) -> None:
    """Check durations in seconds; `others` is keyed by flag."""
    if not 0 < step < math.inf:
        raise UsageError(f"--step-time {step:g}: expected more than 0 seconds")
    for flag, seconds in others.items():
        if not 0 <= seconds < math.inf:
            raise UsageError(f"{flag} {seconds:g}: expected 0 seconds or more")


def _asked(trace: "Trace", minimum: int, maximum: int | None) -> int:
    """Return how many nodes the job may have if capacity allows."""
    if maximum is not None and maximum < minimum:
        raise UsageError(f"--max {maximum}: is less than --min {minimum}")
    if minimum > trace.most_nodes:
        raise UsageError(f"--min {minimum}: {_at_most(trace)}: lower it")
    return trace.most_nodes if maximum is None else maximum


def _at_most(trace: "Trace") -> str:
    return f"the trace has at most {counted(trace.most_nodes, 'node')} at a time"


def _schedule(snapshot_every: int | None, checkpoint_every: int | None) -> "Schedule | None":
    from spotelastic_checkpoints.types import Schedule

    snapshots = snapshot_every or checkpoint_every
    if snapshots is None:
        return None
    return Schedule(snapshots, checkpoint_every or snapshots)


def _machines(type_: str, spot_price: float | None, boot: float) -> "NodeTimings":
    from spotelastic.aws.compute.prices import shipped_table
    from spotelastic.replay.scenario import NodeTimings

    on_demand = shipped_table().usd_per_hour.get(type_)
    if on_demand is None and spot_price is None:
        raise UsageError(
            f"--instance-type {type_}: its price is not known; give one with --spot-price"
        )
    spot = SPOT_SHARE * (on_demand or 0.0) if spot_price is None else spot_price
    return NodeTimings(boot=boot, spot_usd=spot, on_demand_usd=on_demand or spot)


# -- what is shown -------------------------------------------------------------------------------


def _show_json(scenario: "Scenario", outcome: "ReplayOutcome", maximum: int | None) -> None:
    """Print the outcome, with the numbers of nodes and the --max that was asked for."""
    import msgspec

    from spotelastic.cli.render.tables import to_json

    its = {"min_nodes": scenario.min_nodes, "max_nodes": scenario.max_nodes, "max_asked": maximum}
    print(to_json({**msgspec.to_builtins(outcome), **its}))


def _show(
    trace: "Trace",
    scenario: "Scenario",
    outcome: "ReplayOutcome",
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
    tables.display(_table(outcome))


def _table(each: "ReplayOutcome") -> "RenderableType":
    from spotelastic.cli.render import tables

    numbers = (
        "goodput", "of paid", "hours\ntraining", "hours\nstopped", "node\nhours", "cost",
        "a useful\nnode hour", "steps", "steps\nredone", "starts", "saves\nevery",
    )  # fmt: skip
    table = tables.table_of(*numbers, right=numbers)
    table.add_row(
        f"{each.goodput:.1%}",
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
