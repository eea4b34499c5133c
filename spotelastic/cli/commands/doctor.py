"""Defines the command `doctor`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from spotelastic.cli.options import up as options
from spotelastic.cli.options.common import AsJson, Region, Where
from spotelastic.client.config import config_file
from spotelastic.client.config.job_config import JobConfig

EXAMPLES = """[bold]Examples[/]

spotelastic doctor

spotelastic doctor --local

spotelastic doctor --aws --instance-types g5.12xlarge

spotelastic doctor --notify

spotelastic doctor --json | jq '.findings[] | select(.state == "missing")'
"""


def doctor(
    notify: Annotated[
        bool,
        typer.Option(
            "--notify",
            help="Only send a test notification from here to the receivers of `up --notify`.",
        ),
    ] = False,
    where: Where = None,
    region: Region = None,
    types: options.InstanceTypes = None,
    json: AsJson = False,
) -> None:
    """Look at this machine and the AWS account: what is here, what is missing, what to do.

    Nothing is changed. With --local or --aws, or with what spotelastic.toml says, it counts as
    missing what that needs. It ends with 0 if nothing is missing, with 1 if something did not
    answer in time, and with 2 if something is missing, or a trial was not taken.
    """
    configured = JobConfig(**config_file.defaults(Path.cwd(), os.environ))
    if notify:
        _try_receivers(configured, region, as_json=json)
    from spotelastic.cli.render import tables
    from spotelastic.cli.render.findings import findings_table
    from spotelastic.client.doctor.examine import Needs, examine, looks

    given = JobConfig(instance_types=types or configured.instance_types)
    local = configured.local if where is None else where
    needs = Needs(
        local=local,
        aws=where is False,
        region=region or configured.region or os.environ.get("AWS_REGION"),
        types=given.instance_types,
        bucket=configured.bucket,
    )
    found = examine(looks(needs))
    tables.show(found, findings_table, as_json=json)
    raise typer.Exit(found.exit_code)


def _try_receivers(configured: JobConfig, region: str | None, *, as_json: bool) -> None:
    from spotelastic.aws.base.clients import Aws
    from spotelastic.cli.render import tables
    from spotelastic.client.config import variables
    from spotelastic.client.trial_notification import try_receivers

    file = configured.env_file
    known = {**os.environ, **({} if file is None else variables.read(Path(file)))}
    found = try_receivers(configured.notify, known, Aws(region or configured.region))
    tables.show(found, tables.trials_table, as_json=as_json)
    raise typer.Exit(2 if any(found.values()) else 0)
