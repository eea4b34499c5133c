"""Renders what can be configured besides flags: keys of spotelastic.toml, and variables."""

from collections.abc import Iterator
from typing import Any

import typer
from command_reference import cell, code, default, options

from spotelastic.cli.app import app
from spotelastic.client import config_file
from spotelastic.launcher.flags import GROUPS

_ARGUMENTS = {"script": "The job", "args": "The job"}
"""Arguments of `up` that are keys, too, and where they stand."""
_OF_ONE_CALL = {"json", "plan", "help"}
"""Flags of `up` that a file is not for."""


def keys() -> str:
    """The keys of spotelastic.toml with their variables, under the headings of `up --help`."""
    panels: dict[str, list[Any]] = {}
    for parameter in _of_up():
        panel = _ARGUMENTS.get(parameter.name) or parameter.rich_help_panel or ""
        panels.setdefault(panel, []).append(parameter)
    return "\n".join(line for title, found in panels.items() for line in _panel(title, found))


def template() -> str:
    """The file that `spotelastic init` writes."""
    return f"```toml\n{config_file.template('train.py', 2, 8, ())}```\n"


def run_variables() -> str:
    """A line for each flag of `spotelastic run`."""
    lines = ["| flag | variables |", "|---|---|"]
    for flag in (flag for flags in GROUPS.values() for flag in flags):
        name = flag.dest.upper()
        lines.append(f"| `{flag.names.split()[-1]}` | `PET_{name}`, `SPOTELASTIC_{name}` |")
    return "\n".join(lines) + "\n"


def _of_up() -> Iterator[Any]:
    up = typer.main.get_command(app).commands["up"]
    yield from (each for each in up.params if each.name in _ARGUMENTS)
    yield from (each for each in options(up) if _key(each) not in _OF_ONE_CALL)


def _panel(title: str, found: list[Any]) -> Iterator[str]:
    yield f"**{title}**\n"
    yield "| key | variable | | default |\n|---|---|---|---|"
    for each in found:
        key = _key(each)
        text = cell(each.help or "")
        if getattr(each, "multiple", False) or each.nargs != 1:
            text += " A list."
        if key in config_file.ONCE:
            text += " Not in the file."
        variable = code(f"SPOTELASTIC_{key.replace('-', '_').upper()}")
        yield f"| {code(key)} | {variable} | {text} | {cell(default(each))} |"
    yield ""


def _key(parameter: Any) -> str:
    return str(parameter.opts[0].lstrip("-"))
