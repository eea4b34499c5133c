"""Changes of a part of an object (pure): merge patches, strategic ones, and server-side apply.

Of the strategic directives only `$patch: delete` of an element is known. Server-side apply keeps
what each manager has applied, and not who owns each field; so only two managers who both apply can
conflict.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from support.emulated_kubernetes.api.refusals import ApiError

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"

_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "conditions": "type",
    "ownerReferences": "uid",
    "taints": "key",
}
"""Lists whose elements have a key, by which they are merged."""

Path = tuple[str, ...]


def merged(before: Any, patch: Any) -> Any:
    """Return a value with a JSON merge patch (RFC 7386): null removes, lists are replaced."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    after = dict(before) if isinstance(before, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            after.pop(name, None)
        else:
            after[name] = merged(after.get(name), value)
    return after


def strategically_merged(before: Any, patch: Any, name: str = "") -> Any:
    """Return a value with a strategic merge patch: lists whose elements have keys are merged."""
    if isinstance(patch, Mapping):
        after = dict(before) if isinstance(before, Mapping) else {}
        for each, value in patch.items():
            if value is None:
                after.pop(each, None)
            else:
                after[each] = strategically_merged(after.get(each), value, each)
        return after
    key = _KEYS.get(name)
    if not _is_keyed(patch, key):
        return copy.deepcopy(patch)
    found = {each[key]: each for each in before or ()}
    for each in patch:
        if each.get("$patch") == "delete":
            found.pop(each[key], None)
        else:
            found[each[key]] = strategically_merged(found.get(each[key]), each)
    return list(found.values())


def applied(
    before: Mapping[str, Any],
    wanted: Mapping[str, Any],
    manager: str,
    earlier: Mapping[str, Mapping[str, Any]],
    *,
    force: bool,
) -> dict[str, Any]:
    """Return an object as `manager` applies it; `earlier` is what each manager applied before.

    What the manager applied before, and leaves out now, is removed, unless another one applied it
    too. Raises `ApiError` if another one applied another value, unless `force`.
    """
    mine = dict(_leaves(wanted))
    others = {name: dict(_leaves(its)) for name, its in earlier.items() if name != manager}
    for name, its in others.items():
        differing = [".".join(path) for path in its.keys() & mine if its[path] != mine[path]]
        if differing and not force:
            told = f"Apply failed with 1 conflict: conflict with {name!r}: .{min(differing)}"
            raise ApiError(409, "Conflict", told)
    kept = {path for its in others.values() for path in its}
    gone = dict(_leaves(earlier.get(manager, {}))).keys() - mine.keys() - kept
    after = strategically_merged(before, wanted)
    for path in gone:
        _remove(after, path)
    return dict(after)


def _is_keyed(value: Any, key: str | None) -> bool:
    return (
        key is not None
        and isinstance(value, Sequence)
        and not isinstance(value, str)
        and all(
            isinstance(each, Mapping) and isinstance(each.get(key), str | int) for each in value
        )
    )


def _leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the values of an object that are no objects; keyed elements go by their keys."""
    key = _KEYS.get(path[-1]) if path else None
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _leaves(each, (*path, str(name)))
    elif value and _is_keyed(value, key):
        for each in value:
            yield from _leaves(each, (*path, str(each[key])))
    else:
        yield path, value


def _remove(value: Any, path: Path) -> None:
    """Remove what is at a path; what is not there is no error."""
    for number, word in enumerate(path[:-1]):
        key = _KEYS.get(path[number - 1]) if number and isinstance(value, list) else None
        if isinstance(value, list):
            value = next((each for each in value if key and str(each[key]) == word), None)
        elif isinstance(value, dict):
            value = value.get(word)
    if isinstance(value, dict):
        value.pop(path[-1], None)
