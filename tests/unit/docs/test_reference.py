"""The generated reference has all of what it is generated from."""

import re

import command_reference
import configuration_reference
import errors_reference
import typer

from spotelastic import errors
from spotelastic.cli.app import app
from spotelastic.launcher.flags import GROUPS


def test_every_command_has_a_section_with_its_flags() -> None:
    page = command_reference.page()
    sections = dict(re.findall(r"^##+ `(spotelastic .*?)`.*?$(.*?)(?=^##+ |\Z)", page, re.M | re.S))
    root = typer.main.get_command(app)
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        assert (f"spotelastic {name}" in sections) is not command.hidden, name
    for each in command_reference.options(root.commands["up"]):  # type: ignore[attr-defined]
        assert f"{each.opts[0]}" in sections["spotelastic up"]
    for flag in (flag for flags in GROUPS.values() for flag in flags):
        assert flag.names.split()[-1] in sections["spotelastic run"]
    assert "spotelastic up --local --min 2 --max 4 train.py --epochs 3\n" in page
    assert "| `--keep-last N` |" in page
    assert "[bold]" not in page
    assert not re.search(r"`[^`]*<\w+", page), "a type of Python's is no value's name"


def test_keys_and_exceptions_are_those_of_the_code() -> None:
    keys = configuration_reference.keys()
    assert "| `keep-last` | " in keys
    assert "| `args` | " in keys
    assert "| `plan` |" not in keys
    assert 'script = "train.py"' in configuration_reference.template()
    for name in ("UsageError", "JobFailed"):
        assert f"| `{name}` | {getattr(errors, name).exit_code} |" in errors_reference.table()
