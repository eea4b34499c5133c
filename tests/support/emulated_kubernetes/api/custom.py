"""Custom resources, as their definitions say (pure): their kinds, what is pruned and refused of
their objects, and their columns.

Of a definition's schema its types, formats of values, required fields, enumerations and rules
count, as in the API server. Default values do not.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from support.emulated_kubernetes.api import cel
from support.emulated_kubernetes.api.kinds import ObjectKind
from support.emulated_kubernetes.api.refusals import invalid
from support.emulated_kubernetes.api.selectors import field

Object = dict[str, Any]

HOLDS_OBJECTS = "customresourcecleanup.apiextensions.k8s.io"
"""The finalizer of a definition, which goes when none of its objects is left."""
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
}


def kinds_of(definition: Mapping[str, Any]) -> list[ObjectKind]:
    """Return the kinds that a definition adds: one for each version that is served."""
    spec = definition["spec"]
    names = spec["names"]
    return [
        ObjectKind(
            spec["group"],
            version["name"],
            names["plural"],
            names["kind"],
            namespaced=spec["scope"] == "Namespaced",
            has_status="status" in version.get("subresources", {}),
            custom=True,
            short=tuple(names.get("shortNames", ())),
        )
        for version in spec["versions"]
        if version["served"]
    ]


def check_definition(given: Mapping[str, Any]) -> None:
    """Raise `ApiError` for a definition that the API server would not take."""
    spec = given.get("spec") or {}
    wanted = f"{spec.get('names', {}).get('plural')}.{spec.get('group')}"
    name = given.get("metadata", {}).get("name")
    if name != wanted:
        raise _refusal(f'metadata.name: Invalid value: "{name}": must be {wanted}')
    if "." not in spec["group"]:
        raise _refusal("spec.group: Invalid value: should be a domain with at least one dot")
    stored = [each["name"] for each in spec.get("versions", ()) if each.get("storage")]
    if len(stored) != 1:
        raise _refusal("spec.versions: Invalid value: exactly one version is stored")
    for version in spec["versions"]:
        _check_structure("spec.versions.schema", version["schema"]["openAPIV3Schema"])


def fitted(
    kind: ObjectKind, definition: Mapping[str, Any], given: Object, before: Object | None = None
) -> Object:
    """Return an object without the fields that its definition does not know. `before`: the object
    that it changes.

    Raises `ApiError` for values that it does not allow.
    """
    schema = _version(kind, definition)["schema"]["openAPIV3Schema"]
    properties = schema.get("properties", {})
    made: Object = {
        name: given[name] for name in ("apiVersion", "kind", "metadata") if name in given
    }
    for name in properties.keys() - made.keys():
        if name in given:
            made[name] = _fitted(kind, name, properties[name], given[name])
            _check_rules(kind, name, properties[name], made[name], (before or {}).get(name))
    own = {name: each for name, each in schema.items() if name != "properties"}
    _check_rules(kind, kind.name, own, made, before)
    return made


def _check_rules(
    kind: ObjectKind, path: str, schema: Mapping[str, Any], value: Any, before: Any
) -> None:
    """Raise `ApiError` for a value that breaks a rule. Values in lists have no rules here."""
    broken = [
        f"{path}: Invalid value: {each['message']}"
        for each in schema.get("x-kubernetes-validations", ())
        if not (before is None and cel.is_transition(each["rule"]))
        and not cel.holds(each["rule"], value, before)
    ]
    if broken:
        raise invalid(kind.name, ", ".join(broken))
    was = before if isinstance(before, Mapping) else {}
    for name, its in schema.get("properties", {}).items():
        if isinstance(value, Mapping) and name in value:
            _check_rules(kind, f"{path}.{name}", its, value[name], was.get(name))


def cells(kind: ObjectKind, definition: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the type and the path of each column that is printed, by its name.

    Those that only `kubectl get -o wide` shows are left out.
    """
    columns = _version(kind, definition).get("additionalPrinterColumns", ())
    return {
        each["name"]: (each["type"], each["jsonPath"].removeprefix("."))
        for each in columns
        if not each.get("priority")
    }


def cell(it: Mapping[str, Any], path: str) -> str:
    """Return the text of one cell."""
    found = field(it, path)
    return "" if found is None else str(found)


def _version(kind: ObjectKind, definition: Mapping[str, Any]) -> Mapping[str, Any]:
    versions: Sequence[Mapping[str, Any]] = definition["spec"]["versions"]
    return next(each for each in versions if each["name"] == kind.version)


def _fitted(kind: ObjectKind, path: str, schema: Mapping[str, Any], value: Any) -> Any:
    _check_value(kind, path, schema, value)
    if isinstance(value, dict):
        return _fitted_object(kind, path, schema, value)
    if isinstance(value, list) and "items" in schema:
        return [
            _fitted(kind, f"{path}[{number}]", schema["items"], each)
            for number, each in enumerate(value)
        ]
    return value


def _fitted_object(kind: ObjectKind, path: str, schema: Mapping[str, Any], value: Object) -> Object:
    # Dropped, as the API server does where a field is not nullable.
    value = {name: each for name, each in value.items() if each is not None}
    for name in schema.get("required", ()):
        if name not in value:
            raise invalid(kind.name, f"{path}.{name}: Required value")
    known, others = schema.get("properties", {}), schema.get("additionalProperties")
    made = {}
    for name, each in value.items():
        if name in known:
            made[name] = _fitted(kind, f"{path}.{name}", known[name], each)
        elif isinstance(others, Mapping):
            made[name] = _fitted(kind, f"{path}.{name}", others, each)
        elif schema.get("x-kubernetes-preserve-unknown-fields"):
            made[name] = each
    return made


def _check_value(kind: ObjectKind, path: str, schema: Mapping[str, Any], value: Any) -> None:
    wanted: type | tuple[type, ...] | None
    if schema.get("x-kubernetes-int-or-string"):
        wanted, told = (int, str), "integer or string"
    else:
        told = str(schema.get("type", "object"))
        wanted = _TYPES[told]
    is_switch = isinstance(value, bool) and told != "boolean"
    if is_switch or not isinstance(value, wanted):
        raise invalid(kind.name, f"{path}: Invalid value: {value!r}: must be of type {told}")
    if "enum" in schema and value not in schema["enum"]:
        raise invalid(kind.name, f"{path}: Unsupported value: {value!r}")
    if "minimum" in schema and value < schema["minimum"]:
        raise invalid(kind.name, f"{path}: Invalid value: {value!r}: is below the minimum")
    pattern = schema.get("pattern")
    if pattern and isinstance(value, str) and not re.search(pattern, value):
        raise invalid(kind.name, f"{path}: Invalid value: {value!r}: should match {pattern!r}")


def _check_structure(path: str, schema: Mapping[str, Any]) -> None:
    """Refuse a schema that is not structural: each value has one type, unless it has none."""
    free = "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"
    if schema.get("type") not in _TYPES and not any(schema.get(each) for each in free):
        raise _refusal(f"{path}.type: Required value: must not be empty for specified fields")
    if "properties" in schema and "additionalProperties" in schema:
        raise _refusal(f"{path}: Forbidden: properties and additionalProperties exclude each other")
    if schema.get("type") == "array" and "items" not in schema:
        raise _refusal(f"{path}.items: Required value: must be specified")
    for name, each in schema.get("properties", {}).items():
        _check_structure(f"{path}.{name}", each)
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), Mapping):
            _check_structure(f"{path}.{name}", schema[name])


def _refusal(why: str) -> Exception:
    return invalid("CustomResourceDefinition", why)
