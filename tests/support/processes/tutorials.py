"""Follows a page of the documentation: writes its files and runs its commands, in the page's order.

* A code block with a title is a file that is written: ```python title="train.py"
* A block of `sh` is run by a shell, with this environment's programs, in one folder for all.
* A block of `text` right after it is the expected output: each of its lines must occur in what the
  commands printed. Numbers and blanks may differ; … stands for anything.

Comments right before a block, which a reader does not see:

    <!-- not tried: REASON -->   it is not run
    <!-- typed: TEXT -->         what the reader types when a command asks
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import spotelastic

PAGES = Path(spotelastic.__file__).parents[1] / "docs/tutorials"
WITHIN = 180.0
"""Seconds for the commands of one block."""
_BLOCK = re.compile(
    r"(?P<notes>(?:^<!-- [^\n]* -->\n)*)"
    r"^```(?P<language>\w+)(?P<options>[^\n]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_NOTE = re.compile(r"<!-- (not tried|typed): (.*?) -->")
_TITLE = re.compile(r'title="(.*?)"')
_VARYING = re.compile(r"i-[0-9a-f]{17}|\d+(?:\.\d+)?")
"""Names of instances, and numbers."""


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    title: str
    text: str
    notes: Mapping[str, str]
    right_after: bool
    """Whether nothing stands between the block before and this one."""

    @property
    def not_tried(self) -> str:
        return self.notes.get("not tried", "")


def blocks(page: Path) -> list[Block]:
    text, found, end = page.read_text(), [], 0
    for match in _BLOCK.finditer(text):
        title = _TITLE.search(match["options"])
        found.append(
            Block(
                match["language"],
                title[1] if title else "",
                match["text"],
                dict(_NOTE.findall(match["notes"])),
                not text[end : match.start()].strip(),
            )
        )
        end = match.end()
    return found


def follow(page: Path, folder: Path, **environment: str) -> None:
    """Raises AssertionError where a command fails, or prints something else than the page says."""
    printed: str | None = ""
    for block in blocks(page):
        if block.title:
            (folder / block.title).write_text(block.text)
        elif block.language == "sh":
            printed = None if block.not_tried else _run(block, folder, environment)
        elif block.language == "text" and block.right_after and printed is not None:
            _compare(block.text, printed)


def environment_of(folder: Path, **environment: str) -> dict[str, str]:
    """As of a reader who has just installed spotelastic, and has no credentials."""
    ours = ("SPOTELASTIC_", "PET_", "AWS_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    home = {"HOME": str(folder / "home"), "AWS_EC2_METADATA_DISABLED": "true", "COLUMNS": "120"}
    return kept | {"PATH": programs} | home | environment


def _run(block: Block, folder: Path, environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.text],
        cwd=folder,
        env=environment_of(folder, **environment),
        input=block.notes.get("typed", "") + "\n",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=WITHIN,
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{block.text}\n{done.stdout}"
    return done.stdout


def _compare(expected: str, printed: str) -> None:
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    for line in expected.splitlines():
        pattern = re.compile(_pattern(" ".join(line.split())))
        assert any(map(pattern.fullmatch, lines)), f"{line!r} is not in\n{printed}"


def _pattern(line: str) -> str:
    return ".*".join(map(_escaped, line.split("…")))


def _escaped(text: str) -> str:
    fixed = map(re.escape, _VARYING.split(text))
    varying = ("[0-9a-f.i-]+" for _ in _VARYING.findall(text))
    return "".join(part for pair in zip_longest(fixed, varying, fillvalue="") for part in pair)
