"""The command `up`: what it accepts. What it does is in bring_up.py."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from spotelastic.cli.options import script_args
from spotelastic.cli.options import up as options
from spotelastic.client.config_file import FILE, SCRIPT, template
from spotelastic.errors import UsageError

INIT_EXAMPLES = """[bold]Examples[/]

spotelastic init

spotelastic init src/train.py --min 2 --max 8 --instance-types g5.12xlarge,g5.24xlarge
"""

EXAMPLES = """[bold]Examples[/]

spotelastic up --min 2 --max 8

spotelastic up --local --min 2 --max 4 train.py --epochs 3

spotelastic up --local --drill examples/train_gpt.py --steps 400

spotelastic up --plan --min 2 --max 8

spotelastic up --min 4 --max 8 --instance-types g5.12xlarge,g5.24xlarge train.py

spotelastic up --plan --max 8 --gpus 8 --gpu-memory 40GB

spotelastic up --max 8 --secret WANDB_API_KEY --read s3://my-data/train train.py
"""


def up(
    context: typer.Context,
    script: options.Script = None,
    args: options.ScriptArgs = None,
    local: options.Local = False,
    region: options.UpRegion = None,
    minimum: options.Minimum = 1,
    maximum: options.Maximum = None,
    name: options.ClusterName = None,
    resume: options.ResumedRun = None,
    fresh: options.Fresh = False,
    plan: options.PlanOnly = False,
    yes: options.Yes = False,
    json: options.PlanAsJson = False,
    types: options.InstanceTypes = None,
    gpus: options.Gpus = None,
    gpu_memory: options.GpuMemory = None,
    zones: options.Zones = "pack",
    nproc_per_node: options.NprocPerNode = None,
    snapshot_every: options.SnapshotEvery = "auto",
    checkpoint_every: options.CheckpointEvery = "auto",
    keep_last: options.KeepLast = 3,
    keep_every: options.KeepEvery = 0,
    allow_uncommitted: options.AllowUncommitted = False,
    max_restarts: options.MaxRestarts = 3,
    stall_timeout: options.StallTimeout = 0.0,
    exit_barrier_timeout: options.ExitBarrierTimeout = 300.0,
    gang: options.Gang = False,
    environment: options.EnvironmentFile = None,
    setup: options.Setup = "",
    image: options.ContainerImage = "",
    env: options.Variables = None,
    env_file: options.VariablesFile = None,
    secret: options.Secrets = None,
    read: options.Readable = None,
    write: options.Writable = None,
    bucket: options.Bucket = None,
    placement: options.Placement = None,
    vpc: options.Vpc = None,
    subnets: options.Subnets = None,
    on_demand: options.OnDemand = "never",
    spot_patience: options.SpotPatience = 600.0,
    max_price: options.MaxPrice = None,
    max_cost: options.MaxCost = None,
    deadline: options.Deadline = None,
    drill: options.Drill = False,
    detach: options.Detach = False,
    keep: options.Keep = False,
    linger: options.Linger = "10m",
    keep_failed: options.KeepFailed = False,
    report: options.ReportFile = None,
    curve: options.CurveFile = None,
) -> None:
    """Bring up a cluster, train the script on it, carry it through every interruption.

    Run again, it changes what differs (nodes, code, types) and shows the job
    again. Ctrl-C leaves a cluster on AWS up, and says how to come back; a local
    one ends with the command, unless it was left (--detach, --keep).

    Flags come before the script; what comes after it is the script's.
    What no flag says, spotelastic.toml in the current folder does.

    Ends with the report, and takes the cluster down: nothing that costs money
    is left but the checkpoints.
    """
    from spotelastic.cli.commands.bring_up import launch
    from spotelastic.client.job_config import JobRequest

    if json and not plan:
        raise UsageError("--json goes with --plan; of a job, `spotelastic status --json` tells")
    request = JobRequest(
        script=script or _usual_script(),
        args=_script_args(context, args or ()),
        local=local,
        region=region,
        minimum=minimum,
        maximum=minimum if maximum is None else maximum,
        name=name,
        types=_listed("instance-types", types),
        gpus=gpus,
        gpu_memory=gpu_memory,
        zones=zones,
        nproc_per_node=nproc_per_node,
        snapshot_every=snapshot_every,
        checkpoint_every=checkpoint_every,
        keep_last=keep_last,
        keep_every=keep_every,
        max_restarts=max_restarts,
        gang=gang,
        stall_timeout=stall_timeout,
        exit_barrier_timeout=exit_barrier_timeout,
        on_demand=on_demand,
        spot_patience=spot_patience,
        max_price=max_price,
        max_cost=max_cost,
        deadline=deadline,
        drill=drill,
        detach=detach,
        keep=keep,
        linger=linger,
        keep_failed=keep_failed,
        report=report,
        curve=curve,
        plan=plan,
        yes=yes,
        as_json=json,
        resume=resume,
        fresh=fresh,
        allow_uncommitted=allow_uncommitted,
        bucket=bucket,
        placement=placement or "",
        vpc=vpc or "",
        subnets=_listed("subnets", subnets),
        environment=environment,
        setup=setup,
        image=image,
        env=tuple(env or ()),
        env_file=env_file,
        secrets=tuple(secret or ()),
        read=tuple(read or ()),
        write=tuple(write or ()),
    )
    raise typer.Exit(launch(request))


def init(
    script: Annotated[Path, typer.Argument(help="The script that `up` is to train.")] = Path(
        SCRIPT
    ),
    minimum: Annotated[
        int, typer.Option("--min", metavar="N", min=1, help="Train with no fewer nodes than this.")
    ] = 2,
    maximum: Annotated[
        int, typer.Option("--max", metavar="N", min=1, help="Train with at most so many.")
    ] = 8,
    types: options.InstanceTypes = None,
) -> None:
    """Write spotelastic.toml, so that `spotelastic up` needs no arguments here."""
    if maximum < minimum:
        raise UsageError(f"--max {maximum}: is less than --min {minimum}")
    if script != Path(SCRIPT) and not script.is_file():
        raise UsageError(f"there is no script {script}")
    try:
        with Path(FILE).open("x") as file:
            file.write(
                template(script.as_posix(), minimum, maximum, _listed("instance-types", types))
            )
    except FileExistsError:
        raise UsageError(f"{FILE} is there already: edit it, or remove it first") from None
    except OSError as error:
        raise UsageError(
            f"cannot write {FILE} here: {error.strerror}; change to a folder of yours"
        ) from None
    lacking = "" if script.is_file() else f"write {script}, "
    typer.echo(f"{FILE} is written: look at it, {lacking}then `spotelastic up`")


def _listed(flag: str, text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    named = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not named:
        raise UsageError(f"--{flag}: name at least one")
    return named


def _script_args(context: typer.Context, args: Sequence[str]) -> tuple[str, ...]:
    source = context.get_parameter_source("args")
    if source is None or source.name != "COMMANDLINE":
        return tuple(args)
    parameters = context.command.params
    flags = [flag for each in parameters for flag in (*each.opts, *each.secondary_opts)]
    words, ours = script_args.divided(args, flags)
    if ours:
        typer.echo(f"note: {script_args.note(ours)}", err=True)
    return words


def _usual_script() -> Path:
    if not Path(SCRIPT).is_file():
        raise UsageError(
            f"no script is given and there is no {SCRIPT} here: name one, or write {FILE} "
            "(spotelastic init)"
        )
    return Path(SCRIPT)
