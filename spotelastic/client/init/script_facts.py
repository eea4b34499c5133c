"""Reads from a script what its job needs: its arguments, variables, and data in buckets (pure)."""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

SECRET = re.compile(r"(^|_)(API_)?(KEY|TOKEN|SECRET|PASSWORD)$")
"""Names of variables whose values nobody should see."""
GIVEN = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "HOME"}
    | {"MASTER_PORT", "CUDA_VISIBLE_DEVICES", "PATH", "USER", "PYTHONPATH", "TMPDIR"}
)
"""Variables that each worker has anyway."""
TRACKERS = {"wandb": "WANDB_API_KEY", "comet_ml": "COMET_API_KEY", "neptune": "NEPTUNE_API_TOKEN"}
"""Services that are given a key by a variable, by the module that a script imports."""
BUCKET = re.compile(r"s3://[A-Za-z0-9.\-_]+(/[^\s'\"{}]*)?")


@dataclass(frozen=True, slots=True)
class ScriptArgument:
    """An option of the script."""

    flag: str
    default: str | None
    """Its default as it is written; None if it has none."""


@dataclass(frozen=True, slots=True)
class ScriptFacts:
    """What a script says of its needs."""

    arguments: tuple[ScriptArgument, ...] = ()
    secrets: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    """Other variables that it reads."""
    buckets: tuple[str, ...] = ()
    """Folders in S3 that it names."""
    is_elastic: bool = False
    """Whether it has a Checkpointer."""
    trains: bool = False
    """Whether it has a training loop of its own."""


def script_facts(text: str) -> ScriptFacts:
    """Return what a script says; nothing for one that is not Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ScriptFacts()
    nodes = list(ast.walk(tree))
    called = {_last(node.func) for node in nodes if isinstance(node, ast.Call)}
    read = dict.fromkeys(name for name in _variables(nodes) if name not in GIVEN)
    imported = set(_imports(nodes))
    keys = [key for module, key in TRACKERS.items() if module in imported]
    secrets = [name for name in read if SECRET.search(name)]
    return ScriptFacts(
        tuple(_arguments(nodes)),
        tuple(dict.fromkeys([*secrets, *keys])),
        tuple(name for name in read if name not in secrets and not name.startswith("SPOTELASTIC")),
        tuple(dict.fromkeys(_buckets(nodes))),
        is_elastic="Checkpointer" in called,
        trains="backward" in called,
    )


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _arguments(nodes: Sequence[ast.AST]) -> Iterator[ScriptArgument]:
    """Yield the options of an ArgumentParser, in their order."""
    calls = [n for n in nodes if isinstance(n, ast.Call) and _last(n.func) == "add_argument"]
    for call in sorted(calls, key=lambda each: each.lineno):
        flags = [each.value for each in call.args if isinstance(each, ast.Constant)]
        long = [flag for flag in flags if isinstance(flag, str) and flag.startswith("--")]
        default = next((key.value for key in call.keywords if key.arg == "default"), None)
        if long:
            text = None if default is None else _written(default)
            yield ScriptArgument(long[0], text)


def _written(value: ast.expr) -> str | None:
    """Return a default that is a number or a text; None for anything else."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str | int | float):
        return None if isinstance(value.value, bool) else str(value.value)
    return None


def _variables(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Yield the variables that are read: os.environ["X"], os.environ.get("X"), os.getenv("X")."""
    for node in nodes:
        match node:
            case ast.Subscript(value=value, slice=ast.Constant(value=str(name))):
                if _last(value) == "environ":
                    yield name
            case ast.Call(func=ast.Attribute(attr="get", value=value), args=[first, *_]):
                if _last(value) == "environ" and isinstance(first, ast.Constant):
                    yield str(first.value)
            case ast.Call(func=func, args=[ast.Constant(value=str(name)), *_]):
                if _last(func) == "getenv":
                    yield name


def _imports(nodes: Sequence[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def _buckets(nodes: Sequence[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from (found[0].rstrip("/.") for found in BUCKET.finditer(node.value))
