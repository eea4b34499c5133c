"""What counts as a line of code."""

import json
import subprocess
import sys
from pathlib import Path

from weight import ROOT, code_lines, weight

SOURCE = '''"""A module.

It says what it is for.
"""

# Why there is a constant.
CONSTANT = 1
"""What it is: an expression, which counts."""


class Empty:
    """Nothing but this."""


def total(a: int) -> int:
    """Return a sum."""
    text = """two
lines"""
    return a + len(text)  # a note beside code
'''


def test_docstrings_comments_and_blank_lines_are_no_code() -> None:
    assert code_lines(SOURCE) == 7
    assert code_lines("") == 0


def test_each_folder_has_the_lines_of_its_own_files(tmp_path: Path) -> None:
    for name in ("spotelastic/a.py", "spotelastic/inner/b.py", "tests/c.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x = 1\n\n# note\ny = 2\n")
    assert weight(tmp_path) == {"spotelastic": 2, "spotelastic/inner": 2}


def test_the_figures_for_programs_are_those_of_this_checkout() -> None:
    tool = ROOT / "tools" / "weight.py"
    done = subprocess.run([sys.executable, tool, "--json"], stdout=subprocess.PIPE, check=True)
    figures = json.loads(done.stdout)
    assert figures["folders"] == dict(weight(ROOT))
    assert figures["total"] == sum(figures["folders"].values())
