"""Links of the documents beside the code lead somewhere, and targets of the Makefile that any
document names are there."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BESIDE = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "CHANGELOG.md")
"""`make docs` looks at those in docs/."""


@pytest.mark.parametrize("document", BESIDE)
def test_links_lead_somewhere(document: str) -> None:
    text = (ROOT / document).read_text()
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_targets_of_the_makefile_are_there() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    rules = re.findall(r"^([a-z0-9 -]+):", (ROOT / "Makefile").read_text(), re.M)
    targets = {name for rule in rules for name in rule.split()}
    named = {
        (document, name)
        for document in listed.stdout.splitlines()
        if (ROOT / document).is_file()
        for name in _targets((ROOT / document).read_text())
    }
    assert len(named) > 10
    assert {(document, name) for document, name in named if name not in targets} == set()


def _targets(text: str) -> list[str]:
    """Those in code: a sentence may make something, too."""
    code = [*re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S), *re.findall(r"`([^`\n]+)`", text)]
    return [name for part in code for name in re.findall(r"\bmake ([a-z0-9-]+)", part)]
