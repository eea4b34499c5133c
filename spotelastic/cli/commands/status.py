"""Defines the commands that show a cluster: `ls`, `status`, `logs`, `events`, `report`, `cost`."""

from typing import Annotated

import typer

from spotelastic.cli.options.common import AsJson, Name, Region, Where
from spotelastic.clock import wall
from spotelastic.errors import UsageError
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
    from spotelastic.client.published import status_of
    from spotelastic.client.targets.find import find

    cluster = find(where, region, note).cluster_or_gone(name, note)
    told = status_of(cluster)
    tables.show(told, tables.status_table, as_json=json)
    for line in told.warnings:
        typer.echo(f"warning: {line}", err=True)
    if warning := cluster.spec.validity.warning(cluster.name, wall()):
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
    from spotelastic.client.logs import Wanted, tail
    from spotelastic.client.targets.find import find

    cluster = find(where, region, note).cluster(name)
    for line in tail(cluster, Wanted(rank, node), follow=follow, note=note):
        typer.echo(line)


def events(
    name: Name = None, where: Where = None, region: Region = None, json: AsJson = False
) -> None:
    """List the events of a job: notices, losses, rounds, replacements."""
    from spotelastic.cli.render import tables
    from spotelastic.client.targets.find import find

    cluster = find(where, region, note).cluster_or_gone(name, note)
    tables.show(cluster.objects.events(), tables.events_table, as_json=json)


def report(
    name: Name = None, where: Where = None, region: Region = None, json: AsJson = False
) -> None:
    """Show the cost of every interruption, the goodput and the bill."""
    from spotelastic.cli.render import tables
    from spotelastic.client.targets.find import find

    cluster = find(where, region, note).cluster_or_gone(name, note)
    made = cluster.objects.report()
    if made is None:
        raise UsageError(f"{cluster.name} has no report yet: its first round has not begun")
    tables.show(made, tables.report_table, as_json=json)


def cost(
    name: Name = None, where: Where = None, region: Region = None, json: AsJson = False
) -> None:
    """Show what a cluster has cost, costs now, and would have cost on demand."""
    from spotelastic.cli.render import tables
    from spotelastic.client.published import cost_of
    from spotelastic.client.targets.find import find

    cluster = find(where, region, note).cluster_or_gone(name, note)
    tables.show(cost_of(cluster), tables.cost_table, as_json=json)
