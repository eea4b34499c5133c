"""Decides what becomes of the statements after an epoch's last step, if the job goes on from there.

The state that was saved at that step lacks what they change, as a scheduler's step. So they have to
come again. Where they need what only a step of the loop brings, a scheduler's step is made within
the epoch's last step instead, so that it is saved with it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import libcst as cst

from spotelastic.client.adapt.loops import TrainingLoop
from spotelastic.client.adapt.source import Source, calls, first_name, found


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """What becomes of them."""

    comes_again: bool
    """Whether the epoch is entered again."""
    moved: tuple[cst.SimpleStatementLine, ...] = ()
    """Schedulers' steps that are made within the epoch's last step."""
    lost: cst.CSTNode | None = None
    """What changes the state, and is left out if the job goes on from exactly there."""


def epoch_end(source: Source, loop: TrainingLoop, state: Iterable[str]) -> EpochEnd:
    """Return what becomes of the statements after the last step of an epoch."""
    if loop.epochs is None:
        return EpochEnd(False)
    after, before = _around(source, loop.loop, loop.epochs)
    # What follows the call of a function uses nothing of the function's own.
    later = after if loop.call is None else _around(source, loop.call, loop.epochs)[0]
    bound = _bound([*before, loop.epochs.target])
    needs = _used(after) & (_bound([loop.loop.body, loop.loop.target]) - bound)
    if not needs:
        return EpochEnd(True)
    names = set(state)
    changing = [
        (statement, call)
        for statement in dict.fromkeys([*after, *later])
        for call in calls(statement, "step", "update", "update_parameters")
        if first_name(call.func) in names
    ]
    if not changing:
        return EpochEnd(False)
    plain = [
        statement
        for statement, call in changing
        if isinstance(statement, cst.SimpleStatementLine) and _is_plain(statement, call)
    ]
    if len(plain) == len(changing) and loop.call is None and not found(loop.loop, cst.Continue):
        return EpochEnd(False, tuple(plain))
    return EpochEnd(False, (), changing[0][1])


def _around(
    source: Source, node: cst.CSTNode, epochs: cst.For
) -> tuple[list[cst.CSTNode], list[cst.CSTNode]]:
    """Return the statements that follow in an epoch, and all that come before in the function."""
    after: list[cst.CSTNode] = []
    before: list[cst.CSTNode] = []
    inner, in_epoch = node, True
    for outer in source.around(node):
        if isinstance(outer, cst.FunctionDef):
            before.append(outer.params)
            break
        if isinstance(outer, cst.IndentedBlock | cst.Module):
            place = next(n for n, each in enumerate(outer.body) if each is inner)
            before += outer.body[:place]
            after += outer.body[place + 1 :] if in_epoch else ()
        in_epoch = in_epoch and outer is not epochs
        inner = outer
    return after, before


def _is_plain(statement: cst.SimpleStatementLine, call: cst.Call) -> bool:
    """Whether the statement is `scheduler.step()` and nothing else."""
    first = statement.body[0]
    is_alone = len(statement.body) == 1 and not call.args
    return is_alone and isinstance(first, cst.Expr) and first.value is call


def _used(nodes: Iterable[cst.CSTNode]) -> set[str]:
    """Return the names that occur, without those of attributes."""
    names: set[str] = set()
    for node in nodes:
        others = {id(each.attr) for each in found(node, cst.Attribute)}
        names |= {each.value for each in found(node, cst.Name) if id(each) not in others}
    return names


def _bound(nodes: Iterable[cst.CSTNode]) -> set[str]:
    """Return the names that get a value."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, cst.BaseExpression):
            names |= _used([node])
        if isinstance(node, cst.Parameters):
            names |= {each.name.value for each in found(node, cst.Param)}
        targets: list[cst.CSTNode] = [each.target for each in found(node, cst.AssignTarget)]
        targets += [each.target for each in found(node, cst.For)]
        targets += [each.target for each in found(node, cst.NamedExpr)]
        targets += [each.name for each in found(node, cst.AsName)]
        names |= _used(target for target in targets if not isinstance(target, cst.Attribute))
        names |= {each.name.value for each in found(node, cst.FunctionDef)}
    return names
