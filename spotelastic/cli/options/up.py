"""Makes the options of `up` from the fields of `JobConfig`."""

from collections.abc import Collection, Mapping
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import typer

from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.config.option import ConfigField, ValueKind, config_fields

_TYPES: Mapping[ValueKind, Any] = {
    ValueKind.SWITCH: bool,
    ValueKind.WHOLE: int,
    ValueKind.NUMBER: float,
    ValueKind.TEXT: str,
    ValueKind.PATH: Path,
    ValueKind.LIST: list[str],
}
"""What typer reads a value as."""


def _plural(name: str) -> str:
    return "instance-types" if name == "instance-type" else name


SINGULAR: dict[str, Any] = {"token_normalize_func": _plural}
"""Context settings with which a command also accepts --instance-type.

As a second name of the option it would make `--help` too wide for 80 columns.
"""


def signature(config: type[JobConfig] = JobConfig) -> Signature:
    """Return the signature of a command that takes the context and each field of the config."""
    context = Parameter("call", Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    return Signature([context, *parameters(config)])


def parameters(
    config: type[JobConfig] = JobConfig, only: Collection[str] | None = None
) -> list[Parameter]:
    """Return a command's parameters for the fields of the config, or for those named alone."""
    kind = Parameter.POSITIONAL_OR_KEYWORD
    return [
        Parameter(field.name, kind, default=_default(field), annotation=_annotation(field))
        for field in config_fields(config)
        if only is None or field.name in only
    ]


def described(name: str) -> Any:
    """Return the option of one field, for the commands that share it with `up`."""
    (field,) = (field for field in config_fields(JobConfig) if field.name == name)
    return _info(field)


def as_typed(values: Mapping[str, Any], config: type[JobConfig] = JobConfig) -> dict[str, Any]:
    """Return values of fields as typer would read them from a command line."""
    fields = {field.name: field for field in config_fields(config)}
    return {
        name: ",".join(value) if fields[name].commas else value for name, value in values.items()
    }


def _annotation(field: ConfigField) -> Any:
    type_ = str if field.commas else _TYPES[field.kind]
    return Annotated[type_ if _default(field) is not None else type_ | None, _info(field)]


def _default(field: ConfigField) -> Any:
    return None if field.kind is ValueKind.LIST else field.default


def _info(field: ConfigField) -> Any:
    """Return typer's description of the argument or option."""
    shown = field.shown_default or True
    if field.argument:
        return typer.Argument(help=field.help, show_default=shown)
    return typer.Option(
        *_spellings(field),
        help=field.help,
        metavar=field.metavar,
        min=field.least,
        show_default=shown,
        rich_help_panel=field.panel,
    )


def _spellings(field: ConfigField) -> tuple[str, ...]:
    flag = f"{field.flag}/--{field.off}" if field.off else field.flag
    return (flag, f"-{field.short}") if field.short else (flag,)


EnvironmentFile = Annotated[str | None, described("environment")]
Deadline = Annotated[str | None, described("deadline")]
MaxCost = Annotated[float | None, described("max_cost")]
InstanceTypes = Annotated[str | None, described("instance_types")]
"""Options of other commands that mean the same there."""
