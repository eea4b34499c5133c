"""Applies and undoes changes to moto, one method at a time, each logged with its reason."""

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Method = Callable[..., Any]

_log = logging.getLogger(__name__)


@dataclass
class Patches:
    """Applies patches until they are undone or the process ends; each is logged."""

    _before: list[tuple[Any, str, Any]] = field(default_factory=list)

    def method(self, owner: type, name: str, reason: str) -> Callable[[Method], Method]:
        """Wrap a method that exists: the function gets the original before `self`.

        A class method's original is bound: the function gets it and the arguments alone.
        """

        def apply(function: Method) -> Method:
            bound = isinstance(_found(owner, name), classmethod)
            original = getattr(owner, name)

            @functools.wraps(original)
            def method(*args: Any, **kwargs: Any) -> Any:
                return function(original, *args[bound:], **kwargs)

            self._record(owner, name, reason)
            setattr(owner, name, classmethod(method) if bound else method)
            return function

        return apply

    def addition(self, owner: Any, name: str, reason: str) -> Callable[[Any], Any]:
        """Set an attribute of a class or module, whether it exists or not."""

        def apply(value: Any) -> Any:
            self._record(owner, name, reason)
            setattr(owner, name, value)
            return value

        return apply

    def _record(self, owner: Any, name: str, reason: str) -> None:
        kind = isinstance(owner, type)
        path = f"{owner.__module__}.{owner.__qualname__}" if kind else owner.__name__
        _log.info("%s.%s: %s", path, name, reason)
        self._before.append((owner, name, vars(owner).get(name, _ABSENT)))

    def undo(self) -> None:
        """Restore everything as it was before the first patch."""
        while self._before:
            owner, name, value = self._before.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


_ABSENT = object()


def _found(owner: type, name: str) -> Any:
    return next(base.__dict__[name] for base in owner.__mro__ if name in base.__dict__)
