"""Holds a script as a concrete syntax tree: every blank and comment stays as it was written.

Whoever does not understand a script says where it ends to understand, and changes nothing.
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import libcst as cst
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider

from spotelastic.errors import UsageError

N = TypeVar("N", bound=cst.CSTNode)


class NotUnderstood(UsageError):
    """A script of another form than those that `adapt` knows; the message names the line."""


class Source:
    """A script with its tree, the places of its nodes, and what encloses them."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        try:
            module = cst.parse_module(text)
        except cst.ParserSyntaxError as error:
            raise UsageError(f"{name} is not a Python file: {_wrong(text, error)}") from None
        wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
        self.module = wrapper.module
        self._places = wrapper.resolve(PositionProvider)
        self._parents = wrapper.resolve(ParentNodeProvider)

    def line(self, node: cst.CSTNode) -> int:
        """Return the line on which a node begins."""
        return int(self._places[node].start.line)

    def not_understood(self, node: cst.CSTNode, why: str) -> NotUnderstood:
        """Return the error for a part that is not understood."""
        return NotUnderstood(f"{self.name}, line {self.line(node)}: {why}; nothing was changed")

    def around(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield what encloses a node, from the inside out."""
        while (parent := self._parents.get(node)) is not None:
            yield parent
            node = parent

    def scope(self, node: cst.CSTNode) -> "cst.FunctionDef | cst.Module":
        """Return the function, else the module, that a node is in."""
        for each in self.around(node):
            if isinstance(each, cst.FunctionDef):
                return each
        return self.module

    @cached_property
    def names(self) -> frozenset[str]:
        """All names of the script, without those of attributes and of arguments."""
        others = {id(each.attr) for each in found(self.module, cst.Attribute)}
        others |= {id(each.keyword) for each in found(self.module, cst.Arg)}
        named = found(self.module, cst.Name)
        return frozenset(each.value for each in named if id(each) not in others)

    def free(self, *wanted: str) -> str:
        """Return the first of these names that the script does not use."""
        return next((name for name in wanted if name not in self.names), f"{wanted[-1]}_")

    def code(self, node: cst.CSTNode) -> str:
        """Return a node as it is written."""
        return self.module.code_for_node(node)

    def functions(self, name: str) -> Sequence[cst.FunctionDef]:
        """Return the functions of that name."""
        return [each for each in found(self.module, cst.FunctionDef) if each.name.value == name]

    def assigned(self, name: str, scope: cst.CSTNode) -> Sequence["AssignedValue"]:
        """Return what a name is assigned in a function, else at the level of the module."""
        for place in (scope, self.module):
            values = [
                AssignedValue(each, each.value)
                for each in found(place, cst.Assign)
                if any(is_name(target.target, name) for target in each.targets)
                and self.scope(each) is place
            ]
            if values:
                return values
        return ()


@dataclass(frozen=True, slots=True)
class AssignedValue:
    """An assignment, and its value."""

    statement: cst.Assign
    value: cst.BaseExpression


def found(root: cst.CSTNode, kind: type[N]) -> list[N]:
    """Return all nodes of a kind below a node, in the order of the text."""
    nodes: list[N] = []
    waiting: list[cst.CSTNode] = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, kind):
            nodes.append(node)
        waiting.extend(reversed(node.children))
    return nodes


def is_name(node: cst.CSTNode, name: str) -> bool:
    """Whether a node is that name alone."""
    return isinstance(node, cst.Name) and node.value == name


def last_name(node: cst.CSTNode) -> str:
    """Return the last part of a dotted name: `SGD` of `torch.optim.SGD`; "" of anything else."""
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


def first_name(node: cst.CSTNode) -> str:
    """Return the first part of a dotted name: `model` of `model.module`; "" of anything else."""
    while isinstance(node, cst.Attribute):
        node = node.value
    return node.value if isinstance(node, cst.Name) else ""


def calls(root: cst.CSTNode, *methods: str) -> list[cst.Call]:
    """Return the calls of functions or methods of these names below a node."""
    return [each for each in found(root, cst.Call) if last_name(each.func) in methods]


def argument(call: cst.Call, name: str, position: int | None = None) -> cst.Arg | None:
    """Return an argument of a call, by its keyword, else by its position."""
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == name:
            return arg
    plain = [arg for arg in call.args if arg.keyword is None and not arg.star]
    return plain[position] if position is not None and position < len(plain) else None


def _wrong(text: str, error: cst.ParserSyntaxError) -> str:
    """Return what is wrong with a script, and in which line, as Python itself says it."""
    try:
        ast.parse(text)
    except SyntaxError as its:
        return f"line {its.lineno}: {its.msg}"
    except ValueError as its:
        return str(its)
    return f"line {error.raw_line} cannot be read"
