"""Shows `spotelastic run --help` in the look of all other commands.

The typer application made here is only for the help; it runs nothing.
"""

import inspect
from typing import Annotated, Any

import typer

from spotelastic.launcher.flags import GROUPS, Flag

EXAMPLES = """[bold]Examples[/]

spotelastic run --standalone --nproc-per-node gpu train.py --epochs 3

spotelastic run --nnodes 2:4 --rdzv-endpoint a:2379,b:2379,c:2379 --rdzv-id job7 train.py

spotelastic run --nnodes 2:9 --rdzv-backend c10d --rdzv-endpoint a,b,c -m my.training

spotelastic run --storage s3://bucket/job7 --fresh train.py
"""


def run() -> None:
    """Run a script elastically on machines you already have, in place of torchrun.

    Flags come before the script; everything after it is passed to the script.

    A flag may be written with underscores, or shortened if that is unambiguous.
    It may also be a variable: PET_NNODES=2, or SPOTELASTIC_KEEP_LAST=5.
    """


def show() -> None:
    """Print the help to stdout."""
    fold_long_names()
    application()(["--help"], prog_name="spotelastic run", standalone_mode=False)


def fold_long_names() -> None:
    """Break names of options that are too long for the terminal, where typer would cut them off."""
    from rich.text import Text
    from typer import rich_utils

    def folding(highlighter: Any) -> Any:
        class Folding(highlighter):  # type: ignore[misc]
            def __call__(self, text: str | Text) -> Text:
                shown: Text = super().__call__(text)
                shown.overflow = "fold"
                return shown

        return Folding()

    rich_utils.highlighter = folding(rich_utils.OptionHighlighter)
    rich_utils.negative_highlighter = folding(rich_utils.NegativeOptionHighlighter)


def application() -> typer.Typer:
    """Return a typer application with the flags of `spotelastic run`, for help and reference."""
    parameters = [
        _parameter(
            "script",
            typer.Argument(help="A Python file; with -m a module, with --no-python a program."),
        ),
        _parameter("args", typer.Argument(help="Arguments of the script."), list[str]),
    ]
    for title, flags in GROUPS.items():
        parameters += [_parameter(flag.dest, _option(flag, title), _kind(flag)) for flag in flags]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.command("run", epilog=EXAMPLES)(run)
    return app


def _parameter(name: str, shown: Any, kind: Any = str) -> inspect.Parameter:
    kind = Annotated[kind | None, shown]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def _kind(flag: Flag) -> Any:
    return bool if flag.read is bool else str


def _option(flag: Flag, title: str) -> Any:
    names = [name for name in flag.names.split() if "_" not in name]
    return typer.Option(
        *names,
        help=_sentence(flag.help),
        metavar=flag.metavar or None,
        rich_help_panel=title[0].upper() + title[1:],
        show_default=False,
    )


def _sentence(text: str) -> str:
    first = text.split(maxsplit=1)[0]
    return f"{text[0].upper() if first.isalpha() else text[0]}{text[1:]}."
