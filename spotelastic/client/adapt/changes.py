"""Finds what a part of a script may change of objects that were there before, and whose they are.

A name stands for its object, and so does what is taken out of it (`p` of `for p in
model.parameters()`), and the argument of a function of the script that is given it.
"""

import ast
import re
from collections.abc import Iterator, Sequence

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
)

FILLED = ("append", "extend")
"""Methods by which a list of plain values grows."""
PARTS = re.compile(
    r"zip|enumerate|reversed|sorted|list|tuple|iter|items|values|get|parameters|named_parameters"
    r"|buffers|named_buffers|modules|named_modules|children|named_children|state_dict|detach|view"
    r"|getattr|vars|cast|max|min|setdefault"
)
"""What returns an object's parts, or the object itself in another form."""
NEW = ("open", "str", "dict", "set", "range", "sorted")
"""Functions of Python that make an object."""
GROWS = ("append", "extend", "add", "update", "insert", "pop", "popleft", "clear", "setdefault")
"""Methods by which a container changes."""
FIRST = ("setattr", "delattr", "next", "shuffle", "heappush", "heappop", "heapify", "insort")
"""Functions that change their first argument, besides those whose name ends with `_`."""
NOT_SAVED = ("=.", "setattr", "delattr", "requires_grad_", "register_forward_hook")
"""Changes of an object that its state_dict() does not have."""

DRAWS = re.compile(r"(torch|random)\.Generator|default_rng|\.Random")
"""What makes random numbers of its own."""

DRAWN = (
    r"(numpy\.)?random\..*|(.*\.)?(rand.*|shuffle|sample|iter|next|.*seed.*|.*normal_?|multinomial"
    r"|(uniform|bernoulli|exponential|random|geometric|cauchy)_?|poisson|(alpha_)?dropout|step)"
)
"""Functions whose calls before an epoch's steps cannot be repeated in the epoch's middle."""

Change = tuple[ast.AST, str, str]
"""Where something may be changed, whose name it has, and how: a method, `=.` or `=[`."""


def owners(source: Source, value: ast.AST | None, inside: tuple[str, ...] = ()) -> set[str]:
    """Return the names of the objects that an expression may be, or be a part of.

    `inside`: the functions that are looked at already.
    """
    if isinstance(value, ast.Name):
        return {value.id}
    parts: list[ast.AST] = []
    if isinstance(value, ast.Call):
        owner = [value.func] if isinstance(value.func, ast.Attribute) else []
        is_part = PARTS.fullmatch(last_name(value.func))
        parts = [*value.args, *owner] if is_part else _returned(source, value, inside)
    elif isinstance(value, ast.Attribute | ast.Subscript | ast.Starred | ast.Await | ast.NamedExpr):
        parts = [value.value]
    elif isinstance(value, ast.ListComp | ast.SetComp | ast.GeneratorExp):
        parts = [value.elt]
    elif isinstance(value, ast.Tuple | ast.List | ast.IfExp | ast.BoolOp):
        parts = [each for each in ast.iter_child_nodes(value) if isinstance(each, ast.expr)]
    return set[str]().union(*(owners(source, each, inside) for each in parts))


def _returned(source: Source, call: ast.Call, inside: tuple[str, ...]) -> list[ast.AST]:
    """Return those arguments of a call that a function of the script returns, or a part of them."""
    name = dotted(call.func)
    function: Function | ast.Lambda | None = source.function(name)
    for value in source.values(name, source.scope(call)):
        function = value if isinstance(value, ast.Lambda) else function
    if function is None or name in inside:
        return []
    inside = (*inside, name)
    body = function.body if isinstance(function.body, list) else [ast.Return(function.body)]
    taken = _taken(source, body, inside)
    found, more = set[str](), {""}
    for each in nodes(body, ast.Return, ast.Yield, ast.YieldFrom):
        more |= owners(source, each.value, inside)
    while more - found:
        found, more = found | more, more.union(*(taken.get(each, ()) for each in more))
    return [given(call, function, each) for each in sorted(found & arguments(function.args))]


def changes(
    source: Source, body: Sequence[ast.AST], own: set[str], inside: tuple[str, ...] = ()
) -> Iterator[Change]:
    """Yield what a part may change of objects that are not its own, also by functions it calls.

    `own`: the names that the part sets itself. `inside`: the functions that are looked at already.
    """
    taken = _taken(source, body, inside)
    own = own | {n for each in nodes(body, ast.comprehension) for n in bound([each.target])}
    for node, value, how in [*_touched(source, body), *_by_functions(source, body, inside)]:
        direct = owners(source, value) or {root_name(value)}
        waiting, seen = direct, {""}
        while waiting - seen:
            name = (waiting - seen).pop()
            seen.add(name)
            if name not in own and (name in direct or alters(how)):
                yield node, name, how
            else:
                waiting = waiting | taken.get(name, set())


def alters(how: str) -> bool:
    """Whether something is changed for certain, and not only by a method that nobody knows."""
    return how.endswith(("_", "=")) or how in (*GROWS, *FIRST, "=.", "=[", "load_state_dict")


def _taken(source: Source, body: Sequence[ast.AST], inside: tuple[str, ...]) -> dict[str, set[str]]:
    """Return, by name, of which objects what it stands for may be a part."""
    found: dict[str, set[str]] = {}
    for each in nodes(body, ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.For, ast.comprehension):
        value = each.iter if isinstance(each, ast.For | ast.comprehension) else each.value
        whose = {n for n in owners(source, value, inside) if not _is_loader(source, each, n)}
        for name in bound(each.targets if isinstance(each, ast.Assign) else [each.target]):
            found.setdefault(name, set()).update(whose)
    return found


def _is_loader(source: Source, node: ast.AST, name: str) -> bool:
    values = source.values(name, source.scope(node))
    return any(isinstance(v, ast.Call) and last_name(v.func) == "DataLoader" for v in values)


def _touched(source: Source, body: Sequence[ast.AST]) -> Iterator[tuple[ast.AST, ast.AST, str]]:
    for call in nodes(body, ast.Call):
        name = last_name(call.func)
        if isinstance(call.func, ast.Attribute) and not _is_new(source, call.func.value):
            yield call, call.func.value, name
        in_place = name.endswith("_") and not name.startswith(("__", "clip_grad"))
        if (name in FIRST or in_place) and call.args:
            yield call, call.args[0], name
        for filled in ("out", "file"):
            if (held := argument(call, filled)) is not None and not _is_new(source, held):
                yield call, held, f"{filled}="
    called = {call.func for call in nodes(body, ast.Call)}
    for each in nodes(body, ast.Attribute, ast.Subscript):
        if getattr(each, "attr", "") in GROWS and each not in called:  # handed on, to be called
            yield each, each.value, each.attr
        if not isinstance(each.ctx, ast.Load) and getattr(each, "attr", "") not in ("grad", "data"):
            yield each, each.value, "=." if isinstance(each, ast.Attribute) else "=["


def _is_new(source: Source, value: ast.AST) -> bool:
    """Whether an expression makes an object that nothing else has, as `open(...)` does."""
    made = dotted(value.func) if isinstance(value, ast.Call) else ""
    return made in NEW and not owners(source, value)


def _by_functions(
    source: Source, body: Sequence[ast.AST], inside: tuple[str, ...]
) -> Iterator[tuple[ast.AST, ast.AST, str]]:
    """Yield what the script's functions that a part calls may change of their arguments."""
    for call in nodes(body, ast.Call):
        function = source.function(name := dotted(call.func))
        if function is None or name in inside:
            continue
        for _, changed, how in changes(
            source, function.body, bound(function.body), (*inside, name)
        ):
            if changed in arguments(function.args) and alters(how):
                yield call, given(call, function, changed), how


def given(call: ast.Call, function: Function | ast.Lambda, name: str) -> ast.expr:
    """Return what a name of a function stands for where it is called."""
    args = function.args
    plain = [each.arg for each in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    if name in arguments(args) and name not in plain:  # `*args`, `**options`
        return ast.Tuple([*call.args, *(each.value for each in call.keywords)])
    place = plain.index(name) if name in plain else len(call.args)
    return argument(call, name, place) or ast.Name(name)


def reached(source: Source, body: Sequence[ast.AST]) -> list[Sequence[ast.AST]]:
    """Return a part, and the bodies of all functions and methods that it may call by a name."""
    found, seen = [body], set[str]()
    kinds = nodes(source.tree, ast.ClassDef)
    methods = [each for kind in kinds for each in kind.body if isinstance(each, Function)]
    for part in found:
        called = [source.function(name) for name in sorted(read(part) - seen)]
        named = {each.attr for each in nodes(part, ast.Attribute)} - seen
        seen |= read(part) | named
        found += [function.body for function in called if function is not None]
        found += [method.body for method in methods if method.name in named]
    return found


def elsewhere(source: Source, loop: ast.AST) -> Iterator[tuple[Sequence[ast.AST], set[str]]]:
    """Yield the bodies of functions, methods and lambdas besides the loop's, and their arguments.

    Whether hooks, `collate_fn` or a rate's function run while the loop does is not seen.
    """
    for each in nodes(source.tree, Function, ast.Lambda):
        if each not in source.around(loop) and getattr(each, "name", "") != "__init__":
            for outer in nodes(each, ast.Global, ast.Nonlocal):
                raise source.no(outer, f"{each.name}() changes {', '.join(outer.names)}")
            yield [each.body] if isinstance(each, ast.Lambda) else each.body, arguments(each)


def arguments(function: ast.AST) -> set[str]:
    """Return the names of a function's arguments."""
    return {each.arg for each in nodes(function, ast.arg)}


def unsaved(
    source: Source, kind: ast.ClassDef, called: Sequence[Sequence[ast.AST]]
) -> tuple[ast.AST, str] | None:
    """Return where a class of the script changes what its state_dict() does not have, and what.

    `called`: the bodies that a loop may call by a name. Of modules and data sets all methods count,
    and of other classes also what Python calls, as `__len__()`.
    """
    bases = " ".join(source.code(base) for base in kind.bases)
    methods = [each for each in kind.body if isinstance(each, Function)]
    if {"state_dict", "get_extra_state"} & {each.name for each in methods}:
        return None
    begin = [each for each in methods if each.name == "__init__"]
    saved = {
        call.args[0].value
        for call in calls(begin, "register_buffer", "register_parameter")
        if call.args and isinstance(call.args[0], ast.Constant)
        if getattr(argument(call, "persistent", 2), "value", True)
    }
    whole = re.search("Module|Dataset", bases)
    ways = [way for way in methods if way not in begin and way.args.args]
    ways = [w for w in ways if whole or w.name.startswith("__") or w.body in called]
    for each in nodes(begin, ast.Assign) if ways or whole else ():
        made = source.maker(each.value) if isinstance(each.value, ast.Call) else ""
        if DRAWS.search(made) and not isinstance(each.targets[0], ast.Name):
            return each, f"{kind.name} draws from {source.code(each.targets[0])}"
        if made.startswith("torch.nn."):
            saved |= {last_name(target) for target in each.targets} if "Module" in bases else set()
    for way in ways:
        if way.name in ("set_epoch", "load_state_dict"):
            continue
        me = way.args.args[0].arg
        added = [each.target for each in nodes(way, ast.AugAssign)]
        for node, value, how in _touched(source, way.body):
            name = last_name(node if how == "=." else value)
            whose = value if how == "=." else getattr(value, "value", value)
            if dotted(whose) != me or (name in saved | {me} and how not in FIRST):
                continue
            later = how != "=." or any(  # where it is read, it may be of an earlier call
                each.attr == name and isinstance(each.ctx, ast.Load)
                for each in nodes(kind, ast.Attribute)
                if each.lineno <= getattr(node, "lineno", 0) or way not in source.around(each)
            )
            if node in added or (later and alters(how) and "Dataset" not in bases):
                return node, f"{kind.name}.{way.name}() changes {me}.{name}"
    return None


def comes_again(source: Source, before: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """Yield what an epoch does before its steps, and cannot do again in its middle."""
    for body in reached(source, before):
        for call in nodes(body, ast.Call):
            if re.fullmatch(DRAWN, source.full_name(call.func) or last_name(call.func)):
                yield call
        for each in nodes(body, ast.AugAssign):
            if body is before or not isinstance(each.target, ast.Name):
                yield each
        for each in nodes(body, ast.Assign):  # what is made of its own value
            parts = [t for t in each.targets if isinstance(t, ast.Attribute | ast.Subscript)]
            if any(ast.unparse(part) in ast.unparse(each.value) for part in parts):
                yield each
