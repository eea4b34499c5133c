"""Holds a script as its text and Python's own tree of it.

Whoever does not understand a script says where it ends to understand, and changes nothing.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from spotelastic.errors import UsageError

Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.AsyncFor | ast.While


class NotUnderstood(UsageError):
    """A script of another form than those that `adapt` knows; the message names the line."""


class Source:
    """A script with its tree, and what encloses each node."""

    def __init__(self, text: str, name: str) -> None:
        self.name, self.text = name, text
        split = re.split(r"(\r\n?|\n)", text)
        self.lines, self.ends = split[::2], [*split[1::2], ""]
        try:
            self.tree = ast.parse(text)
            self.tokens = [*tokenize.generate_tokens(io.StringIO(text, None).readline)]
        except SyntaxError as error:
            raise UsageError(
                f"{name} is not Python: line {error.lineno or 1}: {error.msg}"
            ) from None
        except (ValueError, RecursionError, MemoryError, tokenize.TokenError) as error:
            raise UsageError(f"{name} cannot be read as Python: {error}") from None
        everything = [*ast.walk(self.tree)]
        self._parents = {each: node for node in everything for each in ast.iter_child_nodes(node)}
        keys = ("id", "arg", "name")
        self.names = {getattr(each, key, None) for each in everything for key in keys}
        self.names |= {*self.imported}

    def no(self, node: ast.AST, why: str) -> NotUnderstood:
        """Return the error for a part that is not understood."""
        line = getattr(node, "lineno", 1)
        return NotUnderstood(f"{self.name}, line {line}: {why}; nothing was changed")

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield what encloses a node, from the inside out."""
        while (parent := self._parents.get(node)) is not None:
            yield parent
            node = parent

    def scope(self, node: ast.AST) -> ast.AST:
        """Return the function, else the module, that a node is in."""
        return next(each for each in self.around(node) if isinstance(each, Function | ast.Module))

    def statement(self, node: ast.AST) -> ast.stmt:
        """Return the statement that a node is in."""
        return next(each for each in self.around(node) if isinstance(each, ast.stmt))

    def code(self, node: ast.AST) -> str:
        """Return a node as it is written."""
        return ast.get_source_segment(self.text, node) or ""

    @cached_property
    def imported(self) -> dict[str, str]:
        """What each imported name stands for, with its module."""
        found: dict[str, str] = {}
        for each in nodes(self.tree, ast.Import, ast.ImportFrom):
            before = f"{each.module or ''}." if isinstance(each, ast.ImportFrom) else ""
            for alias in each.names:
                whole = before + alias.name
                first = alias.name if before else whole.partition(".")[0]
                found[alias.asname or first] = whole if alias.asname or before else first
        return found

    def less(self, node: ast.AST, by: str) -> str:
        """Return the expression for what is less than another one by a number."""
        match node:
            case ast.BinOp(left, ast.Add(), right) if self.code(right) == by:
                return self.code(left)
        code = self.code(node)
        plain = isinstance(node, ast.Name | ast.Constant | ast.Attribute | ast.Call)
        return code if by == "0" else f"{code if plain else f'({code})'} - {by}"

    def full_name(self, node: ast.AST) -> str:
        """Return a dotted name with what its first part was imported from."""
        first, dot, rest = dotted(node).partition(".")
        return f"{self.imported.get(first, first)}{dot}{rest}"

    def free(self, *wanted: str) -> str:
        """Return the first of these names that the script does not use."""
        return next((name for name in wanted if name not in self.names), f"{wanted[-1]}_")

    def maker(self, value: ast.AST | None) -> str:
        """Return the full name of what makes a value: `nn.Linear` of `nn.Linear(2, 1).to(0)`."""
        while isinstance(value, ast.Call):
            inner = value.func.value if isinstance(value.func, ast.Attribute) else None
            value = inner if isinstance(inner, ast.Call) else value.func
        return self.full_name(value) if value is not None else ""

    @property
    def library(self) -> str:
        """The name of spotelastic in the script."""
        return self.free("se", "spotelastic")

    def function(self, name: str) -> Function | None:
        """Return the function of that name, if the script has exactly one."""
        found = [each for each in nodes(self.tree, Function) if each.name == name]
        return found[0] if len(found) == 1 else None

    def values(self, name: str, scope: ast.AST) -> Sequence[ast.expr | None]:
        """Return what a name is set to in a function, else in the module.

        None stands for what is not seen.
        """
        for place in (scope, self.tree):
            found = [value for each, value in written(place, name) if self.scope(each) is place]
            if found:
                return found
        return ()

    def made(self, name: str, scope: ast.AST) -> ast.Call | None:
        """Return the call that makes what a name stands for, if it is set once, and by a call."""
        values = self.values(name, scope)
        return values[0] if len(values) == 1 and isinstance(values[0], ast.Call) else None


def nodes(root: ast.AST | Sequence[ast.AST], *kinds: Any) -> list[Any]:
    """Return all nodes of these kinds, in the order of the text."""
    parts = root if isinstance(root, Sequence) else [root]
    found = [each for part in parts for each in ast.walk(part) if isinstance(each, kinds)]
    return sorted(
        found, key=lambda each: (getattr(each, "lineno", 0), getattr(each, "col_offset", 0))
    )


def calls(root: ast.AST | Sequence[ast.AST], *names: str) -> list[ast.Call]:
    """Return the calls of functions or methods of these names."""
    return [each for each in nodes(root, ast.Call) if last_name(each.func) in names]


def dotted(node: ast.AST | None) -> str:
    """Return a dotted name: `torch.optim.SGD`; "" of anything else."""
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return before and f"{before}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def last_name(node: ast.AST) -> str:
    """Return the last part of a name: `step` of `self.optimizers[0].step`."""
    return node.attr if isinstance(node, ast.Attribute) else dotted(node)


def root_name(node: ast.AST) -> str:
    """Return the name that an expression begins with: `group` of `group["lr"].x()`."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call | ast.Starred):
        node = node.func if isinstance(node, ast.Call) else node.value
    return dotted(node)


def argument(call: ast.Call, name: str, position: int = 99) -> ast.expr | None:
    """Return an argument of a call, by its keyword, else by its position."""
    found = [each.value for each in call.keywords if each.arg == name]
    return next(iter([*found, *call.args[position : position + 1]]), None)


def written(
    root: ast.AST | Sequence[ast.AST], name: str
) -> Iterator[tuple[ast.AST, ast.expr | None]]:
    """Yield where a name is set, and to what; None for what is not seen."""
    for each in nodes(root, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr):
        for target in each.targets if isinstance(each, ast.Assign) else [each.target]:
            pairs = [(target, each.value)]
            if isinstance(target, ast.Tuple | ast.List):
                values = getattr(each.value, "elts", [])
                values = values if len(values) == len(target.elts) else [None] * len(target.elts)
                pairs = [*zip(target.elts, values, strict=True)]
            yield from ((each, value) for one, value in pairs if dotted(one) == name)
    for each in nodes(root, ast.For, ast.comprehension, ast.withitem):
        target = each.optional_vars if isinstance(each, ast.withitem) else each.target
        if target and not isinstance(each, ast.comprehension) and name in bound([target]):
            yield target, None


def is_literal(value: ast.expr) -> bool:
    """Return whether an expression is a plain value as it is written."""
    if isinstance(value, ast.Call | ast.Attribute):
        return dotted(getattr(value, "func", value)) in ("float", "math.inf", "np.inf", "torch.inf")
    kinds = ast.Constant | ast.List | ast.Tuple | ast.UnaryOp | ast.BinOp
    parts = [each for each in ast.iter_child_nodes(value) if isinstance(each, ast.expr)]
    return isinstance(value, kinds) and all(is_literal(each) for each in parts)


def _names(root: ast.AST) -> Iterator[ast.Name]:
    """Yield the names of a part, without those that a comprehension or lambda has of its own."""
    own: set[str] = set()
    if isinstance(root, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        own = {each.id for part in root.generators for each in nodes(part.target, ast.Name)}
    elif isinstance(root, ast.Lambda):
        own = {each.arg for each in nodes(root.args, ast.arg)}
    if isinstance(root, ast.Name):
        yield root
    for child in ast.iter_child_nodes(root):
        yield from (each for each in _names(child) if each.id not in own)


def read(parts: Sequence[ast.AST]) -> set[str]:
    """Return the names that are read."""
    return {n.id for part in parts for n in _names(part) if isinstance(n.ctx, ast.Load)}


def bound(parts: Sequence[ast.AST]) -> set[str]:
    """Return the names that are set."""
    return {n.id for part in parts for n in _names(part) if not isinstance(n.ctx, ast.Load)}
