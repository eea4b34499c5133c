"""Reads `spotelastic.toml` and the `SPOTELASTIC_*` variables, which give default values for the
flags of `up`.

The keys are the names of the flags. A flag on the command line wins over its variable, and the
variable over the file. In a variable, a repeated flag's values are separated by commas; the
script's arguments are split as a shell does.
"""

import difflib
import json
import shlex
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from spotelastic.errors import UsageError

FILE = "spotelastic.toml"
SCRIPT = "train.py"
"""The script that is used if none is given."""
ONCE = ("fresh",)
"""Flags that must not be in the file, where they would apply to every `up`."""


class Parameter(Protocol):
    """The attributes of a command's parameter that are needed here; click's class has them."""

    name: str | None
    opts: list[str]
    nargs: int

    def process_value(self, ctx: Any, value: Any) -> Any: ...


def defaults(
    parameters: Iterable[Parameter], context: Any, folder: Path, environ: Mapping[str, str]
) -> dict[str, Any]:
    """Return the value for each parameter, from variables first and then the file in `folder`.

    Raises `UsageError`.
    """
    flags = {_flag(parameter): parameter for parameter in parameters}
    values = {}
    for key, value in read(folder / FILE).items():
        if key not in flags:
            raise UsageError(f"{FILE}: there is no key {key}{_nearest(key, flags)}")
        if key in ONCE:
            raise UsageError(f"{FILE}: {key} is for a single command: give it as --{key}")
        values[key] = _checked(flags[key], context, f"{FILE}: {key}", value)
    for key, parameter in flags.items():
        variable = _variable(key)
        if text := environ.get(variable):
            value = _divided(parameter, variable, text)
            values[key] = _checked(parameter, context, variable, value)
    return {str(flags[key].name): value for key, value in values.items()}


def configured(key: str, folder: Path, environ: Mapping[str, str]) -> str | None:
    """Return what the variable, else the file, says for one flag with a text value.

    For other commands that must look where `up` does. Raises `UsageError`.
    """
    value = environ.get(_variable(key)) or read(folder / FILE).get(key)
    return None if value in (None, "") else str(value)


def read(path: Path) -> dict[str, Any]:
    """Return the contents of the file; empty if it does not exist."""
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path.name} is not TOML: {error}") from None


def template(script: str, minimum: int, maximum: int, types: Sequence[str]) -> str:
    """Return the file that `init` writes."""
    listed = ", ".join(json.dumps(name) for name in types or ("g5.xlarge",))
    unsaid = "" if types else "# "
    return f"""\
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


def _flag(parameter: Parameter) -> str:
    """Return a parameter's key: `instance-types` for --instance-types, an argument's own name."""
    return parameter.opts[0].lstrip("-")


def _variable(key: str) -> str:
    return f"SPOTELASTIC_{key.replace('-', '_').upper()}"


def _divided(parameter: Parameter, variable: str, text: str) -> str | list[str]:
    """Split a variable's text if its parameter takes several values."""
    if _is_list(parameter):
        return text.split(",")
    if parameter.nargs == 1:
        return text
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{variable} = {json.dumps(text)}: {str(error).lower()}") from error


def _checked(parameter: Parameter, context: Any, where: str, value: Any) -> Any:
    """Validate a value through its flag and return it. Lists and tables may be written as such."""
    if _is_list(parameter):
        if isinstance(value, dict):
            value = [f"{name}={each}" for name, each in value.items()]
        value = value if isinstance(value, list) else [value]
    elif isinstance(value, list) and parameter.nargs == 1:
        value = ",".join(map(str, value))
    try:
        parameter.process_value(context, value)
    except Exception as error:
        say = getattr(error, "message", error)
        raise UsageError(f"{where} = {json.dumps(value, default=str)}: {say}") from error
    return value


def _is_list(parameter: Parameter) -> bool:
    """Whether the flag can be repeated; an argument has no such attribute."""
    return bool(getattr(parameter, "multiple", False))


def _nearest(key: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(key.replace("_", "-"), known, n=1)
    return f": did you mean {near[0]}?" if near else ""
