"""What a service account may do, as Roles and RoleBindings of its namespace say (pure)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Object = Mapping[str, Any]

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


@dataclass(frozen=True, slots=True)
class Access:
    """One kind of access, as a rule allows it."""

    verb: str
    group: str
    resource: str
    """With a part of an object after a slash: pods/log."""
    name: str = ""
    """Of the object; "": none is named, or any, in a rule."""


def asked(
    method: str, group: str, plural: str, name: str, part: str, *, watches: bool = False
) -> Access:
    """Return the access that a request asks for."""
    verb = _VERBS.get(method, "")
    if method == "GET":
        verb = "get" if name else "watch" if watches else "list"
    elif method == "DELETE":
        verb = "delete" if name else "deletecollection"
    return Access(verb, group, f"{plural}/{part}" if part else plural, name)


def rules_of(
    account: str, namespace: str, roles: Iterable[Object], bindings: Iterable[Object]
) -> list[Object]:
    """Return the rules that hold for an account, NAMESPACE:NAME, in a namespace.

    Those of ClusterRoles and their bindings hold everywhere: `namespace` is "" for them.
    """
    by_name = {
        each["metadata"]["name"]: each.get("rules") or []
        for each in roles
        if each["metadata"].get("namespace", "") == namespace
    }
    return [
        rule
        for each in bindings
        if each["metadata"].get("namespace", "") == namespace and _is_for(each, account)
        for rule in by_name.get(each["roleRef"]["name"], ())
    ]


def allows(rules: Iterable[Object], access: Access) -> bool:
    """Whether one of the rules allows an access."""
    return any(
        _has(rule.get("verbs", ()), access.verb)
        and _has(rule.get("apiGroups", ()), access.group)
        and _has(rule.get("resources", ()), access.resource)
        # An object that is created has no name yet, whatever its manifest says.
        and (not rule.get("resourceNames") or access.name in rule["resourceNames"])
        for rule in rules
    )


def single(rules: Iterable[Object]) -> list[Access]:
    """Return each access that rules allow."""
    return [
        Access(verb, group, resource, name)
        for rule in rules
        for verb in rule.get("verbs", ())
        for group in rule.get("apiGroups", ())
        for resource in rule.get("resources", ())
        for name in rule.get("resourceNames", ("",))
    ]


def _is_for(binding: Object, account: str) -> bool:
    namespace = binding["metadata"].get("namespace", "")
    return any(
        each["kind"] == "ServiceAccount"
        and f"{each.get('namespace', namespace)}:{each['name']}" == account
        for each in binding.get("subjects") or ()
    )


def _has(values: Sequence[str], value: str) -> bool:
    return value in values or "*" in values
