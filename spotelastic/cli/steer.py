"""Commands that act on a cluster: interrupt, down."""

from typing import Annotated

import typer

from spotelastic.cli.options import Name, Region, Where
from spotelastic.errors import UsageError

INTERRUPT_EXAMPLES = """[bold]Examples[/]

spotelastic interrupt i-0a1b2c3d4e5f60718

spotelastic interrupt i-0a1b2c3d4e5f60718 --in 15
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
        typer.Option("--in", min=0, max=3600, help="Seconds of warning; 0 for none."),
    ] = 120.0,
    name: Annotated[str | None, typer.Option(help="The cluster, where several exist.")] = None,
    where: Where = None,
    region: Region = None,
) -> None:
    """Take a node away, as AWS would: a notice, and the end when its time is up."""
    from spotelastic.cli.place import Place

    place = Place.find(where, region)
    place.interrupt(place.cluster(name), node, seconds)
    warning = f"in {seconds:g} s" if seconds else "without notice"
    typer.echo(f"{node} will be taken away {warning}")


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
    """End a cluster: nothing that costs money is left but its checkpoints."""
    from spotelastic.cli.place import Place

    if delete_data and name is None:
        raise UsageError("--delete-data: name the cluster whose checkpoints are to be deleted")
    place = Place.find(where, region)
    if delete_data and name is not None:
        data = place.data(name, bucket)
        _confirm(data.run.cluster, data.url)
    place.down(name, typer.echo, keep_data=not delete_data, bucket=bucket)


def _confirm(run: str, url: str) -> None:
    """Raises `UsageError` unless the run's name is typed."""
    typed = typer.prompt(
        f"This deletes all checkpoints of the run {run}, {url}. Its name, to go on"
    )
    if typed != run:
        raise UsageError(f"--delete-data: {typed!r} is not {run!r}; nothing was deleted")
