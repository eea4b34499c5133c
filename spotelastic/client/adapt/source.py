"""Holds a script as its text and Python's own tree of it.

Whoever does not understand a script says where it ends to understand, and changes nothing.
"""

import ast
import io
import tokenize
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import TypeVar

from spotelastic.errors import UsageError

N = TypeVar("N", bound=ast.AST)
Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = ast.Module | Function


class NotUnderstood(UsageError):
    """A script of another form than those that `adapt` knows; the message names the line."""

    by_hand: str = ""
    """The lines to write by hand."""


class Source:
    """A script with its tree, and what encloses each node."""

    def __init__(self, text: str, name: str) -> None:
        self.name, self.text = name, text
        try:
            self.tree = ast.parse(text)
        except SyntaxError as error:
            raise UsageError(f"{name} is not Python: line {error.lineno}: {error.msg}") from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise UsageError(f"{name} cannot be read as Python: {error}") from None
        self._parents = {
            child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)
        }
        self.lines = text.splitlines(keepends=True)
        # Python itself ends lines at these alone.
        if len(self.lines) != len(io.StringIO(text).readlines()):
            raise UsageError(f"{name}: it has characters that end a line and are no line's end")

    def not_understood(self, node: ast.AST, why: str) -> NotUnderstood:
        """Return the error for a part that is not understood."""
        line = getattr(node, "lineno", 1)
        return NotUnderstood(f"{self.name}, line {line}: {why}; nothing was changed")

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield what encloses a node, from the inside out."""
        while (parent := self._parents.get(node)) is not None:
            yield parent
            node = parent

    def scope(self, node: ast.AST) -> Scope:
        """Return the function, else the module, that a node is in."""
        return next(each for each in self.around(node) if isinstance(each, Scope))

    def code(self, node: ast.AST) -> str:
        """Return a node as it is written."""
        return ast.get_source_segment(self.text, node) or ""

    @cached_property
    def imported(self) -> dict[str, str]:
        """What each imported name stands for, with its module."""
        found: dict[str, str] = {}
        for each in nodes(self.tree, ast.Import):
            for alias in each.names:
                first = alias.name.partition(".")[0]
                found[alias.asname or first] = alias.name if alias.asname else first
        for each in nodes(self.tree, ast.ImportFrom):
            for alias in each.names:
                found[alias.asname or alias.name] = f"{each.module or ''}.{alias.name}"
        return found

    def imports(self, module: str) -> bool:
        """Return whether the script imports a package, or something of it."""
        return any(name.partition(".")[0] == module for name in self.imported.values())

    def full_name(self, node: ast.AST) -> str:
        """Return a dotted name with what its first part was imported from."""
        first, dot, rest = dotted(node).partition(".")
        return f"{self.imported.get(first, first)}{dot}{rest}"

    def free(self, *wanted: str) -> str:
        """Return the first of these names that the script does not use."""
        return next((name for name in wanted if name not in self._names), f"{wanted[-1]}_")

    @cached_property
    def _names(self) -> Collection[str]:
        used = {each.id for each in nodes(self.tree, ast.Name)} | {*self.imported}
        used |= {each.arg for each in nodes(self.tree, ast.arg)}
        return used | {each.name for each in nodes(self.tree, Function)}

    def function(self, name: str) -> Function | None:
        """Return the function of that name, if the script has exactly one."""
        found = [each for each in nodes(self.tree, Function) if each.name == name]
        return found[0] if len(found) == 1 else None

    def values(self, name: str, scope: Scope) -> Sequence[ast.expr | None]:
        """Return what a name is assigned in a function, else in the module; None for what is not
        seen.
        """
        for place in (scope, self.tree):
            found: list[ast.expr | None] = []
            for each in nodes(place, ast.Assign, ast.AnnAssign):
                if self.scope(each) is place:
                    found += _assigned(each, name)
            if found:
                return found
        return ()

    @cached_property
    def inside_strings(self) -> Collection[int]:
        """The lines that begin within a string."""
        found: set[int] = set()
        begun: list[int] = []
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            kind = tokenize.tok_name[token.type]
            if kind == "FSTRING_START":
                begun.append(token.start[0])
            elif kind == "FSTRING_END":
                found |= {*range(begun.pop() + 1, token.end[0] + 1)}
            elif token.type == tokenize.STRING:
                found |= {*range(token.start[0] + 1, token.end[0] + 1)}
        return found


def nodes(root: ast.AST, *kinds: type[N] | object) -> list[N]:
    """Return all nodes of these kinds in a part, in the order of the text."""
    found = [each for each in ast.walk(root) if isinstance(each, kinds)]  # type: ignore[arg-type]
    found.sort(key=lambda each: (getattr(each, "lineno", 0), getattr(each, "col_offset", 0)))
    return found  # type: ignore[return-value]


def dotted(node: ast.AST) -> str:
    """Return a dotted name: `torch.optim.SGD`; "" of anything else."""
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return before and f"{before}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def last_name(node: ast.AST) -> str:
    """Return the last part of a name: `step` of `self.optimizers[0].step`."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def root_name(node: ast.AST) -> str:
    """Return the name that an expression begins with: `group` of `group["lr"].x()`."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call | ast.Starred):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def calls(root: ast.AST | Sequence[ast.AST], *names: str) -> list[ast.Call]:
    """Return the calls of functions or methods of these names."""
    parts = root if isinstance(root, Sequence) else [root]
    found: list[ast.Call] = [each for part in parts for each in nodes(part, ast.Call)]
    return [each for each in found if last_name(each.func) in names]


def argument(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """Return an argument of a call, by its keyword, else by its position."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    given = [] if any(isinstance(each, ast.Starred) for each in call.args) else call.args
    return given[position] if position is not None and position < len(given) else None


def _assigned(statement: ast.Assign | ast.AnnAssign, name: str) -> Iterator[ast.expr | None]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    for target in targets:
        if isinstance(target, ast.Name):
            if target.id == name:
                yield statement.value
            continue
        inner = [root.id for root in nodes(target, ast.Name) if isinstance(root.ctx, ast.Store)]
        if name in inner and isinstance(target, ast.Tuple):
            values = getattr(statement.value, "elts", [])
            same = len(values) == len(target.elts) == len(inner)
            yield values[inner.index(name)] if same else None
