"""Renders the keys of spotelastic.toml, which are also the variables of `up` and the fields of
`JobConfig`."""

from collections.abc import Iterator

from command_reference import cell, code

from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.config.option import ConfigField, Effect, ValueKind, config_fields
from spotelastic.client.settings_file import settings_text

_CHANGED_BY = {
    Effect.CLUSTER: "fixed",
    Effect.UP: "`up`",
    Effect.SCALE: "`up`, `scale`",
    Effect.COMMAND: "each command",
}


def keys(config: type[JobConfig] = JobConfig) -> str:
    """The keys of spotelastic.toml, under the headings of `up --help`."""
    panels: dict[str, list[ConfigField]] = {}
    for field in config_fields(config):
        if field.in_file:
            panels.setdefault(field.panel, []).append(field)
    return "\n".join(line for title, found in panels.items() for line in _panel(title, found))


def template() -> str:
    """The file that `spotelastic init` writes."""
    return f"```toml\n{settings_text('train.py', 2, 8)}```\n"


def _panel(title: str, found: list[ConfigField]) -> Iterator[str]:
    yield f"**{title}**\n"
    yield "| key | | default | changed by |\n|---|---|---|---|"
    for field in found:
        text = cell(field.help)
        if field.kind is ValueKind.LIST and not field.commas:
            text += " A list."
        row = (code(field.key), text, cell(_default(field)), _CHANGED_BY[field.effect])
        yield f"| {' | '.join(row)} |"
    yield ""


def _default(field: ConfigField) -> str:
    """The default as a file would hold it, or words for it; empty for none."""
    if field.shown_default is not None or field.default in (None, ()):
        return field.shown_default or ""
    return str(field.default).lower() if field.kind is ValueKind.SWITCH else str(field.default)
