"""Renders the keys of spotelastic.toml, which are also the variables of `up`."""

from collections.abc import Iterator
from typing import Any

import typer
from command_reference import cell, code, default, options

from spotelastic.cli.app import app
from spotelastic.client import config_file

_ARGUMENTS = {"script": "The job", "args": "The job"}
"""Arguments of `up` that are keys, too, and where they stand."""
_OF_ONE_CALL = {"json", "plan", "help"}
"""Flags of `up` that a file is not for."""


def keys() -> str:
    """The keys of spotelastic.toml, under the headings of `up --help`."""
    panels: dict[str, list[Any]] = {}
    for parameter in _of_up():
        panel = _ARGUMENTS.get(parameter.name) or parameter.rich_help_panel or ""
        panels.setdefault(panel, []).append(parameter)
    return "\n".join(line for title, found in panels.items() for line in _panel(title, found))


def template() -> str:
    """The file that `spotelastic init` writes."""
    return f"```toml\n{config_file.template('train.py', 2, 8, ())}```\n"


def _of_up() -> Iterator[Any]:
    up = typer.main.get_command(app).commands["up"]
    yield from (each for each in up.params if each.name in _ARGUMENTS)
    yield from (each for each in options(up) if _key(each) not in _OF_ONE_CALL)


def _panel(title: str, found: list[Any]) -> Iterator[str]:
    yield f"**{title}**\n"
    yield "| key | | default |\n|---|---|---|"
    for each in found:
        key = _key(each)
        text = cell(each.help or "")
        if getattr(each, "multiple", False) or each.nargs != 1:
            text += " A list."
        if key in config_file.ONCE:
            text += " Not in the file."
        yield f"| {code(key)} | {text} | {cell(default(each))} |"
    yield ""


def _key(parameter: Any) -> str:
    return str(parameter.opts[0].lstrip("-"))
