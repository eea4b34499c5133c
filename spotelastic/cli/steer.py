"""Commands that act on a cluster: interrupt, down."""

from typing import Annotated

import typer

from spotelastic.cli.options import Name, Region, Where

INTERRUPT_EXAMPLES = """[bold]Examples[/]

spotelastic interrupt i-0a1b2c3d4e5f60718

spotelastic interrupt i-0a1b2c3d4e5f60718 --in 15
"""
DOWN_EXAMPLES = """[bold]Examples[/]

spotelastic down

spotelastic down demo
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


def down(name: Name = None, where: Where = None, region: Region = None) -> None:
    """End a cluster: nothing that costs money is left but its checkpoints."""
    from spotelastic.cli.place import Place

    Place.find(where, region).down(name, typer.echo)
