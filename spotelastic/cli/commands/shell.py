"""Commands that reach a node: shell, forward."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

from spotelastic.cli.options.common import Region

if TYPE_CHECKING:
    from spotelastic.client.target import CloudTarget

SHELL_EXAMPLES = """[bold]Example[/]

spotelastic shell i-0a1b2c3d4e5f60718
"""
FORWARD_EXAMPLES = """[bold]Examples[/]

spotelastic forward i-0a1b2c3d4e5f60718 6006

spotelastic forward i-0a1b2c3d4e5f60718 6006 --to 16006
"""
Node = Annotated[str, typer.Argument(help="The node, as `spotelastic status` lists it.")]
Cluster = Annotated[str | None, typer.Option("--name", help="The cluster, where several exist.")]


def shell(node: Node, name: Cluster = None, region: Region = None) -> None:
    """Open a shell on a node, through Session Manager."""
    from spotelastic.aws.security import sessions

    place = _place(node, name, region)
    _become(sessions.shell(place.aws, node))


def forward(
    node: Node,
    port: Annotated[int, typer.Argument(min=1, max=65535, help="Port on the node.")],
    to: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port here.", show_default="the same")
    ] = None,
    name: Cluster = None,
    region: Region = None,
) -> None:
    """Make a node's port one of this machine's, through Session Manager."""
    from spotelastic.aws.security import sessions

    place = _place(node, name, region)
    _become(sessions.forward(place.aws, node, port, to or port))


def _place(node: str, name: str | None, region: str | None) -> "CloudTarget":
    """On AWS. Raises `UsageError` for the local cloud, and for a node that is not there."""
    from spotelastic.client.target import CloudTarget, status_of
    from spotelastic.errors import UsageError

    place = CloudTarget.find(None, region)
    found = {each.id: each for each in status_of(place.cluster(name)).nodes}
    if node not in found:
        raise UsageError(f"there is no node {node}; there is {', '.join(found) or 'none'}")
    if place.cloud is not None:
        raise UsageError(
            f"nodes of the local cloud are processes of this machine: {node} has the address "
            f"{found[node].address}, and its files are in {place.cloud.folder}/instances/{node}"
        )
    return place


def _become(command: list[str]) -> None:
    """The plugin takes this process's place, terminal and signals included."""
    os.execv(command[0], command)
