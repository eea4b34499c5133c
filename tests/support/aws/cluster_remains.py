"""Searches an in-process AWS account for everything that still belongs to a cluster.

Every attribute of every back end of all moto services is searched, and what mentions the cluster in
a name, an id or a tag is reported. So a new kind of resource is found without being added here.
"""

from collections.abc import Iterator, Mapping
from typing import Any

DEPTH = 6
STAYS = ("s3.buckets", "logs.groups")
"""The bucket may stay, with what lies in it, and what the workers have written."""
MEMORY = ("cloudformation.deleted_stacks", "ec2.tags", "iam.access_keys", "sts.assumed_roles")
"""What is remembered of things that are gone: it costs nothing and can do nothing."""


def remains(word: str) -> list[str]:
    """One line per resource that mentions `word`, as service.kind: which."""
    found = {
        f"{service}.{kind}: {which}"
        for service, backend in _backends()
        for kind, value in vars(backend).items()
        if f"{service}.{kind}" not in (*STAYS, *MEMORY)
        for which in _mentioning(word, value)
    }
    return sorted(found | set(_tagged(word)))


def kinds(word: str) -> set[str]:
    return {line.partition(":")[0] for line in remains(word)}


def _backends() -> Iterator[tuple[str, Any]]:
    from moto.core.base_backend import BackendDict

    backends: Any = BackendDict
    for service in list(backends._instances):
        for _, _, backend in service.iter_backends():
            yield service.service_name, backend


def _tagged(word: str) -> Iterator[str]:
    """EC2 keeps all tags apart from what they are on, also of what is gone."""
    for service, backend in _backends():
        if service != "ec2":
            continue
        tagged = {id for id, tags in [*backend.tags.items()] if _mentions(word, tags, DEPTH, set())}
        for kind, value in vars(backend).items():
            if kind != "tags":
                yield from (f"ec2.{kind}: {id}" for id in tagged & set(_ids(value)))


def _ids(value: Any) -> Iterator[str]:
    """Of a list or a dictionary of resources, or of dictionaries of them (by zone, by VPC)."""
    if isinstance(value, list):
        yield from (str(getattr(item, "physical_resource_id", "")) for item in value)
    if not isinstance(value, Mapping):
        return
    for key, item in list(value.items()):
        if isinstance(item, Mapping):
            yield from map(str, item)
        elif not _is_gone(item):
            yield str(key)


def _mentioning(word: str, value: Any) -> Iterator[str]:
    """The members of a back end's dictionary or list that mention the word."""
    if isinstance(value, Mapping):
        for key, item in list(value.items()):
            if not _is_gone(item) and (word in str(key) or _mentions(word, item, DEPTH, set())):
                yield str(key)
    elif isinstance(value, list | tuple | set):
        for item in value:
            if not _is_gone(item) and _mentions(word, item, DEPTH, set()):
                yield repr(item)[:80]


def _is_gone(item: Any) -> bool:
    """What EC2 still shows for a while: terminated instances, their launches, deleted endpoints."""
    instances = getattr(item, "instances", None)
    if isinstance(instances, list) and instances:
        return all(_is_gone(instance) for instance in instances)
    state = getattr(getattr(item, "_state", None), "name", "") or getattr(item, "state", "")
    return state in ("terminated", "deleted")


def _mentions(word: str, value: Any, depth: int, seen: set[int]) -> bool:
    if isinstance(value, str | bytes):
        return word in (value if isinstance(value, str) else value.decode(errors="replace"))
    if depth == 0 or id(value) in seen or value is None or isinstance(value, int | float):
        return False
    seen.add(id(value))
    if isinstance(value, Mapping):
        return any(
            word in str(key) or _mentions(word, item, depth - 1, seen)
            for key, item in list(value.items())
        )
    if isinstance(value, list | tuple | set | frozenset):
        return any(_mentions(word, item, depth - 1, seen) for item in list(value))
    if type(value).__module__.startswith("moto") and not _is_backend(value):
        return _mentions(word, vars(value), depth - 1, seen)
    return False


def _is_backend(value: Any) -> bool:
    from moto.core.base_backend import BaseBackend

    return isinstance(value, BaseBackend)
