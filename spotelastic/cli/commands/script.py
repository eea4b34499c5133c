"""Defines the commands that write into a user's folder: `init`, `new-script` and `adapt`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from spotelastic.cli.options import up as options
from spotelastic.client.config.config_file import FILE
from spotelastic.client.config.job_config import SCRIPT, JobConfig
from spotelastic.errors import UsageError
from spotelastic.wrapping import note

INIT_EXAMPLES = """[bold]Examples[/]

spotelastic init

spotelastic init src/train.py --min 2 --max 8 --instance-types g5.12xlarge,g5.24xlarge
"""
NEW_EXAMPLES = """[bold]Examples[/]

spotelastic new-script

spotelastic new-script src/train.py
"""
ADAPT_EXAMPLES = """[bold]Examples[/]

spotelastic adapt train.py

spotelastic adapt train.py --write

spotelastic adapt train.py --workers 8 --write
"""


def init(
    script: Annotated[
        Path | None,
        typer.Argument(
            help="The script that `up` will train.",
            show_default="train.py, or the only one here that trains",
        ),
    ] = None,
    minimum: Annotated[int, typer.Option("--min", metavar="N", min=1, help="Fewest nodes.")] = 2,
    maximum: Annotated[int, typer.Option("--max", metavar="N", min=1, help="Most nodes.")] = 8,
    types: options.InstanceTypes = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Replace a spotelastic.toml that is here.")
    ] = False,
) -> None:
    """Write a spotelastic.toml, so that `spotelastic up` needs no arguments here.

    The script and the folder are read, so that its comments name what they need: arguments,
    packages, variables, data.
    """
    from spotelastic.cli.render.confirmation import asking
    from spotelastic.client.init import folder_facts, write
    from spotelastic.client.init.settings_text import SettingsWanted

    if maximum < minimum:
        raise UsageError(f"--max {maximum}: is less than --min {minimum}")
    if script is not None and script != Path(SCRIPT) and not script.is_file():
        raise UsageError(f"there is no script {script}")
    named = JobConfig(instance_types=types or ()).instance_types
    its = script or folder_facts.find_script(Path(), SCRIPT)
    facts = folder_facts.read_script(Path(), its)
    wanted = SettingsWanted(its.as_posix(), minimum, maximum, named)
    write.write_settings(Path(), wanted, facts, asking(yes=yes))
    lacking = "" if its.is_file() else f"write {its}, "
    typer.echo(f"{FILE} is written: check it, {lacking}then run `spotelastic up`")
    if not its.is_file():
        note(f"`spotelastic new-script {its}` writes one to begin with")
    elif facts.trains and not facts.is_elastic:
        note(f"{its} has no Checkpointer: `spotelastic adapt {its}` puts one in")


def new_script(
    script: Annotated[Path, typer.Argument(help="The script to write.")] = Path(SCRIPT),
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
    from spotelastic.cli.render import tables
    from spotelastic.cli.render.diff import diff
    from spotelastic.client.adapt import adapt as adapting

    made = adapting.adapted(adapting.read(script), script.as_posix(), workers)
    backup, rehearsed = adapting.write(made, script) if write else (None, ())
    if json:
        print(tables.to_json(made.as_told(backup, rehearsed)))
        return
    if sys.stdout.isatty():
        tables.display(diff(made.diff))
    else:  # as it is, for `patch`
        print(made.diff, end="")
    for change in made.changes:
        note(change)
    for line in (*made.notes, *rehearsed):
        note(f"note: {line}")
    if backup is None:
        note(f"nothing was changed: `spotelastic adapt {script} --write` does it")
    else:
        note(f"{script} is changed; what it was is in {backup}")
