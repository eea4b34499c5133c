"""The objects of the emulated cluster, each change with a version of its own.

What must never happen: two writers who read the same version both succeed. A write that names a
version is refused unless it is the newest; a watch gets every change once, in order, or is told
that it begins too long ago.

Everything runs on one thread, so that each method is one transaction.
"""

import copy
import secrets
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from support.emulated_kubernetes.api import admission, custom, patches
from support.emulated_kubernetes.api.kinds import (
    DEFINITIONS,
    KINDS,
    LIMITS,
    NAMESPACES,
    PODS,
    QUOTAS,
    REPLICA_SETS,
    ObjectKind,
)
from support.emulated_kubernetes.api.refusals import (
    bad_request,
    conflict,
    exists_already,
    expired,
    invalid,
    is_ending,
    not_found,
)
from support.emulated_kubernetes.api.selectors import Matches
from support.emulated_kubernetes.api.validate import check_change

from spotelastic.clock import Clock, wall

Object = dict[str, Any]
Mutate = Callable[[Object], None]

KEPT_CHANGES = 4096
"""Changes that a watch can begin before."""
GRACE = 30
"""Seconds that a pod has to end, where it names no other number."""
_SET_BY_SERVER = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """An object before and after a change; None: it was, or is, not there."""

    version: int
    kind: ObjectKind
    before: Object | None
    after: Object | None

    @property
    def object(self) -> Object:
        """The object as the change is told: one that is deleted, as it was, with a new version."""
        if self.after is not None:
            return self.after
        assert self.before is not None
        metadata = {**self.before["metadata"], "resourceVersion": str(self.version)}
        return {**self.before, "metadata": metadata}

    def seen_by(self, matches: Matches, namespace: str | None) -> str:
        """Return what a watch is told of it: ADDED, MODIFIED, DELETED; "" if nothing."""
        was, is_ = (
            each is not None
            and namespace in (None, each["metadata"].get("namespace"))
            and matches(each)
            for each in (self.before, self.after)
        )
        return {(False, True): "ADDED", (True, True): "MODIFIED", (True, False): "DELETED"}.get(
            (was, is_), ""
        )


def timestamp(now: float) -> str:
    """Return a time as Kubernetes writes it, in whole seconds."""
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class ObjectStore:
    """All objects. What it returns is shared with it: copy before you change it."""

    def __init__(self, clock: Clock = wall) -> None:
        self.clock = clock
        self.version = 1
        self.on_change: list[Callable[[ObjectChange], None]] = []
        """Called with each change, after it. Must not write."""
        self._objects: dict[ObjectKind, dict[tuple[str, str], Object]] = defaultdict(dict)
        self._log: deque[ObjectChange] = deque(maxlen=KEPT_CHANGES)
        self._applied: dict[str, dict[str, Object]] = {}
        """What each manager has applied, by the object's uid."""

    # -- read ------------------------------------------------------------------------------------

    def kinds(self) -> tuple[ObjectKind, ...]:
        """Return all kinds, those of custom resources included."""
        own = (kind for each in self.items(DEFINITIONS) for kind in custom.kinds_of(each))
        return (*KINDS, *own)

    def definition(self, kind: ObjectKind) -> Object:
        """Return the definition of a custom kind. Raises `ApiError`."""
        return self.get(DEFINITIONS, "", f"{kind.plural}.{kind.group}")

    def find(self, kind: ObjectKind, namespace: str, name: str) -> Object | None:
        """Return an object, or None."""
        return self._objects[kind].get((namespace, name))

    def get(self, kind: ObjectKind, namespace: str, name: str) -> Object:
        """Return an object. Raises `ApiError`."""
        found = self.find(kind, namespace, name)
        if found is None:
            raise not_found(kind.called(name))
        return found

    def items(self, kind: ObjectKind, namespace: str | None = None) -> list[Object]:
        """Return the objects of a kind, in one namespace or in all, by name."""
        items = sorted(self._objects[kind].items())
        return [each for (where, _), each in items if namespace in (None, where)]

    def owned(self, kind: ObjectKind, owner: str) -> list[Object]:
        """Return the objects of a kind that the object with that uid controls."""
        return [
            each
            for each in self.items(kind)
            for its in each["metadata"].get("ownerReferences", ())
            if its["uid"] == owner
        ]

    def changes(self, after: int) -> Iterator[ObjectChange]:
        """Return the changes after a version. Raises `ApiError` if they are no longer kept."""
        oldest = self._log[0].version if self._log else self.version + 1
        if after + 1 < oldest and after < self.version:
            raise expired(after)
        return (each for each in tuple(self._log) if each.version > after)

    # -- write -----------------------------------------------------------------------------------

    def create(self, kind: ObjectKind, namespace: str, given: Mapping[str, Any]) -> Object:
        """Store a new object, and return it. Raises `ApiError`."""
        made = copy.deepcopy(dict(given))
        metadata = made.setdefault("metadata", {})
        if metadata.get("generateName") and not metadata.get("name"):
            metadata["name"] = metadata["generateName"] + secrets.token_hex(3)[:5]
        name = metadata.get("name")
        if not name:
            raise invalid(kind.name, "metadata.name: Required value: name or generateName")
        if self.find(kind, namespace, name) is not None:
            raise exists_already(kind.called(name))
        its = self.find(NAMESPACES, "", namespace) or {"metadata": {}}
        if kind.namespaced and "deletionTimestamp" in its["metadata"]:
            raise is_ending(kind.called(name), namespace)
        for each in _SET_BY_SERVER:
            metadata.pop(each, None)
        if not kind.namespaced:
            metadata.pop("namespace", None)
        elif metadata.setdefault("namespace", namespace) != namespace:
            raise bad_request("the namespace of the object does not match the request's")
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = timestamp(self.clock())
        metadata["generation"] = 1
        made |= {"apiVersion": kind.api_version, "kind": kind.name}
        made = self._fitted(kind, made, None)
        if kind is PODS:
            made = self._admitted(namespace, made)
        if kind.has_status:
            made["status"] = {"replicas": 0} if kind is REPLICA_SETS else {}
        return self._put(kind, None, made)

    def replace(
        self, kind: ObjectKind, namespace: str, name: str, given: Mapping[str, Any]
    ) -> Object:
        """Replace an object but for its status. Raises `ApiError`."""
        before = self.get(kind, namespace, name)
        self._check_version(kind, before, given)
        after = copy.deepcopy(dict(given))
        if kind.has_status:
            after["status"] = before["status"]
        check_change(kind, before, after)
        return self._change(kind, before, after)

    def replace_status(
        self, kind: ObjectKind, namespace: str, name: str, given: Mapping[str, Any]
    ) -> Object:
        """Replace an object's status, and nothing else. Raises `ApiError`."""
        before = self.get(kind, namespace, name)
        self._check_version(kind, before, given)
        return self._change(kind, before, {**before, "status": given.get("status", {})})

    def patch(
        self,
        kind: ObjectKind,
        namespace: str,
        name: str,
        patch: Mapping[str, Any],
        type: str,
        *,
        status: bool = False,
    ) -> Object:
        """Change a part of an object. Raises `ApiError`."""
        merge = patches.merged if type == patches.MERGE else patches.strategically_merged
        after = merge(self.get(kind, namespace, name), patch)
        write = self.replace_status if status else self.replace
        if "resourceVersion" not in (patch.get("metadata") or {}):
            after = _without_version(after)
        return write(kind, namespace, name, after)

    def apply(
        self,
        kind: ObjectKind,
        namespace: str,
        name: str,
        wanted: Mapping[str, Any],
        manager: str,
        *,
        force: bool,
    ) -> Object:
        """Make an object as `manager` wants it, and create it if there is none."""
        found = self.find(kind, namespace, name)
        if found is None:
            made = self.create(kind, namespace, wanted)
        else:
            earlier = self._applied.get(found["metadata"]["uid"], {})
            after = patches.applied(found, wanted, manager, earlier, force=force)
            made = self.replace(kind, namespace, name, _without_version(after))
        its = self._applied.setdefault(made["metadata"]["uid"], {})
        its[manager] = copy.deepcopy(dict(wanted))
        return made

    def update(
        self, kind: ObjectKind, namespace: str, name: str, mutate: Mutate, *, uid: str = ""
    ) -> Object | None:
        """Change an object as the cluster itself does, status included.

        None if it is gone, or if another one of a different `uid` has its name.
        """
        before = self.find(kind, namespace, name)
        if before is None or uid not in ("", before["metadata"]["uid"]):
            return None
        after = copy.deepcopy(before)
        mutate(after)
        return self._change(kind, before, after)

    def delete(
        self,
        kind: ObjectKind,
        namespace: str,
        name: str,
        *,
        grace: int | None = None,
        propagation: str = "Background",
        uid: str = "",
    ) -> Object:
        """Delete an object, or announce that: a pod ends first, and finalizers hold it.

        Raises `ApiError` if it is not there, or is not the one of that `uid`.
        """
        found = self.get(kind, namespace, name)
        metadata = copy.deepcopy(found["metadata"])
        if uid not in ("", metadata["uid"]):
            raise conflict(kind.called(name), "the UID in the precondition does not match")
        finalizers = list(metadata.get("finalizers", ()))
        for word, holds in (("Foreground", "foregroundDeletion"), ("Orphan", "orphan")):
            if propagation == word and holds not in finalizers:
                finalizers.append(holds)
        seconds = _grace(found, grace) if kind is PODS else 0
        if not finalizers and not seconds:
            return self._drop(kind, found)
        metadata.setdefault("deletionTimestamp", timestamp(self.clock() + seconds))
        if kind is PODS:
            earlier = metadata.get("deletionGracePeriodSeconds", seconds)
            metadata["deletionGracePeriodSeconds"] = min(seconds, earlier)
        if finalizers:
            metadata["finalizers"] = finalizers
        return self._put(kind, found, {**found, "metadata": metadata})

    # -- within ----------------------------------------------------------------------------------

    def _fitted(self, kind: ObjectKind, given: Object, before: Object | None) -> Object:
        """Return an object as its definition allows it. Raises `ApiError`."""
        if not kind.custom:
            return given
        return custom.fitted(kind, self.definition(kind), given, before)

    def _admitted(self, namespace: str, pod: Object) -> Object:
        """Return a new pod as its namespace admits it. Raises `ApiError`."""
        its = self.find(NAMESPACES, "", namespace) or {"metadata": {}}
        limits, quotas = self.items(LIMITS, namespace), self.items(QUOTAS, namespace)
        return admission.admitted(pod, its, limits, quotas, self.items(PODS, namespace))

    def _check_version(self, kind: ObjectKind, before: Object, given: Mapping[str, Any]) -> None:
        asked, has = given.get("metadata", {}), before["metadata"]
        if asked.get("resourceVersion") not in (None, "", has["resourceVersion"]):
            why = "the object has been modified; please apply your changes to the latest version"
            raise conflict(kind.called(has["name"]), why)
        if asked.get("uid") not in (None, has["uid"]):
            raise conflict(kind.called(has["name"]), "the UID does not match")

    def _change(self, kind: ObjectKind, before: Object, after: Object) -> Object:
        had, metadata = before["metadata"], dict(after.get("metadata", {}))
        for each in ("name", "namespace", "generation", "resourceVersion", *_SET_BY_SERVER):
            metadata.pop(each, None)
            if each in had:
                metadata[each] = had[each]
        after = {**after, "metadata": metadata}
        after |= {"apiVersion": kind.api_version, "kind": kind.name}
        after = self._fitted(kind, after, before)
        if after == before:
            return before
        if after.get("spec") != before.get("spec"):
            metadata["generation"] = had["generation"] + 1
        done = "deletionTimestamp" in metadata and not metadata.get("finalizers")
        if done and not metadata.get("deletionGracePeriodSeconds"):
            return self._drop(kind, after)
        return self._put(kind, before, after)

    def _put(self, kind: ObjectKind, before: Object | None, after: Object) -> Object:
        self.version += 1
        after["metadata"]["resourceVersion"] = str(self.version)
        metadata = after["metadata"]
        self._objects[kind][metadata.get("namespace", ""), metadata["name"]] = after
        self._tell(ObjectChange(self.version, kind, before, after))
        return after

    def _drop(self, kind: ObjectKind, found: Object) -> Object:
        metadata = found["metadata"]
        self.version += 1
        self._applied.pop(metadata["uid"], None)
        del self._objects[kind][metadata.get("namespace", ""), metadata["name"]]
        self._tell(ObjectChange(self.version, kind, found, None))
        return found

    def _tell(self, change: ObjectChange) -> None:
        self._log.append(change)
        for each in tuple(self.on_change):
            each(change)


def _without_version(it: Object) -> Object:
    """Return an object that may be written whatever version it has now."""
    return {**it, "metadata": {**it["metadata"], "resourceVersion": ""}}


def _grace(pod: Object, asked: int | None) -> int:
    """Return the seconds that a pod has to end. One that has ended, or never ran, needs none."""
    if pod["status"].get("phase") in ("Succeeded", "Failed") or not pod["spec"].get("nodeName"):
        return 0
    given = pod["spec"].get("terminationGracePeriodSeconds", GRACE)
    return int(given if asked is None else asked)
