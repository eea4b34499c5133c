"""Finds the names that a loop reads and writes across its turns, which a new process has to know.

A name is carried from turn to turn if a turn may read it before it has written it, or if it is read
after the loop. Containers that are filled, and objects that are told something, are carried too.
"""

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from spotelastic.client.adapt.loops import TrainingLoop
from spotelastic.client.adapt.source import (
    Function,
    Source,
    argument,
    calls,
    dotted,
    last_name,
    nodes,
    root_name,
)
from spotelastic.client.adapt.state import is_shared

FILLING = ("append", "extend", "add", "insert", "pop", "popleft", "appendleft", "setdefault")
FILLING += ("remove", "clear", "sort", "reverse", "discard", "update", "popitem")
CONTAINERS = ("list", "dict", "set", "deque", "defaultdict", "Counter", "OrderedDict")
HARMLESS = frozenset(
    [
        "train",
        "eval",
        "zero_grad",
        "backward",
        "to",
        "cuda",
        "cpu",
        "float",
        "half",
        "set_epoch",
        "set_description",
        "set_postfix",
        "set_postfix_str",
        "set_description_str",
        "refresh",
        "write",
        "close",
        "flush",
        "print",
        "log",
        "info",
        "debug",
        "warning",
        "error",
        "add_scalar",
        "add_scalars",
        "add_image",
        "add_histogram",
        "add_text",
        "add_figure",
        "item",
        "items",
        "keys",
        "values",
        "get",
        "size",
        "numel",
        "dim",
        "view",
        "reshape",
        "mean",
        "sum",
        "max",
        "min",
        "argmax",
        "detach",
        "clone",
        "numpy",
        "tolist",
        "parameters",
        "named_parameters",
        "buffers",
        "modules",
        "state_dict",
        "get_last_lr",
        "unscale_",
        "requires_grad_",
        "format",
        "join",
        "split",
        "strip",
        "startswith",
        "endswith",
        "encode",
        "decode",
        "copy",
        "count",
        "index",
        "mkdir",
        "exists",
        "is_main_process",
        "wait_for_everyone",
        "scale",
        "no_sync",
        "autocast",
        "contiguous",
        "long",
        "int",
        "bool",
        "eq",
        "is_alive",
        "upper",
        "lower",
        "replace",
    ]
)
"""Methods that change nothing of what a step computes."""
DRAWN = frozenset(
    [
        "rand",
        "randn",
        "randint",
        "randperm",
        "rand_like",
        "randn_like",
        "shuffle",
        "permutation",
        "sample",
        "choice",
        "choices",
        "random",
        "uniform",
        "normal",
        "iter",
        "next",
        "manual_seed",
        "manual_seed_all",
        "seed",
        "seed_everything",
        "set_seed",
        "multinomial",
        "bernoulli",
    ]
)
"""What is drawn or begun once for an epoch, and would be otherwise in its middle."""
GENERATORS = ("Generator", "default_rng", "Random", "RandomState", "iter")
_PLAIN_CALLS = ("len", "int", "float", "round", "str", "bool", "abs", "time", "perf_counter")
_PLAIN_METHODS = ("item", "tolist", "size", "numel")
_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@dataclass
class Carried:
    """The names that the state has to hold, and where they are taken from it and put into it."""

    initial: dict[str, str] = field(default_factory=dict)
    """What each has before the loop, as an expression."""
    resets: dict[str, str] = field(default_factory=dict)
    """What an epoch begins with, where it begins anew in each."""
    to_step: list[str] = field(default_factory=list)
    """Those that a step reads."""
    of_step: list[str] = field(default_factory=list)
    """Those that a step writes."""
    to_epoch: list[str] = field(default_factory=list)
    """Those that are read at an epoch's beginning or end, and written at its end."""
    to_end: list[str] = field(default_factory=list)
    """Those that a step writes, and that are read at an epoch's end."""
    numbers: list[str] = field(default_factory=list)
    """Tensors of the last step of which an epoch's end reads the number alone."""
    after: list[str] = field(default_factory=list)
    """Those that are read after the loop."""


def carried(source: Source, loop: TrainingLoop, objects: Iterable[str]) -> Carried:
    """Return what is carried. `objects`: names of the state that have one of their own.

    Raises `NotUnderstood` for what cannot be kept in a state.
    """
    known = {*objects}
    _check_functions(source, loop, known)
    inner, before, end = loop.loop.body, loop.before, loop.after
    made = [*inner] if loop.target is None else [_assign(loop.target), *inner]
    if loop.counter is not None:
        made = [_assign(loop.counter), *made]
    filled = _filled(source, [*inner], loop, known), _filled(source, end, loop, known)
    begun = _filled(source, before, loop, known)
    step_reads, step_writes = exposed(made), _bound(made) | filled[0]
    later = _after(source, loop)
    end_reads = exposed(end)
    epoch_reads = exposed([*before, *made, *end])
    of_step = {
        name for name in step_writes if name in step_reads or name in end_reads or name in later
    }
    of_step |= step_writes & exposed(before) | filled[0]
    of_epoch = {name for name in _bound(end) if name in epoch_reads or name in later} | filled[1]
    bad = sorted((_bound(before) & (epoch_reads | later)) | begun)
    if bad:
        raise _refused(
            source, loop.epochs, bad, "changed before an epoch's steps, again if those go on"
        )
    if loop.epochs is not None and {n.id for n in nodes(loop.epochs.target, ast.Name)} & later:
        raise _refused(source, loop.epochs, [dotted(loop.epochs.target)], "read after the loop")
    found = Carried()
    for name in sorted(of_step | of_epoch):
        _add(source, loop, found, name, name in of_step, name in of_epoch)
    found.to_step = [n for n in found.of_step if n in step_reads or n in filled[0]]
    found.to_end = [n for n in found.of_step if n in end_reads]
    found.after = [n for n in (*found.of_step, *found.to_epoch) if n in later]
    if (found.of_step or found.numbers) and (leave := _continues(source, loop)):
        raise _refused(
            source, leave, found.of_step or found.numbers, "left as they are by `continue`"
        )
    return found


def _add(
    source: Source, loop: TrainingLoop, found: Carried, name: str, of_step: bool, of_epoch: bool
) -> None:
    """Add a name, or refuse it."""
    inner, end = loop.loop.body, loop.after
    shared = [
        f for f in nodes(source.tree, Function, ast.Lambda) if _mentions(source, f, name, loop)
    ]
    if shared:
        raise _refused(source, shared[0], [name], "used by a function as well")
    if is_shared(source) and not _is_same_everywhere(loop, name):
        raise _refused(
            source, loop.outermost, [name], "of one worker alone where it is not averaged over all"
        )
    if of_step and not of_epoch and _is_read_as_number(loop, name):
        found.numbers.append(name)
        return
    counters = [each for each in (loop.counter,) if each is not None and each.id == name]
    for part in (inner, end):
        for node, value in _writes(part, name):
            if value is None or not _is_plain(value, loop):
                raise _refused(source, node, [name], _why(source, value))
    if loop.target is not None and name in _bound([_assign(loop.target)]):
        raise _refused(source, loop.loop, [name], "of a batch")
    resets = [value for each in loop.before for node, value in _writes([each], name)]
    outside = [each for each in source.values(name, loop.scope) if each not in _all(loop)]
    if resets:
        (*others, value) = resets
        if others or value is None or not _is_literal(value) or of_epoch:
            raise _refused(source, loop.epochs, [name], "changed before an epoch's steps")
        found.resets[name] = found.initial[name] = source.code(value)
    elif outside:
        if len(outside) != 1 or outside[0] is None or not _is_literal(outside[0]):
            raise _refused(
                source, loop.outermost, [name], "not set to a plain value before the loop"
            )
        found.initial[name] = name
    else:
        found.initial[name] = "0" if counters else "None"
    if of_step:
        found.of_step.append(name)
    if of_epoch:
        found.to_epoch.append(name)


def _why(source: Source, value: ast.expr | None) -> str:
    shown = "" if value is None else f" ({source.code(value)[:60]})"
    return f"set to what may be no plain value{shown}: where it is a number, write float(...)"


def _refused(source: Source, node: ast.AST | None, names: Sequence[str], why: str) -> Exception:
    listed = ", ".join(names)
    return source.not_understood(
        node or source.tree,
        f"the loop carries {listed} from turn to turn, which a process that goes on has to know: "
        f"{'they are' if len(names) > 1 else 'it is'} {why}. Keep it in the state "
        f'(state["{names[0]}"])',
    )


# -- what a part reads and writes ------------------------------------------------------------------


def exposed(body: Sequence[ast.stmt]) -> set[str]:
    """Return the names that may be read before they are written."""
    return _exposed(body, frozenset())[0]


def _exposed(body: Sequence[ast.stmt], bound: frozenset[str]) -> tuple[set[str], frozenset[str]]:
    reads: set[str] = set()
    for each in body:
        inner: list[tuple[list[ast.stmt], frozenset[str]]] = []
        own = [*_own_expressions(each)]
        reads |= _read(own) - bound
        if isinstance(each, ast.AugAssign) and isinstance(each.target, ast.Name):
            reads |= {each.target.id} - bound
        now = bound | _bound(own)
        match each:
            case ast.If():
                inner = [(each.body, now), (each.orelse, now)]
            case ast.For() | ast.While():
                inner = [(each.body, now), (each.orelse, bound)]
            case ast.With():
                inner = [(each.body, now)]
            case ast.Try():
                inner = [(part, bound) for part in (each.body, each.orelse, each.finalbody)]
                inner += [(handler.body, bound) for handler in each.handlers]
        ends = []
        for part, known in inner:
            found, end = _exposed(part, known)
            reads |= found
            left = bool(part) and isinstance(part[-1], ast.Continue | ast.Raise | ast.Return)
            ends.append(None if left else end)
        if isinstance(each, ast.If):
            living = [end for end in ends if end is not None]
            bound = frozenset.intersection(*living) if living else now
        elif isinstance(each, ast.With):
            bound = ends[0] or now
        elif not isinstance(each, ast.For | ast.While | ast.Try):
            bound = now
    return reads, bound


def _own_expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the parts of a statement that are no statements."""
    for each in ast.iter_child_nodes(statement):
        if isinstance(each, ast.stmt | ast.excepthandler):
            continue
        yield each
    if isinstance(statement, Function | ast.ClassDef):
        yield from statement.body


def _named(root: ast.AST) -> Iterator[ast.Name]:
    """Yield the names of a part, without those that a comprehension or lambda has of its own."""
    own: set[str] = set()
    if isinstance(root, _COMPREHENSIONS):
        own = {n.id for g in root.generators for n in nodes(g.target, ast.Name)}
    elif isinstance(root, ast.Lambda):
        own = {each.arg for each in nodes(root.args, ast.arg)}
    if isinstance(root, ast.Name):
        yield root
    for each in ast.iter_child_nodes(root):
        yield from (name for name in _named(each) if name.id not in own)


def _read(parts: Iterable[ast.AST]) -> set[str]:
    return {n.id for part in parts for n in _named(part) if isinstance(n.ctx, ast.Load)}


def _bound(parts: Iterable[ast.AST]) -> set[str]:
    return {n.id for part in parts for n in _named(part) if not isinstance(n.ctx, ast.Load)}


def _assign(target: ast.expr) -> ast.stmt:
    return ast.Assign([target], ast.Constant(0))


def _after(source: Source, loop: TrainingLoop) -> set[str]:
    """Return the names that are read after the loop before they are written there."""
    following: list[ast.stmt] = []
    inner: ast.AST = loop.outermost
    for each in source.around(loop.outermost):
        for body in (getattr(each, "body", []), getattr(each, "orelse", [])):
            if isinstance(body, list) and inner in body:
                following += body[body.index(inner) + 1 :]
        if each is loop.scope:
            break
        inner = each
    return exposed(following)


def _all(loop: TrainingLoop) -> list[ast.AST]:
    return [*ast.walk(loop.outermost)]


def _writes(body: Sequence[ast.AST], name: str) -> Iterator[tuple[ast.AST, ast.expr | None]]:
    """Yield what a name is set to, or filled with; None for what is not seen."""
    for part in body:
        for each in nodes(part, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For, ast.NamedExpr):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            for target in targets:
                value = None if isinstance(each, ast.For) else each.value
                if isinstance(target, ast.Tuple):
                    elements = getattr(value, "elts", [])
                    same = len(elements) == len(target.elts)
                    pairs = [*zip(target.elts, elements, strict=True)] if same else []
                    pairs = pairs or [(one, None) for one in target.elts]
                else:
                    pairs = [(target, value)]
                yield from ((each, v) for t, v in pairs if root_name(t) == name)
        for call in nodes(part, ast.Call):
            if isinstance(call.func, ast.Attribute) and dotted(call.func.value) == name:
                if call.func.attr in FILLING:
                    yield from ((call, value) for value in call.args)
        for item in nodes(part, ast.withitem):
            if item.optional_vars is not None and root_name(item.optional_vars) == name:
                yield item.context_expr, None


def _is_literal(value: ast.expr) -> bool:
    if isinstance(value, ast.UnaryOp):
        return _is_literal(value.operand)
    if isinstance(value, ast.List | ast.Tuple | ast.Set):
        return all(map(_is_literal, value.elts))
    if isinstance(value, ast.Dict):
        return all(key is not None and _is_literal(key) for key in value.keys) and all(
            map(_is_literal, value.values)
        )
    if isinstance(value, ast.Call):
        return not value.keywords and (
            (dotted(value.func) in ("list", "dict", "set") and not value.args)
            or (dotted(value.func) == "float" and all(map(_is_literal, value.args)))
        )
    return isinstance(value, ast.Constant) or dotted(value) in ("math.inf", "np.inf", "torch.inf")


def _is_plain(value: ast.expr, loop: TrainingLoop, depth: int = 0) -> bool:
    """Whether a value is a plain one for certain: a number, a text, or a container of such."""
    inner = [each for each in ast.iter_child_nodes(value) if isinstance(each, ast.expr)]
    match value:
        case ast.Call():
            if isinstance(value.func, ast.Attribute) and value.func.attr in _PLAIN_METHODS:
                return bool(value.args) or value.func.attr != "size"
            if last_name(value.func) in _PLAIN_CALLS:
                return True
            return dotted(value.func) in ("min", "max", "sum") and all(
                _is_plain(each, loop, depth) for each in value.args
            )
        case ast.BinOp() | ast.UnaryOp() | ast.BoolOp() | ast.IfExp():
            return all(_is_plain(each, loop, depth) for each in inner)
        case ast.Tuple() | ast.List() | ast.Dict() | ast.Set() | ast.JoinedStr():
            return all(_is_plain(each, loop, depth) for each in inner) or isinstance(
                value, ast.JoinedStr
            )
        case ast.Name():
            counters = [loop.counter, loop.epochs.target if loop.epochs else None]
            if any(dotted(each) == value.id for each in counters if each is not None):
                return True
            written = [v for _, v in _writes([loop.outermost], value.id)]
            return (
                depth < 3
                and bool(written)
                and all(v is not None and _is_plain(v, loop, depth + 1) for v in written)
            )
    return _is_literal(value)


def _is_read_as_number(loop: TrainingLoop, name: str) -> bool:
    """Whether what stands after an epoch's steps reads nothing of a tensor but its number."""
    if not loop.epochs or (loop.target is not None and name in _bound([_assign(loop.target)])):
        return False
    if any(_is_plain(v, loop) for _, v in _writes(loop.loop.body, name) if v is not None):
        return False
    if name in exposed(loop.loop.body) or name in _bound([*loop.before, *loop.after]):
        return False
    items = [
        call.func.value
        for part in loop.after
        for call in calls(part, "item")
        if isinstance(call.func, ast.Attribute)
    ]
    reads = [n for part in loop.after for n in nodes(part, ast.Name) if n.id == name]
    return bool(reads) and all(any(n is each for each in items) for n in reads)


def _is_same_everywhere(loop: TrainingLoop, name: str) -> bool:
    """Whether a name is only counted, or set to what all workers have."""
    known = {
        name,
        *(dotted(each) for each in (loop.counter, loop.epochs and loop.epochs.target) if each),
    }
    return all(
        value is not None and not nodes(value, ast.Call) and _read([value]) <= known
        for _, value in _writes([loop.outermost], name)
    )


def _continues(source: Source, loop: TrainingLoop) -> ast.Continue | None:
    for each in nodes(loop.loop, ast.Continue):
        around = next(o for o in source.around(each) if isinstance(o, ast.For | ast.While))
        if around is loop.loop:
            return each
    return None


def _mentions(source: Source, function: ast.AST, name: str, loop: TrainingLoop) -> bool:
    """Whether a function that is not around the loop uses a name of the loop's scope."""
    if function is loop.scope or function in source.around(loop.loop):
        return False
    if isinstance(function, ast.Lambda):
        return False
    if isinstance(loop.scope, Function) and loop.scope not in source.around(function):
        return False
    assert isinstance(function, Function)
    own = _bound(function.body) | {each.arg for each in nodes(function.args, ast.arg)}
    declared = {n for each in nodes(function, ast.Global, ast.Nonlocal) for n in each.names}
    return name in declared or (name in _read(function.body) and name not in own)


# -- what a part changes of objects ----------------------------------------------------------------


def _filled(
    source: Source, body: Sequence[ast.stmt], loop: TrainingLoop, known: set[str]
) -> set[str]:
    """Return the containers that are filled. Raises `NotUnderstood` for other changed objects."""
    found: set[str] = set()
    fresh = _bound(body) - exposed(body)
    for node, name, what in _touched(body):
        if not name or name in fresh or name in known or name in source.imported:
            continue
        values = [v for v in source.values(name, loop.scope)]
        if values and all(v is not None and _is_container(v) for v in values):
            if what in FILLING or what == "":
                found.add(name)
            continue
        if what in HARMLESS or _is_bar(values) or _is_writer(values, what):
            continue
        raise source.not_understood(
            node,
            f"{source.code(node)[:60]} may change {name}, which is not saved: a process that goes "
            f"on would have it as it was. Keep it in the state, as a plain value or an object with "
            "state_dict() and load_state_dict()",
        )
    return found


def _touched(body: Sequence[ast.AST]) -> Iterator[tuple[ast.AST, str, str]]:
    """Yield what may change an object: the place, the object's name, and the method."""
    for part in body:
        for call in nodes(part, ast.Call):
            if isinstance(call.func, ast.Attribute):
                yield call, root_name(call.func.value), call.func.attr
            elif dotted(call.func) == "next" and call.args:
                yield call, root_name(call.args[0]), "next"
        for each in nodes(part, ast.Attribute, ast.Subscript):
            if not isinstance(each.ctx, ast.Load):  # type: ignore[attr-defined]
                yield each, root_name(each), "attribute" if isinstance(each, ast.Attribute) else ""


def _is_container(value: ast.expr) -> bool:
    is_made = isinstance(value, ast.Call) and last_name(value.func) in CONTAINERS
    return is_made or isinstance(value, ast.List | ast.Dict | ast.Set)


def _is_bar(values: Sequence[ast.expr | None]) -> bool:
    return all(isinstance(v, ast.Call) and last_name(v.func) == "tqdm" for v in values) and bool(
        values
    )


def _is_writer(values: Sequence[ast.expr | None], method: str) -> bool:
    names = ("SummaryWriter", "getLogger", "get_logger", "Accelerator", "ArgumentParser")
    made = [last_name(v.func) for v in values if isinstance(v, ast.Call)]
    return bool(made) and all(name in names for name in made) and method != "prepare"


def _check_functions(source: Source, loop: TrainingLoop, known: set[str]) -> None:
    """Refuse what functions of the script that the loop calls change outside of themselves."""
    parts: list[ast.AST] = [loop.outermost]
    seen: set[str] = set()
    while parts:
        for call in nodes(parts.pop(), ast.Call):
            function = source.function(dotted(call.func))
            if function is None or function.name in seen:
                continue
            seen.add(function.name)
            parts += function.body
            for each in nodes(function, ast.Global, ast.Nonlocal):
                raise _refused(source, each, each.names, f"changed by {function.name}()")
            own = _bound(function.body) | {a.arg for a in nodes(function.args, ast.arg)}
            for node, name, what in _touched(function.body):
                outside = bool(name) and name not in own and name not in known
                if outside and name not in source.imported and what not in HARMLESS:
                    values = source.values(name, source.tree)
                    if not values or _is_writer(values, what):
                        continue
                    raise _refused(source, node, [name], f"changed by {function.name}()")
    for name in sorted(_read([loop.outermost])):
        made = [v for v in source.values(name, loop.scope) if isinstance(v, ast.Call)]
        if any(last_name(v.func) in GENERATORS for v in made) and name not in _bound(_all(loop)):
            raise _refused(source, loop.outermost, [name], "made before the loop, and drawn from")
    for part in loop.before:
        for call in nodes(part, ast.Call):
            if last_name(call.func) in DRAWN and not argument(call, "generator"):
                raise source.not_understood(
                    call,
                    f"{source.code(call.func)}() before an epoch's steps would be called again, "
                    "with another result, where a process goes on in the epoch's middle",
                )
            if last_name(call.func) == "step":
                raise source.not_understood(
                    call,
                    f"{source.code(call)} before an epoch's steps would be made again where a "
                    "process goes on in the epoch's middle: put it after them",
                )
        for aug in nodes(part, ast.AugAssign):
            if not isinstance(aug.target, ast.Name):
                raise source.not_understood(
                    aug, "this would be changed again where a process goes on in the epoch's middle"
                )
