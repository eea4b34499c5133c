"""Defines the command `up`.

The options of `up` are the fields of `JobConfig`. bring_up.py carries it out.
"""

from collections.abc import Sequence
from typing import Any

import typer

from spotelastic.cli.options import script_args
from spotelastic.cli.options import up as options
from spotelastic.client.config.job_config import JobConfig
from spotelastic.wrapping import note

EXAMPLES = """[bold]Examples[/]

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
