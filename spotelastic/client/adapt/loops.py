"""Finds the one training loop of a script, whose every turn makes one step of the optimizer.

A loop is converted only where that can be seen: backward() and the optimizer's step() stand in its
body, in each turn; it is left at its end alone; and it is entered once.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from spotelastic.client.adapt.source import (
    Function,
    Scope,
    Source,
    argument,
    calls,
    dotted,
    last_name,
    nodes,
    root_name,
)

BARS = ("tqdm", "track")
"""Functions that show a bar, and yield what they are given."""
STEPS = "\0"
"""Stands for the steps."""
ADDED_UP = (
    "make each turn one step of the optimizer, and cut up its batch with se.microbatches "
    "(docs/how-to/data.md)"
)


@dataclass(frozen=True, slots=True)
class TrainingLoop:
    """The loop whose body makes one step of the optimizer, and what is around it."""

    loop: ast.For
    scope: Scope
    over: ast.expr
    """What gives the batches, or the call of range()."""
    target: ast.expr | None
    """What takes the batch; None for a range."""
    counter: ast.Name | None
    """The variable of enumerate() or range()."""
    start: str
    """What the counter begins with."""
    length: str
    """How many steps the loop has, as an expression."""
    replaced: ast.expr
    """What of the loop's head gives way to the steps."""
    bar: str
    """What it gives way to, with `STEPS` in place of the steps: they may be shown by a bar."""
    epochs: ast.For | None
    """The loop around it."""
    backward: ast.Call

    @property
    def outermost(self) -> ast.For:
        """The loop that the Checkpointer goes around."""
        return self.epochs or self.loop

    @property
    def before(self) -> list[ast.stmt]:
        """What an epoch does before its steps."""
        return self.epochs.body[: self.epochs.body.index(self.loop)] if self.epochs else []

    @property
    def after(self) -> list[ast.stmt]:
        """What an epoch does after its steps."""
        return self.epochs.body[self.epochs.body.index(self.loop) + 1 :] if self.epochs else []


def training_loop(source: Source) -> TrainingLoop:
    """Return the training loop. Raises `NotUnderstood`."""
    backward = calls(source.tree, "backward")
    if not backward:
        raise source.not_understood(
            source.tree, "there is no backward(), so no training loop was found"
        )
    loop = _loop_of(source, backward[0])
    for call in [*backward, *_optimizer_steps(loop)]:
        _check_in_each_turn(source, call, loop)
    if not _optimizer_steps(loop):
        raise source.not_understood(loop, "no step() of an optimizer stands in this loop's body")
    _check_left_at_its_end(source, loop)
    scope = source.scope(loop)
    around = [each for each in source.around(loop) if isinstance(each, ast.For | ast.While)]
    epochs = around[0] if around and source.scope(around[0]) is scope else None
    if len(around) > 1:
        raise source.not_understood(around[1], "a loop around the epochs trains several times")
    if epochs is not None:
        _check_epochs(source, epochs, loop)
    _check_entered_once(source, scope)
    over, target, counter, start, replaced, bar = _iteration(source, loop, epochs)
    return TrainingLoop(
        loop,
        scope,
        over,
        target,
        counter,
        start,
        _length(source, over),
        replaced,
        bar,
        epochs if isinstance(epochs, ast.For) else None,
        backward[0],
    )


def _loop_of(source: Source, call: ast.Call) -> ast.For:
    for each in source.around(call):
        if isinstance(each, ast.While):
            raise source.not_understood(
                each, "a `while` loop: how many steps it has cannot be counted"
            )
        if isinstance(each, ast.For):
            return each
        if isinstance(each, ast.ClassDef):
            raise source.not_understood(
                call, f"backward() is called by an object ({each.name}), not by a loop in sight"
            )
        if isinstance(each, Function):
            if any(isinstance(outer, ast.ClassDef) for outer in source.around(each)):
                continue
            raise source.not_understood(
                call, f"backward() is in {each.name}(), not in the loop that calls it"
            )
    raise source.not_understood(call, "this backward() is in no loop")


def _optimizer_steps(loop: ast.For) -> list[ast.Call]:
    """Return the calls of step() in the loop that may be an optimizer's."""
    other = ("sched", "lr", "prof", "env", "writer")
    return [
        call
        for call in calls(loop, "step")
        if isinstance(call.func, ast.Attribute)
        and not any(part in dotted(call.func.value).lower() for part in other)
    ]


def _check_in_each_turn(source: Source, call: ast.Call, loop: ast.For) -> None:
    what = f"{source.code(call.func)}()"
    inner: ast.AST = call
    for each in source.around(call):
        if each is loop:
            if inner in loop.orelse:
                raise source.not_understood(call, f"{what} is in the `else` of a loop")
            return
        if isinstance(each, ast.With):
            for item in each.items:
                if calls(item.context_expr, "accumulate"):
                    raise source.not_understood(
                        each, f"accumulate() adds up gradients of several batches: {ADDED_UP}"
                    )
        elif isinstance(each, ast.For | ast.While):
            if loop in source.around(each):
                raise source.not_understood(
                    each,
                    f"{what} is in a loop within a turn, which takes several batches: {ADDED_UP}",
                )
            break
        elif not isinstance(each, ast.stmt | ast.expr) or isinstance(each, Function | ast.ClassDef):
            break
        elif isinstance(each, ast.If | ast.Try | ast.IfExp | ast.BoolOp | ast.Lambda | ast.Match):
            shown = f" (`if {source.code(each.test)}`)" if isinstance(each, ast.If) else ""
            raise source.not_understood(
                each,
                f"{what} is not called in each turn{shown}. If gradients of several batches are "
                f"added up: {ADDED_UP}",
            )
        inner = each
    raise source.not_understood(
        call, f"{what}: this is another training loop than that of line {loop.lineno}"
    )


def _check_left_at_its_end(source: Source, loop: ast.For) -> None:
    if loop.orelse:
        raise source.not_understood(loop.orelse[0], "a loop with `else`")
    if loop.body[0].lineno == loop.lineno:
        raise source.not_understood(loop, "a loop on one line: give its body lines of its own")
    for each in nodes(
        loop, ast.Return, ast.Yield, ast.YieldFrom, ast.Break, Function, ast.ClassDef
    ):
        around = next(o for o in source.around(each) if isinstance(o, ast.For | ast.While))
        if isinstance(each, ast.Break) and around is not loop:
            continue
        what = "a definition in a loop"
        if isinstance(each, ast.Break | ast.Return):
            what = (
                "the loop is left early: how many steps it has cannot be counted, and a process "
                "that goes on later would not know of it"
            )
        elif isinstance(each, ast.Yield | ast.YieldFrom):
            what = "a generator: its caller runs between the steps"
        raise source.not_understood(each, what)


def _check_epochs(source: Source, epochs: ast.For | ast.While, loop: ast.For) -> None:
    if isinstance(epochs, ast.While):
        raise source.not_understood(epochs, "a `while` loop around the steps: epochs are counted")
    if loop not in epochs.body:
        raise source.not_understood(
            loop, "it is not seen that each epoch enters this loop: it is in an `if`, `with` or try"
        )
    _check_left_at_its_end(source, epochs)
    call = _inner(epochs.iter)
    if not isinstance(call, ast.Call) or dotted(call.func) != "range" or call.keywords:
        raise source.not_understood(epochs, "the epochs are not counted by range()")
    if len(call.args) > 2 or not isinstance(epochs.target, ast.Name):
        raise source.not_understood(epochs, "epochs that are not counted by one")
    begin = call.args[0] if len(call.args) == 2 else ast.Constant(0)
    if not (isinstance(begin, ast.Constant) and isinstance(begin.value, int)):
        raise source.not_understood(
            epochs,
            f"the epochs begin with {source.code(begin)}: the script goes on from checkpoints of "
            "its own. Let them begin with 0, and take out what loads these",
        )


def _check_entered_once(source: Source, scope: Scope) -> None:
    while isinstance(scope, Function):
        name = scope.name
        if isinstance(scope, ast.AsyncFunctionDef) or source.function(name) is not scope:
            raise source.not_understood(scope, f"{name}() is not a function like others")
        if any(isinstance(each, ast.ClassDef) for each in source.around(scope)):
            raise source.not_understood(
                scope, f"the loop is in a method ({name}): model and optimizer belong to an object"
            )
        uses = [each for each in nodes(source.tree, ast.Name) if each.id == name]
        sites = [each for each in nodes(source.tree, ast.Call) if each.func in uses]
        if passed := [each for each in uses if all(each is not call.func for call in sites)]:
            raise source.not_understood(
                passed[0], f"{name}() trains, and is passed on: how often it runs is not seen"
            )
        if len(sites) != 1:
            raise source.not_understood(
                sites[1] if sites else scope,
                f"{name}() trains, and is called in {len(sites)} places: the loop is entered "
                "anew, and has to be the only one",
            )
        (site,) = sites
        for each in source.around(site):
            if isinstance(each, Function):
                break
            if isinstance(each, ast.For | ast.While | ast.comprehension | ast.Lambda):
                raise source.not_understood(
                    site,
                    f"{name}() trains, and is called in a loop: put the loop that it has "
                    "into this one",
                )
        scope = source.scope(site)


def _inner(expression: ast.expr) -> ast.expr:
    """Return what a bar shows."""
    is_bar = isinstance(expression, ast.Call) and last_name(expression.func) in BARS
    return expression.args[0] if is_bar and expression.args else expression  # type: ignore[attr-defined]


def _iteration(
    source: Source, loop: ast.For, epochs: ast.AST | None
) -> tuple[ast.expr, ast.expr | None, ast.Name | None, str, ast.expr, str]:
    """Return what a loop goes over, its target, its counter with its start, what is replaced, and
    by what.
    """
    over, target = loop.iter, loop.target
    if isinstance(over, ast.Name) and isinstance(epochs, ast.For):  # bar = tqdm(loader)
        for each in epochs.body[: epochs.body.index(loop)]:
            if isinstance(each, ast.Assign) and dotted(each.targets[0]) == over.id:
                over = each.value if _inner(each.value) is not each.value else over
    shown = _inner(over)
    replaced, bar, start, counter = shown, STEPS, "0", None
    if isinstance(shown, ast.Call) and dotted(shown.func) == "enumerate" and shown.args:
        first = argument(shown, "start", 1)
        start = "0" if first is None else source.code(first)
        if not isinstance(target, ast.Tuple) or len(target.elts) != 2:
            raise source.not_understood(loop, "enumerate() that does not give two names")
        counter, target = target.elts  # type: ignore[assignment]
        within = shown.args[0]
        shown = _inner(within)
        if shown is not within:  # enumerate(tqdm(loader))
            bar = source.code(within).replace(source.code(shown), STEPS, 1)
    if isinstance(shown, ast.Call) and dotted(shown.func) == "range":
        if counter is not None or len(shown.args) > 2 or shown.keywords:
            raise source.not_understood(loop, "a range() that does not count by one")
        start = source.code(shown.args[0]) if len(shown.args) == 2 else "0"
        if not isinstance(target, ast.Name):
            raise source.not_understood(loop, "a range() that does not give one name")
        return shown, None, target, start, replaced, bar
    if not isinstance(shown, ast.Name):
        raise source.not_understood(
            loop, f"the loop goes over {source.code(shown)}, which is not a loader with a name"
        )
    if counter is not None and not isinstance(counter, ast.Name):
        raise source.not_understood(loop, "enumerate() that does not give two names")
    return shown, target, counter, start, replaced, bar


def _length(source: Source, over: ast.expr) -> str:
    if isinstance(over, ast.Call):
        if len(over.args) == 1:
            return source.code(over.args[0])
        return f"{source.code(over.args[1])} - {source.code(over.args[0])}"
    return f"len({source.code(over)})"


def loss_of(loop: TrainingLoop) -> str:
    """Return the name of the loss, where it is a number for certain; "" otherwise.

    backward() without a gradient needs one number.
    """
    call = loop.backward
    assert isinstance(call.func, ast.Attribute)
    if len(calls(loop.loop, "backward")) > 1 or len(call.args) > 1:
        return ""
    if call.args:  # accelerator.backward(loss)
        named, holder = call.args[0], root_name(call.func)
        return dotted(named) if "accelerator" in holder and isinstance(named, ast.Name) else ""
    if any(keyword.arg in (None, "gradient") for keyword in call.keywords):
        return ""
    holder_ = call.func.value
    if isinstance(holder_, ast.Call) and last_name(holder_.func) == "scale" and holder_.args:
        holder_ = holder_.args[0]
    return holder_.id if isinstance(holder_, ast.Name) else ""


def statement_of(source: Source, node: ast.AST) -> ast.stmt:
    """Return the statement that a node is part of."""
    return next(each for each in _self_and_around(source, node) if isinstance(each, ast.stmt))


def _self_and_around(source: Source, node: ast.AST) -> Iterator[ast.AST]:
    yield node
    yield from source.around(node)
