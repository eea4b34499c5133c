"""Defines the commands that are about a script: `init`, `adapt` and `rehearse`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from spotelastic import systems, validation
from spotelastic.cli.options import up as options
from spotelastic.cli.options.common import AsJson
from spotelastic.cli.options.script_args import without_guard
from spotelastic.client.config.config_file import FILE
from spotelastic.client.config.job_config import SCRIPT, JobConfig
from spotelastic.errors import UsageError
from spotelastic.signals import Signals
from spotelastic.wrapping import note

INIT_EXAMPLES = """[bold]Examples[/]

spotelastic init

spotelastic init --example

spotelastic init src/train.py --min 2 --max 8 --instance-types g5.12xlarge,g5.24xlarge
"""
ADAPT_EXAMPLES = """[bold]Examples[/]

spotelastic adapt train.py

spotelastic adapt train.py --write

spotelastic adapt train.py --workers 8 --write --rehearse
"""
REHEARSE_EXAMPLES = """[bold]Examples[/]

spotelastic rehearse train.py

spotelastic rehearse --steps 40 train.py --epochs 2

spotelastic rehearse --more "--epochs 4" train.py --epochs 2

spotelastic rehearse --json train.py | jq '.rows[] | select(.state == "different")'
"""


def init(
    script: Annotated[
        Path | None,
        typer.Argument(
            help="The script that `up` will train.",
            show_default="train.py, or the only one here that trains",
        ),
    ] = None,
    minimum: Annotated[int, typer.Option("--min", metavar="N", min=1, help="Minimum nodes.")] = 2,
    maximum: Annotated[int, typer.Option("--max", metavar="N", min=1, help="Maximum nodes.")] = 8,
    types: options.InstanceTypes = None,
    example: Annotated[
        bool,
        typer.Option(
            "--example",
            help="Also write the script: a small one that trains, to begin with. A "
            "spotelastic.toml that is here stays.",
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Replace a spotelastic.toml that is here.")
    ] = False,
) -> None:
    """Write a spotelastic.toml, so that `spotelastic up` needs no arguments here.

    Its comments name what else there is to say.
    """
    from spotelastic.cli.render.confirmation import asking
    from spotelastic.client import settings_file
    from spotelastic.client.adapt.new_script import write_new

    if maximum < minimum:
        raise UsageError(f"--max {maximum}: is less than --min {minimum}")
    if example:
        script = script or Path(SCRIPT)
        write_new(script)
        typer.echo(
            f"{script} is written: spotelastic run --standalone --nproc-per-node 2 {script} trains "
            "it here"
        )
        if Path(FILE).exists():
            return
    if script is not None and script != Path(SCRIPT) and not script.is_file():
        raise UsageError(f"there is no script {script}")
    named = JobConfig(instance_types=types or ()).instance_types
    its = script or settings_file.find_script(Path(), SCRIPT)
    text = settings_file.settings_text(its.as_posix(), minimum, maximum, named)
    settings_file.write_settings(Path(), text, asking(yes=yes))
    lacking = "" if its.is_file() else f"write {its}, "
    typer.echo(f"{FILE} is written: check it, {lacking}then run `spotelastic up`")
    if not its.is_file():
        note(f"`spotelastic init --example {its}` writes one to begin with")
    elif settings_file.trains(its) and not settings_file.is_elastic(its):
        note(f"{its} has no Checkpointer: `spotelastic adapt {its}` puts one in")


def adapt(
    script: Annotated[Path, typer.Argument(help="A training script.", show_default=False)],
    write: Annotated[
        bool, typer.Option("--write", help="Change the script; the original is kept as .orig.")
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="How many workers the script's batch size is meant for.",
            show_default="asked for if it matters",
        ),
    ] = None,
    rehearsed: Annotated[
        bool,
        typer.Option(
            "--rehearse",
            help="With --write: then rehearse it, stopped and started again, as `rehearse` does. "
            "For a script that needs no arguments.",
        ),
    ] = False,
) -> None:
    """Make a training script elastic: put a Checkpointer around its loop, and show the diff.

    Nothing is changed without --write. A script of a form that is not understood is refused, with
    the line. Comments and layout stay as they are.
    """
    from rich.syntax import Syntax

    from spotelastic.cli.render import tables
    from spotelastic.client.adapt import adapt as adapting

    made = adapting.adapted(adapting.read(script), script.as_posix(), workers)
    if rehearsed and not write:
        raise UsageError("--rehearse rehearses what --write has written, and prints a table of it")
    backup = adapting.write(made, script) if write else None
    if sys.stdout.isatty():
        tables.display(Syntax(made.diff, "diff", theme="ansi_dark", word_wrap=True))
    else:  # as it is, for `patch`
        print(made.diff, end="")
    for change in made.changes:
        note(change)
    for line in made.notes:
        note(f"note: {line}")
    if backup is None:
        note(f"nothing was changed: `spotelastic adapt {script} --write` does it")
    else:
        note(f"{script} was changed; the original is in {backup}")
    if rehearsed:
        rehearse(script, only="stopped")
    elif backup is not None:
        note(f"`spotelastic rehearse {script}` shows whether it comes back after interruptions")


def rehearse(
    script: Annotated[Path, typer.Argument(help="The training script.", show_default=False)],
    args: Annotated[
        list[str] | None, typer.Argument(help="The script's own arguments.", show_default=False)
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=9,
            metavar="N",
            help="How many steps each act makes.",
            show_default="20, or past the end of the first epoch where that takes little time",
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=2,
            metavar="N",
            help="How many ranks.",
            show_default="2 for a script that makes a process group, otherwise 1",
        ),
    ] = None,
    more: Annotated[
        str,
        typer.Option(
            metavar="ARGS",
            help='Arguments that make the script run longer after its end: "--epochs 4".',
            show_default="found among its own",
        ),
    ] = "",
    only: Annotated[
        str,
        typer.Option(
            metavar="ACT,...",
            help="Try only these: stopped, killed, nodes, longer.",
            show_default="all that the script and this machine allow",
        ),
    ] = "",
    act_within: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="How long an act may take.")
    ] = 600.0,
    json: AsJson = False,
) -> None:
    """Interrupt a script in all usual ways on this machine, and compare its steps.

    It is stopped and started again, its workers and nodes are killed in each stage of a step, and
    nodes come and go. Each time, what its steps leave is compared with a plain run. It ends with 0
    if nothing was different, and with 1 otherwise. Your files stay as they are.
    """
    systems.require_linux("`spotelastic rehearse`")
    from spotelastic.cli.render import tables
    from spotelastic.cli.render.rehearsed import rehearsed
    from spotelastic.client.rehearsal import conduct
    from spotelastic.client.rehearsal.runs import RehearsedScript

    words, source = without_guard(tuple(args or ())), _source(script)
    what = Path.cwd(), str(script), words, source, steps or 0, ranks or 0, more
    job = RehearsedScript(*what, conduct.gpus(), _acts(only))
    with Signals() as signals:
        try:
            found = conduct.rehearse(job, act_within, note)
        except KeyboardInterrupt:
            raise typer.Exit(signals.exit_code) from None
    tables.show(found, rehearsed, as_json=json)
    raise typer.Exit(0 if found.is_equal else 1)


def _source(script: Path) -> str:
    """Return a script's text. Raises `UsageError` if there is none, or Python cannot read it."""
    if not script.is_file():
        raise UsageError(f"no such script: {script}")
    validation.parses(script, str(script))
    return script.read_text(errors="replace")


def _acts(only: str) -> tuple[str, ...]:
    """Return the acts that --only names; none: all are wanted."""
    from spotelastic.client.rehearsal.rehearsal_plan import ACTS

    wanted = tuple(filter(None, only.split(",")))
    for each in wanted:
        if each not in ACTS:
            raise UsageError(f"--only {each}: choose from {', '.join(ACTS)}")
    return wanted
