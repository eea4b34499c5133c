"""Builds the values of an agent's event log anew from what was read.

Values inside of an event are recognized by their field's type, and those of a union by the names of
their fields.
"""

import types
from collections.abc import Mapping
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

_NONE = type(None)


class Unreadable(ValueError):
    """A recorded value that this version cannot build."""


def build(kind: Any, plain: Any) -> Any:
    """Returns the value of type `kind` that was encoded as `plain`. Raises `Unreadable`."""
    try:
        return _build(kind, plain)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise Unreadable(f"not a {getattr(kind, '__name__', kind)}: {error}") from error


def _build(kind: Any, plain: Any) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _build_union(args, plain)
    if origin is tuple:
        inner = args[:1] * len(plain) if args[1:] == (...,) else args
        return tuple(_build(each, item) for each, item in zip(inner, plain, strict=True))
    if origin in (set, frozenset):
        return frozenset(_build(args[0], item) for item in plain)
    if origin is not None and _is_a(origin, Mapping):
        return {_build(args[0], key): _build(args[1], item) for key, item in plain.items()}
    if origin is list:
        return [_build(args[0], item) for item in plain]
    if origin is not None or not isinstance(kind, type) or plain is None:
        return plain  # a Literal, Any, or nothing
    return _build_class(kind, plain)


def _build_class(kind: type, plain: Any) -> Any:
    if _has_fields(kind):
        known, tag = hints(kind), _tag(kind)
        values = ((name, item) for name, item in plain.items() if name != tag)
        return kind(**{name: _build(known[name], item) for name, item in values})
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return kind(*plain)
    if issubclass(kind, Enum):
        return kind(plain)
    return float(plain) if kind is float else plain


def _build_union(kinds: tuple[Any, ...], plain: Any) -> Any:
    if plain is None:
        return None
    if isinstance(plain, dict):
        for kind in kinds:
            if _has_fields(kind) and hints(kind).keys() == plain.keys() - {_tag(kind)}:
                return _build(kind, plain)
    others = [kind for kind in kinds if kind is not _NONE and not _has_fields(kind)]
    known = [kind for kind in kinds if kind is not _NONE]
    return _build(others[0] if others else known[0], plain)


def _has_fields(kind: object) -> bool:
    """Whether `kind` is a dataclass or a struct."""
    return is_dataclass(kind) or _is_a(kind, msgspec.Struct)


def _tag(kind: Any) -> str | None:
    """Returns the field in which a tagged struct has its name."""
    return kind.__struct_config__.tag_field if _is_a(kind, msgspec.Struct) else None


def _is_a(kind: object, other: type) -> bool:
    """Whether `kind` is a class, and one of these."""
    return isinstance(kind, type) and issubclass(kind, other)


@cache
def hints(kind: type) -> Mapping[str, Any]:
    """Returns the types of the fields of a dataclass or struct, by name."""
    return get_type_hints(kind)


def named(union: Any) -> Mapping[str, type]:
    """Returns the types of a union by the names that the log has for them."""
    return {each.__name__: each for each in get_args(union)}
