"""Defines the command `dump`."""

from pathlib import Path
from typing import Annotated

import typer

from spotelastic.cli.commands.found_cluster import found_cluster
from spotelastic.cli.options.common import Name, Region, Where
from spotelastic.wrapping import say

EXAMPLES = """[bold]Examples[/]

spotelastic dump

spotelastic dump demo --output report.tar.gz
"""


def dump(
    name: Name = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The archive to write.", show_default="named by the time"
        ),
    ] = None,
    where: Where = None,
    region: Region = None,
) -> None:
    """Write what a cluster and its nodes have told to an archive for a bug report.

    It has the job, status, events, report, the last hour of output, and the
    nodes' consoles. Secrets and the values of variables are left out. It also
    works after the job has failed, and when the cluster is gone. Look through it
    before you make it public.
    """
    made = found_cluster(name, where, region, gone=True).dump(file=output)
    for line in made.missing:
        say(f"missing: {line}")
    say(f"wrote {made.file}: attach it to your report")
