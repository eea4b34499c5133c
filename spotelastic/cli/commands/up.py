"""Defines the commands `up` and `init`.

The options of `up` are the fields of `JobConfig`. bring_up.py carries it out.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from spotelastic.cli.options import script_args
from spotelastic.cli.options import up as options
from spotelastic.client.config.config_file import FILE, template
from spotelastic.client.config.job_config import SCRIPT, JobConfig
from spotelastic.client.config.schema import line
from spotelastic.errors import UsageError
from spotelastic.wrapping import note

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


def up(context: typer.Context, **given: Any) -> None:
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

    if given["local"] and _is_typed(context, "region"):
        note(
            f"note: --region {given['region']} has no effect with --local: the local cloud has "
            "one region"
        )
    args = _script_args(context, given["args"] or ())
    raise typer.Exit(launch(JobConfig(**given | {"args": args})))


# typer reads the options from the signature, and `JobConfig` has one field for each.
up.__signature__ = options.signature()  # type: ignore[attr-defined]


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
    named = JobConfig(instance_types=types or ()).instance_types
    try:
        text = template(script.as_posix(), minimum, maximum, named, line(Path.cwd()))
        with Path(FILE).open("x") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{FILE} already exists: edit it, or remove it first") from None
    except OSError as error:
        raise UsageError(
            f"cannot write {FILE} here: {error.strerror}; change to a folder that you own"
        ) from None
    lacking = "" if script.is_file() else f"write {script}, "
    typer.echo(f"{FILE} is written: check it, {lacking}then run `spotelastic up`")


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
