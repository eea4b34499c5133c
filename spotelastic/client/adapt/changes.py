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
)
"""What returns an object's parts, or the object itself in another form."""
GROWS = ("append", "extend", "add", "update", "insert", "pop", "popleft", "clear", "setdefault")
"""Methods by which a container changes."""
FIRST = ("setattr", "delattr", "next", "shuffle", "heappush", "heappop", "heapify", "insort")
"""Functions that change their first argument, besides those whose name ends with `_`."""
NOT_SAVED = ("=.", "setattr", "delattr", "requires_grad_", "register_forward_hook")
"""Changes of an object that its state_dict() does not have."""

DRAWS = re.compile(r"(torch|random)\.Generator|default_rng|\.Random")
"""What makes random numbers of its own."""

Change = tuple[ast.AST, str, str]
"""Where something may be changed, whose name it has, and how: a method, `=.` or `=[`."""


def owners(value: ast.AST | None) -> set[str]:
    """Return the names of the objects that an expression may be, or be a part of."""
    if isinstance(value, ast.Name):
        return {value.id}
    if isinstance(value, ast.Attribute | ast.Subscript | ast.Starred):
        return owners(value.value)
    if isinstance(value, ast.Call):
        given = [*value.args, value.func] if PARTS.fullmatch(last_name(value.func)) else []
        found: set[str] = set().union(*(owners(each) for each in given))
        return found - {dotted(value.func)}
    parts: list[ast.expr] = []
    if isinstance(value, ast.Tuple | ast.List):
        parts = value.elts
    elif isinstance(value, ast.IfExp):
        parts = [value.body, value.orelse]
    elif isinstance(value, ast.BoolOp):
        parts = value.values
    return set().union(*(owners(each) for each in parts))


def changes(
    source: Source, body: Sequence[ast.AST], own: set[str], inside: tuple[str, ...] = ()
) -> Iterator[Change]:
    """Yield what a part may change of objects that are not its own, also by functions it calls.

    `own`: the names that the part sets itself. `inside`: the functions that are looked at already.
    """
    taken = _taken(source, body)
    own = own | {n for each in nodes(body, ast.comprehension) for n in bound([each.target])}
    for node, value, how in [*_touched(body), *_by_functions(source, body, inside)]:
        direct = owners(value) or {root_name(value)}
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
    return how.endswith("_") or how in (*GROWS, *FIRST, "=.", "=[", "out=", "load_state_dict")


def _taken(source: Source, body: Sequence[ast.AST]) -> dict[str, set[str]]:
    """Return, by name, of which objects what it stands for may be a part."""
    found: dict[str, set[str]] = {}
    kinds = (ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.For, ast.comprehension, ast.withitem)
    for each in nodes(body, *kinds):
        if isinstance(each, ast.withitem):
            pairs = [(each.optional_vars, each.context_expr)]
        elif isinstance(each, ast.For | ast.comprehension):
            pairs = [(each.target, each.iter)]
        else:
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            pairs = [(target, each.value) for target in targets]
        for target, value in pairs:
            whose = {n for n in owners(value) if not _is_loader(source, each, n)}
            for name in bound([target]) if target is not None else ():
                found.setdefault(name, set()).update(whose)
    return found


def _is_loader(source: Source, node: ast.AST, name: str) -> bool:
    values = source.values(name, source.scope(node))
    return any(isinstance(v, ast.Call) and last_name(v.func) == "DataLoader" for v in values)


def _touched(body: Sequence[ast.AST]) -> Iterator[tuple[ast.AST, ast.AST, str]]:
    for call in nodes(body, ast.Call):
        name = last_name(call.func)
        if isinstance(call.func, ast.Attribute):
            yield call, call.func.value, name
        in_place = name.endswith("_") and not name.startswith(("__", "clip_grad"))
        if (name in FIRST or in_place) and call.args:
            yield call, call.args[0], name
        if (out := argument(call, "out")) is not None:
            yield call, out, "out="
    for each in nodes(body, ast.Attribute, ast.Subscript):
        if not isinstance(each.ctx, ast.Load) and getattr(each, "attr", "") not in ("grad", "data"):
            yield each, each.value, "=." if isinstance(each, ast.Attribute) else "=["


def _by_functions(
    source: Source, body: Sequence[ast.AST], inside: tuple[str, ...]
) -> Iterator[tuple[ast.AST, ast.AST, str]]:
    """Yield what the script's functions that a part names may change, at the calls of them."""
    for name in sorted(read(body) - {*inside}):
        function = source.function(name)
        if function is None:
            continue
        for each in nodes(function, ast.Global, ast.Nonlocal):
            raise source.no(each, f"{name}() changes {', '.join(each.names)}")
        given = [each.arg for each in function.args.posonlyargs + function.args.args]
        given += [each.arg for each in function.args.kwonlyargs]
        own = bound(function.body)
        for node, changed, how in changes(source, function.body, own, (*inside, name)):
            if changed not in given:
                yield node, ast.Name(changed), how
                continue
            for call in calls(body, name) if alters(how) else ():
                value = argument(call, changed, given.index(changed))
                yield (call, value, how) if value is not None else (node, ast.Name(changed), how)


def reached(source: Source, body: Sequence[ast.AST]) -> list[Sequence[ast.AST]]:
    """Return a part, and the bodies of all functions of the script that it may call."""
    found, seen = [body], set[str]()
    for part in found:
        for name in sorted(read(part) - seen):
            seen.add(name)
            function = source.function(name)
            values = [v.body for v in source.values(name, source.tree) if isinstance(v, ast.Lambda)]
            found += [*([function.body] if function else []), *([value] for value in values)]
    return found


def passed(source: Source) -> Iterator[tuple[Sequence[ast.AST], set[str]]]:
    """Yield what runs without being called by name, and its arguments.

    These are lambdas, methods, and functions that are given to others: hooks, `collate_fn`.
    """
    called = {id(each.func) for each in nodes(source.tree, ast.Call)}
    for each in nodes(source.tree, ast.Lambda):
        yield [each.body], arguments(each)
    for name in nodes(source.tree, ast.Name):
        function = source.function(name.id) if id(name) not in called else None
        if function is not None:
            yield function.body, arguments(function)
    for kind in nodes(source.tree, ast.ClassDef):
        for way in kind.body:
            if isinstance(way, Function) and way.name != "__init__":
                yield way.body, arguments(way)


def arguments(function: ast.AST) -> set[str]:
    """Return the names of a function's arguments."""
    return {each.arg for each in nodes(function, ast.arg)}


def unsaved(source: Source, kind: ast.ClassDef) -> tuple[ast.AST, str] | None:
    """Return where a class of the script changes what its state_dict() does not have, and what."""
    bases = " ".join(source.code(base) for base in kind.bases)
    methods = [each for each in kind.body if isinstance(each, Function)]
    if {"state_dict", "get_extra_state"} & {each.name for each in methods}:
        return None
    begin = [each for each in methods if each.name == "__init__"]
    saved = {
        call.args[0].value
        for call in calls(begin, "register_buffer")
        if call.args and isinstance(call.args[0], ast.Constant)
    }
    for each in nodes(begin, ast.Assign):
        made = source.maker(each.value) if isinstance(each.value, ast.Call) else ""
        if DRAWS.search(made) and not isinstance(each.targets[0], ast.Name):
            return each, f"{kind.name} draws from {source.code(each.targets[0])}"
        if made.startswith("torch."):
            saved |= {last_name(target) for target in each.targets} if "Module" in bases else set()
    ways = [
        each
        for each in methods
        if each.args.args and each.name not in ("__init__", "set_epoch", "load_state_dict")
    ]
    mine = {way: _mentions(way) for way in ways}
    read_first = {
        name
        for way in ways
        for name, each in {each.attr: each for each in reversed(mine[way])}.items()
        if isinstance(each.ctx, ast.Load) or not _is_direct(each, way)
    }
    for way in ways:
        added = [each.target for each in nodes(way, ast.AugAssign)]
        for node, value, how in _touched(way.body):
            attribute = node if node in mine[way] else value
            name = last_name(attribute)
            if attribute not in mine[way] or name in saved:
                continue
            kept = name in read_first if how == "=." else how in (*GROWS, "=[")
            kept = kept and (how != "=." or attribute is node) and "Dataset" not in bases
            if kept or any(target in (node, attribute) for target in added):
                return node, f"{kind.name}.{way.name}() changes {source.code(attribute)}"
    return None


def _mentions(method: Function) -> list[ast.Attribute]:
    """Return the attributes of its own object that a method names, in order."""
    me = method.args.args[0].arg
    return [each for each in nodes(method, ast.Attribute) if dotted(each.value) == me]


def _is_direct(attribute: ast.AST, method: Function) -> bool:
    targets = [each for each in method.body if isinstance(each, ast.Assign)]
    return any(attribute in [*ast.walk(target)] for each in targets for target in each.targets)


def comes_again(source: Source, before: Sequence[ast.stmt], drawn: str) -> ast.AST | None:
    """Return what an epoch does before its steps, and cannot do again in its middle."""
    for body in reached(source, before):
        parts: list[ast.AST] = nodes(body, ast.Call, ast.AugAssign, ast.Assign)
        for each in parts:
            called = last_name(each.func) if isinstance(each, ast.Call) else ""
            adds = isinstance(each, ast.AugAssign) and (
                body is before or not isinstance(each.target, ast.Name)
            )
            if adds or re.fullmatch(drawn, called) or _from_itself(each):
                return each
    return None


def _from_itself(node: ast.AST) -> bool:
    """Whether an attribute or an entry is set to what is made of its value."""
    if not isinstance(node, ast.Assign):
        return False
    parts = [t for t in node.targets if isinstance(t, ast.Attribute | ast.Subscript)]
    value = ast.unparse(node.value)
    return any(ast.unparse(target) in value for target in parts)
