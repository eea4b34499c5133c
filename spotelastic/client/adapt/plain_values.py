"""Knows which values of a script are plain ones for certain, and the same on all of its workers."""

import ast
import re
from collections.abc import Iterator

from spotelastic.client.adapt.changes import FILLED, arguments, given, owners
from spotelastic.client.adapt.loops import TrainingLoop
from spotelastic.client.adapt.objects import is_shared
from spotelastic.client.adapt.ranks import is_of_ranks, pairs
from spotelastic.client.adapt.source import (
    Function,
    Source,
    argument,
    bound,
    calls,
    dotted,
    last_name,
    nodes,
    read,
    root_name,
    written,
)

NUMBERS = ("item", "tolist", "len", "int", "float", "round", "numel")
"""Functions that return numbers."""
OWN_RANK = r"get_rank|['\"]RANK"
"""What each worker has another one of."""

Set = tuple[ast.AST, ast.expr | None, ast.AST]
"""Where a name is set, to what (None: that is not seen), and the loop or function it is made in."""


class PlainValues:
    """The values of a script with a training loop. Where workers share a model, all have them."""

    def __init__(self, source: Source, loop: TrainingLoop) -> None:
        self._source, self._loop = source, loop
        self.shared = is_shared(source)

    def sets(self, name: str, root: ast.AST) -> Iterator[Set]:
        """Yield where a name is set, also to a part of what a function returns, or filled."""
        yield from ((c, c.args[0], root) for c in calls(root, *FILLED) if root_name(c) == name)
        for node, value in written(root, name):
            if value is not None or not isinstance(node, ast.Assign):
                yield node, value, root
                continue
            function = self._source.function(dotted(getattr(node.value, "func", None)))
            found = [*pairs(self._source, node.targets[0], node.value)] if function else []
            its: list[ast.expr | None] = [told for one, told, _ in found if dotted(one) == name]
            yield from ((node, value, function or root) for value in its or [None])

    def is_plain(self, value: ast.AST | None, root: ast.AST, known: frozenset[str]) -> bool:
        """Return whether a value is a number, a text, or a container of such.

        `root`: the loop or function that has it. `known`: names that are looked at already.
        """
        if isinstance(value, ast.Name):
            counted = {self._loop.counter, dotted(self._loop.epochs and self._loop.epochs.target)}
            if value.id in known or (root is self._loop.outermost and value.id in counted):
                return True
            if self.shared and self._is_count(value, None):
                return True
            sets = [*self.sets(value.id, root), *self._given(value.id, root)]
            more = known | {value.id}
            return bool(sets) and all(self.is_plain(v, place, more) for _, v, place in sets)
        if isinstance(value, ast.Call):
            return self._is_number(value, root, known)
        kinds = ast.BinOp | ast.UnaryOp | ast.IfExp | ast.Tuple | ast.List | ast.Constant
        inner = ast.iter_child_nodes(value) if isinstance(value, kinds | ast.Compare) else [None]
        parts = [each for each in inner if each is None or isinstance(each, ast.expr)]
        return all(each is not None and self.is_plain(each, root, known) for each in parts)

    def _given(self, name: str, root: ast.AST) -> Iterator[Set]:
        """Yield what the loop gives a function for an argument."""
        if isinstance(root, Function) and name in arguments(root.args):
            for call in calls(self._source.tree, root.name):
                yield call, given(call, root, name), self._loop.outermost

    def _is_number(self, call: ast.Call, root: ast.AST, known: frozenset[str]) -> bool:
        name = last_name(call.func)
        if dotted(call.func) in ("min", "max", "sum", "abs") and all(
            self.is_plain(each, root, known) for each in call.args
        ):
            return True
        if (function := self._source.function(dotted(call.func))) is not None:
            returned = [each.value for each in nodes(function, ast.Return)]
            seen = name not in known and bool(returned)
            return seen and all(self.is_plain(v, function, frozenset({name})) for v in returned)
        if name in NUMBERS or (name == "size" and call.args):
            return not self.shared or self._is_alike(call, root)
        return self.shared and self._is_count(call, None)

    def _is_alike(self, value: ast.Call, root: ast.AST) -> bool:
        """Whether a number is made of sums over all workers, and of how many these are, alone."""
        names = {each for each in read([value]) if each not in self._source.imported}
        if dotted(value.func) == "len" and not names & bound([root]):
            return True
        scope = self._source.scope(value)
        return all(
            self._is_sum(each, value, root) or self._is_count(ast.Name(each), scope)
            for each in names
        )

    def _is_sum(self, name: str, value: ast.Call, root: ast.AST) -> bool:
        source = self._source
        for call in calls(root, "all_reduce"):
            given = argument(call, "tensor", 0)
            within = next(source.around(source.statement(call)))
            later = [
                new if isinstance(each, ast.AugAssign) else None
                for each, new in written(root, name)
                if call.lineno < getattr(each, "lineno", 0) <= value.lineno
            ]
            if (
                owners(source, given) == {name}
                and argument(call, "async_op", 3) is None
                and call.lineno < value.lineno
                and within in source.around(value)
                and all(self._is_count(new, None) for new in later)
            ):
                return True
        return False

    def _is_count(self, value: ast.AST | None, scope: ast.AST | None) -> bool:
        """Whether a value is a number that is written out, or how many workers there are."""
        if isinstance(value, ast.Name):
            scope = scope or self._source.scope(value)
            its = [*self.sets(value.id, scope)] or [*self.sets(value.id, self._source.tree)]
            value = its[0][1] if len(its) == 1 else None
        if value is None or isinstance(value, ast.Constant):
            return value is not None
        return is_of_ranks(value, set()) and not re.search(OWN_RANK, ast.unparse(value))
