"""Defines the command that moves a job to another region."""

from typing import Annotated

import typer

from spotelastic.cli.options.common import AsJson, Name, Where
from spotelastic.wrapping import note

MOVE_EXAMPLES = """[bold]Examples[/]

spotelastic move --region us-west-2

spotelastic move demo --region us-west-2 --yes

spotelastic move demo --back
"""
INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def move(
    name: Name = None,
    region: Annotated[
        str | None, typer.Option("--region", help="The region that the job is to train in.")
    ] = None,
    back: Annotated[
        bool,
        typer.Option("--back", help="Undo a move while nothing was trained in the new region."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask about the price.")] = False,
    where: Where = None,
    origin: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="The region in which the job is looked for.",
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
    from spotelastic.cli.render import tables
    from spotelastic.cli.render.confirmation import asking
    from spotelastic.client.moving.move import move as carry_out
    from spotelastic.client.targets.find import account
    from spotelastic.errors import UsageError

    if region is None and not back:
        raise UsageError("move: give --region, or --back to undo a move")
    try:
        done = carry_out(
            account(where, origin, note), name, region, back=back, confirm=asking(yes=yes), say=note
        )
    except KeyboardInterrupt:
        note("the move has stopped midway: run the same command again, or undo it with --back")
        raise typer.Exit(INTERRUPTED) from None
    if json:
        typer.echo(tables.to_json(done))
    else:
        typer.echo(f"{done.name} {done.text}")
