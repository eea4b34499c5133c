"""Which objects a list, a watch or a Service means: selectors of labels and of fields."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from support.emulated_kubernetes.api.refusals import bad_request

Matches = Callable[[Mapping[str, Any]], bool]
"""Whether an object is meant."""

_SET = re.compile(r"^(\S+)\s+(in|notin)\s+\(([^)]*)\)$")
_EQUAL = re.compile(r"^([^=!\s]+)\s*(==|=|!=)\s*([^=!\s]*)$")
_FIELDS = (
    *("metadata.name", "metadata.namespace", "spec.nodeName", "status.phase", "type", "reason"),
    *(f"involvedObject.{name}" for name in ("name", "namespace", "uid", "kind")),
)


def selected(labels: str, fields: str) -> Matches:
    """Return what a request's `labelSelector` and `fieldSelector` mean. Raises `ApiError`."""
    wanted = [*map(_label, _requirements(labels)), *map(_field, _requirements(fields))]
    return lambda each: all(matches(each) for matches in wanted)


def by_labels(wanted: Mapping[str, str]) -> Matches:
    """Return the selector of a Service: every label has that value. Without labels, none."""
    return lambda each: bool(wanted) and wanted.items() <= _labels(each).items()


def by_selector(selector: Mapping[str, Any]) -> Matches:
    """Return the selector of a Deployment or a budget (`matchLabels`, `matchExpressions`)."""
    equal: Mapping[str, str] = selector.get("matchLabels") or {}
    asked = [_expression(each) for each in selector.get("matchExpressions") or ()]
    return lambda each: (
        equal.items() <= _labels(each).items() and all(matches(each) for matches in asked)
    )


def field(each: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path with dots; None if there is none."""
    found: Any = each
    for word in path.split("."):
        found = found.get(word) if isinstance(found, Mapping) else None
    return found


def _labels(each: Mapping[str, Any]) -> Mapping[str, str]:
    return each.get("metadata", {}).get("labels") or {}


def _requirements(text: str) -> list[str]:
    """Split at the commas outside of parentheses."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", text) if part.strip()]


def _label(text: str) -> Matches:
    if found := _SET.match(text):
        key, word, listed = found.groups()
        values = {each.strip() for each in listed.split(",")}
        return _in(key, values) if word == "in" else _not_in(key, values)
    if found := _EQUAL.match(text):
        key, word, value = found.groups()
        return _not_in(key, {value}) if word == "!=" else _in(key, {value})
    if re.fullmatch(r"!?[\w./-]+", text):
        key, absent = text.lstrip("!"), text.startswith("!")
        return lambda each: (key in _labels(each)) is not absent
    raise bad_request(f"unable to parse requirement: {text}")


def _expression(asked: Mapping[str, Any]) -> Matches:
    key, values = str(asked["key"]), set(asked.get("values") or ())
    match asked["operator"]:
        case "In":
            return _in(key, values)
        case "NotIn":
            return _not_in(key, values)
        case "Exists":
            return lambda each: key in _labels(each)
        case "DoesNotExist":
            return lambda each: key not in _labels(each)
    raise bad_request(f"{asked['operator']} is not a valid label selector operator")


def _in(key: str, values: set[str]) -> Matches:
    return lambda each: _labels(each).get(key) in values


def _not_in(key: str, values: set[str]) -> Matches:
    return lambda each: _labels(each).get(key) not in values


def _field(text: str) -> Matches:
    found = _EQUAL.match(text)
    if found is None or found[1] not in _FIELDS:
        raise bad_request(f"field label not supported: {text}")
    path, word, value = found.groups()
    return lambda each: (str(field(each, path) or "") == value) is not (word == "!=")
