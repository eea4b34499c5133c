"""Makes the JSON schema of `spotelastic.toml`, by which editors complete and check it.

The package contains it as `spotelastic/spotelastic.schema.json`. This prints it:

    python -m spotelastic.client.config.schema
"""

import json
from pathlib import Path
from typing import Any

import spotelastic
from spotelastic.client.config.config_file import TABLE
from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.config.option import ConfigField, Effect, ValueKind, config_fields
from spotelastic.client.config.options.pods import PodOptions

PUBLISHED = Path(spotelastic.__file__).with_name("spotelastic.schema.json")
_EFFECTS = {
    Effect.CLUSTER: "A cluster that is up keeps what it has.",
    Effect.UP: "`spotelastic up` changes it on a cluster that is up.",
    Effect.SCALE: "`spotelastic up` and `spotelastic scale` change it on a cluster that is up.",
    Effect.COMMAND: "It counts for each command anew.",
}
_TEXT: dict[str, Any] = {"type": ["string", "number"]}
_TYPES: dict[ValueKind, dict[str, Any]] = {
    ValueKind.SWITCH: {"type": "boolean"},
    ValueKind.WHOLE: {"type": "integer"},
    ValueKind.NUMBER: {"type": "number"},
    ValueKind.TEXT: {"type": "string"},
    ValueKind.PATH: {"type": "string"},
    ValueKind.LIST: {"type": ["array", "string"], "items": _TEXT},
}


def schema(config: type[JobConfig] = JobConfig) -> dict[str, Any]:
    """Return the schema."""
    fields = (field for field in config_fields(config) if field.in_file)
    pods = {
        "description": "What `up --kube` and `kube render` need besides, for pods.",
        "type": "object",
        "properties": {each.key: _property(each) for each in config_fields(PodOptions)},
        "additionalProperties": False,
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "spotelastic.toml",
        "description": "What `spotelastic up` does in this folder. The keys are its flags.",
        "type": "object",
        "properties": {
            **{field.key: _property(field) for field in fields},
            TABLE.removesuffix("."): pods,
        },
        "additionalProperties": False,
    }


def text(config: type[JobConfig] = JobConfig) -> str:
    """Return the schema as the published file holds it."""
    return json.dumps(schema(config), indent=2) + "\n"


def line(folder: Path, published: Path = PUBLISHED) -> str:
    """Return the first line of a `spotelastic.toml` in `folder`, by which editors find the schema.

    The path is relative if the package is installed below the folder, as in a `.venv` there.
    """
    if published.is_relative_to(folder):
        return f"#:schema ./{published.relative_to(folder).as_posix()}"
    return f"#:schema {published.as_uri()}"


def _property(field: ConfigField) -> dict[str, Any]:
    found = {"description": f"{field.help} {_EFFECTS[field.effect]}", **_TYPES[field.kind]}
    if field.takes_number:
        found["type"] = ["string", "integer"]
    if field.takes_table:
        found["type"] = ["array", "string", "object"]
        found["additionalProperties"] = {"type": ["string", "number", "boolean"]}
    if field.choices:
        found["enum"] = list(field.choices)
    if field.pattern:
        found["pattern"] = f"^({field.pattern})$"
    if field.least is not None:
        found["minimum"] = field.least
    if field.default not in (None, ()):
        found["default"] = field.default
    return found


if __name__ == "__main__":
    print(text(), end="")
