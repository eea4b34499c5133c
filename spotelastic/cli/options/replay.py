"""The options of `replay`, by what they mean: how each is spelled, and its help."""

from pathlib import Path
from typing import Annotated

import typer

from spotelastic.client.capacity_policy import ON_DEMAND

TraceFile = Annotated[
    Path,
    typer.Argument(
        metavar="TRACE",
        help="milliseconds,add|remove,node per line, or JSON with a count per interval.",
    ),
]
Minimum = Annotated[int, typer.Option("--min", min=1, help="Train with no fewer nodes than this.")]
Maximum = Annotated[
    int | None,
    typer.Option(
        "--max", min=1, help="Train with at most so many.", show_default="the trace's most"
    ),
]
StepTime = Annotated[float, typer.Option(help="Seconds that a step takes.")]
State = Annotated[str, typer.Option(metavar="SIZE", help="Model and optimizer, e.g. 20GB.")]
Sharded = Annotated[
    bool, typer.Option("--sharded", help="Each node holds a part of it only (FSDP).")
]
Notice = Annotated[
    float, typer.Option(min=0, help="Seconds of warning before a node is taken; 0: none.")
]
Boot = Annotated[float, typer.Option(min=0, help="Seconds from a launch until the node is there.")]
StartTime = Annotated[
    float, typer.Option(min=0, help="Seconds until new workers step: CUDA, NCCL.")
]
SnapshotEvery = Annotated[
    int | None, typer.Option(min=1, help="Steps between snapshots.", show_default="what is best")
]
CheckpointEvery = Annotated[
    int | None, typer.Option(min=1, help="Steps between checkpoints.", show_default="as snapshots")
]
InstanceType = Annotated[str, typer.Option(help="What the prices are of.")]
SpotPrice = Annotated[
    float | None,
    typer.Option(min=0, help="US dollars per node and hour.", show_default="30 % of on demand"),
]
OnDemand = Annotated[str, typer.Option(help=f"On-demand nodes (spotelastic's only): {ON_DEMAND}.")]
SpotPatience = Annotated[
    float, typer.Option(min=0, help="Seconds below min before on-demand nodes are bought.")
]
MaxCost = Annotated[
    float | None, typer.Option(help="US dollars of workers before which the job is stopped.")
]
Deadline = Annotated[
    str | None, typer.Option(metavar="TIME", help="End the job after 90m or 8h, done or not.")
]
Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        help="spotelastic, torchrun or full-restart; may be given more than once.",
        show_default="all",
    ),
]
Picture = Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw nodes over time.")]
