"""Finds, in a script's syntax, the names that a loop carries from one turn to the next.

These are the names that its body reads before it writes them: `best` in `best = min(best, loss)`,
`history` in `history.append(loss)`. What a turn writes first is gone when the next one begins.
"""

import ast
import functools
import linecache
from collections.abc import Iterable, Iterator, Sequence

Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class _NameReader(ast.NodeVisitor):
    """Goes through statements in the order in which they are executed."""

    def __init__(self) -> None:
        self.written: set[str] = set()
        """Names that are certainly written by now."""
        self.ever: set[str] = set()
        """Names that are written anywhere."""
        self.exposed: set[str] = set()
        """Names that were read when nothing had certainly written them."""

    def visit_Name(self, node: ast.Name) -> None:
        self._touch(node.id, reads=isinstance(node.ctx, ast.Load))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name):
            self._touch(node.value.id, reads=True)
            self._touch(f"{node.value.id}.{node.attr}", reads=isinstance(node.ctx, ast.Load))
        else:
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        self._in_order(node.value, *node.targets)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._in_order(node.value, node.target)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        target = node.target
        read = ast.copy_location(ast.parse(ast.unparse(target), mode="eval").body, target)
        self._in_order(read, node.value, target)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._in_order(node.value, node.target)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        self._branches([node.target, *node.body], node.orelse, [])

    visit_AsyncFor = visit_For

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        self._branches(node.body, node.orelse, [])

    def visit_If(self, node: ast.If | ast.IfExp) -> None:
        self.visit(node.test)
        body, other = (
            (node.body, node.orelse) if isinstance(node, ast.If) else ([node.body], [node.orelse])
        )
        self._branches(body, other)

    visit_IfExp = visit_If

    def visit_Try(self, node: ast.Try) -> None:
        self._branches([*node.body, *node.orelse], *(each.body for each in node.handlers))
        self._in_order(*node.finalbody)

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        self._branches(*(each.body for each in node.cases), [])

    def visit_ListComp(self, node: ast.expr) -> None:
        inner = _NameReader()
        inner.written = set(self.written)
        generators = getattr(node, "generators", [])
        inner._in_order(*(part for each in generators for part in (each.iter, each.target)))
        inner._in_order(*(test for each in generators for test in each.ifs))
        inner._in_order(
            *(getattr(node, name) for name in ("key", "value", "elt") if hasattr(node, name))
        )
        self.exposed |= inner.exposed

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp

    def visit_Lambda(self, node: ast.AST) -> None:
        """Leave out what a function does, which happens when it is called: see `of_functions`."""

    visit_ClassDef = visit_Lambda

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._touch(node.name, reads=False)

    visit_AsyncFunctionDef = visit_FunctionDef

    def _touch(self, name: str, *, reads: bool) -> None:
        if not reads:
            self.written.add(name)
            self.ever.add(name)
        elif name not in self.written:
            self.exposed.add(name)

    def _in_order(self, *nodes: ast.AST) -> None:
        for node in nodes:
            self.visit(node)

    def _branches(self, *branches: Sequence[ast.AST]) -> None:
        """One of these is executed."""
        before, after = self.written, []
        for branch in branches:
            self.written = set(before)
            self._in_order(*branch)
            if not _leaves(branch):
                after.append(self.written)
        self.written = set.intersection(*after) if after else before


def _leaves(branch: Sequence[ast.AST]) -> bool:
    return any(
        isinstance(each, ast.Return | ast.Raise | ast.Continue | ast.Break) for each in branch
    )


def read(body: Iterable[ast.AST]) -> _NameReader:
    """Return what a body does with names. The attributes of a name are names of their own."""
    found = _NameReader()
    found._in_order(*body)
    return found


def carried(scope: Scope, line: int) -> set[str]:
    """Return the names that the loops around a line of this scope carry.

    With them are those that functions within the scope read of it, unless a turn writes them first.
    """
    loops = [
        read([node.target, *node.body] if isinstance(node, ast.For) else [node.test, *node.body])
        for node in _own(scope)
        if isinstance(node, ast.For | ast.While) and _spans(node, line)
    ]
    found = {name for each in loops for name in each.exposed}
    fresh = {name for each in loops for name in each.ever}
    return found | (of_functions(scope) - fresh)


def of_functions(scope: Scope) -> set[str]:
    """Return the names that functions within a scope read or change, and that are not their own."""
    found: set[str] = set()
    for node in ast.walk(scope):
        if node is scope or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        inner = read(node.body)
        given = {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
        outer = {
            name
            for each in ast.walk(node)
            if isinstance(each, ast.Global | ast.Nonlocal)
            for name in each.names
        }
        found |= outer | (inner.exposed - inner.ever - given)
    return {name for name in found if "." not in name}


def changed_attributes(file: str, name: str) -> set[str]:
    """Return the attributes of a class that one of its methods both reads, first, and writes."""
    found: set[str] = set()
    tree = tree_of(file)
    for node in ast.walk(tree) if tree else ():
        if not (isinstance(node, ast.ClassDef) and node.name == name):
            continue
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and method.args.args:
                own, inner = f"{method.args.args[0].arg}.", read(method.body)
                both = inner.exposed & inner.ever
                found |= {each.removeprefix(own) for each in both if each.startswith(own)}
    return found


@functools.lru_cache(maxsize=64)
def tree_of(file: str) -> ast.Module | None:
    """Return a file's syntax; None where there is no source."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return None


@functools.lru_cache(maxsize=256)
def names_at(file: str, function: str, first_line: int, line: int) -> frozenset[str]:
    """Return the names that are carried where a function executes a line."""
    tree = tree_of(file)
    scope: Scope | None = tree if function == "<module>" else None
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if first_line in (first, node.lineno):
                scope = node
    return frozenset(carried(scope, line)) if scope is not None else frozenset()


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a scope that are not within a function or class of it."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            yield from _own(node)


def _spans(node: ast.AST, line: int) -> bool:
    return getattr(node, "lineno", 0) <= line <= (getattr(node, "end_lineno", 0) or 0)
