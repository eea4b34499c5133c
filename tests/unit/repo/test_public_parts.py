"""Tests use the product by its public parts, and hand in what they want to be otherwise.

A test that reads `x._private`, or replaces a constant of a module, holds how something is done and
not what it does. It fails when nothing is wrong, and hides what depends on the constant. So what a
test has to set is a value that is handed in (`RestorePatience`, `UploadPolicy`), and what it has to
know is told by a property or can be seen from outside.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
TESTS = ROOT / "tests"
PRODUCT = (ROOT / "spotelastic", ROOT / "checkpoints/spotelastic_checkpoints")
PRIVATE = re.compile(r"_(?!_)\w+")
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]+")

COMMAND = "the command that a user types has no argument for it"
THEIRS = "it is moto's or torch's, which has the same name for something"
EXCEPTIONS: dict[str, tuple[str, set[str]]] = {
    "support/training/open_checkpointer.py": (
        "the one file that looks into an open Checkpointer, which has no such thing for users",
        {"_beside", "_client", "_held", "_parts", "_session", "PATIENCE"},
    ),
    "integration/test_dcp_storage.py": (
        "sizes of CheckpointReader and CheckpointWriter, which take stock DCP's arguments alone",
        {"BUDGET", "FILE", "RANGE"},
    ),
    "integration/test_ckpt.py": (COMMAND, {"PATIENCE"}),
    "integration/test_up_asks.py": (COMMAND, {"ETCD", "EVERY"}),
    "integration/test_up_leaves.py": (COMMAND, {"ETCD", "EVERY"}),
    "integration/test_up_from_python.py": (COMMAND, {"ETCD", "EVERY"}),
    "integration/test_member_detach.py": (THEIRS, {"_state"}),
    "unit/client/test_place.py": (
        "the local cloud that this process has found, which is forgotten after the test",
        {"_used"},
    ),
    "support/aws/account.py": (THEIRS, {"_state"}),
    "support/strict/launches.py": (THEIRS, {"_state"}),
    "support/strict/reservations.py": (THEIRS, {"_state"}),
    "support/training/drawn_states.py": (THEIRS, {"_values"}),
    "unit/training/save/test_overlap.py": (THEIRS, {"_version"}),
}
"""By file of tests: the reason, and the names."""


def is_own(value: ast.expr) -> bool:
    """Whether it is the object or the class that the code is a part of."""
    match value:
        case ast.Name(id="self" | "cls") | ast.Call(func=ast.Name(id="super")):
            return True
    return False


def names_in(source: ast.AST) -> Iterator[str]:
    """The names that a file gives to what is its own."""
    for node in ast.walk(source):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(attr=name, value=value, ctx=ast.Store()) if is_own(value):
                yield name


def reached_for(source: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of private parts that are used, and of constants that are replaced."""
    for node in ast.walk(source):
        match node:
            case ast.Attribute(attr=name, value=value, ctx=context) if not is_own(value):
                replaced = isinstance(context, ast.Store) and CONSTANT.fullmatch(name)
                if replaced or PRIVATE.fullmatch(name):
                    yield node.lineno, name
            case ast.ImportFrom(names=names):
                private = (each.name for each in names if PRIVATE.fullmatch(each.name))
                yield from ((node.lineno, name) for name in private)
            # monkeypatch.setattr(module, "NAME", ...) and monkeypatch.setattr("module.NAME", ...)
            case ast.Call(func=ast.Attribute(attr="setattr"), args=args):
                for told in args[:2]:
                    if isinstance(told, ast.Constant) and isinstance(told.value, str):
                        name = told.value.rpartition(".")[2]
                        if CONSTANT.fullmatch(name) or PRIVATE.fullmatch(name):
                            yield node.lineno, name


def test_tests_use_no_private_parts_and_replace_no_constants() -> None:
    product = {
        name
        for package in PRODUCT
        for file in package.rglob("*.py")
        for name in names_in(ast.parse(file.read_text()))
    }
    assert {"_client", "PATIENCE"} <= product
    found: dict[str, dict[str, int]] = {}
    for file in TESTS.rglob("*.py"):
        source = ast.parse(file.read_text())
        of_product = product - set(names_in(source))
        for line, name in reached_for(source):
            if name in of_product:
                found.setdefault(str(file.relative_to(TESTS)), {})[name] = line
    known = {file: names for file, (_, names) in EXCEPTIONS.items()}
    more = [
        f"{file}:{line}: {name}"
        for file, names in found.items()
        for name, line in names.items()
        if name not in known.get(file, ())
    ]
    assert not more, "hand it in, or ask for what can be seen from outside"
    gone = {file: names - found.get(file, {}).keys() for file, names in known.items()}
    assert not any(gone.values()), "these are exceptions no more"


def test_what_a_test_reaches_for_is_found() -> None:
    text = """
from product import _hidden
module.LIMIT = 1
made._part.run()
monkeypatch.setattr(module, "LIMIT", 1)
monkeypatch.setattr("product.module._hidden", None)
self._own = super()._own()
module.limit = monkeypatch.setattr(module, "limit", LIMIT)
"""
    names = [name for _, name in sorted(reached_for(ast.parse(text)))]
    assert names == ["_hidden", "LIMIT", "_part", "LIMIT", "_hidden"]
