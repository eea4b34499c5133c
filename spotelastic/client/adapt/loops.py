"""Finds the one training loop of a script, whose every turn makes one step of the optimizer.

A loop is converted only where that can be seen: backward() and the optimizer's step() stand in its
body, in each turn; it is left at its end alone; and it is entered once.
"""

import ast
import re
from dataclasses import dataclass

from spotelastic.client.adapt.source import (
    Function,
    Loop,
    Source,
    argument,
    bound,
    calls,
    dotted,
    last_name,
    nodes,
    read,
    root_name,
)

ADDED_UP = (
    "make each turn one step of the optimizer, and cut up its batch with se.microbatches "
    "(docs/how-to/data.md)"
)
MAYBE = f". If gradients of several batches are added up: {ADDED_UP}"
EARLY = (
    "the loop is left early: its steps cannot be counted, and a process that goes on later "
    "would not know of it"
)


@dataclass(frozen=True, slots=True)
class TrainingLoop:
    """The loop whose body makes one step of the optimizer, and what is around it."""

    loop: ast.For
    scope: ast.AST
    over: ast.expr
    """The loader's name, or the call of range()."""
    replaced: ast.expr
    """What of the loop's head gives way to the steps."""
    target: ast.expr | None
    """What takes the batch; None for a range."""
    counter: str
    """The variable of enumerate() or range()."""
    start: str
    """What it begins with."""
    length: str
    """How many steps the loop has, as an expression."""
    epochs: ast.For | None
    """The loop around it."""

    @property
    def outermost(self) -> ast.For:
        """The loop that the Checkpointer goes around."""
        return self.epochs or self.loop

    @property
    def parts(self) -> tuple[list[ast.stmt], list[ast.stmt]]:
        """What an epoch does before and after its steps."""
        body: list[ast.stmt] = self.epochs.body if self.epochs else [self.loop]
        place = body.index(self.loop)
        return body[:place], body[place + 1 :]


def training_loop(source: Source) -> TrainingLoop:
    """Return the training loop. Raises `NotUnderstood`."""
    backward = calls(source.tree, "backward")
    if not backward:
        raise source.no(source.tree, "there is no backward(), so no training loop was found")
    loop = _loop_of(source, backward[0])
    steps = _optimizer_steps(source, loop)
    for call in [*backward, *steps]:
        _check_each_turn(source, call, loop)
    for each in source.around(loop) if not steps else ():
        if later := [c for c in calls(each, "step") if c.lineno > loop.lineno]:
            raise source.no(
                loop,
                "gradients of several batches are added up in this loop: "
                f"{source.code(later[0])} comes after it, in line {later[0].lineno}; {ADDED_UP}",
            )
    if not steps:
        raise source.no(loop, "no optimizer's step() stands in this loop")
    _check_end(source, loop, max(call.lineno for call in [*backward, *steps]))
    scope = source.scope(loop)
    around = [each for each in source.around(loop) if isinstance(each, Loop)]
    if len(around) > 1 or (around and source.scope(around[0]) is not scope):
        raise source.no(around[-1], "a third loop around these enters them several times")
    epochs = around[0] if around else None
    if epochs is not None:
        _check_epochs(source, epochs, loop)
    _check_entered_once(source, scope)
    assert epochs is None or isinstance(epochs, ast.For)
    found = _described(source, loop, scope, epochs)
    if read([found.over]) & bound([found.outermost]):
        raise source.no(loop, f"{source.code(found.over)} may have another length in each epoch")
    return found


def _loop_of(source: Source, call: ast.Call) -> ast.For:
    method = [each.name for each in source.around(call) if isinstance(each, ast.ClassDef)]
    if method:
        raise source.no(
            call,
            f"{source.code(call.func)}() is in a method of {method[0]}: model and optimizer belong "
            "to an object (self.optimizer). Name them in the state where the loop is",
        )
    for each in source.around(call):
        if isinstance(each, ast.For):
            return each
        if isinstance(each, ast.While):
            raise source.no(each, "a `while` loop: its steps cannot be counted")
        if isinstance(each, Function):
            raise source.no(
                call, f"backward() is in {each.name}(), and not in the body of the loop itself"
            )
    raise source.no(call, "this backward() is in no loop")


def _optimizer_steps(source: Source, loop: ast.For) -> list[ast.Call]:
    """Return the calls of step() in the loop that may be an optimizer's."""
    found = []
    for call in calls(loop, "step"):
        made = source.maker(source.made(root_name(call), source.scope(loop)))
        other = re.search(r"sched|^lr|prof|env", f"{root_name(call)} {made}", re.IGNORECASE)
        if isinstance(call.func, ast.Attribute) and not other:
            found.append(call)
    return found


def _check_each_turn(source: Source, call: ast.Call, loop: ast.For) -> None:
    what, inner = f"{source.code(call.func)}()", loop in source.around(call)
    for each in source.around(call):
        if each is loop:
            return
        if not inner:
            break
        if isinstance(each, ast.With) and calls([i.context_expr for i in each.items], "accumulate"):
            raise source.no(each, f"accumulate() adds up gradients of several batches: {ADDED_UP}")
        if isinstance(each, Loop):
            raise source.no(each, f"{what} is in a loop within a turn{MAYBE}")
        if not isinstance(each, ast.With | ast.Expr | ast.Assign | ast.Call | ast.withitem):
            shown = f" (if {source.code(each.test)})" if isinstance(each, ast.If) else ""
            raise source.no(each, f"{what} is not called in each turn{shown}{MAYBE}")
    raise source.no(call, f"{what}: there is a training loop in line {loop.lineno} already")


def _check_end(source: Source, loop: ast.For, last: int) -> None:
    """Refuse what leaves a loop or a turn of it early. `last`: the line up to which a turn goes."""
    if loop.orelse or loop.body[0].lineno == loop.lineno or isinstance(loop, ast.AsyncFor):
        raise source.no(loop, "a loop with `else`, on one line, or `async`")
    for each in nodes(loop.body, ast.Return, ast.Break, ast.Continue, ast.Yield, ast.YieldFrom):
        inner = next(o for o in source.around(each) if isinstance(o, Loop))
        if isinstance(each, ast.Yield | ast.YieldFrom):
            raise source.no(each, "a generator: its caller runs between the steps")
        if isinstance(each, ast.Return) or (isinstance(each, ast.Break) and inner is loop):
            raise source.no(each, EARLY)
        if isinstance(each, ast.Continue) and inner is loop:
            raise source.no(each, f"`continue`: some turns leave something out{MAYBE}")
    caught = any(isinstance(each, ast.Try) and each.handlers for each in source.around(loop))
    raised = nodes(loop.body, ast.Raise) if caught else []
    for each in [*calls(loop.body, "exit", "_exit", "quit"), *raised]:
        raise source.no(each, EARLY)
    for call in nodes(loop.body, ast.Call):
        if dotted(call.func) in ("exec", "eval"):
            raise source.no(call, f"{dotted(call.func)}() may set any name of the loop")
    for each in nodes(loop.body, Function, ast.ClassDef, ast.Global, ast.Nonlocal, ast.Match):
        raise source.no(each, "a definition or a `match` in a loop")


def _check_epochs(source: Source, epochs: ast.AST, loop: ast.For) -> None:
    if not isinstance(epochs, ast.For):
        raise source.no(epochs, "a `while` loop around the steps: epochs cannot be counted")
    if loop not in epochs.body:
        raise source.no(loop, "the loop is within an `if`, `with` or `try` of an epoch")
    _check_end(source, epochs, 0)
    call = epochs.iter
    if not isinstance(call, ast.Call) or dotted(call.func) != "range" or len(call.args) > 2:
        raise source.no(epochs, "the epochs are not counted by range()")
    first = call.args[0] if len(call.args) == 2 else ast.Constant(0)
    if not isinstance(first, ast.Constant):
        raise source.no(
            epochs,
            f"the epochs begin with {source.code(first)}: the script goes on from checkpoints of "
            "its own. Let them begin with 0, and take out what loads these",
        )
    if not isinstance(epochs.target, ast.Name):
        raise source.no(epochs, "the number of the epoch has no name")


def _check_entered_once(source: Source, scope: ast.AST) -> None:
    while isinstance(scope, Function):
        name, is_plain = scope.name, isinstance(scope, ast.FunctionDef)
        uses = [each for each in nodes(source.tree, ast.Name) if each.id == name]
        sites = [each for each in nodes(source.tree, ast.Call) if each.func in uses]
        passed = [each for each in uses if not any(each is call.func for call in sites)]
        if passed or not is_plain or source.function(name) is not scope:
            raise source.no(
                (passed or [scope])[0], f"{name}() trains, and how often it runs is not seen"
            )
        if len(sites) != 1:
            raise source.no(
                (sites or [scope])[-1],
                f"{name}() trains, and is called in {len(sites)} places: its loop has to be "
                "entered once",
            )
        scope = source.scope(sites[0])
        for each in source.around(sites[0]):
            if isinstance(each, Loop | ast.comprehension) and source.scope(each) is scope:
                raise source.no(
                    sites[0],
                    f"{name}() trains, and is called in a loop: put its loop into this one",
                )


def _described(
    source: Source, loop: ast.For, scope: ast.AST, epochs: ast.For | None
) -> TrainingLoop:
    over, target, counter, start, length = loop.iter, loop.target, "", "0", ""
    if isinstance(over, ast.Call) and last_name(over.func) == "tqdm" and over.args:
        over = over.args[0]
    replaced: ast.expr = over
    args = over.args if isinstance(over, ast.Call) else []
    made_by = dotted(over.func) if isinstance(over, ast.Call) else ""
    batch: ast.expr | None = target
    if (
        isinstance(over, ast.Call)
        and made_by == "enumerate"
        and len(args) in (1, 2)
        and isinstance(target, ast.Tuple)
    ):
        counter, batch = dotted(target.elts[0]), target.elts[1]
        first = argument(over, "start", 1)
        start, over = source.code(first) if first is not None else "0", args[0]
    elif made_by == "range" and len(args) in (1, 2):
        if len(args) == 2 and not isinstance(args[0], ast.Constant):
            raise source.no(
                loop,
                f"the steps begin with {source.code(args[0])}: the script goes on from checkpoints "
                "of its own. Let them begin with 0, and take out what loads these",
            )
        counter, batch = dotted(target), None
        start = source.code(args[0]) if len(args) == 2 else "0"
        length = source.code(args[-1]) if len(args) == 1 else source.less(args[1], start)
    if (batch is None and counter) or (isinstance(over, ast.Name) and (counter or not args)):
        length = length or f"len({dotted(over)})"
        return TrainingLoop(loop, scope, over, replaced, batch, counter, start, length, epochs)
    raise source.no(loop, f"it goes over {source.code(over)[:60]}, which is no loader by name")


def loss_of(source: Source, loop: TrainingLoop) -> tuple[str, ast.stmt] | None:
    """Return the name of the loss and where it is, if it is one number for certain."""
    found = calls(loop.loop, "backward")
    call, named = found[0], found[0].func.value  # type: ignore[attr-defined]
    if len(found) > 1 or call.args or any(each.arg in (None, "gradient") for each in call.keywords):
        return None
    if isinstance(named, ast.Call) and last_name(named.func) == "scale" and named.args:
        named = named.args[0]
    return (named.id, source.statement(call)) if isinstance(named, ast.Name) else None


def following(source: Source, loop: TrainingLoop) -> list[ast.stmt]:
    """Return the statements of the loop's function that come after it."""
    found: list[ast.stmt] = []
    inner: ast.AST = loop.outermost
    for each in source.around(loop.outermost):
        for body in (getattr(each, "body", []), getattr(each, "orelse", [])):
            if isinstance(body, list) and inner in body:
                found += body[body.index(inner) + 1 :]
        if each is loop.scope:
            break
        inner = each
    return found
