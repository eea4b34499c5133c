"""Assembles the `spotelastic` command line: registers every command with typer.

`run` and `boot` appear here only so that `--help` lists them; `main.py` starts them without this
module.
"""

import os
from pathlib import Path
from typing import Annotated

import typer

from spotelastic import __version__
from spotelastic.cli.commands import (
    ckpt,
    doctor,
    dump,
    files,
    interrupt,
    lifecycle,
    notify,
    replay,
    script,
    shell,
    status,
    up,
)
from spotelastic.cli.commands.kube.kube_commands import app as kube_app
from spotelastic.cli.options import up as options
from spotelastic.cli.options.placed import placed
from spotelastic.client.config import config_file
from spotelastic.client.kubernetes.pod_config import RENDERED, PodConfig

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
        rendered = {name: value for name, value in configured.items() if name in RENDERED}
        context.default_map = {"kube": {"render": options.as_typed(rendered, PodConfig)}}


app.command("init", epilog=script.INIT_EXAMPLES, context_settings=options.SINGULAR)(script.init)
app.command("new-script", epilog=script.NEW_EXAMPLES)(script.new_script)
app.command("adapt", epilog=script.ADAPT_EXAMPLES)(script.adapt)
app.command(
    "rehearse",
    epilog=script.REHEARSE_EXAMPLES,
    context_settings={"allow_interspersed_args": False},
)(script.rehearse)
app.command(
    "up",
    epilog=up.EXAMPLES,
    # Everything after the script is passed to the script.
    context_settings={"allow_interspersed_args": False, **options.SINGULAR},
)(up.up)
app.command("doctor", epilog=doctor.EXAMPLES, context_settings=options.SINGULAR)(doctor.doctor)
app.command("notify", epilog=notify.EXAMPLES)(notify.notify)
app.command("ls", epilog=status.LS_EXAMPLES)(placed(status.ls))
app.command("status", epilog=status.STATUS_EXAMPLES)(placed(status.status))
app.command("logs", epilog=status.LOGS_EXAMPLES)(placed(status.logs))
app.command("events", epilog=status.EVENTS_EXAMPLES)(placed(status.events))
app.command("report", epilog=status.REPORT_EXAMPLES)(placed(status.report))
app.command("files", epilog=files.FILES_EXAMPLES)(placed(files.files))
app.command("fetch", epilog=files.FETCH_EXAMPLES)(placed(files.fetch))
app.command("cost", epilog=status.COST_EXAMPLES)(placed(status.cost))
app.command("dashboard", epilog=status.DASHBOARD_EXAMPLES)(placed(status.dashboard))
app.command("stop", epilog=lifecycle.STOP_EXAMPLES)(placed(lifecycle.stop))
app.command("restart", epilog=lifecycle.RESTART_EXAMPLES)(placed(lifecycle.restart))
app.command("scale", epilog=lifecycle.SCALE_EXAMPLES)(placed(lifecycle.scale))
app.command("interrupt", epilog=interrupt.INTERRUPT_EXAMPLES)(placed(interrupt.interrupt))
app.command("move", epilog=lifecycle.MOVE_EXAMPLES)(lifecycle.move)
app.command("drill", epilog=interrupt.DRILL_EXAMPLES)(placed(interrupt.drill))
app.command("replay", epilog=replay.EXAMPLES)(replay.replay)
app.command("dump", epilog=dump.EXAMPLES)(dump.dump)
app.command("down", epilog=interrupt.DOWN_EXAMPLES)(placed(interrupt.down))
app.command("shell", epilog=shell.SHELL_EXAMPLES)(shell.shell)
app.command("forward", epilog=shell.FORWARD_EXAMPLES)(shell.forward)
app.add_typer(ckpt.app, name="ckpt")
app.add_typer(kube_app, name="kube")


@app.command("run")
def _run() -> None:
    """Run a script elastically on machines you already have, in place of torchrun."""


@app.command("boot", hidden=True)
def _boot() -> None:
    """Run what an instance runs when it starts."""
