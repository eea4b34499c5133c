"""Commands that act on a cluster: interrupt, drill, down."""

from pathlib import Path
from typing import Annotated

import typer

from spotelastic.cli.options.common import AsJson, Name, Region, Where
from spotelastic.errors import UsageError
from spotelastic.wrapping import say

INTERRUPT_EXAMPLES = """[bold]Examples[/]

spotelastic interrupt i-0a1b2c3d4e5f60718

spotelastic interrupt i-0a1b2c3d4e5f60718 --in 15

spotelastic interrupt i-0a1b2c3d4e5f60718 --kind loss
"""
DRILL_EXAMPLES = """[bold]Examples[/]

spotelastic drill --plan drill.toml

spotelastic drill demo --plan drill.toml --json > drill.json
"""
DOWN_EXAMPLES = """[bold]Examples[/]

spotelastic down

spotelastic down demo

spotelastic down demo --delete-data

spotelastic down demo --delete-data --bucket our-bucket
"""


def interrupt(
    node: Annotated[str, typer.Argument(help="The node, as `spotelastic status` lists it.")],
    seconds: Annotated[
        float,
        typer.Option("--in", min=0, max=3600, help="Seconds of notice; 0 for none."),
    ] = 120.0,
    kind: Annotated[
        str, typer.Option(metavar="KIND", help="notice, rebalance or loss.")
    ] = "notice",
    name: Annotated[str | None, typer.Option(help="The cluster, where several exist.")] = None,
    where: Where = None,
    region: Region = None,
    json: AsJson = False,
) -> None:
    """Take a node away, as AWS would: a notice, and the end when its time is up.

    On AWS by its Fault Injection Service, which costs some cents.
    """
    from spotelastic.cli.render import tables
    from spotelastic.client import interrupt as client_interrupt
    from spotelastic.client.target import CloudTarget

    what = client_interrupt.InterruptionRequest.asked(node, kind, seconds)
    place = CloudTarget.find(where, region)
    told = client_interrupt.interrupt(place, place.cluster(name), what)
    typer.echo(tables.to_json(client_interrupt.caused(place, what)) if json else told)


def drill(
    name: Name = None,
    plan: Annotated[
        Path, typer.Option(metavar="FILE", help="What is interrupted when, as TOML or JSON.")
    ] = Path("drill.toml"),
    seed: Annotated[int, typer.Option(help="Of the draw of nodes that are not named.")] = 0,
    where: Where = None,
    region: Region = None,
    json: AsJson = False,
) -> None:
    """Interrupt nodes of a job one after the other, as a plan says."""
    from spotelastic.cli.render import tables
    from spotelastic.client import drill_plan
    from spotelastic.client.target import CloudTarget

    wanted = drill_plan.read(plan)
    place = CloudTarget.find(where, region)
    cluster = place.cluster(name)
    done = drill_plan.run(place, cluster, wanted, seed, lambda line: typer.echo(line, err=json))
    if json:
        typer.echo(tables.to_json(done))


def down(
    name: Name = None,
    delete_data: Annotated[
        bool,
        typer.Option("--delete-data", help="Its run's checkpoints too; asks for the run's name."),
    ] = False,
    bucket: Annotated[
        str | None,
        typer.Option(help="With --delete-data, of a cluster that is gone: the bucket it used."),
    ] = None,
    where: Where = None,
    region: Region = None,
) -> None:
    """End a cluster: nothing that costs money is left but its checkpoints.

    Those of a local cluster stay on this machine, in ~/.spotelastic/s3.
    """
    from spotelastic.client.target import CloudTarget

    if delete_data and name is None:
        raise UsageError("--delete-data: name the cluster whose checkpoints are to be deleted")
    if delete_data and name is not None and where is not False and _delete_here(name, where):
        return
    place = CloudTarget.find(where, region)
    if delete_data and name is not None:
        data = place.data(name, bucket)
        _confirm(data.run.cluster, data.url)
    place.down(name, say, keep_data=not delete_data, bucket=bucket)


def _delete_here(name: str, where: bool | None) -> bool:
    """While no local cloud runs: what a cluster of it has left; False where that is not meant."""
    from spotelastic.client import local_data
    from spotelastic.client.target import aws_is_configured
    from spotelastic.local import cloud

    if cloud.find() is not None or (where is None and aws_is_configured()):
        return False
    found = local_data.find(name)
    if found is None:
        return False
    _confirm(found.run, str(found.folder))
    local_data.delete(found, say)
    return True


def _confirm(run: str, url: str) -> None:
    """Raises `UsageError` unless the run's name is typed."""
    try:
        typed = typer.prompt(
            f"This deletes all checkpoints of the run {run}, {url}. Its name, to go on"
        )
    except typer.Abort:  # Ctrl-C, Ctrl-D, or nobody there to be asked
        typer.echo()
        raise UsageError("--delete-data: no name was typed; nothing was deleted") from None
    if typed != run:
        raise UsageError(f"--delete-data: {typed!r} is not {run!r}; nothing was deleted")
