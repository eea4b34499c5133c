"""Defines the command `notify`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from spotelastic.cli.options.common import AsJson, Region
from spotelastic.client.config import config_file
from spotelastic.client.config.job_config import JobConfig

EXAMPLES = """[bold]Examples[/]

spotelastic notify SLACK_URL

spotelastic notify json://127.0.0.1:8080/hook

spotelastic notify
"""


def notify(
    urls: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[URL|NAME]...",
            help="URLs of Apprise's, sns:ARN, or variables that hold one; by default those that "
            "`up` would use here.",
            show_default=False,
        ),
    ] = None,
    region: Region = None,
    json: AsJson = False,
) -> None:
    """Send a trial to where `up --notify` would tell of the job, from this machine.

    It ends with 0 if all of them took it, and with 2 otherwise.
    """
    from spotelastic.aws.base.clients import Aws
    from spotelastic.cli.render import tables
    from spotelastic.client.config import variables
    from spotelastic.client.trial_notification import try_receivers

    configured = JobConfig(**config_file.defaults(Path.cwd(), os.environ))
    file = configured.env_file
    known = {**os.environ, **({} if file is None else variables.read(Path(file)))}
    aws = Aws(region or configured.region)
    found = try_receivers(urls or configured.notify, known, aws)
    tables.show(found, tables.trials_table, as_json=json)
    raise typer.Exit(0 if all(each.delivered for each in found) else 2)
