"""Assembles the `spotelastic` command line: registers every command with typer.

`run` and `boot` appear here only so that `--help` lists them; `main.py` starts them without this
module.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from spotelastic import __version__
from spotelastic.cli.commands import (
    ckpt,
    doctor,
    dump,
    files,
    interrupt,
    lifecycle,
    replay,
    script,
    shell,
    status,
    up,
)
from spotelastic.cli.commands.kube.kube_commands import app as kube_app
from spotelastic.cli.options import up as options
from spotelastic.cli.options.help_pages import PagedCommand
from spotelastic.cli.options.placed import placed
from spotelastic.client.config import config_file
from spotelastic.client.kubernetes.pod_config import PodConfig
from spotelastic.client.operator.fields import rendered

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


@app.callback(epilog="Try it on this machine: [bold]spotelastic up --local --min 2 train.py[/]")
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand == "up":
        configured = config_file.defaults(Path.cwd(), os.environ, PodConfig)
        context.default_map = {"up": options.as_typed(configured, PodConfig)}
    if context.invoked_subcommand == "kube":
        configured = config_file.defaults(Path.cwd(), os.environ, PodConfig)
        its = {name: value for name, value in configured.items() if name in rendered()}
        context.default_map = {"kube": {"render": options.as_typed(its, PodConfig)}}


_START, _WATCH, _CHANGE = "Start a job", "Watch it", "Change it"
_FILES, _END, _OTHERS = "Files and checkpoints", "End or restart it", "More"
_TO_SCRIPT = {"allow_interspersed_args": False}
"""Everything after the script is passed to the script."""


def _add(panel: str, name: str, command: Callable[..., None], epilog: str, **settings: Any) -> None:
    # Lines of a paragraph are joined: the terminal breaks them where it ends.
    text = "\n\n".join(" ".join(each.split()) for each in (command.__doc__ or "").split("\n\n"))
    how: Any = {"rich_help_panel": panel, "cls": settings.pop("cls", None)}
    app.command(name, help=text, epilog=epilog, context_settings=settings, **how)(command)


_add(_START, "init", script.init, script.INIT_EXAMPLES, **options.SINGULAR)
_add(_START, "adapt", script.adapt, script.ADAPT_EXAMPLES)
_add(_START, "rehearse", script.rehearse, script.REHEARSE_EXAMPLES, **_TO_SCRIPT)
_add(_START, "doctor", doctor.doctor, doctor.EXAMPLES, **options.SINGULAR)
_add(_START, "up", up.up, up.EXAMPLES, cls=PagedCommand, **_TO_SCRIPT, **options.SINGULAR)


@app.command("run", rich_help_panel=_START)
def _run() -> None:
    """Run a script elastically on machines you already have, in place of torchrun."""


_add(_WATCH, "ls", placed(status.ls), status.LS_EXAMPLES)
_add(_WATCH, "status", placed(status.status), status.STATUS_EXAMPLES)
_add(_WATCH, "logs", placed(status.logs), status.LOGS_EXAMPLES)
_add(_WATCH, "events", placed(status.events), status.EVENTS_EXAMPLES)
_add(_WATCH, "report", placed(status.report), status.REPORT_EXAMPLES)
_add(_WATCH, "dashboard", placed(status.dashboard), status.DASHBOARD_EXAMPLES)
_add(_CHANGE, "scale", placed(lifecycle.scale), lifecycle.SCALE_EXAMPLES)
_add(_CHANGE, "move", lifecycle.move, lifecycle.MOVE_EXAMPLES)
_add(_CHANGE, "interrupt", placed(interrupt.interrupt), interrupt.INTERRUPT_EXAMPLES)
_add(_CHANGE, "shell", shell.shell, shell.EXAMPLES)
_add(_FILES, "files", placed(files.files), files.EXAMPLES)
app.add_typer(ckpt.app, name="ckpt", rich_help_panel=_FILES)
_add(_END, "stop", placed(lifecycle.stop), lifecycle.STOP_EXAMPLES)
_add(_END, "restart", placed(lifecycle.restart), lifecycle.RESTART_EXAMPLES)
_add(_END, "down", placed(interrupt.down), interrupt.DOWN_EXAMPLES)
app.add_typer(kube_app, name="kube", rich_help_panel=_OTHERS)
_add(_OTHERS, "replay", replay.replay, replay.EXAMPLES)
_add(_OTHERS, "dump", dump.dump, dump.EXAMPLES)


@app.command("boot", hidden=True)
def _boot() -> None:
    """Run what an instance runs when it starts."""
