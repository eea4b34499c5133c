"""Finds what a script makes of its rank, and of the number of ranks, before its loop: both change.

    rank = dist.get_rank()
    is_main = rank == 0

A process that outlives a change of nodes may have another rank then. So such plain values are made
again where they are read: in a step, around the steps of an epoch, and after the loop.
"""

import ast
import re
from collections.abc import Iterator, Sequence

from spotelastic.client.adapt.changes import arguments, given, reached
from spotelastic.client.adapt.loops import TrainingLoop, following
from spotelastic.client.adapt.source import (
    Function,
    Source,
    bound,
    calls,
    dotted,
    last_name,
    nodes,
    read,
)

ASKED = re.compile(r"\bget_(rank|world_size)\(|['\"](RANK|WORLD_SIZE)['\"]")
"""How a script asks for the present ones, also in `os.environ`."""
PLAIN = re.compile(
    r"get_rank|get_world_size|is_initialized|is_available|int|bool|str|min|max|get|getenv"
)
"""Functions that may be called once more."""

Made = tuple[str, ast.expr, bool, ast.stmt]
"""The name of what is made of the ranks, the expression, whether it has names of the script alone,
and where this is.
"""


class ScriptRanks:
    """The plain values that a loop's script makes of the ranks before the loop."""

    def __init__(self, source: Source, loop: TrainingLoop) -> None:
        """Find them. Raises `NotUnderstood` for one that cannot be made again."""
        self._source, self._loop = source, loop
        self._lines: dict[str, str] = {}
        """The line that makes each, by its name."""
        before, end = loop.parts
        parts = [*before, loop.loop.iter, *loop.loop.body, *end, *following(source, loop)]
        made = of_ranks(source)
        for name, value, known, node in made:
            place = source.scope(node)
            if loop.outermost in source.around(node) or not self._is_read(name, parts):
                continue
            if place is loop.scope and known:
                self._lines[name] = self._line(name, value, node)
            elif place in (loop.scope, source.tree):
                raise self._no(node, name)
        for name, call in self._handed_on({name for name, *_ in made}):
            if self._is_read(name, parts):
                raise self._no(call, name)

    def lines(self, parts: Sequence[ast.AST]) -> list[str]:
        """Return the lines that go before a part of the script."""
        are_read = any(self._is_read(name, parts) for name in self._lines)
        return [*self._lines.values()] if are_read else []

    def _is_read(self, name: str, parts: Sequence[ast.AST]) -> bool:
        first, *functions = reached(self._source, parts)
        bodies = [first, *(body for body in functions if name not in bound(body))]
        return any(reads(name, body) for body in bodies)

    def _no(self, node: ast.AST, name: str) -> Exception:
        return self._source.no(
            node,
            f"{name} is made of the ranks, and these change when nodes come and go: make it in "
            "the function that has the loop, by torch.distributed.get_rank()",
        )

    def _handed_on(self, names: set[str]) -> Iterator[tuple[str, ast.Call]]:
        """Yield the arguments of the loop's function that are made of the ranks."""
        scope = self._loop.scope
        if not isinstance(scope, Function):
            return
        for call in calls(self._source.tree, scope.name):
            for name in arguments(scope.args):
                if is_of_ranks(given(call, scope, name), names - {name}):
                    yield name, call

    def _line(self, name: str, value: ast.expr, node: ast.stmt) -> str:
        """Return a line that makes a value again, where it was made at all."""
        tests, inner = list[str](), node
        for outer in self._source.around(node):
            if outer is self._loop.scope or outer in self._source.around(self._loop.outermost):
                break
            if not isinstance(outer, ast.If):
                raise self._no(node, name)
            tests.insert(0, f"{'' if inner in outer.body else 'not '}({ast.unparse(outer.test)})")
            inner = outer
        made = f"{name} = {ast.unparse(value)}"
        return f"if {' and '.join(tests)}: {made}" if tests else made


def of_ranks(source: Source) -> list[Made]:
    """Return the plain values that are made of the ranks, also by a function that returns them."""
    found: list[Made] = []
    for each in nodes(source.tree, ast.Assign, ast.AnnAssign):
        for target in each.targets if isinstance(each, ast.Assign) else [each.target]:
            for one, value, known in pairs(source, target, each.value):
                if dotted(one) and is_of_ranks(value, {name for name, *_ in found}):
                    found.append((dotted(one), value, known, each))
    return found


def pairs(
    source: Source, target: ast.AST, value: ast.expr | None
) -> Iterator[tuple[ast.AST, ast.expr, bool]]:
    """Yield what an assignment sets, to what, and whether that has no names of another function.

    What a function of the script returns is what it makes that of.
    """
    function = source.function(dotted(value.func)) if isinstance(value, ast.Call) else None
    returned = [value] if function is None else [r.value for r in nodes(function, ast.Return)]
    for told in filter(None, returned):
        ones, its = getattr(target, "elts", [target]), getattr(told, "elts", [told])
        for one, part in zip(ones, its, strict=True) if len(ones) == len(its) else ():
            local = [*source.values(dotted(part), function)] if function is not None else []
            found = local[0] if len(local) == 1 and local[0] is not None else part
            yield one, found, function is None or read([found]) <= {*source.imported, "int"}


def reads(name: str, body: Sequence[ast.AST]) -> bool:
    """Return whether a name, as `rank` or `args.rank`, is read."""
    found = nodes(body, ast.Name, ast.Attribute)
    return any(dotted(each) == name and isinstance(each.ctx, ast.Load) for each in found)


def is_of_ranks(value: ast.AST | None, names: set[str]) -> bool:
    """Return whether a value is a plain one that is made of the ranks, or of these names."""
    if value is None:
        return False
    inner = [*ast.walk(value)]
    called = [last_name(each.func) for each in inner if isinstance(each, ast.Call)]
    kinds = ast.Dict | ast.List | ast.Tuple | ast.Set | ast.Lambda | ast.NamedExpr
    plain = all(map(PLAIN.fullmatch, called)) and not any(isinstance(e, kinds) for e in inner)
    asks = ASKED.search(ast.unparse(value)) is not None
    return plain and (asks or any(dotted(each) in names for each in inner))
