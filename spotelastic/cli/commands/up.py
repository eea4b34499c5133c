"""Defines the command `up`.

The options of `up` are the fields of `PodConfig`. up_on_terminal.py carries it out, and
kube/kube_up.py where nodes are pods.
"""

from collections.abc import Sequence
from typing import Any

import typer

from spotelastic.cli.options import script_args
from spotelastic.cli.options import up as options
from spotelastic.client.config.options.pods import PodOptions
from spotelastic.client.kubernetes.pod_config import PodConfig
from spotelastic.errors import UsageError

EXAMPLES = """[bold]Examples[/]

spotelastic up --min 2 --max 8

spotelastic up --local --min 2 --max 4 train.py --epochs 3

spotelastic up --local --drill --max 4 train.py

spotelastic up --plan --min 2 --max 8

spotelastic up --min 4 --max 8 --instance-types g5.12xlarge,g5.24xlarge train.py

spotelastic up --plan --max 8 --gpus 8 --gpu-memory 40GB

spotelastic up --kube --image REGISTRY/train:1 --storage s3://bucket/run --min 2 --max 8 train.py

spotelastic up --max 8 --secret WANDB_API_KEY --read s3://my-data/train train.py
"""


def up(call: typer.Context, **given: Any) -> None:
    """Bring up a cluster and train the script on it, through every interruption.

    Running the same command again applies what has changed (nodes, code, types)
    and shows the job again. Ctrl-C leaves a cluster on AWS running and tells how
    to come back; a local one ends, unless --detach or --keep was given.

    Flags come before the script; everything after it is passed to the script.
    Flags that are not given are read from spotelastic.toml in this folder.

    At the end the report is shown and the cluster is taken down. Only the
    checkpoints stay and cost money.
    """
    from spotelastic.cli.commands.up_on_terminal import launch

    args = _script_args(call, given["args"] or ())
    config = PodConfig(**given | {"args": args})
    if config.kube:
        from spotelastic.cli.commands.kube.kube_up import launch as launch_pods

        raise typer.Exit(launch_pods(config))
    _check_pod_flags(call)
    raise typer.Exit(launch(config))


# typer reads the options from the signature, and `PodConfig` has one field for each.
up.__signature__ = options.signature(PodConfig)  # type: ignore[attr-defined]


def _check_pod_flags(call: typer.Context) -> None:
    """Refuse flags about pods that would be passed over."""
    for name in PodOptions.__dataclass_fields__:
        if name != "kube" and _is_typed(call, name):
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag}: is about pods on Kubernetes: add --kube, or remove it")


def _script_args(call: typer.Context, args: Sequence[str]) -> tuple[str, ...]:
    if not _is_typed(call, "args"):
        return tuple(args)
    parameters = call.command.params
    flags = [flag for each in parameters for flag in (*each.opts, *each.secondary_opts)]
    words, ours = script_args.split(args, flags)
    if ours:
        typer.echo(f"note: {script_args.note(ours)}", err=True)
    return words


def _is_typed(call: typer.Context, parameter: str) -> bool:
    """Whether the command line gives the parameter, not a variable or the file."""
    source = call.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"
