"""No two classes of the product have one name: a name is one idea, and can be searched for."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGES = (ROOT / "spotelastic", ROOT / "checkpoints/spotelastic_checkpoints")
SHARED: frozenset[str] = frozenset()
"""Names that two classes may have. Add one only where both are the same idea on two sides."""


def test_a_class_name_is_defined_once() -> None:
    places = defaultdict(list)
    for file in (file for package in PACKAGES for file in package.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{file.relative_to(ROOT)}:{node.lineno}")
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert len(places) > 400
    assert set(twice) == SHARED, twice
