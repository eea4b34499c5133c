"""Evaluates the rules of a CustomResourceDefinition, as far as this project's go (pure).

Of CEL there are `has`, fields of `self` and `oldSelf`, whole numbers, `==`, `<=`, `!`, `&&`, `||`,
parentheses, and of texts `size()` and `matches('…')`. A rule with anything else is an error, and
not true.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

_TOKENS = re.compile(r"\s*(has\(|&&|\|\||==|<=|!|\(|\)|\d+|[A-Za-z_][\w.]*(?:\(\)|\('[^']*'\))?)")

Found = Callable[[], Any]
"""Returns the value of a part of a rule."""


class CelError(Exception):
    """A rule cannot be evaluated."""


def holds(rule: str, self: Any, old: Any) -> bool:
    """Whether a rule is true. `old` is the value before the change."""
    its = _Rule(rule, {"self": self, "oldSelf": old})
    found = its.either()
    if its.tokens:
        raise CelError(f"{rule}: {its.tokens[0]} is not understood")
    try:
        return bool(found())
    except KeyError as error:
        raise CelError(f"{rule}: no such key: {error}") from error


def is_transition(rule: str) -> bool:
    """Whether a rule is about a change, and does not hold for new objects."""
    return bool(re.search(r"\boldSelf\b", rule))


class _Rule:
    def __init__(self, rule: str, values: Mapping[str, Any]) -> None:
        self.values, self.tokens, at = values, list[str](), 0
        while at < len(rule.rstrip()):
            found = _TOKENS.match(rule, at)
            if found is None:
                raise CelError(f"{rule}: {rule[at:]} is not understood")
            self.tokens.append(found[1])
            at = found.end()

    def either(self) -> Found:
        sides = [self._both()]
        while self._next("||"):
            sides.append(self._both())
        return lambda: _decided(sides, by=True)

    def _both(self) -> Found:
        sides = [self._compared()]
        while self._next("&&"):
            sides.append(self._compared())
        return lambda: _decided(sides, by=False)

    def _compared(self) -> Found:
        left = self._single()
        if self._next("=="):
            right = self._single()
            return lambda: left() == right()
        if self._next("<="):
            most = self._single()
            return lambda: left() <= most()
        return left

    def _single(self) -> Found:
        token = self.tokens.pop(0)
        if token == "!":
            inner = self._single()
            return lambda: not inner()
        if token in ("(", "has("):
            path = self.tokens.pop(0) if token == "has(" else ""
            within: Found = self.either() if token == "(" else partial(self._has, path)
            if not self._next(")"):
                raise CelError("a parenthesis is not closed")
            return within
        if token.isdigit():
            return lambda: int(token)
        if token.endswith(".size()"):
            return lambda: len(self._value(token.removesuffix(".size()")))
        if token.endswith("')"):
            path, _, pattern = token.removesuffix("')").partition(".matches('")
            return lambda: bool(re.search(pattern, self._value(path)))
        return partial(self._value, token)

    def _next(self, token: str) -> bool:
        if self.tokens[:1] != [token]:
            return False
        self.tokens.pop(0)
        return True

    def _value(self, path: str) -> Any:
        found: Any = self.values
        for word in path.split("."):
            found = found[word]
        return found

    def _has(self, path: str) -> bool:
        before, _, name = path.rpartition(".")
        return name in self._value(before)


def _decided(sides: Sequence[Found], *, by: bool) -> Any:
    """Return what sides make together: one that decides does so, whatever is wrong with others."""
    if len(sides) == 1:
        return sides[0]()
    failed: KeyError | None = None
    for side in sides:
        try:
            if bool(side()) is by:
                return by
        except KeyError as error:
            failed = error
    if failed is not None:
        raise failed
    return not by
