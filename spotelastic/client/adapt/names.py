"""Finds the names that a loop reads and writes across its turns, which a new process has to know.

A name is carried from turn to turn if a turn may read it before it has written it, or if it is read
after the steps. Plain values are put into the state. All else that a loop may change is refused.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from spotelastic.client.adapt.loops import TrainingLoop
from spotelastic.client.adapt.objects import is_shared
from spotelastic.client.adapt.source import (
    Function,
    Source,
    bound,
    calls,
    dotted,
    last_name,
    nodes,
    read,
    root_name,
    written,
)

HARMLESS = frozenset(
    re.findall(
        r"\w+",
        """train eval zero_grad backward to cuda cpu float half set_epoch print log info debug
        warning add_scalar add_scalars item keys values items get size numel dim view reshape
        mean sum max min argmax detach clone numpy tolist parameters named_parameters state_dict
        get_last_lr unscale_ format join split strip startswith endswith encode decode flush
        close eq long int bool scale no_sync autocast contiguous unsqueeze squeeze permute
        transpose repeat_interleave exists""",
    )
)
"""Methods that change nothing of what a step computes."""
DRAWN = r"rand.*|shuffle|permutation|sample|choices?|iter|next|.*seed.*|normal|uniform|step"
"""Functions whose calls before an epoch's steps cannot be repeated in the epoch's middle."""
KEPT = ("append", "extend")
NEW = ("iter", "open", "str", "list", "dict", "set", "tuple", "sorted", "range", "zip", "enumerate")
"""Functions of Python that make an object that nothing else has."""
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


def carried(source: Source, loop: TrainingLoop, objects: Sequence[str]) -> Carried:
    """Return what is carried. `objects`: the names of the state that are known already.

    Raises `NotUnderstood` for what cannot be kept in a state.
    """
    before, end = loop.parts
    heads: list[ast.AST] = [*([loop.target] if loop.target is not None else []), loop.loop.target]
    step, taken = loop.loop.body, bound(heads)
    own = bound([loop.outermost])
    _check_changes(source, loop, [loop.outermost], {*objects}, own)
    _check_before(source, before)
    later = _exposed(_following(source, loop), set())[0]
    step_reads = _exposed(step, taken)[0]
    end_reads, reads = _exposed(end, set())[0], _exposed([*before, *step, *end], taken)[0]
    filled = {
        root for call in calls([*step, *end], *KEPT) if (root := root_name(call)) in source.names
    }
    filled = {name for name in filled if name not in bound([*step, *end]) - reads}
    of_step = {n for n in bound(step) | taken if n in step_reads | end_reads | later}
    of_step |= bound(step) & _exposed(before, set())[0] | {n for n in filled if calls_on(step, n)}
    of_epoch = {n for n in bound(end) if n in reads | later} | {
        n for n in filled if calls_on(end, n)
    }
    if loop.epochs is not None:
        of_epoch |= bound([loop.epochs.target]) & later
    of_epoch |= {n for n in bound(before) if n in later and n not in of_step}
    found = Carried()
    for name in sorted(of_step | of_epoch):
        found.initial[name] = _initial(source, loop, found, name, in_step=name in of_step)
    found.of_step, found.of_epoch = sorted(of_step), sorted(of_epoch)
    found.after = sorted(later & {*found.initial})
    return found


def _initial(
    source: Source, loop: TrainingLoop, found: Carried, name: str, *, in_step: bool
) -> str:
    """Return what a carried name has before the loop. Raises `NotUnderstood`."""
    before, end = loop.parts
    shared = is_shared(source)
    advice = f'Keep it in the state (state["{name}"])'
    if shared:  # where one value would be saved for all workers
        advice += ", averaged over the workers (torch.distributed.all_reduce) if each has its own"

    def no(node: ast.AST, why: str) -> Exception:
        return source.no(
            node,
            f"the loop carries {name} from turn to turn, which a process that goes on has to know: "
            f"{why}. {advice}",
        )

    for node in nodes(source.tree, Function):
        around = node is loop.scope or node in source.around(loop.loop)
        outer = isinstance(loop.scope, ast.Module) or loop.scope in source.around(node)
        if not around and outer and name in read(node.body) - bound([node.args, *node.body]):
            raise no(node, f"{node.name}() uses it as well")
    changes = [*written([*loop.loop.body, *end], name)]
    changes += [
        (c, c.args[0]) for c in calls([*loop.loop.body, *end], *KEPT) if root_name(c) == name
    ]
    for node, value in changes:
        if value is None or not _is_plain(value, loop, {name}, shared=shared):
            shown = source.code(value)[:60] if value is not None else "something"
            raise no(
                node,
                f"it is set by {shown}, which is not seen to be a plain value"
                + (" that all workers have alike" if shared else ""),
            )
    if name != loop.counter and not changes:
        raise no(loop.outermost, "it is not seen to be a plain value")
    resets = [value for _, value in written(before, name)]
    outside = [v for v in source.values(name, loop.scope) if v not in [*ast.walk(loop.outermost)]]
    first = (resets or outside or [ast.Constant(None)])[-1]
    if len(resets or outside) > 1 or first is None or not _is_literal(first):
        raise no(loop.outermost, "it is not set to a plain value once before")
    if resets:
        if not in_step or any(name in bound([each]) for each in end):
            raise no(loop.outermost, "it is set before and after the steps of an epoch")
        found.resets[name] = source.code(first)
    return source.code(first) or "None"


def _is_literal(value: ast.expr) -> bool:
    try:
        ast.literal_eval(value)
    except ValueError:
        return isinstance(value, ast.Call) and dotted(value.func) == "float"
    return True


def _is_plain(value: ast.AST, loop: TrainingLoop, known: set[str], *, shared: bool) -> bool:
    """Whether a value is a plain one for certain: a number, a text, or a container of such."""
    if isinstance(value, ast.Name):
        if value.id in known | {loop.counter, dotted(loop.epochs and loop.epochs.target)}:
            return True
        sets = [v for _, v in written(loop.outermost, value.id)]
        more = known | {value.id}
        return bool(sets) and all(v and _is_plain(v, loop, more, shared=shared) for v in sets)
    if isinstance(value, ast.Call):
        plain = last_name(value.func) in ("item", "tolist", "len", "int", "float", "round", "numel")
        size = last_name(value.func) == "size" and bool(value.args)
        both = last_name(value.func) in ("min", "max", "sum", "abs")
        inner = both and all(_is_plain(each, loop, known, shared=shared) for each in value.args)
        return not shared and (plain or size or inner)
    kinds = ast.BinOp | ast.UnaryOp | ast.IfExp | ast.Tuple | ast.List | ast.Constant | ast.Compare
    parts = [each for each in ast.iter_child_nodes(value) if isinstance(each, ast.expr)]
    return isinstance(value, kinds) and all(
        _is_plain(each, loop, known, shared=shared) for each in parts
    )


def calls_on(body: Sequence[ast.AST], name: str) -> bool:
    """Return whether something is added to a list of this name."""
    return any(root_name(call) == name for call in calls(body, *KEPT))


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


def _following(source: Source, loop: TrainingLoop) -> list[ast.stmt]:
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


# -- what a part changes of objects ----------------------------------------------------------------


def _check_changes(
    source: Source, loop: TrainingLoop, parts: list[ast.AST], known: set[str], own: set[str]
) -> None:
    """Refuse what the loop, and functions of the script that it calls, may change besides."""
    fresh = own - _exposed([*loop.parts[0], *loop.loop.body, *loop.parts[1]], own)[0]
    seen: set[str] = set()
    waiting: list[tuple[Sequence[ast.AST], set[str]]] = [(parts, fresh)]
    while waiting:
        body, local = waiting.pop()
        for name in read(body) - local:
            made = source.made(name, loop.scope)
            what = source.full_name(made.func) if made else ""
            if re.search(r"Generator|default_rng|\.Random|^iter$|torchmetrics", what):
                raise source.no(made or loop.loop, f"{name} has a state of its own, not saved")
        for node, name, method in _touched(body):
            kept = known if not (method == "=" and isinstance(node, ast.Attribute)) else set()
            outside = name and name not in local and name not in kept | {*source.imported}
            if not outside or method in HARMLESS or name == "super":
                continue
            made = source.made(name, loop.scope)
            is_list = isinstance((source.values(name, loop.scope) or [None])[-1], ast.List)
            told = made is not None and last_name(made.func) in NOTES
            if not told and not (is_list and method in KEPT and body is parts):
                raise source.no(
                    node,
                    f"{source.code(node)[:60]} may change {name}, which is not saved: keep it in "
                    "the state, as a plain value or an object with state_dict()",
                )
        for call in nodes(body, ast.Call):
            function = source.function(dotted(call.func))
            if function is not None and function.name not in seen:
                seen.add(function.name)
                for each in nodes(function, ast.Global, ast.Nonlocal):
                    raise source.no(each, f"{function.name}() changes {', '.join(each.names)}")
                waiting.append((function.body, bound([function]) | _arguments(function)))


def _arguments(function: ast.AST) -> set[str]:
    return {each.arg for each in nodes(function, ast.arg)}


def _touched(body: Sequence[ast.AST]) -> Iterator[tuple[ast.AST, str, str]]:
    """Yield what may change an object: the place, the object's name, and the method."""
    for call in nodes(body, ast.Call):
        told = call.func.value if isinstance(call.func, ast.Attribute) else None
        if told is None and dotted(call.func) == "next":
            told = call.args[0]
        if told is not None and not (isinstance(told, ast.Call) and dotted(told.func) in NEW):
            yield call, root_name(told), getattr(call.func, "attr", "next")
    for each in nodes(body, ast.Attribute, ast.Subscript):
        if not isinstance(each.ctx, ast.Load):
            yield each, root_name(each), "="


def _check_before(source: Source, before: Sequence[ast.stmt]) -> None:
    """Refuse what an epoch does before its steps, and cannot do again in its middle."""
    for each in nodes(before, ast.Call, ast.AugAssign):
        called = last_name(each.func) if isinstance(each, ast.Call) else "step"
        if re.fullmatch(DRAWN, called):
            raise source.no(
                each,
                f"{source.code(each)[:60]} before an epoch's steps comes again where a process "
                "goes on in the epoch's middle: put it after them, or into a step",
            )
