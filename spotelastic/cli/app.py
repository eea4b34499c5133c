"""The commands that people type, as typer shows and parses them: one file per group of commands.

`run` and `boot` are here for the help only: `main.py` starts them without this module.
"""

import os
from pathlib import Path
from typing import Annotated

import typer

from spotelastic import __version__
from spotelastic.cli import ckpt, lifecycle, project, reach, replay, show, steer, up

app = typer.Typer(
    name="spotelastic",
    help="Train on spot GPUs as if they were never taken away.",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"spotelastic {__version__}")
        raise typer.Exit


@app.callback(
    epilog="Try it on this machine: [bold]spotelastic up --local --drill examples/train_gpt.py[/]"
)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand == "up":
        parameters = context.command.commands["up"].params  # type: ignore[attr-defined]
        said = project.defaults(parameters, context, Path.cwd(), os.environ)
        context.default_map = {"up": said}


app.command("init", epilog=up.INIT_EXAMPLES)(up.init)
# All that comes after the script is the script's.
app.command("up", epilog=up.EXAMPLES, context_settings={"allow_interspersed_args": False})(up.up)
app.command("ls", epilog=show.LS_EXAMPLES)(show.ls)
app.command("status", epilog=show.STATUS_EXAMPLES)(show.status)
app.command("logs", epilog=show.LOGS_EXAMPLES)(show.logs)
app.command("events", epilog=show.EVENTS_EXAMPLES)(show.events)
app.command("report", epilog=show.REPORT_EXAMPLES)(show.report)
app.command("cost", epilog=show.COST_EXAMPLES)(show.cost)
app.command("stop", epilog=lifecycle.STOP_EXAMPLES)(lifecycle.stop)
app.command("restart", epilog=lifecycle.RESTART_EXAMPLES)(lifecycle.restart)
app.command("scale", epilog=lifecycle.SCALE_EXAMPLES)(lifecycle.scale)
app.command("interrupt", epilog=steer.INTERRUPT_EXAMPLES)(steer.interrupt)
app.command("drill", epilog=steer.DRILL_EXAMPLES)(steer.drill)
app.command("replay", epilog=replay.EXAMPLES)(replay.replay)
app.command("down", epilog=steer.DOWN_EXAMPLES)(steer.down)
app.command("shell", epilog=reach.SHELL_EXAMPLES)(reach.shell)
app.command("forward", epilog=reach.FORWARD_EXAMPLES)(reach.forward)
app.add_typer(ckpt.app, name="ckpt")


@app.command("run")
def _run() -> None:
    """Run a script elastically on machines you already have, as torchrun does."""


@app.command("boot", hidden=True)
def _boot() -> None:
    """What an instance runs when it starts."""
