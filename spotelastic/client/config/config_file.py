"""Reads `spotelastic.toml` and the `SPOTELASTIC_*` variables.

These give default values for the flags of `up`.

The keys are the names of the flags, which are the fields of `JobConfig`. A flag on the command line
wins over its variable, and the variable over the file.
"""

import difflib
import json
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.config.option import ConfigField, config_fields
from spotelastic.client.config.panels import PODS
from spotelastic.errors import UsageError

FILE = "spotelastic.toml"
TABLE = "kubernetes."
"""Before the keys about pods, which are in a table of their own."""


def defaults(
    folder: Path, environ: Mapping[str, str], config: type[JobConfig] = JobConfig
) -> dict[str, Any]:
    """Return the values of the fields that the variables, else the file in `folder`, set.

    Raises `UsageError`.
    """
    fields = {field.key: field for field in config_fields(config)}
    values = {}
    for where, key, value in _entries(read(folder / FILE), config):
        if key not in fields or (fields[key].panel == PODS) != (where == TABLE):
            raise UsageError(f"{FILE}: there is no key {where}{key}{_nearest(key, fields)}")
        field = fields[key]
        if not field.in_file:
            raise UsageError(f"{FILE}: {key} is for a single command: give it as --{key}")
        values[field.name] = _checked(field, field.read_entry, f"{FILE}: {where}{key}", value)
    for field in fields.values():
        if text := environ.get(field.variable):
            values[field.name] = _checked(field, field.read_variable, field.variable, text)
    return values


def _entries(found: Mapping[str, Any], config: type) -> Iterator[tuple[str, str, Any]]:
    """Yield what is before each key, the key and its value.

    The table about pods is passed over for a config without fields about them.
    """
    table = TABLE.removesuffix(".")
    yield from (("", key, value) for key, value in found.items() if key != table)
    pods = found.get(table, {})
    if not isinstance(pods, Mapping):
        raise UsageError(f"{FILE}: {table} is a table: [{table}]")
    if any(field.panel == PODS for field in config_fields(config)):
        yield from ((TABLE, key, value) for key, value in pods.items())


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
    except RecursionError:
        raise UsageError(f"{path.name} is nested too deeply") from None


def _checked(field: ConfigField, read: Callable[[Any], Any], where: str, value: Any) -> Any:
    """Return the value as its field holds it. Raises `UsageError`."""
    try:
        return read(value)
    except ValueError as error:
        told = field.shown(json.dumps(value, default=str))
        raise UsageError(f"{where} = {told}: {error}") from None


def _nearest(key: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(key.replace("_", "-"), known, n=1)
    return f": did you mean {near[0]}?" if near else ""
