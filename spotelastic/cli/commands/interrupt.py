"""Defines the commands `interrupt` and `down`."""

from typing import TYPE_CHECKING, Annotated

import typer

from spotelastic.cli.commands.found_cluster import found_cluster, named_by_option
from spotelastic.cli.options.common import AsJson, Name, Region, Where
from spotelastic.errors import UsageError
from spotelastic.wrapping import note, say

if TYPE_CHECKING:
    from spotelastic.client.targets.cloud_target import ClusterTarget

INTERRUPT_EXAMPLES = """[bold]Examples[/]

spotelastic interrupt i-0a1b2c3d4e5f60718

spotelastic interrupt i-0a1b2c3d4e5f60718 --in 15

spotelastic interrupt i-0a1b2c3d4e5f60718 --kind loss

spotelastic interrupt any --name demo

spotelastic interrupt "rank 0" --kind loss --json
"""
DOWN_EXAMPLES = """[bold]Examples[/]

spotelastic down

spotelastic down demo

spotelastic down demo --delete-data

spotelastic down demo --delete-data --bucket our-bucket

spotelastic down --network
"""


def interrupt(
    node: Annotated[
        str,
        typer.Argument(
            help='The node\'s name in `spotelastic status`, that of a "rank 0", or any that trains.'
        ),
    ],
    seconds: Annotated[
        float,
        typer.Option("--in", min=0, max=1_209_600, help="Seconds of notice; 0: none."),
    ] = 120.0,
    kind: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help="notice, rebalance, loss (without notice), by-hand (somebody ends it); on "
            "Kubernetes notice, or loss (with one second of grace).",
        ),
    ] = "notice",
    name: Annotated[str | None, typer.Option(help="The cluster, if there are several.")] = None,
    where: Where = None,
    region: Region = None,
    json: AsJson = False,
) -> None:
    """Interrupt a node as AWS would: give notice, then take it away when the time is up.

    On AWS, the Fault Injection Service does it, which costs a few cents.
    """
    from spotelastic.cli.render import tables
    from spotelastic.client.interrupt import InterruptionRequest

    InterruptionRequest.asked(node, kind, seconds)  # before a cluster is looked for
    with named_by_option():
        cluster = found_cluster(name, where, region)
    caused = cluster.interrupt(node, kind=kind, seconds=seconds)
    typer.echo(tables.to_json(caused) if json else str(caused))


def down(
    name: Name = None,
    delete_data: Annotated[
        bool,
        typer.Option("--delete-data", help="Also delete the run's checkpoints; asks for its name."),
    ] = False,
    bucket: Annotated[
        str | None,
        typer.Option(help="With --delete-data, for a cluster that is gone: the bucket it used."),
    ] = None,
    network: Annotated[
        bool,
        typer.Option(
            "--network", help="Remove the network that clusters share, once none is in it."
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Never ask, not even with --delete-data.")
    ] = False,
    where: Where = None,
    region: Region = None,
) -> None:
    """Take a cluster down. Only its checkpoints stay and cost money.

    The checkpoints of a local cluster stay on this machine, in ~/.spotelastic/s3.
    """
    from spotelastic.client.targets.find import find, holding, is_meant, left_target

    if network:
        if name is not None or delete_data or bucket is not None:
            raise UsageError("--network: is given alone; take the clusters down first, one by one")
        find(where, region, note).remove_network(say)
        return
    if delete_data and name is None:
        raise UsageError("--delete-data: name the cluster whose checkpoints to delete")
    here = None if name is None or not is_meant(where) else left_target(name, where)
    target = here or find(where, region, note)
    if not delete_data:
        target = holding(target, name, note)
    elif name is not None:
        run, url = target.data_of(name, bucket)
        if not yes:
            _confirm(run, url)
    try:
        target.down(name, say, keep_data=not delete_data, bucket=bucket)
    except UsageError:
        if delete_data or name is None or not _is_gone(target, name):
            raise


def _is_gone(target: "ClusterTarget", name: str) -> bool:
    """Tell what deletes the data of a cluster that was taken down before.

    Return False if there is no such cluster.
    """
    if name in target.names():
        return False
    try:
        target.cluster_or_gone(name, lambda _: None)
    except UsageError:
        return False
    its = target.arguments_of(name)
    say(f"{name} is gone; `spotelastic down {its} --delete-data` deletes what it has left")
    return True


def _confirm(run: str, url: str) -> None:
    """Raise `UsageError` unless the run's name is typed."""
    try:
        typed = typer.prompt(
            f"This deletes all checkpoints of the run {run}, {url}. Type the run's name to go on"
        )
    except typer.Abort:  # Ctrl-C, Ctrl-D, or no terminal
        typer.echo()
        raise UsageError("--delete-data: no name was typed; nothing was deleted") from None
    if typed != run:
        raise UsageError(f"--delete-data: {typed!r} is not {run!r}; nothing was deleted")
