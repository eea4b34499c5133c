"""Defines the commands that show a cluster: `ls`, `status`, `logs`, `events`, `report`, `cost`."""

from typing import Annotated

import typer

from spotelastic.cli.commands.found_cluster import found_cluster
from spotelastic.cli.options.common import AsJson, Name, Region, Where
from spotelastic.clock import wall
from spotelastic.wrapping import note

LS_EXAMPLES = """[bold]Examples[/]

spotelastic ls

spotelastic ls --json | jq -r '.[] | select(.state == "running").name'
"""
STATUS_EXAMPLES = """[bold]Examples[/]

spotelastic status

spotelastic status demo --json | jq .step
"""
LOGS_EXAMPLES = """[bold]Examples[/]

spotelastic logs -f

spotelastic logs demo --rank 0
"""
EVENTS_EXAMPLES = """[bold]Examples[/]

spotelastic events

spotelastic events demo --json
"""
REPORT_EXAMPLES = """[bold]Examples[/]

spotelastic report

spotelastic report demo --json > report.json
"""


COST_EXAMPLES = """[bold]Examples[/]

spotelastic cost

spotelastic cost demo --json | jq .total_usd
"""


def ls(where: Where = None, region: Region = None, json: AsJson = False) -> None:
    """List the clusters and the state of their jobs."""
    from spotelastic.cli.render import tables
    from spotelastic.client.targets.find import find

    tables.show(find(where, region, note).listing(), tables.listing_table, as_json=json)


def status(
    name: Name = None, where: Where = None, region: Region = None, json: AsJson = False
) -> None:
    """Show the state of a job: its round, step and loss, and every node."""
    from spotelastic.cli.render import tables

    cluster = found_cluster(name, where, region, gone=True)
    told = cluster.status()
    tables.show(told, tables.status_table, as_json=json)
    for line in told.warnings:
        typer.echo(f"warning: {line}", err=True)
    if warning := cluster.record.spec.validity.warning(cluster.name, wall()):
        typer.echo(f"warning: {warning}", err=True)


def logs(
    name: Name = None,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Keep printing new lines.")
    ] = False,
    rank: Annotated[int | None, typer.Option(min=0, help="Only this rank.")] = None,
    node: Annotated[str | None, typer.Option(help="Only this node.")] = None,
    where: Where = None,
    region: Region = None,
) -> None:
    """Print the output of the workers."""
    cluster = found_cluster(name, where, region)
    for line in cluster.logs(rank=rank, node=node, follow=follow, note=note):
        typer.echo(str(line))


def events(
    name: Name = None, where: Where = None, region: Region = None, json: AsJson = False
) -> None:
    """List the events of a job: notices, losses, rounds, replacements."""
    from spotelastic.cli.render import tables

    cluster = found_cluster(name, where, region, gone=True)
    tables.show(cluster.events(), tables.events_table, as_json=json)


def report(
    name: Name = None, where: Where = None, region: Region = None, json: AsJson = False
) -> None:
    """Show the cost of every interruption, the goodput and the bill."""
    from spotelastic.cli.render import tables

    cluster = found_cluster(name, where, region, gone=True)
    tables.show(cluster.report(), tables.report_table, as_json=json)


def cost(
    name: Name = None, where: Where = None, region: Region = None, json: AsJson = False
) -> None:
    """Show what a cluster has cost, costs now, and would have cost on demand."""
    from spotelastic.cli.render import tables

    cluster = found_cluster(name, where, region, gone=True)
    tables.show(cluster.cost(), tables.cost_table, as_json=json)
