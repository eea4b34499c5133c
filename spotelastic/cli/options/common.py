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
# No variable here: one of typer's would win over spotelastic.toml, also where it is AWS's.
Region = Annotated[
    str | None,
    typer.Option(
        help="AWS region.", show_default="that of spotelastic.toml, else of AWS's configuration"
    ),
]
