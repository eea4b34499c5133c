"""The paths of the API server over HTTP: create, read, replace, patch, delete, list and watch."""

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiohttp import web
from support.emulated_kubernetes.api import patches, rbac, selectors, tables
from support.emulated_kubernetes.api.kinds import (
    BINDINGS,
    CLUSTER_BINDINGS,
    CLUSTER_ROLES,
    KINDS,
    NAMESPACES,
    PODS,
    ROLES,
    ObjectKind,
)
from support.emulated_kubernetes.api.objects import Object, ObjectChange, ObjectStore
from support.emulated_kubernetes.api.refusals import ApiError, bad_request, not_found
from support.emulated_kubernetes.api.validate import completed

VERSION = {"major": "1", "minor": "35", "gitVersion": "v1.35.0+spotelastic", "platform": "linux"}
"""The version whose behaviour is emulated."""
WATCH_FOR = 1800.0
"""Seconds that a watch lasts, unless it asks for less."""
MOST_BYTES = 4 * 2**20

Shown = Callable[[Object], Object]
"""Returns an object as a request wants it: as it is, or as a table."""
Subresource = Callable[[web.Request, "Addressed"], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Addressed:
    """What a path means: a kind, and within it a namespace, an object, and a part of that."""

    kind: ObjectKind
    namespace: str | None
    """None: all namespaces, or a kind that has none."""
    name: str = ""
    part: str = ""

    @property
    def place(self) -> str:
        """The namespace as objects are stored."""
        return self.namespace or ""


def addressed(path: str, kinds: Sequence[ObjectKind] = KINDS) -> Addressed:
    """Return what a path means. Raises `ApiError` if there is no such kind."""
    for kind in kinds:
        if not path.startswith(f"{kind.prefix}/"):
            continue
        words = path.removeprefix(f"{kind.prefix}/").split("/")
        within = len(words) > 2 and words[0] == "namespaces" and words[2] not in ("status",)
        namespace = words[1] if within else None
        words = words[2:] if within else words
        if words[0] == kind.plural and kind.namespaced is (within or len(words) == 1):
            return Addressed(kind, namespace, *words[1:3])
        if words[0] == kind.plural and not kind.namespaced:
            return Addressed(kind, None, *words[1:3])
    raise not_found(f"the path {path}")


class ApiServer:
    """Answers requests from the store.

    `token` is that of who may do everything, `accounts` has the service accounts by their tokens:
    they may do what their Roles say. `parts` are the paths below an object that are more than its
    status: `log`, `eviction`.
    """

    def __init__(
        self,
        store: ObjectStore,
        token: str,
        accounts: Mapping[str, str],
        parts: Mapping[str, Subresource],
    ) -> None:
        self._store = store
        self._token = token
        self._accounts = accounts
        self._parts = parts
        self._used: dict[str, set[rbac.Access]] = {}
        """What each service account has done."""
        self._watches: set[asyncio.Queue[ObjectChange | None]] = set()
        store.on_change.append(self._hand_on)

    def application(self) -> web.Application:
        """Return the application."""
        app = web.Application(middlewares=[self._guard], client_max_size=MOST_BYTES)
        app.router.add_get("/version", partial(_say, VERSION))
        app.router.add_get("/api", partial(_say, {"kind": "APIVersions", "versions": ["v1"]}))
        app.router.add_get("/apis", self._groups)
        app.router.add_get("/used", self._tell_used)
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            app.router.add_route(method, "/{path:apis?/.+}", getattr(self, f"_{method.lower()}"))
        return app

    def close(self) -> None:
        """End all watches."""
        for each in self._watches:
            each.put_nowait(None)

    def _hand_on(self, change: ObjectChange) -> None:
        for each in self._watches:
            each.put_nowait(change)

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Refuse who has no token, or not the rights, and turn refusals into answers."""
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        try:
            if not secrets.compare_digest(given.encode(), self._token.encode()):
                if (account := self._accounts.get(given)) is None:
                    raise ApiError(401, "Unauthorized", "Unauthorized")
                await self._check_access(request, account)
            return await handler(request)
        except ApiError as error:
            return answer(error.status(), error.code)

    async def _check_access(self, request: web.Request, account: str) -> None:
        """Raise `ApiError` unless the account's Roles allow a request; take note of it."""
        if request.path in ("/version", "/api", "/apis"):
            return
        at = self._at(request)
        watches = request.query.get("watch") in ("true", "1")
        wanted = rbac.asked(
            request.method, at.kind.group, at.kind.plural, at.name, at.part, watches=watches
        )
        rules = self._rules(account, at.place)
        if not rbac.allows(rules, wanted):
            what = f'cannot {wanted.verb} resource "{wanted.resource}" in API group'
            told = f'User "{account}" {what} "{wanted.group}" in the namespace "{at.place}"'
            raise ApiError(403, "Forbidden", f"{at.kind.called(at.name)} is forbidden: {told}")
        if wanted.verb in ("create", "update", "patch") and at.kind in (ROLES, BINDINGS):
            self._check_escalation(at, rules, await _body(request))
        self._used.setdefault(account, set()).add(wanted)

    def _check_escalation(
        self, at: Addressed, mine: Sequence[Mapping[str, Any]], given: Mapping[str, Any]
    ) -> None:
        """Refuse to hand on rights that one has not oneself."""
        handed = given.get("rules") or []
        if at.kind is BINDINGS and "roleRef" in given:
            found = self._store.find(ROLES, at.place, given["roleRef"]["name"])
            handed = [] if found is None else found.get("rules") or []
        lacking = [each for each in rbac.single(handed) if not rbac.allows(mine, each)]
        if lacking:
            told = f"attempting to grant RBAC permissions not currently held: {lacking[0]}"
            raise ApiError(403, "Forbidden", f"{at.kind.called(at.name)} is forbidden: {told}")

    def _rules(self, account: str, namespace: str) -> list[Mapping[str, Any]]:
        items = self._store.items
        everywhere = rbac.rules_of(account, "", items(CLUSTER_ROLES), items(CLUSTER_BINDINGS))
        return everywhere + rbac.rules_of(account, namespace, items(ROLES), items(BINDINGS))

    async def _tell_used(self, _request: web.Request) -> web.StreamResponse:
        return answer(
            {
                account: [[each.verb, each.group, each.resource] for each in used]
                for account, used in self._used.items()
            }
        )

    # -- methods ---------------------------------------------------------------------------------

    def _at(self, request: web.Request) -> Addressed:
        return addressed(request.path, self._store.kinds())

    async def _groups(self, _request: web.Request) -> web.StreamResponse:
        return answer(_groups(self._store.kinds()))

    async def _get(self, request: web.Request) -> web.StreamResponse:
        within = [kind for kind in self._store.kinds() if kind.prefix == request.path]
        if within:
            return answer(_resources(within))
        at = self._at(request)
        if at.part in self._parts:
            return await self._parts[at.part](request, at)
        if at.name:
            found = _part(at, self._store.get(at.kind, at.place, at.name))
            return answer(found if at.part else self._shown(request, at, found))
        if request.query.get("watch") in ("true", "1"):
            return await self._watch(request, at)
        listed = self._list(request, at)
        wants_table = tables.is_asked(request.headers.get("Accept", ""))
        return answer(self._table(at, listed["items"]) if wants_table else listed)

    async def _post(self, request: web.Request) -> web.StreamResponse:
        at = self._at(request)
        if at.part in self._parts:
            return await self._parts[at.part](request, at)
        given = await _body(request)
        self._check_namespace(at)
        made = completed(at.kind, given)
        if _is_dry(request):
            return answer(made, 201)
        return answer(self._store.create(at.kind, at.place, made), 201)

    async def _put(self, request: web.Request) -> web.StreamResponse:
        at, given = self._at(request), await _body(request)
        if at.part == "status":
            return answer(self._store.replace_status(at.kind, at.place, at.name, given))
        if at.part == "scale":
            return answer(_part(at, self._scale(at, given)))
        return answer(self._store.replace(at.kind, at.place, at.name, given))

    async def _patch(self, request: web.Request) -> web.StreamResponse:
        at, given, type_ = self._at(request), await _body(request), request.content_type
        store, force = self._store, request.query.get("force") == "true"
        if type_ == patches.APPLY:
            if not (manager := request.query.get("fieldManager", "")):
                raise bad_request("fieldManager: Required value: is required for apply patch")
            self._check_namespace(at)
            known = store.find(at.kind, at.place, at.name) is not None
            wanted = given if known else completed(at.kind, given)
            made = store.apply(at.kind, at.place, at.name, wanted, manager, force=force)
            return answer(made, 200 if known else 201)
        known_types = (patches.MERGE,) if at.kind.custom else (patches.MERGE, patches.STRATEGIC)
        if type_ not in known_types:
            raise ApiError(415, "UnsupportedMediaType", f"the emulated cluster knows no {type_}")
        if at.part == "scale":
            return answer(_part(at, self._scale(at, given)))
        status = at.part == "status"
        return answer(store.patch(at.kind, at.place, at.name, given, type_, status=status))

    async def _delete(self, request: web.Request) -> web.StreamResponse:
        at = self._at(request)
        options = await _body(request) if request.can_read_body else {}
        options |= request.query
        grace = options.get("gracePeriodSeconds")
        asked: dict[str, Any] = {
            "grace": None if grace is None else int(grace),
            "propagation": options.get("propagationPolicy", "Background"),
            "uid": (options.get("preconditions") or {}).get("uid", ""),
        }
        if at.name:
            return answer(self._store.delete(at.kind, at.place, at.name, **asked))
        found = self._list(request, at)
        for each in found["items"]:
            metadata = each["metadata"]
            place = metadata.get("namespace", "")
            self._store.delete(at.kind, place, metadata["name"], **asked)
        return answer(found)

    # -- lists and watches -----------------------------------------------------------------------

    def _list(self, request: web.Request, at: Addressed) -> Object:
        matches = _matches(request)
        items = [each for each in self._store.items(at.kind, at.namespace) if matches(each)]
        version = {"resourceVersion": str(self._store.version)}
        kind = {"kind": f"{at.kind.name}List", "apiVersion": at.kind.api_version}
        return {**kind, "metadata": version, "items": items}

    def _table(self, at: Addressed, found: Sequence[Object]) -> Object:
        now, version = self._store.clock(), str(self._store.version)
        definition = self._store.definition(at.kind) if at.kind.custom else None
        return tables.table(at.kind, found, version, now, definition)

    async def _watch(self, request: web.Request, at: Addressed) -> web.StreamResponse:
        matches, query = _matches(request), request.query
        shown = partial(self._shown, request, at)
        since = query.get("resourceVersion", "")
        queue: asyncio.Queue[ObjectChange | None] = asyncio.Queue()
        self._watches.add(queue)
        try:
            lines = self._beginning(since, at, matches, shown)
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            await response.prepare(request)
            for line in lines:
                await response.write(line)
            async with asyncio.timeout(float(query.get("timeoutSeconds") or WATCH_FOR)):
                while (change := await queue.get()) is not None:
                    if line := watch_line(change, at, matches, shown):
                        await response.write(line)
        except (TimeoutError, ConnectionError):
            pass
        finally:
            self._watches.discard(queue)
        return response

    def _shown(self, request: web.Request, at: Addressed, found: Object) -> Object:
        """Return an object as the request wants it."""
        wants_table = tables.is_asked(request.headers.get("Accept", ""))
        return self._table(at, [found]) if wants_table else found

    def _beginning(
        self, since: str, at: Addressed, matches: selectors.Matches, shown: Shown
    ) -> list[bytes]:
        """Return the lines with which a watch begins."""
        if since in ("", "0"):
            found = self._store.items(at.kind, at.namespace)
            return [_json_line("ADDED", shown(each)) for each in found if matches(each)]
        try:
            changes = self._store.changes(int(since))
        except ApiError as error:
            return [_json_line("ERROR", error.status())]
        return [line for each in changes if (line := watch_line(each, at, matches, shown))]

    # -- within ----------------------------------------------------------------------------------

    def _check_namespace(self, at: Addressed) -> None:
        if not at.kind.namespaced:
            return
        found = self._store.get(NAMESPACES, "", at.place)
        if "deletionTimestamp" in found["metadata"]:
            told = f"unable to create new content in namespace {at.place}: it is being terminated"
            raise ApiError(403, "Forbidden", told)

    def _scale(self, at: Addressed, given: Object) -> Object:
        """Set the replicas of an object that scales."""
        if not at.kind.scales:
            raise not_found(f"the scale of {at.kind.plural}")
        version = (given.get("metadata") or {}).get("resourceVersion")
        patch: Object = {"spec": {"replicas": int(given["spec"]["replicas"])}}
        if version:
            patch["metadata"] = {"resourceVersion": version}
        return self._store.patch(at.kind, at.place, at.name, patch, patches.MERGE)


def _part(at: Addressed, found: Object) -> Object:
    """Return the part of an object that a path means."""
    if at.part in ("", "status"):
        return found
    if at.part != "scale" or not at.kind.scales:
        raise not_found(f"{at.part} of {at.kind.plural}")
    names = {name: found["metadata"][name] for name in ("name", "namespace", "resourceVersion")}
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": names,
        "spec": {"replicas": found["spec"]["replicas"]},
        "status": {"replicas": found["status"].get("replicas", 0)},
    }


def _matches(request: web.Request) -> selectors.Matches:
    query = request.query
    return selectors.selected(query.get("labelSelector", ""), query.get("fieldSelector", ""))


def watch_line(
    change: ObjectChange, at: Addressed, matches: selectors.Matches, shown: Shown
) -> bytes:
    """Return what a watch writes of a change; empty if it does not concern it."""
    told = change.seen_by(matches, at.namespace) if change.kind == at.kind else ""
    return _json_line(told, shown(change.object)) if told else b""


def _json_line(type_: str, found: Object) -> bytes:
    return json.dumps({"type": type_, "object": found}).encode() + b"\n"


def _is_dry(request: web.Request) -> bool:
    return request.query.get("dryRun") == "All"


async def _body(request: web.Request) -> Object:
    if request.content_type == "application/vnd.kubernetes.protobuf":
        raise ApiError(415, "UnsupportedMediaType", "the emulated cluster reads JSON alone")
    try:
        found = json.loads(await request.read())
    except ValueError as error:
        raise bad_request(f"the body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise bad_request("the body is not an object")
    return found


def answer(found: Mapping[str, Any], code: int = 200) -> web.Response:
    """Return an object as an answer, as the API server writes it: clients compare its type."""
    body, headers = json.dumps(found).encode(), {"Content-Type": "application/json"}
    return web.Response(body=body, status=code, headers=headers)


async def _say(told: Object, _request: web.Request) -> web.Response:
    return answer(told)


def _groups(kinds: Sequence[ObjectKind]) -> Object:
    names = {kind.group: kind.version for kind in kinds if kind.group}
    version = {
        group: {"groupVersion": f"{group}/{version}", "version": version}
        for group, version in names.items()
    }
    groups = [
        {"name": group, "versions": [each], "preferredVersion": each}
        for group, each in version.items()
    ]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def _resources(kinds: Sequence[ObjectKind]) -> Object:
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    resources: list[Object] = [
        {
            "name": kind.plural,
            "singularName": kind.name.lower(),
            "namespaced": kind.namespaced,
            "kind": kind.name,
            "shortNames": list(kind.short),
            "verbs": verbs,
        }
        for kind in kinds
    ]
    if PODS in kinds:
        resources += [
            {"name": "pods/eviction", "kind": "Eviction", "group": "policy", "version": "v1"}
            | {"singularName": "", "namespaced": True, "verbs": ["create"]},
            {"name": "pods/log", "kind": "Pod"}
            | {"singularName": "", "namespaced": True, "verbs": ["get"]},
        ]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": kinds[0].api_version,
        "resources": resources,
    }
