"""Commands and flags that the documents show exist."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from spotelastic.cli.app import app
from spotelastic.launcher.help import application

ROOT = Path(__file__).parents[3]
FENCE = re.compile(r"^ *```(\w*).*?\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
FLAG = re.compile(r"--[a-z][\w-]*")
NOT_OURS = {
    *("--auto-compaction-retention", "--enable-v2", "--ignore-checksum"),
    *("--shm-size", "--ulimit", "--dryrun", "--index-url"),
    *("--local-rank", "--steps", "--epochs", "--dummy"),
    *("--cask", "--from-history", "--install", "--profile", "--python"),
    "--nproc",
}
"""Flags of etcd and rclone; of docker, SkyPilot and pip; of scripts; of what a laptop has; and one
that shows another spelling of ours."""


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def commands() -> dict[str, Any]:
    """By what is typed after `spotelastic`: "up", "ckpt ls". Former names are not shown."""
    root: Any = typer.main.get_command(app)
    found = {}
    for name, command in root.commands.items():
        if command.hidden and name != "boot":
            continue
        found[name] = typer.main.get_command(application()) if name == "run" else command
        for below, each in getattr(command, "commands", {}).items():
            found[f"{name} {below}"] = each
    return found


def flags(command: Any) -> set[str]:
    options = (each for each in command.params if each.param_type_name == "option")
    return {name for each in options for name in (*each.opts, *each.secondary_opts)} | {"--help"}


def shown(text: str) -> Iterator[str]:
    """Each command line of a page, in blocks of shell and in the text."""
    for language, block in FENCE.findall(text):
        if language in ("sh", "bash"):
            yield from re.sub(r"\\\n\s*", " ", block).splitlines()
    yield from (" ".join(each.split()) for each in INLINE.findall(FENCE.sub("", text)))


def typed(line: str) -> Iterator[tuple[str, list[str]]]:
    """The command of spotelastic in a line, with the flags that stand before its script."""
    line = line.partition(" #")[0]
    line = line.replace("python -m spotelastic.run", "spotelastic run")
    for found in re.finditer(
        r"(?:^|(?<!import)(?<!from)[ (])spotelastic ([a-z]+(?:-[a-z]+)*)( [a-z]+)?((?: .*)?)$", line
    ):
        name, below, rest = found[1], found[2] or "", found[3]
        if name not in ("ckpt", "kube"):
            below, rest = "", f"{below}{rest}"
        before = re.split(r" \S+\.py\b| -m ", rest)[0]
        yield f"{name}{below}", FLAG.findall(before)


def test_each_command_that_a_page_shows_is_there_with_its_flags() -> None:
    known = commands()
    wrong, seen = [], 0
    for path in pages():
        for line in shown(path.read_text()):
            for name, given in typed(line):
                seen += 1
                where = f"{path.relative_to(ROOT)}: {line}"
                if name not in known:
                    wrong.append(where)
                    continue
                has = flags(known[name])
                wrong += [f"{where} ({flag})" for flag in given if not known_as(flag, has)]
    assert wrong == []
    assert seen > 100


def known_as(flag: str, has: set[str]) -> bool:
    """Also with underscores, or shortened where that is unambiguous, as `run` takes it."""
    flag = flag.replace("_", "-")
    return flag in has or sum(each.startswith(flag) for each in has) == 1


def test_each_flag_that_a_page_names_is_one_of_a_command_or_of_another_program() -> None:
    root = typer.main.get_command(app)
    known = {flag for command in (root, *commands().values()) for flag in flags(command)}
    named = [
        (flag.replace("_", "-"), str(path.relative_to(ROOT)))
        for path in pages()
        for span in INLINE.findall(FENCE.sub("", path.read_text()))
        for flag in FLAG.findall(span)
    ]
    assert [(flag, page) for flag, page in named if flag not in known | NOT_OURS] == []
