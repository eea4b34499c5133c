"""Defines the command that connects to a node of an AWS cluster: `shell`."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

from spotelastic.cli.commands.found_cluster import found_cluster, named_by_option
from spotelastic.cli.options.common import Region

if TYPE_CHECKING:
    from spotelastic.client.targets.cloud_target import CloudTarget

EXAMPLES = """[bold]Examples[/]

spotelastic shell i-0a1b2c3d4e5f60718

spotelastic shell i-0a1b2c3d4e5f60718 --forward 6006

spotelastic shell i-0a1b2c3d4e5f60718 --forward 6006 --to 16006
"""


def shell(
    node: Annotated[str, typer.Argument(help="The node's name in `spotelastic status`.")],
    port: Annotated[
        int | None,
        typer.Option(
            "--forward",
            metavar="PORT",
            min=1,
            max=65535,
            help="In place of a shell: make this port of the node one of this machine's.",
        ),
    ] = None,
    to: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port on this machine.", show_default="the same"),
    ] = None,
    name: Annotated[str | None, typer.Option(help="The cluster, if there are several.")] = None,
    region: Region = None,
) -> None:
    """Open a shell on a node, or forward one of its ports, through Session Manager."""
    from spotelastic.aws.security import sessions
    from spotelastic.errors import UsageError

    if to is not None and port is None:
        raise UsageError("--to: is the port here of what --forward makes reachable: add --forward")
    aws = _find_target(node, name, region).aws
    command = (
        sessions.shell(aws, node) if port is None else sessions.forward(aws, node, port, to or port)
    )
    # The Session Manager plugin owns terminal and signals from here on.
    os.execv(command[0], command)


def _find_target(node: str, name: str | None, region: str | None) -> "CloudTarget":
    """Return the AWS account of the node's cluster.

    Raises `UsageError` for the local cloud, and for a node that does not exist.
    """
    from spotelastic.errors import UsageError

    with named_by_option():
        cluster = found_cluster(name, None, region)
    found = {each.id: each for each in cluster.status().nodes}
    if node not in found:
        raise UsageError(f"there is no node {node}; the nodes are: {', '.join(found) or 'none'}")
    target = cluster.target.account("a session")
    target.check_sessions(found[node])
    return target
