"""Renders the reference of all commands from the application that parses them."""

import re
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any

import typer

from spotelastic.cli.app import app
from spotelastic.launcher.help import application

_TYPES = {"int": "N", "float": "NUMBER", "str": "TEXT"}
"""What a flag takes that names no value of its own."""
_TYPE = re.compile(r"<(?:list\[)?(\w+)\]?(?: range)?>")
_MARKUP = re.compile(r"\[/?[a-z]+\]|\[/\]")


def page() -> str:
    """A section for each command, in the order of `spotelastic --help`."""
    root = typer.main.get_command(app)
    context: Any = root.make_context("spotelastic", [], resilient_parsing=True)
    return "\n".join(line for each in _commands(root, context) for line in _section(*each))


def options(command: Any) -> list[Any]:
    """Its parameters that begin with dashes."""
    return [each for each in command.params if each.param_type_name == "option" and not each.hidden]


def default(option: Any) -> str:
    """As the help shows it; empty where there is none."""
    if isinstance(option.show_default, str):
        return option.show_default
    if option.show_default is False or option.default is None:
        return ""
    if isinstance(option.default, bool):
        off = option.secondary_opts[0] if option.secondary_opts else "off"
        return option.opts[0] if option.default else off
    return str(option.default)


def cell(text: str) -> str:
    """Text as a paragraph, or a cell of a table: without rich's markup, and with nothing in it that
    markdown would take for its own."""
    parts = " ".join(_MARKUP.sub("", text).split()).split("`")
    outside = [re.sub(r"([|*_<\[\]])", r"\\\1", part) for part in parts[::2]]
    return "`".join(
        word for pair in zip_longest(outside, parts[1::2]) for word in pair if word is not None
    )


def code(text: str) -> str:
    """The same as code; empty for nothing."""
    return f"`{text}`" if text else ""


def _commands(group: Any, context: Any) -> Iterator[tuple[Any, Any]]:
    for name, listed in group.commands.items():
        if listed.hidden:
            continue
        # `run` parses its flags by itself, and is in the application for its name only.
        command = typer.main.get_command(application()) if name == "run" else listed
        below = type(context)(command, info_name=name, parent=context)
        yield command, below
        if hasattr(command, "commands"):
            yield from _commands(command, below)


def _section(command: Any, context: Any) -> Iterator[str]:
    level = "##" if context.parent.parent is None else "###"
    yield f"{level} `{context.command_path}` {{ #{context.command_path.replace(' ', '-')} }}\n"
    yield f"{_paragraphs(command.help or '')}\n"
    if not hasattr(command, "commands"):
        pieces = " ".join(command.collect_usage_pieces(context))
        yield f"```text\n{context.command_path} {pieces}\n```\n"
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    if any(each.help for each in arguments):
        yield from _arguments(arguments)
    yield from _options(options(command), context)
    if command.epilog:
        yield from _examples(command.epilog)


def _paragraphs(text: str) -> str:
    return "\n\n".join(cell(each) for each in text.split("\n\n"))


def _arguments(arguments: Iterable[Any]) -> Iterator[str]:
    yield "| argument | | default |\n|---|---|---|"
    for each in arguments:
        name = each.metavar or each.name.upper()
        yield f"| {code(name)} | {cell(each.help or '')} | {cell(default(each))} |"
    yield ""


def _options(found: Iterable[Any], context: Any) -> Iterator[str]:
    panels: dict[str, list[Any]] = {}
    for each in found:
        panels.setdefault(each.rich_help_panel or "", []).append(each)
    for title, members in panels.items():
        if title:
            yield f"**{title}**\n"
        with_default = any(map(default, members))
        yield "| flag | | default |\n|---|---|---|" if with_default else "| flag | |\n|---|---|"
        for each in members:
            flag = _TYPE.sub(lambda of: _TYPES[of[1]], each.get_help_record(context)[0])
            row = f"| {code(flag)} | {cell(each.help or '')} |"
            yield f"{row} {cell(default(each))} |" if with_default else row
        yield ""


def _examples(epilog: str) -> Iterator[str]:
    title, *commands = [
        _MARKUP.sub("", line).strip() for line in epilog.splitlines() if line.strip()
    ]
    yield f"{title}:\n"
    yield "\n".join(["```sh", *commands, "```"]) + "\n"
