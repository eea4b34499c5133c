"""Defines the options of `up`: how each is spelled, its help text and its panel in `--help`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from spotelastic.client.capacity_policy import ON_DEMAND
from spotelastic.client.config_file import SCRIPT

JOB = "The job"
MACHINES = "Nodes"
MONEY = "Money and time"
SAFETY = "Checkpoints and failures"
ENVIRONMENT = "The script's environment"
NETWORK = "The account's network"
AFTER = "After the job"
"""The panels of `up --help`, from `JOB` on."""


def _plural(option: str) -> str:
    return "instance-types" if option == "instance-type" else option


SINGULAR: dict[str, Any] = {"token_normalize_func": _plural}
"""Context settings with which a command also accepts --instance-type.

As a second name of the option it would make `--help` too wide for 80 columns.
"""

Script = Annotated[
    Path | None,
    typer.Argument(
        help="A Python script in the current folder. The folder is shipped to the nodes.",
        show_default=SCRIPT,
    ),
]
ScriptArgs = Annotated[
    list[str] | None, typer.Argument(help="Arguments of the script: everything after it.")
]
Local = Annotated[
    bool,
    typer.Option(
        "--local/--aws",
        help="Use a cloud emulated on this machine (its bucket: ~/.spotelastic/s3), or AWS.",
        rich_help_panel=MACHINES,
    ),
]
UpRegion = Annotated[
    str | None,
    typer.Option(
        "--region",
        metavar="NAME",
        help="AWS region; no effect with --local.",
        show_default="from AWS's configuration",
        rich_help_panel=MACHINES,
    ),
]
PlanAsJson = Annotated[
    bool, typer.Option("--json", help="Print the plan as JSON.", rich_help_panel=JOB)
]
Minimum = Annotated[
    int,
    typer.Option(
        "--min", metavar="N", help="Fewest nodes to train with.", rich_help_panel=MACHINES
    ),
]
Maximum = Annotated[
    int | None,
    typer.Option(
        "--max",
        metavar="N",
        help="Most nodes to train with.",
        show_default="--min",
        rich_help_panel=MACHINES,
    ),
]
ClusterName = Annotated[
    str | None,
    typer.Option(
        help="Name of the cluster. The same name continues from its checkpoints.",
        show_default="from the script",
        rich_help_panel=JOB,
    ),
]
ResumedRun = Annotated[
    str | None,
    typer.Option(
        metavar="RUN", help="Continue an earlier run in a new cluster.", rich_help_panel=JOB
    ),
]
Fresh = Annotated[
    bool,
    typer.Option(
        "--fresh",
        help="Begin at step 0. Earlier checkpoints stay stored but are no longer used.",
        rich_help_panel=JOB,
    ),
]
PlanOnly = Annotated[
    bool,
    typer.Option(
        "--plan",
        help="Only show what would be created or changed, and its price.",
        rich_help_panel=JOB,
    ),
]
Yes = Annotated[
    bool,
    typer.Option(
        "--yes",
        "-y",
        help="Ask for no confirmation: of the price on AWS, or to replace another script's job.",
        rich_help_panel=JOB,
    ),
]
InstanceTypes = Annotated[
    str | None,
    typer.Option(
        "--instance-types",
        metavar="T[,T...]",
        help="Instance types for workers, preferred first (also: --instance-type).",
        show_default="the cheapest GPU types in quota",
        rich_help_panel=MACHINES,
    ),
]
Gpus = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="In place of types: GPUs per node.",
        show_default="any number",
        rich_help_panel=MACHINES,
    ),
]
GpuMemory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="In place of types: least memory per GPU, e.g. 40GB.",
        rich_help_panel=MACHINES,
    ),
]
Zones = Annotated[
    str,
    typer.Option(
        metavar="HOW",
        help="Zone placement: pack (one zone) or spread (all zones).",
        rich_help_panel=MACHINES,
    ),
]
NprocPerNode = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Workers per node.", show_default="one per GPU", rich_help_panel=MACHINES
    ),
]
SnapshotEvery = Annotated[
    str,
    typer.Option(
        metavar="STEPS|TIME",
        help="Interval of snapshots in shared memory: steps (20), time (30s), or auto (by cost).",
        rich_help_panel=SAFETY,
    ),
]
CheckpointEvery = Annotated[
    str,
    typer.Option(
        metavar="STEPS|TIME",
        help="Interval of checkpoints in the object store: steps (500), time (10m), or auto.",
        rich_help_panel=SAFETY,
    ),
]
KeepLast = Annotated[
    int, typer.Option(help="How many of the newest checkpoints to keep.", rich_help_panel=SAFETY)
]
KeepEvery = Annotated[
    int,
    typer.Option(
        help="Also keep checkpoints whose step is a multiple of this; 0: none.",
        rich_help_panel=SAFETY,
    ),
]
AllowUncommitted = Annotated[
    bool,
    typer.Option(
        "--allow-uncommitted",
        help="Succeed even if the last step could not be committed.",
        rich_help_panel=SAFETY,
    ),
]
MaxRestarts = Annotated[
    int,
    typer.Option(
        help="Restarts after failures of the script. Interruptions do not count.",
        rich_help_panel=SAFETY,
    ),
]
StallTimeout = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        help="Restart the workers if no step completes for this long; 0: never.",
        rich_help_panel=SAFETY,
    ),
]
ExitBarrierTimeout = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        help="How long a node that has finished waits for the other nodes.",
        rich_help_panel=SAFETY,
    ),
]
Gang = Annotated[
    bool,
    typer.Option(
        "--gang/--no-gang", help="Fail the job when a node is lost.", rich_help_panel=SAFETY
    ),
]
EnvironmentFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|none",
        help="The packages that the script needs: uv.lock, requirements.txt or environment.yml.",
        show_default="the first of these that is here",
        rich_help_panel=ENVIRONMENT,
    ),
]
Setup = Annotated[
    str,
    typer.Option(
        metavar="CMD",
        help="Shell command that each node runs before the script.",
        rich_help_panel=ENVIRONMENT,
    ),
]
ContainerImage = Annotated[
    str,
    typer.Option(
        metavar="IMAGE",
        help="Container image, with Python and torch, that workers run in.",
        rich_help_panel=ENVIRONMENT,
    ),
]
Variables = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        "-e",
        metavar="NAME[=VALUE]",
        help="Environment variable for the script. Can be repeated.",
        rich_help_panel=ENVIRONMENT,
    ),
]
VariablesFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File of variables, as NAME=VALUE lines.",
        rich_help_panel=ENVIRONMENT,
    ),
]
Secrets = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Variable whose value is taken from here and kept out of logs and status.",
        rich_help_panel=ENVIRONMENT,
    ),
]
Readable = Annotated[
    list[str] | None,
    typer.Option(
        metavar="s3://...",
        help="Another folder that the script may read. Can be repeated.",
        rich_help_panel=ENVIRONMENT,
    ),
]
Writable = Annotated[
    list[str] | None,
    typer.Option(
        metavar="s3://...",
        help="Another folder that the script may read and write. Can be repeated.",
        rich_help_panel=ENVIRONMENT,
    ),
]
Bucket = Annotated[
    str | None,
    typer.Option(
        help="Your own bucket for code and checkpoints.",
        show_default="one per account and region",
        rich_help_panel=ENVIRONMENT,
    ),
]
Placement = Annotated[
    str | None,
    typer.Option(
        metavar="cluster",
        help="Put all worker nodes into one placement group.",
        rich_help_panel=MACHINES,
    ),
]
Vpc = Annotated[
    str | None,
    typer.Option(
        metavar="VPC",
        help="Use this existing VPC; needs --subnets.",
        rich_help_panel=NETWORK,
    ),
]
Subnets = Annotated[
    str | None,
    typer.Option(
        metavar="S[,S...]",
        help="Subnets of that VPC for the nodes, one per zone.",
        rich_help_panel=NETWORK,
    ),
]
OnDemand = Annotated[
    str,
    typer.Option(
        metavar="WHEN", help=f"When to buy on-demand nodes: {ON_DEMAND}.", rich_help_panel=MONEY
    ),
]
SpotPatience = Annotated[
    float,
    typer.Option(
        min=0, help="Seconds below --min before on-demand nodes are bought.", rich_help_panel=MONEY
    ),
]
MaxPrice = Annotated[
    float | None,
    typer.Option(
        help="Highest price of a spot node, in US dollars per hour.", rich_help_panel=MONEY
    ),
]
MaxCost = Annotated[
    float | None,
    typer.Option(
        help="Stop the job before it costs this many US dollars, control nodes included.",
        rich_help_panel=MONEY,
    ),
]
Deadline = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Stop the job after this time, e.g. 90m or 8h, finished or not.",
        rich_help_panel=MONEY,
    ),
]
Drill = Annotated[
    bool,
    typer.Option(
        "--drill/--no-drill",
        help="Interrupt nodes during training, to show recovery. Needs --local.",
        rich_help_panel=JOB,
    ),
]
Detach = Annotated[
    bool,
    typer.Option(
        "--detach/--no-detach", "-d", help="Return as soon as the job trains.", rich_help_panel=JOB
    ),
]
Keep = Annotated[
    bool,
    typer.Option(
        "--keep/--no-keep",
        help="Leave the cluster up after the job, for the time of --linger.",
        rich_help_panel=AFTER,
    ),
]
Linger = Annotated[
    str,
    typer.Option(
        metavar="TIME|forever",
        help="How long a cluster that is left up stays after its job: 10m, 0, forever.",
        rich_help_panel=AFTER,
    ),
]
KeepFailed = Annotated[
    bool,
    typer.Option(
        "--keep-failed/--no-keep-failed",
        help="Keep the node whose worker failed the job, for the time of --linger.",
        rich_help_panel=AFTER,
    ),
]
ReportFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the report here, as JSON.", rich_help_panel=JOB),
]
CurveFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Draw the loss curve here, as PNG.", rich_help_panel=JOB),
]
