"""Counts the product's lines of code by folder: no docstrings, no comments, no blank lines.

python tools/weight.py           # a table, the heaviest folder first
python tools/weight.py --json    # {"total": …, "folders": {…}}
"""

import argparse
import ast
import json
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("spotelastic", "checkpoints/spotelastic_checkpoints")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(text: str) -> int:
    """Return how many lines of a Python file are code."""
    told: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            told.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return sum(
        1
        for number, line in enumerate(text.splitlines(), 1)
        if number not in told and line.strip() and not line.lstrip().startswith("#")
    )


def weight(root: Path) -> Counter[str]:
    """Return the lines of code of each folder of the product below `root`."""
    found = Counter[str]()
    for top in PRODUCT:
        for file in (root / top).rglob("*.py"):
            found[file.parent.relative_to(root).as_posix()] += code_lines(file.read_text("utf-8"))
    return found


def main() -> None:
    """Print the figures of this checkout."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="for programs")
    as_json, found = parser.parse_args().json, weight(ROOT)
    if as_json:
        print(json.dumps({"total": found.total(), "folders": dict(found.most_common())}))
        return
    for folder, lines in found.most_common():
        print(f"{lines:7,}  {folder}")
    print(f"{found.total():7,}  in all")


if __name__ == "__main__":
    main()
