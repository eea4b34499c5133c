"""Defines the command `dump`."""

from pathlib import Path
from typing import Annotated

import typer

from spotelastic.cli.commands.found_cluster import named_by_option
from spotelastic.cli.options.common import Region, Where
from spotelastic.errors import UsageError
from spotelastic.model.counting import size
from spotelastic.wrapping import note, say

EXAMPLES = """[bold]Examples[/]

spotelastic dump --all

spotelastic dump i-0a1b2c3d4e5f60718 --output report.tar.gz

spotelastic dump --all --name demo --json | jq -r .file
"""


def dump(
    node: Annotated[
        str | None, typer.Argument(help="The node's name in `spotelastic status`.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All nodes of the cluster.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The archive to write.", show_default="named by the time"
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="The cluster, if there are several.")] = None,
    where: Where = None,
    region: Region = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON: the file, and what is in it.")
    ] = False,
) -> None:
    """Write what a node knows, or all nodes, to an archive for a bug report.

    It has the state, events, event logs and logs of the nodes, versions, status,
    report and the job. Secrets and the values of variables are left out. It also
    works after the job has failed, and when its nodes are gone. Look through it
    before you make it public.
    """
    if (node is not None) == all_:
        raise UsageError("dump: name a node, or take --all")
    from spotelastic.cli.render import tables
    from spotelastic.client.dumps import collect, dump_source

    tell = note if json else say
    with named_by_option():
        found = dump_source.find(name, where, region, note)
    made = collect.collect(found, node, output, tell)
    if json:
        typer.echo(tables.to_json(made))
        return
    for line in made.index.missing:
        say(f"missing: {line}")
    say(f"wrote {made.file} ({size(Path(made.file).stat().st_size)}): attach it to your report")
