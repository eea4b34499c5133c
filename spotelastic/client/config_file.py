"""`spotelastic.toml`: what `up` would otherwise be told by its flags, kept beside the script.

The keys are the flags' names. A flag on the command line wins over `SPOTELASTIC_<FLAG>` (with
commas where the flag may be given several times, as a shell reads it for the script's arguments),
and that over the file.
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
"""The script where nothing else is said."""
ONCE = ("fresh",)
"""Flags that the file may not repeat with every `up`."""


class Parameter(Protocol):
    """What is needed to know of one of a command's parameters (click's class has it)."""

    name: str | None
    opts: list[str]
    nargs: int

    def process_value(self, ctx: Any, value: Any) -> Any: ...


def defaults(
    parameters: Iterable[Parameter], context: Any, folder: Path, environ: Mapping[str, str]
) -> dict[str, Any]:
    """By parameter: what the variables, and then the folder's file, say. Raises `UsageError`."""
    flags = {_flag(parameter): parameter for parameter in parameters}
    values = {}
    for key, value in read(folder / FILE).items():
        if key not in flags:
            raise UsageError(f"{FILE}: there is no key {key}{_nearest(key, flags)}")
        if key in ONCE:
            raise UsageError(f"{FILE}: {key} is for one command, not for each: give it as --{key}")
        values[key] = _checked(flags[key], context, f"{FILE}: {key}", value)
    for key, parameter in flags.items():
        variable = _variable(key)
        if text := environ.get(variable):
            value = _divided(parameter, variable, text)
            values[key] = _checked(parameter, context, variable, value)
    return {str(flags[key].name): value for key, value in values.items()}


def told(key: str, folder: Path, environ: Mapping[str, str]) -> str | None:
    """What the variable, or else the folder's file, says of a flag whose value is text: for
    commands that must look where `up` was told to. Raises `UsageError`."""
    value = environ.get(_variable(key)) or read(folder / FILE).get(key)
    return None if value in (None, "") else str(value)


def read(path: Path) -> dict[str, Any]:
    """Empty where there is no such file."""
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path.name} is not TOML: {error}") from None


def template(script: str, minimum: int, maximum: int, types: Sequence[str]) -> str:
    """What `init` writes."""
    listed = ", ".join(json.dumps(name) for name in types or ("g5.xlarge",))
    unsaid = "" if types else "# "
    return f"""\
# What `spotelastic up` does here. Each key is one of its flags, which still win:
# see `spotelastic up --help`.
script = {json.dumps(script)}
# args = ["--epochs", "3"]
# On a cloud that this machine emulates, instead of AWS:
# local = true

min = {minimum}
max = {maximum}
# Without these: the cheapest GPU types that the account's quota allows, or the cheapest that have
# what is said by gpus = 8 and gpu-memory = "40GB".
{unsaid}instance-types = [{listed}]

# Packages come from uv.lock, requirements.txt or environment.yml here; none: "none".
# environment = "requirements.txt"
# setup = "python -m nltk.downloader punkt"
# env = ["EPOCHS=3"]
# secret = ["WANDB_API_KEY"]
# read = ["s3://bucket/data"]

# Between snapshots in memory, and between checkpoints in S3, in steps or as a time; by default as
# often as pays, by what they cost and how often nodes are lost.
# snapshot-every = 20
# checkpoint-every = "10m"
# keep-last = 3

# All workers side by side, in a placement group of one zone.
# placement = "cluster"

# A network of yours that nodes are put into: one subnet a zone.
# vpc = "vpc-0a1b2c3d"
# subnets = ["subnet-0a", "subnet-0b", "subnet-0c"]

# How long the cluster stays after its job where nobody takes it down.
# linger = "10m"
"""


def _flag(parameter: Parameter) -> str:
    """--instance-types is `instance-types`; an argument goes by its own name."""
    return parameter.opts[0].lstrip("-")


def _variable(key: str) -> str:
    return f"SPOTELASTIC_{key.replace('-', '_').upper()}"


def _divided(parameter: Parameter, variable: str, text: str) -> str | list[str]:
    """The words of a variable, where what it stands for takes several."""
    if _is_list(parameter):
        return text.split(",")
    if parameter.nargs == 1:
        return text
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{variable} = {json.dumps(text)}: {str(error).lower()}") from error


def _checked(parameter: Parameter, context: Any, where: str, value: Any) -> Any:
    """The value as the flag's own text would be, so that lists can be written as lists."""
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
    """Whether the flag may be given several times; an argument has no such attribute."""
    return bool(getattr(parameter, "multiple", False))


def _nearest(key: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(key.replace("_", "-"), known, n=1)
    return f": did you mean {near[0]}?" if near else ""
