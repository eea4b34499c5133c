"""The command line: one file per group of commands, and nothing heavy before a command runs.

A mistake of the user's, or of the machine, ends as one line on stderr and the exit code of its
class (errors.py); only a defect of spotelastic's own shows a traceback.
"""

import os
import signal
import sys
from typing import Annotated

import typer

from spotelastic import __version__
from spotelastic.cli import show, steer, up
from spotelastic.errors import SpotelasticError

app = typer.Typer(
    name="spotelastic",
    help="Train on spot GPUs as if they were never taken away.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
PASS_THROUGH = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,  # what follows the script is left as it is, `--` too
    "help_option_names": [],
}


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"spotelastic {__version__}")
        raise typer.Exit


@app.callback(
    epilog="Try it on this machine: [bold]spotelastic up --local --drill examples/train_gpt.py[/]"
)
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


app.command("up", epilog=up.EXAMPLES)(up.up)
app.command("ls", epilog=show.LS_EXAMPLES)(show.ls)
app.command("status", epilog=show.STATUS_EXAMPLES)(show.status)
app.command("logs", epilog=show.LOGS_EXAMPLES)(show.logs)
app.command("events", epilog=show.EVENTS_EXAMPLES)(show.events)
app.command("report", epilog=show.REPORT_EXAMPLES)(show.report)
app.command("interrupt", epilog=steer.INTERRUPT_EXAMPLES)(steer.interrupt)
app.command("down", epilog=steer.DOWN_EXAMPLES)(steer.down)


@app.command("run", context_settings=PASS_THROUGH, add_help_option=False)
def _run(context: typer.Context) -> None:
    """Run a script elastically on machines you already have, as torchrun does."""
    from spotelastic.cli.run import main as run

    raise typer.Exit(run(context.args))


@app.command("boot", context_settings=PASS_THROUGH, add_help_option=False, hidden=True)
def _boot(context: typer.Context) -> None:
    """What an instance runs when it starts."""
    from spotelastic.cli.boot import main as boot

    raise typer.Exit(boot(context.args))


def main() -> None:
    """Entry point of the `spotelastic` command."""
    try:
        sys.exit(app(sys.argv[1:] or ["--help"], prog_name="spotelastic", standalone_mode=False))
    except SpotelasticError as error:
        _fail(str(error), error.exit_code)
    except BrokenPipeError:  # who read our output has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except Exception as error:
        told = _told_by_parser(error) or _told_by_aws(error)
        if told is None:
            raise
        _fail(told, 2)


def _fail(message: str, code: int) -> None:
    print(f"spotelastic: {message}", file=sys.stderr)
    sys.exit(code)


def _told_by_parser(error: Exception) -> str | None:
    """One line for what the command line's parser has to say; None for anything else.

    Typer does not export the base of its errors; what they have in common is this method.
    """
    say = getattr(error, "format_message", None)
    if say is None:
        return None
    command = getattr(getattr(error, "ctx", None), "command_path", "spotelastic")
    return f"{say().rstrip('.')} (see `{command} --help`)"


def _told_by_aws(error: Exception) -> str | None:
    """One line for what AWS, or the way to it, has to say; None for anything else.

    Only looks at botocore's classes where something has imported them already.
    """
    exceptions = sys.modules.get("botocore.exceptions")
    if exceptions is None:
        return None
    if isinstance(error, exceptions.NoCredentialsError | exceptions.NoRegionError):
        return (
            f"{str(error).rstrip('.')}: configure the AWS account to use, "
            "or add --local to use this machine"
        )
    if isinstance(error, exceptions.BotoCoreError | exceptions.ClientError):
        return f"AWS: {error}"
    return None
