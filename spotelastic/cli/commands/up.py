"""Defines the commands `up` and `init`: their options, and the request made of them.

bring_up.py carries out `up`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spotelastic.cli.options import script_args
from spotelastic.cli.options import up as options
from spotelastic.client.config_file import FILE, SCRIPT, template
from spotelastic.errors import UsageError
from spotelastic.wrapping import note

if TYPE_CHECKING:
    from spotelastic.client.job_config import JobRequest

INIT_EXAMPLES = """[bold]Examples[/]

spotelastic init

spotelastic init src/train.py --min 2 --max 8 --instance-types g5.12xlarge,g5.24xlarge
"""

EXAMPLES = """[bold]Examples[/]

spotelastic up --min 2 --max 8

spotelastic up --local --min 2 --max 4 train.py --epochs 3

spotelastic up --local --drill --max 4 train.py

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
    """Bring up a cluster and train the script on it, through every interruption.

    Running the same command again applies what has changed (nodes, code, types)
    and shows the job again. Ctrl-C leaves a cluster on AWS running and tells how
    to come back; a local one ends, unless --detach or --keep was given.

    Flags come before the script; everything after it is passed to the script.
    Flags that are not given are read from spotelastic.toml in this folder.

    At the end the report is shown and the cluster is taken down. Only the
    checkpoints stay and cost money.
    """
    from spotelastic.cli.commands.bring_up import launch

    parameters = dict(locals())
    raise typer.Exit(launch(_request(context, parameters)))


def _request(context: typer.Context, parameters: Mapping[str, Any]) -> "JobRequest":
    """Return the request that the parameters of `up` make: most fields have the parameter's name.

    Raises `KeyError` for a field that neither a parameter nor `derived` gives.
    """
    from spotelastic.client.job_config import JobRequest

    minimum, maximum = parameters["minimum"], parameters["maximum"]
    if parameters["json"] and not parameters["plan"]:
        raise UsageError("--json needs --plan; for a running job use `spotelastic status --json`")
    if parameters["local"] and _is_typed(context, "region"):
        note(
            f"note: --region {parameters['region']} has no effect with --local: the local cloud "
            "has one region"
        )
    derived = {
        "script": parameters["script"] or _usual_script(),
        "args": _script_args(context, parameters["args"] or ()),
        "maximum": minimum if maximum is None else maximum,
        "types": _listed("instance-types", parameters["types"]),
        "subnets": _listed("subnets", parameters["subnets"]),
        "as_json": parameters["json"],
        "placement": parameters["placement"] or "",
        "vpc": parameters["vpc"] or "",
        "env": tuple(parameters["env"] or ()),
        "secrets": tuple(parameters["secret"] or ()),
        "read": tuple(parameters["read"] or ()),
        "write": tuple(parameters["write"] or ()),
    }
    names = [field.name for field in fields(JobRequest)]
    return JobRequest(
        **{name: derived[name] if name in derived else parameters[name] for name in names}
    )


def init(
    script: Annotated[Path, typer.Argument(help="The script that `up` will train.")] = Path(SCRIPT),
    minimum: Annotated[int, typer.Option("--min", metavar="N", min=1, help="Fewest nodes.")] = 2,
    maximum: Annotated[int, typer.Option("--max", metavar="N", min=1, help="Most nodes.")] = 8,
    types: options.InstanceTypes = None,
) -> None:
    """Write a spotelastic.toml, so that `spotelastic up` needs no arguments here."""
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
        raise UsageError(f"{FILE} already exists: edit it, or remove it first") from None
    except OSError as error:
        raise UsageError(
            f"cannot write {FILE} here: {error.strerror}; change to a folder that you own"
        ) from None
    lacking = "" if script.is_file() else f"write {script}, "
    typer.echo(f"{FILE} is written: check it, {lacking}then run `spotelastic up`")


def _listed(flag: str, text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    named = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not named:
        raise UsageError(f"--{flag}: name at least one")
    return named


def _script_args(context: typer.Context, args: Sequence[str]) -> tuple[str, ...]:
    if not _is_typed(context, "args"):
        return tuple(args)
    parameters = context.command.params
    flags = [flag for each in parameters for flag in (*each.opts, *each.secondary_opts)]
    words, ours = script_args.split(args, flags)
    if ours:
        typer.echo(f"note: {script_args.note(ours)}", err=True)
    return words


def _is_typed(context: typer.Context, parameter: str) -> bool:
    """Whether the command line gives the parameter, not a variable or the file."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


def _usual_script() -> Path:
    if not Path(SCRIPT).is_file():
        raise UsageError(
            f"no script was given and there is no {SCRIPT} here: name one, or run `spotelastic "
            f"init` to write {FILE}"
        )
    return Path(SCRIPT)
