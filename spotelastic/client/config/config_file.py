"""Reads `spotelastic.toml` and the `SPOTELASTIC_*` variables, which give default values for the
flags of `up`.

The keys are the names of the flags, which are the fields of `JobConfig`. A flag on the command line
wins over its variable, and the variable over the file.
"""

import difflib
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.config.option import config_fields
from spotelastic.errors import UsageError

FILE = "spotelastic.toml"


def defaults(
    folder: Path, environ: Mapping[str, str], config: type[JobConfig] = JobConfig
) -> dict[str, Any]:
    """Return the values of the fields that the variables, else the file in `folder`, set.

    Raises `UsageError`.
    """
    fields = {field.key: field for field in config_fields(config)}
    values = {}
    for key, value in read(folder / FILE).items():
        if key not in fields:
            raise UsageError(f"{FILE}: there is no key {key}{_nearest(key, fields)}")
        field = fields[key]
        if not field.in_file:
            raise UsageError(f"{FILE}: {key} is for a single command: give it as --{key}")
        values[field.name] = _checked(field.read, f"{FILE}: {key}", value)
    for field in fields.values():
        if text := environ.get(field.variable):
            values[field.name] = _checked(field.read_variable, field.variable, text)
    return values


def configured(name: str, folder: Path, environ: Mapping[str, str]) -> str | None:
    """Return what the variable, else the file, says for one field with a text value.

    For other commands that must look where `up` does. Raises `UsageError`.
    """
    (field,) = (field for field in config_fields(JobConfig) if field.name == name)
    value = environ.get(field.variable) or read(folder / FILE).get(field.key)
    return None if value in (None, "") else str(value)


def read(path: Path) -> dict[str, Any]:
    """Return the contents of the file; empty if it does not exist."""
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path.name} is not TOML: {error}") from None


def template(script: str, minimum: int, maximum: int, types: Sequence[str], schema: str) -> str:
    """Return the file that `init` writes. `schema` is the line that names its JSON schema."""
    listed = ", ".join(json.dumps(name) for name in types or ("g5.xlarge",))
    unsaid = "" if types else "# "
    return f"""\
{schema}
# Settings of `spotelastic up` in this folder. Each key is one of its flags; a flag on the command
# line wins. See `spotelastic up --help`.
script = {json.dumps(script)}
# args = ["--epochs", "3"]
# Use a cloud emulated on this machine, in place of AWS:
# local = true

min = {minimum}
max = {maximum}
# If not set: the cheapest GPU types in the account's quota, or the cheapest that also have what
# is given by gpus = 8 and gpu-memory = "40GB".
{unsaid}instance-types = [{listed}]

# Packages come from uv.lock, requirements.txt or environment.yml in this folder; or "none".
# environment = "requirements.txt"
# setup = "python -m nltk.downloader punkt"
# env = ["EPOCHS=3"]
# secret = ["WANDB_API_KEY"]
# read = ["s3://bucket/data"]

# Intervals of snapshots in memory and of checkpoints in S3, in steps or as a time. By default they
# are computed from what saving costs and how often nodes are lost.
# snapshot-every = 20
# checkpoint-every = "10m"
# keep-last = 3

# Put all worker nodes into one placement group, in one zone.
# placement = "cluster"

# Use an existing VPC, with one subnet per zone.
# vpc = "vpc-0a1b2c3d"
# subnets = ["subnet-0a", "subnet-0b", "subnet-0c"]

# How long the cluster stays after its job if it is left up.
# linger = "10m"
"""


def _checked(read: Callable[[Any], Any], where: str, value: Any) -> Any:
    """Return the value as its field holds it. Raises `UsageError`."""
    try:
        return read(value)
    except ValueError as error:
        raise UsageError(f"{where} = {json.dumps(value, default=str)}: {error}") from None


def _nearest(key: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(key.replace("_", "-"), known, n=1)
    return f": did you mean {near[0]}?" if near else ""
