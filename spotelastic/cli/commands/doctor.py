"""Defines the command `doctor`."""

import os
from pathlib import Path

import typer

from spotelastic.cli.options import up as options
from spotelastic.cli.options.common import AsJson, Region, Where
from spotelastic.client.config import config_file
from spotelastic.client.config.job_config import JobConfig

EXAMPLES = """[bold]Examples[/]

spotelastic doctor

spotelastic doctor --local

spotelastic doctor --aws --instance-types g5.12xlarge

spotelastic doctor --json | jq '.findings[] | select(.state == "missing")'
"""


def doctor(
    where: Where = None,
    region: Region = None,
    types: options.InstanceTypes = None,
    json: AsJson = False,
) -> None:
    """Look at this machine and the AWS account: what is here, what is missing, what to do.

    Nothing is changed. With --local or --aws, or with what spotelastic.toml says, it counts as
    missing what that needs. It ends with 0 if nothing is missing, with 1 if something did not
    answer in time, and with 2 if something is missing.
    """
    from spotelastic.cli.render import tables
    from spotelastic.cli.render.findings import findings_table
    from spotelastic.client.doctor.examine import Needs, examine, looks

    configured = JobConfig(**config_file.defaults(Path.cwd(), os.environ))
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
