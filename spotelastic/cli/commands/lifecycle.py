"""Defines the commands that change a running job: `stop`, `restart`, `scale` and `move`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from spotelastic.cli.commands.found_cluster import found_cluster
from spotelastic.cli.options import up
from spotelastic.cli.options.common import AsJson, Name, Region, Where
from spotelastic.wrapping import note

if TYPE_CHECKING:
    from spotelastic.client.commands import CommandResult
    from spotelastic.client.moving.move import MoveResult

STOP_EXAMPLES = """[bold]Examples[/]

spotelastic stop

spotelastic stop demo --no-wait
"""
RESTART_EXAMPLES = """[bold]Examples[/]

spotelastic restart

spotelastic restart demo --deadline 8h

spotelastic restart demo --same-code
"""
SCALE_EXAMPLES = """[bold]Examples[/]

spotelastic scale --max 16

spotelastic scale demo --min 2 --max 4
"""
MOVE_EXAMPLES = """[bold]Examples[/]

spotelastic move --region us-west-2

spotelastic move demo --region us-west-2 --yes

spotelastic move demo --back
"""
INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def stop(
    name: Name = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the job has ended.")
    ] = True,
    where: Where = None,
    region: Region = None,
    json: AsJson = False,
) -> None:
    """Stop a job after it has committed its last step. Its control nodes stay for a while.

    `spotelastic restart` continues from that step.
    """
    cluster = found_cluster(name, where, region)
    _tell(lambda: cluster.stop(wait=wait, on_update=_note), _goes_on(cluster.name), as_json=json)


def restart(
    name: Name = None,
    same_code: Annotated[
        bool,
        typer.Option("--same-code", help="Use the job's earlier code, not that of this folder."),
    ] = False,
    environment: up.EnvironmentFile = None,
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="Do not ask if this is not the job's folder."),
    ] = False,
    deadline: up.Deadline = None,
    max_cost: up.MaxCost = None,
    where: Where = None,
    region: Region = None,
    json: AsJson = False,
) -> None:
    """Restart a job that has ended from its newest checkpoint, with the code of this folder."""
    from spotelastic.cli.render.confirmation import asking

    cluster = found_cluster(name, where, region)
    _tell(
        lambda: cluster.restart(
            same_code=same_code,
            environment=environment,
            deadline=deadline,
            max_cost=max_cost,
            confirm=asking(yes=yes),
        ),
        _goes_on(cluster.name),
        as_json=json,
    )


def scale(
    name: Name = None,
    minimum: Annotated[
        int | None,
        typer.Option("--min", help="Minimum number of nodes.", show_default="unchanged"),
    ] = None,
    maximum: Annotated[
        int | None,
        typer.Option("--max", help="Maximum number of nodes.", show_default="unchanged"),
    ] = None,
    where: Where = None,
    region: Region = None,
    json: AsJson = False,
) -> None:
    """Change the number of nodes of a job while it trains."""
    cluster = found_cluster(name, where, region)
    _tell(
        lambda: cluster.scale(min=minimum, max=maximum, on_update=_note),
        _goes_on(cluster.name),
        as_json=json,
    )


def move(
    name: Name = None,
    region: Annotated[
        str | None, typer.Option("--region", help="The region to move the job to.")
    ] = None,
    back: Annotated[
        bool,
        typer.Option("--back", help="Undo a move, if nothing was trained in the new region yet."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask about the price.")] = False,
    where: Where = None,
    origin: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="The region to look for the job in.",
            show_default="as other commands look",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Move a job to another region: it commits, goes on there, and its old cluster ends.

    The newest checkpoint is copied within S3. Its price, and how long nothing
    trains, is told before. A move that was interrupted is gone on with by the
    same command. Other commands find the job in its new region.
    """
    from spotelastic.cli.render.confirmation import asking
    from spotelastic.client.moving.move import move as carry_out
    from spotelastic.client.targets.find import account
    from spotelastic.errors import UsageError

    if region is None and not back:
        raise UsageError("move: give --region, or --back to undo a move")
    home = account(where, origin, note)
    _tell(
        lambda: carry_out(home, name, region, back=back, confirm=asking(yes=yes), say=note),
        "the move has stopped midway: run the same command again, or undo it with --back",
        as_json=json,
    )


def _tell(
    carry_out: "Callable[[], CommandResult | MoveResult]", interrupted: str, *, as_json: bool
) -> None:
    """Carry out a command and print its result, or what becomes of it after Ctrl-C."""
    from spotelastic.cli.render import tables

    try:
        done = carry_out()
    except KeyboardInterrupt:
        note(interrupted)
        raise typer.Exit(INTERRUPTED) from None
    typer.echo(tables.to_json(done) if as_json else f"{done.name} {done.text}")


def _goes_on(name: str) -> str:
    return f"{name} is still executing the command: see `spotelastic status {name}`"


def _note(update: object) -> None:
    """Print to stderr, beside the result on stdout."""
    note(str(update))
