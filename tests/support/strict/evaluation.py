"""Evaluates whether IAM policies permit a call, as AWS does (pure).

A call is permitted if, for each resource that it touches, some statement allows it and none denies
it. moto's own check does not know conditions, and knows resources only for S3.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from functools import lru_cache
from typing import Any

Policy = Mapping[str, Any]
"""A policy document."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource with its tags."""

    arn: str
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AccessRequest:
    """One call: its action, its resources, and the context that conditions may test."""

    action: str
    """The action, as service:Operation."""
    resources: tuple[Resource, ...] = (Resource("*"),)
    context: Mapping[str, str] = field(default_factory=dict)


def permits(policies: Iterable[Policy], access: AccessRequest) -> bool:
    """Whether the policies permit the access on all its resources."""
    documents = list(policies)
    return all(
        verdict(documents, access.action, resource, access.context) is True
        for resource in access.resources
    )


def verdict(
    policies: Iterable[Policy], action: str, resource: Resource, context: Mapping[str, str]
) -> bool | None:
    """Return True for allowed, False for denied by a statement, None if no statement applies."""
    circumstances = {key.lower(): value for key, value in context.items()}
    circumstances |= {  # services have keys of their own for the same
        f"{service}:resourcetag/{key}".lower(): value
        for key, value in resource.tags.items()
        for service in ("aws", action.partition(":")[0])
    }
    effects = {
        statement["Effect"]
        for policy in policies
        for statement in _several(policy["Statement"])
        if _concerns(statement, action, resource.arn)
        and _holds(statement.get("Condition", {}), circumstances)
    }
    if "Deny" in effects:
        return False
    return True if "Allow" in effects else None


def _concerns(statement: Mapping[str, Any], action: str, arn: str) -> bool:
    if "NotAction" in statement or "NotResource" in statement:
        raise ValueError("the local cloud does not support NotAction and NotResource")
    named = any(_like(each.lower(), action.lower()) for each in _several(statement["Action"]))
    # A call without a specific resource is permitted only on "*".
    return named and any(_like(each, arn) for each in _several(statement.get("Resource", "*")))


def _holds(conditions: Mapping[str, Mapping[str, Any]], context: Mapping[str, str]) -> bool:
    return all(
        _OPERATORS[operator](context.get(key.lower()), [str(each) for each in _several(values)])
        for operator, keys in conditions.items()
        for key, values in keys.items()
    )


def _like(pattern: str, text: str) -> bool:
    return bool(_compiled(pattern).match(text))


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern.replace("[", "[[]")))


def _equal(value: str | None, wanted: Sequence[str]) -> bool:
    return value is not None and value.lower() in [each.lower() for each in wanted]


def _alike(value: str | None, wanted: Sequence[str]) -> bool:
    return value is not None and any(_like(each, value) for each in wanted)


_OPERATORS: Mapping[str, Callable[[str | None, Sequence[str]], bool]] = {
    "ArnEquals": _alike,
    "ArnLike": _alike,
    "Bool": _equal,
    "Null": lambda value, wanted: str(value is None).lower() == wanted[0].lower(),
    "StringEquals": lambda value, wanted: value is not None and value in wanted,
    "StringEqualsIfExists": lambda value, wanted: value is None or value in wanted,
    "StringLike": _alike,
    "StringLikeIfExists": lambda value, wanted: value is None or _alike(value, wanted),
    "StringNotEquals": lambda value, wanted: value is None or value not in wanted,
}
"""Operators of conditions. As in IAM, a condition on a missing key does not hold."""


def _several(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
