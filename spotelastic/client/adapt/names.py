"""Finds the names that a loop reads and writes across its turns, which a new process has to know.

A name is carried from turn to turn if a turn may read it before it has written it, or if it is read
after the steps. Plain values are put into the state, and the last loss is the Checkpointer's. All
else that a loop may change is refused.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from spotelastic.client.adapt.changes import (
    DRAWS,
    FILLED,
    GROWS,
    NOT_SAVED,
    alters,
    arguments,
    changes,
    comes_again,
    elsewhere,
    owners,
    reached,
)
from spotelastic.client.adapt.loops import TrainingLoop, following, loss_of
from spotelastic.client.adapt.plain_values import PlainValues
from spotelastic.client.adapt.source import (
    Function,
    Source,
    bound,
    calls,
    dotted,
    is_literal,
    last_name,
    nodes,
    read,
    root_name,
    written,
)

HARMLESS = re.compile(
    r"train|eval|zero_grad|backward|to|cuda|cpu|float|half|set_epoch|print|log|"
    r"info|debug|warning|add_scalar|add_scalars|item|keys|values|items|get|size|"
    r"numel|dim|view|reshape|mean|sum|max|min|argmax|detach|clone|numpy|tolist|"
    r"parameters|named_parameters|state_dict|get_last_lr|unscale_|format|join|split|"
    r"strip|startswith|endswith|encode|decode|flush|close|eq|long|int|bool|scale|"
    r"no_sync|autocast|contiguous|unsqueeze|squeeze|permute|transpose|"
    r"repeat_interleave|exists"
)
"""Methods that change nothing of what a step computes."""
ONE = re.compile(r"\b(\w*rank|is_main\w*|is_master\w*|main_process|master_process)\b")
"""What a condition has that not all workers meet."""
SAME = ("item", "detach", "cpu", "data")
"""What leaves a loss as it is."""
NOTES = ("SummaryWriter", "getLogger", "get_logger")
"""What makes an object that is only told something."""


@dataclass
class Carried:
    """The names that the state has to hold, and where they are taken from it and put into it."""

    initial: dict[str, str] = field(default_factory=dict)
    """What each has before the loop, as an expression."""
    resets: dict[str, str] = field(default_factory=dict)
    """What an epoch begins with, where it begins anew in each."""
    of_step: list[str] = field(default_factory=list)
    """Those that a step writes."""
    of_epoch: list[str] = field(default_factory=list)
    """Those that an epoch's end writes."""
    after: list[str] = field(default_factory=list)
    """Those that are read after the loop."""
    loss: str = ""
    """The name of the last loss, where what follows the steps tells it."""
    means: list[ast.expr] = field(default_factory=list)
    """Losses of this worker that are added up or listed, in place of those of all workers."""


def carried(source: Source, loop: TrainingLoop, objects: Sequence[str]) -> Carried:
    """Return what is carried. `objects`: the names of the state that are known already.

    Raises `NotUnderstood` for what cannot be kept in a state.
    """
    before, end = loop.parts
    step, taken = loop.loop.body, bound([loop.loop.target])
    _check_changes(source, loop, {*objects}, bound([loop.outermost]))
    after = following(source, loop)
    later = _exposed(after, set())[0]
    step_reads = _exposed(step, taken)[0]
    end_reads, reads = _exposed(end, set())[0], _exposed([*before, *step, *end], taken)[0]
    filled = {root_name(call) for call in calls([*step, *end], *FILLED)}
    filled = filled - (bound([*step, *end]) - reads) - {""}
    for each in nodes(source.tree, Function, ast.Lambda):
        later = later | (_free(source, loop, each) & bound([*step, *end]))
    of_step = {n for n in bound(step) | taken if n in step_reads | end_reads | later}
    of_step |= {n for n in filled if calls_on(step, n)}
    stale = _exposed(before, set())[0] & (of_step | bound([*step, *before]))
    _check_before(source, loop, {*objects}, stale, step_reads | end_reads)
    of_epoch = {n for n in bound(end) if n in reads | later}
    of_epoch |= {n for n in filled if calls_on(end, n)}
    if loop.epochs is not None:
        of_epoch |= bound([loop.epochs.target]) & later
    of_epoch |= {n for n in bound(before) if n in later and n not in of_step}
    found = Carried()
    for name in sorted(of_step - step_reads):
        if _is_last_loss(source, loop, name, [*end, *after]):
            found.loss, of_step = name, of_step - {name}
    for name in sorted(of_step | of_epoch):
        found.initial[name] = _initial(source, loop, found, name, in_step=name in of_step)
    found.of_step, found.of_epoch = sorted(of_step), sorted(of_epoch)
    found.after = sorted(later & {*found.initial, found.loss})
    return found


def _initial(
    source: Source, loop: TrainingLoop, found: Carried, name: str, *, in_step: bool
) -> str:
    """Return what a carried name has before the loop. Raises `NotUnderstood`."""
    before, end = loop.parts
    values, around, inside = PlainValues(source, loop), loop.outermost, {*ast.walk(loop.outermost)}

    def no(node: ast.AST, why: str) -> Exception:
        return source.no(
            node,
            f"the loop carries {name} from turn to turn, which a process that goes on has to know: "
            f'{why}. Keep it in the state (state["{name}"])',
        )

    if loop.epochs is not None and name == dotted(loop.epochs.target):
        raise no(loop.epochs, "it is set by the loop of epochs as well")
    turn = ast.Module([*loop.loop.body, *end], [])
    sets = [(n, v, around if at is turn else at) for n, v, at in values.sets(name, turn)]
    for node, why in _otherwise(source, loop, name):
        raise no(node, why)
    for node, value, at in sets:
        ifs = [e for e in source.around(node) if isinstance(e, ast.If) and e in inside]
        if values.shared and any(ONE.search(ast.unparse(each.test)) for each in ifs):
            raise source.no(node, f"one worker alone sets {name}: set it on all, save files on one")
        if value is not None and values.is_plain(value, at, frozenset({name})):
            continue
        if value is not None and values.shared and _is_own_loss(source, loop, value):
            found.means.append(value)
            continue
        shown = "something" if value is None else source.code(value)[:60]
        alike = " that all workers have alike: all_reduce() it before, or take `loss.item()` alone"
        told = f"it is set by {shown}, which is not seen to be a plain value"
        raise no(node, told + (alike if values.shared else ""))
    if name != loop.counter and not sets:
        raise no(loop.outermost, "it is not seen to be a plain value")
    resets = [value for _, value in written(before, name)]
    outside = [
        value
        for place in dict.fromkeys((loop.scope, source.tree))
        for each, value in written(place, name)
        if source.scope(each) is place and each not in inside
    ]
    first = (resets or outside or [ast.Constant(None)])[-1]
    is_given = isinstance(loop.scope, Function) and name in arguments(loop.scope.args)
    is_given = is_given or name in source.imported
    inner = [each for each, _ in written(before, name) if each not in before]
    if len(resets or outside) > 1 or first is None or not is_literal(first) or is_given or inner:
        raise no(loop.outermost, "it is not set to a plain value once before")
    if resets:
        if not in_step or any(name in bound([each]) for each in end):
            raise no(loop.outermost, "it is set before and after the steps of an epoch")
        found.resets[name] = source.code(first)
    elif isinstance(first, ast.List):  # it may have been filled since
        return name
    return source.code(first) or "None"


def _is_last_loss(source: Source, loop: TrainingLoop, name: str, after: Sequence[ast.stmt]) -> bool:
    """Whether a name is a step's loss, and what comes after the steps only reads its number."""
    loss, backward = loss_of(source, loop) or ("", loop.loop)
    reads = [each for each in nodes(after, ast.Name) if each.id == name]
    return (
        name == loss
        and _is_set_before(loop, loss, backward)
        and all(_is_number(source, each) for each in reads)
        and not [*_otherwise(source, loop, name)]
    )


def _is_own_loss(source: Source, loop: TrainingLoop, value: ast.expr) -> bool:
    """Whether a value is the number of this worker's loss of a step, once that is known."""
    loss, backward = loss_of(source, loop) or ("", loop.loop)
    told = ast.unparse(value) in (f"{loss}.item()", f"{loss}.detach().item()", f"float({loss})")
    known = value.lineno > backward.lineno and _is_set_before(loop, loss, backward)
    return told and known and loop.loop in source.around(value)


def _is_set_before(loop: TrainingLoop, loss: str, backward: ast.stmt) -> bool:
    sets = [each for each, _ in written(loop.outermost, loss)]
    return all(each in loop.loop.body and each.lineno < backward.lineno for each in sets)


def _is_number(source: Source, name: ast.AST) -> bool:
    """Whether of a tensor only its number is read: `{loss:.3f}`, `loss.item()`, `float(loss)`."""
    for each in source.around(name):
        if isinstance(each, ast.FormattedValue):
            return each.conversion == -1
        if isinstance(each, ast.Call) and (
            last_name(each.func) == "item" or dotted(each.func) == "float"
        ):
            return True
        if not isinstance(each, ast.Call) and getattr(each, "attr", "") not in SAME:
            return False
    return False


def _otherwise(source: Source, loop: TrainingLoop, name: str) -> Iterator[tuple[ast.AST, str]]:
    """Yield where a carried name is used otherwise than by the loop's turns, and how."""
    for node in nodes(source.tree, Function, ast.Lambda):
        if name in _free(source, loop, node):
            yield node, f"{getattr(node, 'name', 'a lambda')}() uses it as well"
    for each in nodes(source.tree, ast.Assign) if calls_on([loop.outermost], name) else ():
        if dotted(each.value) == name:
            yield each, "it is the same list under two names"


def _free(source: Source, loop: TrainingLoop, function: ast.AST) -> set[str]:
    """Return the names of the loop's function, or of the module, that another function reads."""
    around = function is loop.scope or function in source.around(loop.loop)
    outer = isinstance(loop.scope, ast.Module) or loop.scope in source.around(function)
    names = read([function]) - bound([function]) - arguments(function)
    return names if outer and not around else set()


def calls_on(body: Sequence[ast.AST], name: str) -> bool:
    """Return whether something is added to a list of this name."""
    return any(root_name(call) == name for call in calls(body, *FILLED))


# -- what a part reads before it has written it ----------------------------------------------------


def _exposed(body: Sequence[ast.AST], known: set[str]) -> tuple[set[str], set[str]]:
    """Return the names that may be read before they are written, and those that are written."""
    found: set[str] = set()
    for each in body:
        inner = [part for part in ast.iter_child_nodes(each) if isinstance(part, ast.stmt)]
        inner += [part for handler in nodes(each, ast.ExceptHandler) for part in handler.body]
        own = [part for part in ast.iter_child_nodes(each) if part not in inner]
        found |= read(own) - known
        if isinstance(each, ast.AugAssign):
            found |= {dotted(each.target)} - known - {""}
        now = known | bound(own)
        for branch in ("body", "orelse", "handlers", "finalbody"):
            below = getattr(each, branch, [])
            reads, ended = _exposed(below if isinstance(below, list) else [], now)
            found |= reads
            known = ended if isinstance(each, ast.With) and branch == "body" else known
        if not isinstance(each, ast.For | ast.While | ast.Try):
            known = known | now
    return found, known


# -- what a part changes of objects ----------------------------------------------------------------


def _check_changes(source: Source, loop: TrainingLoop, known: set[str], own: set[str]) -> None:
    """Refuse what the loop, and functions of the script that it calls, may change besides."""
    fresh = own - _exposed([*loop.parts[0], *loop.loop.body, *loop.parts[1]], own)[0]
    functions = [*elsewhere(source, loop.loop)]
    bodies = [[loop.outermost], *(body for body, _ in functions)]
    for name in {n for body in bodies for n in read(body)} - fresh:
        made = source.made(name, loop.scope)
        what = source.maker(made)
        if re.search(rf"{DRAWS.pattern}|^iter$|torchmetrics", what):
            raise source.no(made or loop.loop, f"{name} has a state of its own, not saved")
    found = [*changes(source, [loop.outermost], fresh)]
    for body, given in functions:
        found += [each for each in changes(source, body, bound(body) | given) if alters(each[2])]
    # What an epoch makes before its steps is another where a process goes on in its middle.
    begun = bound(loop.parts[0])
    found += [c for c in changes(source, loop.loop.body, fresh - begun) if c[1] in begun]
    for node, name, how in found:
        if HARMLESS.fullmatch(how) or name == "super" or (name in known and how not in NOT_SAVED):
            continue
        if imported := source.imported.get(name):
            keeps = how in (*GROWS, "=.", "=[")
            if not keeps or imported.partition(".")[0] in ("torch", "numpy"):
                continue
        made = source.made(name, loop.scope)
        is_list = isinstance((source.values(name, loop.scope) or [None])[-1], ast.List)
        loads = made is not None and last_name(made.func) == "DataLoader"
        if (loads or is_list) and ast.unparse(node) == f"next(iter({name}))":
            continue  # an iterator of its own
        is_filled = isinstance(node, ast.Call) and dotted(node.func) in [
            f"{name}.{each}" for each in FILLED
        ]
        told = made is not None and last_name(made.func) in NOTES
        inside = loop.outermost in source.around(node)
        if not told and not (is_list and is_filled and inside):
            raise source.no(
                node,
                f"{source.code(node)[:60]} may change {name}, which is not saved: keep it in "
                "the state, as a plain value or an object with state_dict()",
            )


def _check_before(
    source: Source, loop: TrainingLoop, objects: set[str], stale: set[str], used: set[str]
) -> None:
    """Refuse what an epoch does before its steps, and cannot do again in its middle.

    `stale`: what is read there and changed later. `used`: what is read later.
    """
    before = loop.parts[0]
    rates = re.compile(r"\bparam_groups\b|_lr\b|\bsched")
    moving = rates.search(" ".join(ast.unparse(each) for each in loop.loop.body))
    again = [*comes_again(source, before)]
    again += [source.statement(each) for each in nodes(before, ast.Name) if each.id in stale]
    for node, name, how in changes(source, before, bound(before)):
        if name in objects and not HARMLESS.fullmatch(how) and how not in ("=.", "=["):
            again.append(node)
    for each in nodes(before, ast.Assign, ast.AnnAssign, ast.NamedExpr):
        parts = reached(source, [each.value]) if each.value and bound([each]) & used else []
        if {name for part in parts for name in read(part)} & objects:
            is_rate = rates.search(ast.unparse(each.value))
            if moving if is_rate else not owners(source, each.value) & objects:
                again.append(each)
    for node in again:
        raise source.no(
            node,
            f"{source.code(node)[:60]} before an epoch's steps comes again where a process "
            "goes on in the epoch's middle: put it after them, or into a step",
        )
