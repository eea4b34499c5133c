"""The command `up`: what it accepts. What it does is in launch.py."""

from pathlib import Path
from typing import Annotated

import typer

from spotelastic.cli.capacity import ON_DEMAND
from spotelastic.cli.options import Region
from spotelastic.cli.project import FILE, SCRIPT, template
from spotelastic.errors import UsageError

INIT_EXAMPLES = """[bold]Examples[/]

spotelastic init

spotelastic init src/train.py --min 2 --max 8 --instance-types g5.12xlarge,g6.12xlarge
"""

EXAMPLES = """[bold]Examples[/]

spotelastic up --min 2 --max 8

spotelastic up --local --min 2 --max 4 train.py -- --epochs 3

spotelastic up --local --drill examples/train_gpt.py -- --steps 400

spotelastic up --plan --min 2 --max 8

spotelastic up --min 4 --max 8 --instance-types g5.12xlarge,g6.12xlarge train.py

spotelastic up --max 8 --secret WANDB_API_KEY --read s3://my-data/train train.py
"""


def up(
    script: Annotated[
        Path | None,
        typer.Argument(
            help="A Python script in the current folder, which is shipped.", show_default=SCRIPT
        ),
    ] = None,
    args: Annotated[
        list[str] | None, typer.Argument(help="Arguments for the script, after --.")
    ] = None,
    local: Annotated[
        bool, typer.Option("--local", help="Use a cloud emulated on this machine, not AWS.")
    ] = False,
    region: Region = None,
    minimum: Annotated[int, typer.Option("--min", help="Train with no fewer nodes than this.")] = 1,
    maximum: Annotated[
        int | None, typer.Option("--max", help="Train with at most so many.", show_default="--min")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="Name of the cluster. One of the same name goes on from its checkpoints.",
            show_default="from the script",
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Go on with an earlier run, under a new cluster."),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Show what would be made or changed, and its price.")
    ] = False,
    types: Annotated[
        str | None,
        typer.Option(
            "--instance-types",
            "--instance-type",
            metavar="T[,T...]",
            help="Instance types that workers may get, best first.",
            show_default="the cheapest GPU type in quota",
        ),
    ] = None,
    nproc_per_node: Annotated[
        int | None, typer.Option(help="Workers per node.", show_default="one per GPU")
    ] = None,
    snapshot_every: Annotated[
        str,
        typer.Option(
            metavar="STEPS|TIME",
            help="Between snapshots in shared memory: 20, 30s; auto: by what they cost.",
        ),
    ] = "auto",
    checkpoint_every: Annotated[
        str,
        typer.Option(
            metavar="STEPS|TIME", help="Between checkpoints in the object store: 500, 10m, auto."
        ),
    ] = "auto",
    keep_last: Annotated[int, typer.Option(help="Newest checkpoints that are kept.")] = 3,
    keep_every: Annotated[
        int, typer.Option(help="Keep those whose step is a multiple of this, too; 0: none.")
    ] = 0,
    max_restarts: Annotated[
        int, typer.Option(help="Restarts after failures of the script; interruptions are free.")
    ] = 3,
    stall_timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Restart when no step is done for so long; 0: never."),
    ] = 0.0,
    exit_barrier_timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="How long a node that has finished waits for the others."
        ),
    ] = 300.0,
    gang: Annotated[bool, typer.Option("--gang", help="Fail the job when a node is lost.")] = False,
    environment: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|none",
            help="The packages that the script needs: uv.lock, requirements.txt or "
            "environment.yml.",
            show_default="the first of these that is here",
        ),
    ] = None,
    setup: Annotated[
        str, typer.Option(metavar="CMD", help="A shell command that each node runs first.")
    ] = "",
    image: Annotated[
        str,
        typer.Option(
            metavar="IMAGE", help="A container image, with Python and torch, that workers run in."
        ),
    ] = "",
    env: Annotated[
        list[str] | None,
        typer.Option("--env", "-e", metavar="NAME[=VALUE]", help="A variable of the script."),
    ] = None,
    env_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Variables as NAME=VALUE lines.")
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A variable whose value, taken from here, nobody sees in logs or status.",
        ),
    ] = None,
    read: Annotated[
        list[str] | None,
        typer.Option(metavar="s3://...", help="A folder that the script may read besides."),
    ] = None,
    write: Annotated[
        list[str] | None,
        typer.Option(metavar="s3://...", help="A folder that the script may read and write."),
    ] = None,
    bucket: Annotated[
        str | None, typer.Option(help="A bucket of yours for code and checkpoints.")
    ] = None,
    on_demand: Annotated[
        str, typer.Option(metavar="WHEN", help=f"On-demand nodes: {ON_DEMAND}.")
    ] = "never",
    spot_patience: Annotated[
        float, typer.Option(min=0, help="Seconds below --min before on-demand nodes are bought.")
    ] = 600.0,
    max_price: Annotated[
        float | None, typer.Option(help="US dollars an hour above which no spot node is launched.")
    ] = None,
    max_cost: Annotated[
        float | None, typer.Option(help="US dollars of workers before which the job is stopped.")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(metavar="TIME", help="End the job after 90m or 8h, done or not.")
    ] = None,
    drill: Annotated[
        bool, typer.Option("--drill", help="Interrupt nodes while it trains. Needs --local.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return once the job trains.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the cluster up when the job has ended.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report as JSON.")
    ] = None,
    curve: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the loss curve as PNG.")
    ] = None,
) -> None:
    """Bring up a cluster, train the script on it, carry it through every interruption.

    Run again, it changes what differs (nodes, code, types) and shows the job again. Ctrl-C leaves
    a cluster on AWS up, and says how to come back.

    What no flag says, spotelastic.toml in the current folder does (see `spotelastic init`).

    Ends with the report, and takes the cluster down: nothing that costs money is left but the
    checkpoints.
    """
    from spotelastic.cli.launch import launch
    from spotelastic.cli.request import Request

    request = Request(
        script=script or _usual_script(),
        args=tuple(args or ()),
        local=local,
        region=region,
        minimum=minimum,
        maximum=minimum if maximum is None else maximum,
        name=name,
        types=_listed(types),
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
        report=report,
        curve=curve,
        plan=plan,
        resume=resume,
        bucket=bucket,
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
    minimum: Annotated[int, typer.Option("--min", min=1)] = 2,
    maximum: Annotated[int, typer.Option("--max", min=1)] = 8,
    types: Annotated[
        str | None,
        typer.Option(
            "--instance-types",
            metavar="T[,T...]",
            show_default="the cheapest GPU type in quota",
        ),
    ] = None,
) -> None:
    """Write spotelastic.toml, so that `spotelastic up` needs no arguments here."""
    if maximum < minimum:
        raise UsageError(f"--max {maximum}: is less than --min {minimum}")
    if script != Path(SCRIPT) and not script.is_file():
        raise UsageError(f"there is no script {script}")
    try:
        with Path(FILE).open("x") as file:
            file.write(template(script.as_posix(), minimum, maximum, _listed(types)))
    except FileExistsError:
        raise UsageError(f"{FILE} is there already: edit it, or remove it first") from None
    typer.echo(f"{FILE} is written: look at it, then `spotelastic up`")


def _listed(types: str | None) -> tuple[str, ...]:
    if types is None:
        return ()
    named = tuple(part.strip() for part in types.split(",") if part.strip())
    if not named:
        raise UsageError("--instance-types: name at least one")
    return named


def _usual_script() -> Path:
    if not Path(SCRIPT).is_file():
        raise UsageError(
            f"no script is given and there is no {SCRIPT} here: name one, or write {FILE} "
            "(spotelastic init)"
        )
    return Path(SCRIPT)
