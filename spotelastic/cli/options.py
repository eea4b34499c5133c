"""Arguments and options that several commands share."""

from typing import Annotated

import typer

Name = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help="The cluster; may be left out where exactly one exists."),
]
Where = Annotated[
    bool | None,
    typer.Option(
        "--local/--aws",
        help="Look on this machine or on AWS only. Default: here if a local cloud runs.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Region = Annotated[
    str | None, typer.Option(help="AWS region.", envvar="AWS_REGION", show_envvar=True)
]
