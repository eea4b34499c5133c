"""Defines the options of `replay`: how each is spelled, and its help text."""

from pathlib import Path
from typing import Annotated

import typer

from spotelastic.client.config.capacity_policy import ON_DEMAND

TraceFile = Annotated[
    Path,
    typer.Argument(
        metavar="TRACE",
        help="Lines of milliseconds,add|remove,node, or JSON with a node count per interval.",
    ),
]
Minimum = Annotated[int, typer.Option("--min", min=1, help="Fewest nodes to train with.")]
Maximum = Annotated[
    int | None,
    typer.Option(
        "--max", min=1, help="Most nodes to train with.", show_default="the trace's maximum"
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
StartTime = Annotated[
    float, typer.Option(min=0, help="Seconds until new workers can step: CUDA, NCCL.")
]
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
OnDemand = Annotated[str, typer.Option(help=f"When to buy on-demand nodes: {ON_DEMAND}.")]
SpotPatience = Annotated[
    float, typer.Option(min=0, help="Seconds below --min before on-demand nodes are bought.")
]
MaxCost = Annotated[
    float | None, typer.Option(help="Stop the job before its workers cost this many US dollars.")
]
Deadline = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="Stop the job after this time, e.g. 90m or 8h, finished or not."
    ),
]
