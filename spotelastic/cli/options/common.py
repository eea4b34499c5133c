"""Defines the arguments and options that several commands share."""

from typing import Annotated

import typer

Name = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help="The cluster. May be omitted if exactly one exists."),
]
Where = Annotated[
    bool | None,
    typer.Option(
        "--local/--aws",
        help="Look only on this machine, or only on AWS. Default: here if a local cloud runs.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
# No envvar here: typer's would win over spotelastic.toml, even AWS's own AWS_REGION.
Region = Annotated[
    str | None,
    typer.Option(
        help="AWS region.", show_default="from spotelastic.toml, else from AWS's configuration"
    ),
]
