"""Defines the command `rehearse`."""

from pathlib import Path
from typing import Annotated

import typer

from spotelastic import systems, validation
from spotelastic.cli.options.common import AsJson
from spotelastic.cli.options.script_args import without_guard
from spotelastic.errors import UsageError
from spotelastic.signals import Signals
from spotelastic.wrapping import note

EXAMPLES = """[bold]Examples[/]

spotelastic rehearse train.py

spotelastic rehearse --steps 40 train.py --epochs 2

spotelastic rehearse --more "--epochs 4" train.py --epochs 2

spotelastic rehearse --json train.py | jq '.rows[] | select(.state == "different")'
"""


def rehearse(
    script: Annotated[Path, typer.Argument(help="The training script.", show_default=False)],
    args: Annotated[
        list[str] | None, typer.Argument(help="The script's own arguments.", show_default=False)
    ] = None,
    steps: Annotated[
        int,
        typer.Option(
            min=9,
            metavar="N",
            help="How many steps each act makes. An epoch of up to three times as many is made "
            "whole.",
        ),
    ] = 20,
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
            help='Arguments with which the script is made longer after its end: "--epochs 4".',
            show_default="found among its own",
        ),
    ] = "",
    only: Annotated[
        str,
        typer.Option(
            metavar="ACT,...",
            help="Try these alone: stopped, killed, nodes, longer.",
            show_default="all that the script and this machine allow",
        ),
    ] = "",
    act_within: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="How long an act may take.")
    ] = 600.0,
    here: Annotated[
        bool,
        typer.Option("--here", help="Run in this folder itself, not in copies of it."),
    ] = False,
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
    from spotelastic.client.rehearsal.plan import ACTS
    from spotelastic.client.rehearsal.runs import Job

    if not script.is_file():
        raise UsageError(f"no such script: {script}")
    validation.parses(script, str(script))
    wanted = tuple(filter(None, only.split(",")))
    for each in wanted:
        if each not in ACTS:
            raise UsageError(f"--only {each}: choose from {', '.join(ACTS)}")
    job = Job(
        Path.cwd(),
        str(script),
        without_guard(tuple(args or ())),
        script.read_text(errors="replace"),
        steps,
        ranks or 0,
        more,
        here,
        conduct.gpus(),
        wanted,
    )
    with Signals() as signals:
        try:
            found = conduct.rehearse(job, act_within, note)
        except KeyboardInterrupt:
            raise typer.Exit(signals.exit_code) from None
    tables.show(found, rehearsed, as_json=json)
    raise typer.Exit(0 if found.is_equal else 1)
