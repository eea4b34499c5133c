"""Defines the commands that write into a user's folder: `adapt` and `new-script`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from spotelastic import validation
from spotelastic.wrapping import note

NEW_EXAMPLES = """[bold]Examples[/]

spotelastic new-script

spotelastic new-script src/train.py
"""
ADAPT_EXAMPLES = """[bold]Examples[/]

spotelastic adapt train.py

spotelastic adapt train.py --write

spotelastic adapt train.py --workers 8 --write
"""


def new_script(
    script: Annotated[Path, typer.Argument(help="The script to write.")] = Path("train.py"),
) -> None:
    """Write a small script that trains, to begin with."""
    from spotelastic.client.adapt.new_script import write_new

    write_new(script)
    typer.echo(
        f"{script} is written: spotelastic run --standalone --nproc-per-node 2 {script} trains it "
        "here"
    )


def adapt(
    script: Annotated[Path, typer.Argument(help="A training script.", show_default=False)],
    write: Annotated[
        bool, typer.Option("--write", help="Change the script; the former one is kept as .orig.")
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="For how many workers the script's batch size is meant.",
            show_default="asked for if it matters",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a diff.")] = False,
) -> None:
    """Make a training script elastic: put a Checkpointer around its loop, and show the diff.

    Nothing is changed without --write. A script of a form that is not understood is refused, with
    the line. Comments and layout stay as they are.
    """
    validation.installed("libcst", "`spotelastic adapt` needs libcst", "adapt")
    from spotelastic.cli.render import tables
    from spotelastic.cli.render.diff import diff
    from spotelastic.client.adapt import adapt as adapting

    made = adapting.adapted(adapting.read(script), script.as_posix(), workers)
    backup = adapting.write(made, script) if write else None
    if json:
        print(tables.to_json(made.as_told(backup)))
        return
    if sys.stdout.isatty():
        tables.display(diff(made.diff))
    else:  # as it is, for `patch`
        print(made.diff, end="")
    for change in made.changes:
        note(change)
    for line in made.notes:
        note(f"note: {line}")
    if backup is None:
        note(f"nothing was changed: `spotelastic adapt {script} --write` does it")
    else:
        note(f"{script} is changed; what it was is in {backup}")
