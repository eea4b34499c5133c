"""Defines the commands that show a cluster.

They are `ls`, `status`, `logs`, `events`, `report` and `dashboard`.
"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotelastic import validation
from spotelastic.cli.commands.found_cluster import found_cluster
from spotelastic.cli.options.common import AsJson, Name, Region, Where
from spotelastic.clock import wall
from spotelastic.errors import UsageError
from spotelastic.wrapping import note

if TYPE_CHECKING:
    from spotelastic.client.cluster import Cluster

LS_EXAMPLES = """[bold]Examples[/]

spotelastic ls

spotelastic ls --all

spotelastic ls --json | jq -r '.[] | select(.state == "running").name'
"""
STATUS_EXAMPLES = """[bold]Examples[/]

spotelastic status

spotelastic status demo --json | jq .step
"""
LOGS_EXAMPLES = """[bold]Examples[/]

spotelastic logs -f

spotelastic logs demo --rank 0 --since 10m

spotelastic logs demo --previous 1 --json | jq -r .text
"""
LAST_LOGS = "these are its last logs"
EVENTS_EXAMPLES = """[bold]Examples[/]

spotelastic events

spotelastic events demo --json
"""
REPORT_EXAMPLES = """[bold]Examples[/]

spotelastic report

spotelastic report demo --json > report.json

spotelastic report demo --html report.html

spotelastic report demo --cost --json | jq .total_usd
"""


DASHBOARD_EXAMPLES = """[bold]Examples[/]

spotelastic dashboard

spotelastic dashboard demo

spotelastic dashboard demo --port 8642

spotelastic dashboard --kube --namespace ml
"""


def ls(
    every: Annotated[
        bool, typer.Option("--all", help="Also those that have ended in the last 14 days.")
    ] = False,
    where: Where = None,
    region: Region = None,
    json: AsJson = False,
) -> None:
    """List the clusters: the state of their jobs, age and cost."""
    from spotelastic.cli.render import tables
    from spotelastic.client.published import GONE_FOR
    from spotelastic.client.targets.find import find, looked_at

    if every:
        at = looked_at(where, region, note)
        found = (*at.listing(), *at.ended(wall() - GONE_FOR))
    else:
        found = find(where, region, note).listing()
    tables.show(found, tables.listing_table, as_json=json)


def status(
    name: Name = None, where: Where = None, region: Region = None, json: AsJson = False
) -> None:
    """Show the state of a job: its round, step and loss, and every node."""
    from spotelastic.cli.render import tables

    cluster = found_cluster(name, where, region, gone=True)
    told, regions = cluster.status(), cluster.regions()
    if json:
        print(tables.to_json(tables.whole_status(told, regions)))
        for line in told.warnings:
            typer.echo(f"warning: {line}", err=True)
    else:
        tables.display(tables.status_table(told, regions))
    if warning := cluster.record.spec.validity.warning(cluster.name, wall()):
        typer.echo(f"warning: {warning}", err=True)


def logs(
    name: Name = None,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Keep printing new lines.")
    ] = False,
    rank: Annotated[int | None, typer.Option(min=0, help="Only this rank.")] = None,
    node: Annotated[str | None, typer.Option(help="Only this node.")] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only lines of the last time, such as 90s, 10m or 2h."),
    ] = None,
    previous: Annotated[
        int,
        typer.Option(
            min=0, help="The cluster of this name that many before the newest.", show_default=False
        ),
    ] = 0,
    where: Where = None,
    region: Region = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object for each line.")
    ] = False,
) -> None:
    """Print the output of the workers, also of a cluster that is gone.

    It is kept for 14 days, and deleted by `down --delete-data`.
    """
    from spotelastic.cli.render import tables
    from spotelastic.client import logs as client_logs

    begin = 0.0 if since is None else wall() - validation.time("--since", since)
    wanted = client_logs.Wanted(rank, node, begin)
    cluster = found_cluster(name, where, region, gone=True, left=LAST_LOGS)
    lines = client_logs.tail(cluster.record, wanted, previous=previous, follow=follow, note=note)
    for line in lines:
        typer.echo(tables.json_line(line) if json else str(line))


def events(
    name: Name = None,
    every: Annotated[
        bool, typer.Option("--all", help="Each event, also what is routine. --json always does.")
    ] = False,
    where: Where = None,
    region: Region = None,
    json: AsJson = False,
) -> None:
    """List the events of a job: notices, losses, rounds, replacements."""
    from spotelastic.cli.render import tables

    cluster = found_cluster(name, where, region, gone=True)
    table = partial(tables.events_table, every=every)
    tables.show(cluster.events(), table, as_json=json)


def report(
    name: Name = None,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a page instead: one file, with loss curve, nodes and events.",
            show_default=False,
        ),
    ] = None,
    costs: Annotated[
        bool,
        typer.Option(
            "--cost",
            help="Only the bill: what the cluster has cost, costs now, and would on demand.",
        ),
    ] = False,
    where: Where = None,
    region: Region = None,
    json: AsJson = False,
) -> None:
    """Show the cost of every interruption, the goodput and the bill."""
    from spotelastic.cli.render import tables

    cluster = found_cluster(name, where, region, gone=True)
    if html is not None:
        _write_page(cluster, html)
    if costs:
        tables.show(cluster.cost(), tables.cost_table, as_json=json)
    elif html is None or json:
        tables.show(cluster.report(), tables.report_table, as_json=json)


def _write_page(cluster: "Cluster", file: Path) -> None:
    from spotelastic.web.reading import html_report, write_html

    page = html_report(cluster)
    try:
        write_html(page, file)
    except OSError as error:
        raise UsageError(f"--html {file}: cannot be written: {error.strerror}") from error
    note(f"the report of {cluster.name} is in {file}")


def dashboard(
    name: Name = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0: one that is free.")
    ] = 0,
    where: Where = None,
    region: Region = None,
) -> None:
    """Show clusters in a browser on this machine, until Ctrl-C.

    Clusters that have ended in the last 14 days are shown as well.

    For each: loss curve with every interruption, speed, nodes and cost over
    time, checkpoints, logs and events. Buttons do what `interrupt`, `scale`, `stop`,
    `restart` and `down` do. The address has a token: whoever has it can do all
    of that.
    """
    from spotelastic.client.targets.find import located, looked_at
    from spotelastic.web.server import serving
    from spotelastic.web.server.source import TargetSource

    target = looked_at(where, region, note)
    if name is not None:
        located(target, name, note, gone=True)
    first = f"&cluster={name}" if name is not None else ""

    def ready(url: str) -> None:
        typer.echo(f"{url}{first}")
        note("open this address in a browser of this machine; Ctrl-C ends the dashboard")

    serving.serve(TargetSource(target), serving.listening(port), ready)
