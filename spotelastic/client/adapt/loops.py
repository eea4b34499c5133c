"""Finds the training loop of a script: the batches, the epochs around them, and what is counted."""

from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from spotelastic.client.adapt.source import (
    Source,
    argument,
    calls,
    found,
    is_name,
    last_name,
)

BARS = frozenset({"tqdm", "trange", "track"})
"""Functions that show a bar, and yield what they are given."""
OTHER_LOOP = (
    "write it as in docs/how-to/from-torchrun.md: restore() before it, and step() after each step"
)


@dataclass(frozen=True, slots=True)
class Iteration:
    """What a loop goes over, without what only counts or shows it."""

    source: cst.BaseExpression
    """The call of range, or the loader."""
    is_range: bool
    start: str = "0"
    stop: str = ""
    """Of a range, as it is written."""
    counter: cst.BaseExpression | None = None
    """The variable of enumerate, or of range."""
    target: cst.BaseAssignTargetExpression | None = None
    """What takes the batch; None for a range."""
    bar: cst.Call | None = None
    """The call that shows a bar."""
    counter_start: str = "0"


@dataclass(frozen=True, slots=True)
class TrainingLoop:
    """The loop whose body makes one step of the optimizer, and what is around it."""

    loop: cst.For
    over: Iteration
    scope: "cst.FunctionDef | cst.Module"
    """The function that the loop is in."""
    region: cst.CSTNode
    """Where the step is made: the loop's body, or a function that it calls."""
    epochs: cst.For | None = None
    """The loop around it."""
    epochs_over: Iteration | None = None
    call: cst.Call | None = None
    """The call of `scope` in the loop of epochs, if that is in another function."""
    step_call: cst.Call | None = None
    """The call of `region` in the loop, if the step is made in a function of its own."""

    @property
    def outermost(self) -> cst.For:
        """The loop that the Checkpointer goes around."""
        return self.epochs or self.loop


def training_loop(source: Source) -> TrainingLoop:
    """Return the training loop. Raises `NotUnderstood`."""
    backward = calls(source.module, "backward")
    if not backward:
        raise source.not_understood(
            source.module, "there is no backward(), so no training loop was found"
        )
    places = [_place(source, call) for call in backward]
    loop, region, step_call = places[0]
    for call, (other, _, _) in zip(backward, places, strict=True):
        if other is not loop:
            raise source.not_understood(
                call, f"this is another training loop than that of line {source.line(loop)}"
            )
    _check_body(source, loop)
    _check_accumulation(source, region)
    found_loop = _with_epochs(source, loop, region, step_call)
    if found_loop.epochs is not None and (leave := _breaks(loop)):
        raise source.not_understood(
            leave[0], "the epoch is left early, so that its steps cannot be counted"
        )
    return found_loop


def _place(source: Source, call: cst.Call) -> tuple[cst.For, cst.CSTNode, cst.Call | None]:
    """Return the loop in which a step is made, where it is made, and the call of that."""
    for each in source.around(call):
        if isinstance(each, cst.For):
            return each, each.body, None
        if isinstance(each, cst.While):
            raise source.not_understood(each, f"this is no `for` loop: {OTHER_LOOP}")
        if isinstance(each, cst.FunctionDef):
            sites = _sites(source, each)
            if len(sites) != 1:
                raise source.not_understood(
                    each, f"{each.name.value}() makes a step, and is called {len(sites)} times"
                )
            loop, _, _ = _place(source, sites[0])
            return loop, each, sites[0]
    raise source.not_understood(call, "this backward() is in no loop")


def _sites(source: Source, function: cst.FunctionDef) -> Sequence[cst.Call]:
    """Return the calls of a function, outside of itself."""
    inside = set(map(id, found(function, cst.Call)))
    sites = calls(source.module, function.name.value)
    return [each for each in sites if id(each) not in inside]


def _check_body(source: Source, loop: cst.For) -> None:
    if loop.orelse is not None:
        raise source.not_understood(loop.orelse, "a loop with `else`")
    if loop.asynchronous is not None:
        raise source.not_understood(loop, "an asynchronous loop")
    if isinstance(loop.body, cst.SimpleStatementSuite):
        raise source.not_understood(loop, "a loop on one line: give its body lines of its own")
    for each in found(loop.body, cst.Yield):
        raise source.not_understood(each, "a generator: its caller runs between the steps")


def _check_accumulation(source: Source, region: cst.CSTNode) -> None:
    """Refuse gradients of several batches: a step would not be one turn of the loop."""
    for call in calls(region, "step"):
        for each in source.around(call):
            if each is region:
                break
            if isinstance(each, cst.If) and found(each.test, cst.Modulo):
                raise source.not_understood(
                    each,
                    "gradients of several batches are added up: make one turn of the loop one step "
                    "of the optimizer, with se.microbatches (docs/how-to/data.md)",
                )


def _breaks(loop: cst.For) -> Sequence[cst.Break]:
    """Return the `break`s that leave this loop, not one within it."""
    inner = [*found(loop.body, cst.For), *found(loop.body, cst.While)]
    within = {id(each) for nested in inner for each in found(nested, cst.Break)}
    return [each for each in found(loop.body, cst.Break) if id(each) not in within]


# -- epochs ----------------------------------------------------------------------------------------


def _with_epochs(
    source: Source, loop: cst.For, region: cst.CSTNode, step_call: cst.Call | None
) -> TrainingLoop:
    scope = source.scope(loop)
    around = _loops_around(source, loop)
    call = None
    if not around and isinstance(scope, cst.FunctionDef):
        sites = _sites(source, scope)
        in_loops = [(site, _loops_around(source, site)) for site in sites]
        in_loops = [(site, loops) for site, loops in in_loops if loops]
        if len(in_loops) > 1 or (in_loops and len(sites) > 1):
            raise source.not_understood(
                sites[-1], f"{scope.name.value}() trains, and is called in several places"
            )
        if in_loops:
            call, around = in_loops[0]
    if len(around) > 1:
        raise source.not_understood(
            around[1], "a loop around the epochs: adapt a script that trains one model"
        )
    over = iteration(source, loop)
    if not around:
        return TrainingLoop(loop, over, scope, region, step_call=step_call)
    epochs = around[0]
    if not isinstance(epochs, cst.For):
        raise source.not_understood(epochs, f"this is no `for` loop: {OTHER_LOOP}")
    epochs_over = iteration(source, epochs)
    if not epochs_over.is_range or not isinstance(epochs_over.counter, cst.Name):
        raise source.not_understood(epochs, "the epochs are not counted by range()")
    if isinstance(epochs.body, cst.SimpleStatementSuite) or epochs.orelse is not None:
        raise source.not_understood(epochs, "a loop with `else`, or on one line")
    return TrainingLoop(loop, over, scope, region, epochs, epochs_over, call, step_call)


def _loops_around(source: Source, node: cst.CSTNode) -> "list[cst.For | cst.While]":
    loops: list[cst.For | cst.While] = []
    for each in source.around(node):
        if isinstance(each, cst.FunctionDef):
            break
        if isinstance(each, cst.For | cst.While):
            loops.append(each)
    return loops


# -- what a loop goes over -------------------------------------------------------------------------


def iteration(source: Source, loop: cst.For) -> Iteration:
    """Return what a loop goes over. Raises `NotUnderstood`."""
    over, target, counter, bar = loop.iter, loop.target, None, None
    counter_start = "0"
    if isinstance(over, cst.Name):  # bar = tqdm(loader)
        assigned = source.assigned(over.value, source.scope(loop))
        if assigned and _is_bar(assigned[-1].value):
            over = assigned[-1].value
    while isinstance(over, cst.Call) and over.args:
        name = last_name(over.func)
        if name == "trange":
            return _range(source, loop, over, bar=over)
        if name in BARS:
            bar, over = over, over.args[0].value
        elif name == "enumerate" and counter is None:
            if not isinstance(target, cst.Tuple) or len(target.elements) != 2:
                raise source.not_understood(loop, "enumerate() that does not give two names")
            first, second = (each.value for each in target.elements)
            start = argument(over, "start", 1)
            counter_start = source.code(start.value) if start is not None else "0"
            counter, over = first, over.args[0].value
            if not isinstance(second, cst.BaseAssignTargetExpression):
                raise source.not_understood(loop, "a target that is not understood")
            target = second
        elif name == "range":
            return _range(source, loop, over, bar=bar)
        else:
            break
    return Iteration(over, False, "0", "", counter, target, bar, counter_start)


def _is_bar(value: cst.BaseExpression) -> bool:
    return isinstance(value, cst.Call) and last_name(value.func) in BARS


def _range(source: Source, loop: cst.For, call: cst.Call, bar: cst.Call | None) -> Iteration:
    """Return a range of one or two numbers."""
    bounds = [source.code(arg.value) for arg in call.args if arg.keyword is None]
    if len(bounds) > 2:
        raise source.not_understood(call, "a range() that does not count by one")
    start, stop = bounds if len(bounds) == 2 else ("0", bounds[0])
    if not isinstance(loop.target, cst.Name):
        raise source.not_understood(loop, "a range() that does not give one name")
    return Iteration(call, True, start, stop, loop.target, None, bar)


def loss_of(loop: TrainingLoop) -> str:
    """Return the name of the loss; "" if it has none."""
    if loop.step_call is not None:
        for statement in found(loop.loop.body, cst.Assign):
            if statement.value is loop.step_call and isinstance(
                target := statement.targets[0].target, cst.Name
            ):
                return target.value
        return ""
    (first, *_) = calls(loop.region, "backward")
    holder = first.func.value if isinstance(first.func, cst.Attribute) else first
    plain = [arg.value for arg in first.args if arg.keyword is None]
    if isinstance(holder, cst.Name) and plain:  # accelerator.backward(loss)
        holder = plain[0]
    if isinstance(holder, cst.Call) and holder.args:  # scaler.scale(loss).backward()
        holder = holder.args[0].value
    names = found(holder, cst.Name)
    return names[0].value if names and not is_name(names[0], "self") else ""
