"""A namespace without a server: `KubeApi`'s calls on the emulated cluster's objects.

Each call is checked as the API server checks it: by the rules of a Role, by the schemas of custom
resources, and by what a namespace admits. What a client sends, this takes and answers.
"""

import copy
import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from support.emulated_kubernetes.api import patches, rbac
from support.emulated_kubernetes.api.kinds import NAMESPACES, ObjectKind
from support.emulated_kubernetes.api.objects import Object, ObjectStore
from support.emulated_kubernetes.api.refusals import ApiError
from support.emulated_kubernetes.api.selectors import by_selector
from support.emulated_kubernetes.api.validate import completed

from spotelastic.errors import SpotelasticError
from spotelastic.kubernetes.provider.call_errors import ApiCall, Missing, NamedServer

PLACE = "ml"
_LOCK = threading.RLock()
"""Callers may be on several threads, the objects' store is for one."""


def namespace(**labels: str) -> ObjectStore:
    """The objects of a cluster with the namespace `ml`, which has these labels."""
    store = ObjectStore()
    made = {"metadata": {"name": PLACE, "labels": dict(labels)}}
    store.create(NAMESPACES, "", completed(NAMESPACES, made))
    return store


class StoredApi:
    """The objects of a namespace. `rules`: what the caller may do; None: everything."""

    namespace = PLACE

    def __init__(
        self, store: ObjectStore, rules: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        self.store, self._rules = store, rules
        self.used: Counter[rbac.Access] = Counter()

    def calls(self) -> Mapping[tuple[str, str], int]:
        return {}

    def get(self, kind: str, name: str) -> Object | None:
        try:
            return _copied(self._call("GET", kind, name, "", ObjectStore.get))
        except Missing:
            return None

    def found(self, kind: str, labels: Mapping[str, str]) -> list[Object]:
        def listed(store: ObjectStore, of: ObjectKind, place: str, _: str) -> list[Object]:
            matches = by_selector({"matchLabels": labels})
            return [copy.deepcopy(each) for each in store.items(of, place) if matches(each)]

        found: list[Object] = self._call("GET", kind, "", "", listed)
        return found

    def create(self, manifest: Object) -> Object:
        def made(store: ObjectStore, of: ObjectKind, place: str, _: str) -> Object:
            return store.create(of, place, completed(of, manifest))

        return _copied(self._call("POST", manifest["kind"], "", "", made, manifest))

    def ensure(self, manifest: Object) -> Object:
        from spotelastic.kubernetes.provider.call_errors import Conflicting

        try:
            return self.create(manifest)
        except Conflicting:
            found = self.get(manifest["kind"], manifest["metadata"]["name"])
            assert found is not None
            return found

    def replace(self, manifest: Object) -> Object:
        name = manifest["metadata"]["name"]

        def replaced(store: ObjectStore, of: ObjectKind, place: str, _: str) -> Object:
            return store.replace(of, place, name, manifest)

        return _copied(self._call("PUT", manifest["kind"], name, "", replaced, manifest))

    def patch(self, kind: str, name: str, patch: Object, part: str = "") -> Object:
        def patched(store: ObjectStore, of: ObjectKind, place: str, _: str) -> Object:
            return store.patch(of, place, name, patch, patches.MERGE, status=part == "Status")

        return _copied(self._call("PATCH", kind, name, part.lower(), patched, patch))

    def delete(self, kind: str, name: str, grace: int | None = None) -> None:
        def deleted(store: ObjectStore, of: ObjectKind, place: str, _: str) -> Object:
            return store.delete(of, place, name, grace=grace)

        try:
            self._call("DELETE", kind, name, "", deleted)
        except Missing:
            pass

    def log(
        self,
        pod: str,
        tail: int | None = None,
        *,
        within: int | None = None,
        timestamps: bool = False,
    ) -> list[str]:
        self._call("GET", "Pod", pod, "log", ObjectStore.get)
        return []

    def _call(
        self, method: str, kind: str, name: str, part: str, do: Any, given: Object | None = None
    ) -> Any:
        call = ApiCall(f"{method} {kind} {name}", PLACE, NamedServer())
        try:
            of = self._kind(kind)
            asked = rbac.asked(method, of.group, of.plural, name, part)
            if self._rules is not None and not rbac.allows(self._rules, asked):
                raise ApiError(403, "Forbidden", f"no right: {asked}")
            self._check_handed_on(of, given or {})
            self.used[asked] += 1
            with _LOCK:
                return do(self.store, of, PLACE if of.namespaced else "", name)
        except ApiError as error:
            raise _told(call, error) from error

    def _kind(self, name: str) -> ObjectKind:
        for kind in self.store.kinds():
            if kind.name == name:
                return kind
        raise ApiError(404, "NotFound", "the server could not find the requested resource")

    def _check_handed_on(self, of: ObjectKind, given: Object) -> None:
        if self._rules is None:
            return
        for each in rbac.single(given.get("rules") or ()):
            if not rbac.allows(self._rules, each):
                raise ApiError(403, "Forbidden", f"a right that the caller has not: {each}")


def _copied(stored: Any) -> Object:
    found: Object = copy.deepcopy(stored)
    return found


def _told(call: ApiCall, error: ApiError) -> SpotelasticError:
    return call.refused(error.code, error.message)


def names(accesses: Collection[rbac.Access]) -> set[tuple[str, str, str]]:
    """Verb, group and resource of each."""
    return {(each.verb, each.group, each.resource) for each in accesses}
