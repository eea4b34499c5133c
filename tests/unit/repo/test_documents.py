"""What documents for contributors name is there: files, folders and targets of the Makefile."""

import re
from pathlib import Path

import pytest

import spotelastic

ROOT = Path(spotelastic.__file__).parents[1]
DOCUMENTS = ("CONTRIBUTING.md", "README.md", "docs/releasing.md", "docs/compatibility.md")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_and_targets_are_there(document: str) -> None:
    text = (ROOT / document).read_text()
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    missing = [link for link in links if not (ROOT / document).parent.joinpath(link).exists()]
    files = re.findall(
        r"(?<![\w./~-])(?:spotelastic|checkpoints|tests|infra|docs|examples)/[\w./-]*\w", text
    )
    missing += [file for file in files if not (ROOT / file).exists()]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    missing += [f"make {name}" for name in _targets(text) if name not in targets]
    assert missing == []


def _targets(text: str) -> list[str]:
    """Those in code, since a sentence may make something, too."""
    code = [*re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S), *re.findall(r"`([^`\n]+)`", text)]
    return [name for part in code for name in re.findall(r"\bmake ([a-z-]+)", part)]
