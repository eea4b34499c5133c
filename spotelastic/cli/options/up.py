"""The options of `up`, by what they mean: how each is spelled, and its help."""

from pathlib import Path
from typing import Annotated

import typer

from spotelastic.client.capacity_policy import ON_DEMAND
from spotelastic.client.config_file import SCRIPT

JOB = "The job"
MACHINES = "Machines"
MONEY = "Money and time"
SAFETY = "Checkpoints and failures"
ENVIRONMENT = "The script's environment"
NETWORK = "The account's network"
AFTER = "After the job"
"""The panels of `up --help`."""

Script = Annotated[
    Path | None,
    typer.Argument(
        help="A Python script in the current folder, which is shipped.", show_default=SCRIPT
    ),
]
ScriptArgs = Annotated[
    list[str] | None, typer.Argument(help="Arguments for the script: all that comes after it.")
]
Local = Annotated[
    bool,
    typer.Option(
        "--local/--aws",
        help="Use a cloud emulated on this machine, whose bucket is ~/.spotelastic/s3, or AWS.",
        rich_help_panel=MACHINES,
    ),
]
UpRegion = Annotated[
    str | None,
    typer.Option(
        "--region",
        metavar="NAME",
        help="AWS region.",
        show_default="as AWS is configured",
        rich_help_panel=MACHINES,
    ),
]
PlanAsJson = Annotated[
    bool, typer.Option("--json", help="Print the plan as JSON.", rich_help_panel=JOB)
]
Minimum = Annotated[
    int,
    typer.Option(
        "--min", metavar="N", help="Train with no fewer nodes than this.", rich_help_panel=MACHINES
    ),
]
Maximum = Annotated[
    int | None,
    typer.Option(
        "--max",
        metavar="N",
        help="Train with at most so many.",
        show_default="--min",
        rich_help_panel=MACHINES,
    ),
]
ClusterName = Annotated[
    str | None,
    typer.Option(
        help="Name of the cluster. One of the same name goes on from its checkpoints.",
        show_default="from the script",
        rich_help_panel=JOB,
    ),
]
ResumedRun = Annotated[
    str | None,
    typer.Option(
        metavar="RUN", help="Go on with an earlier run, under a new cluster.", rich_help_panel=JOB
    ),
]
Fresh = Annotated[
    bool,
    typer.Option(
        "--fresh",
        help="Begin at step 0; earlier checkpoints stay, and count no more.",
        rich_help_panel=JOB,
    ),
]
PlanOnly = Annotated[
    bool,
    typer.Option(
        "--plan", help="Show what would be made or changed, and its price.", rich_help_panel=JOB
    ),
]
Yes = Annotated[
    bool,
    typer.Option(
        "--yes",
        "-y",
        help="Ask nothing: neither before a cluster is made on AWS, nor before a job of another "
        "script or folder is changed.",
        rich_help_panel=JOB,
    ),
]
InstanceTypes = Annotated[
    str | None,
    typer.Option(
        "--instance-types",
        "--instance-type",
        metavar="T[,T...]",
        help="Instance types that workers may get, best first.",
        show_default="the cheapest GPU types in quota",
        rich_help_panel=MACHINES,
    ),
]
Gpus = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Instead of types: GPUs that each node has.",
        show_default="any number",
        rich_help_panel=MACHINES,
    ),
]
GpuMemory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Instead of types: memory of each GPU at least, e.g. 40GB.",
        rich_help_panel=MACHINES,
    ),
]
Zones = Annotated[
    str,
    typer.Option(
        metavar="HOW",
        help="Nodes in one zone, or in all that have them: pack, spread.",
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
        help="Between snapshots in shared memory: 20, 30s; auto: by what they cost.",
        rich_help_panel=SAFETY,
    ),
]
CheckpointEvery = Annotated[
    str,
    typer.Option(
        metavar="STEPS|TIME",
        help="Between checkpoints in the object store: 500, 10m, auto.",
        rich_help_panel=SAFETY,
    ),
]
KeepLast = Annotated[
    int, typer.Option(help="Newest checkpoints that are kept.", rich_help_panel=SAFETY)
]
KeepEvery = Annotated[
    int,
    typer.Option(
        help="Keep those whose step is a multiple of this, too; 0: none.", rich_help_panel=SAFETY
    ),
]
AllowUncommitted = Annotated[
    bool,
    typer.Option(
        "--allow-uncommitted",
        help="Succeed although the last step could not be committed.",
        rich_help_panel=SAFETY,
    ),
]
MaxRestarts = Annotated[
    int,
    typer.Option(
        help="Restarts after failures of the script; interruptions are free.",
        rich_help_panel=SAFETY,
    ),
]
StallTimeout = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        help="Restart when no step is done for so long; 0: never.",
        rich_help_panel=SAFETY,
    ),
]
ExitBarrierTimeout = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        help="How long a node that has finished waits for the others.",
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
        help="A shell command that each node runs first.",
        rich_help_panel=ENVIRONMENT,
    ),
]
ContainerImage = Annotated[
    str,
    typer.Option(
        metavar="IMAGE",
        help="A container image, with Python and torch, that workers run in.",
        rich_help_panel=ENVIRONMENT,
    ),
]
Variables = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        "-e",
        metavar="NAME[=VALUE]",
        help="A variable of the script.",
        rich_help_panel=ENVIRONMENT,
    ),
]
VariablesFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Variables as NAME=VALUE lines.", rich_help_panel=ENVIRONMENT
    ),
]
Secrets = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="A variable whose value, taken from here, nobody sees in logs or status.",
        rich_help_panel=ENVIRONMENT,
    ),
]
Readable = Annotated[
    list[str] | None,
    typer.Option(
        metavar="s3://...",
        help="A folder that the script may read besides.",
        rich_help_panel=ENVIRONMENT,
    ),
]
Writable = Annotated[
    list[str] | None,
    typer.Option(
        metavar="s3://...",
        help="A folder that the script may read and write.",
        rich_help_panel=ENVIRONMENT,
    ),
]
Bucket = Annotated[
    str | None,
    typer.Option(help="A bucket of yours for code and checkpoints.", rich_help_panel=ENVIRONMENT),
]
Placement = Annotated[
    str | None,
    typer.Option(
        metavar="cluster",
        help="All workers side by side, in a placement group.",
        rich_help_panel=MACHINES,
    ),
]
Vpc = Annotated[
    str | None,
    typer.Option(
        metavar="VPC",
        help="A network of yours to be used, with --subnets.",
        rich_help_panel=NETWORK,
    ),
]
Subnets = Annotated[
    str | None,
    typer.Option(
        metavar="S[,S...]",
        help="Its subnets that nodes may be in: one a zone.",
        rich_help_panel=NETWORK,
    ),
]
OnDemand = Annotated[
    str, typer.Option(metavar="WHEN", help=f"On-demand nodes: {ON_DEMAND}.", rich_help_panel=MONEY)
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
        help="US dollars an hour above which there is no spot node.", rich_help_panel=MONEY
    ),
]
MaxCost = Annotated[
    float | None,
    typer.Option(
        help="US dollars in all, control nodes too, before which the job is stopped.",
        rich_help_panel=MONEY,
    ),
]
Deadline = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="End the job after 90m or 8h, done or not.", rich_help_panel=MONEY
    ),
]
Drill = Annotated[
    bool,
    typer.Option(
        "--drill/--no-drill",
        help="Interrupt nodes while it trains. Needs --local.",
        rich_help_panel=JOB,
    ),
]
Detach = Annotated[
    bool,
    typer.Option(
        "--detach/--no-detach", "-d", help="Return once the job trains.", rich_help_panel=JOB
    ),
]
Keep = Annotated[
    bool,
    typer.Option(
        "--keep/--no-keep",
        help="Leave the cluster up when the job has ended, for its --linger.",
        rich_help_panel=AFTER,
    ),
]
Linger = Annotated[
    str,
    typer.Option(
        metavar="TIME|forever",
        help="How long a cluster that nobody takes down stays after its job: 10m, 0, forever.",
        rich_help_panel=AFTER,
    ),
]
KeepFailed = Annotated[
    bool,
    typer.Option(
        "--keep-failed/--no-keep-failed",
        help="Keep the node whose worker failed the job, for as long as the cluster lingers.",
        rich_help_panel=AFTER,
    ),
]
ReportFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the report as JSON.", rich_help_panel=JOB)
]
CurveFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Draw the loss curve as PNG.", rich_help_panel=JOB),
]
