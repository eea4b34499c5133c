"""Asks the API server of a Kubernetes cluster, in one namespace, and says what fails.

Objects are what JSON has of them, as in the manifests. lightkube, of the extra `kubernetes`, reads
every kind of kubeconfig, and a pod's own account.
"""

import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from spotelastic.errors import EnvironmentFailure, Unavailable, UsageError
from spotelastic.kubernetes import elastic_job
from spotelastic.kubernetes.pods import Manifest
from spotelastic.kubernetes.provider.call_errors import (
    NOT_FOUND,
    ApiCall,
    Conflicting,
    Missing,
    NamedServer,
    Undefined,
    answer,
    outcome,
    words,
)

if TYPE_CHECKING:
    from lightkube import Client

INSTALL = "pip install 'spotelastic[kubernetes]'"
ODD_FILE = (LookupError, TypeError, AttributeError, AssertionError)
"""What lightkube raises for a kubeconfig that is YAML, and no kubeconfig."""

KINDS = {
    "ConfigMap": "core_v1",
    "Secret": "core_v1",
    "Service": "core_v1",
    "ServiceAccount": "core_v1",
    "Pod": "core_v1",
    "Job": "batch_v1",
    "Deployment": "apps_v1",
    "ReplicaSet": "apps_v1",
    "Lease": "coordination_v1",
    "NetworkPolicy": "networking_v1",
    "Role": "rbac_authorization_v1",
    "RoleBinding": "rbac_authorization_v1",
}
"""The kinds of objects that a cluster is made of, and lightkube's modules that have them."""
KUEUE = "kueue.x-k8s.io"
CUSTOM = {
    elastic_job.KIND: (elastic_job.GROUP, elastic_job.VERSION, elastic_job.PLURAL),
    "Workload": (KUEUE, "v1beta2", "workloads"),
    "WorkloadPriorityClass": (KUEUE, "v1beta2", "workloadpriorityclasses"),
}
"""Kinds that somebody has added to the cluster: their groups, versions and plurals."""


class KubeApi:
    """The objects of one namespace. Thread-safe."""

    def __init__(self, client: "Client", namespace: str, server: NamedServer | None = None) -> None:
        self._client = client
        self._server = server or NamedServer()
        self.namespace = namespace
        self._lock = threading.Lock()
        self._calls: Counter[tuple[str, str]] = Counter()

    def calls(self) -> Mapping[tuple[str, str], int]:
        """Return how often the API server was called, by service and outcome."""
        with self._lock:
            return dict(self._calls)

    def get(self, kind: str, name: str) -> Manifest | None:
        """Return an object, or None."""
        try:
            with self._calling(f"read the {kind} {name}"):
                return dict(self._client.get(_class(kind), name).to_dict())
        except Missing:
            return None

    def found(self, kind: str, labels: Mapping[str, str]) -> list[Manifest]:
        """Return the objects of a kind with these labels, by name.

        Raises `Undefined` if the cluster has no such kind.
        """
        try:
            with self._calling(f"list objects of the kind {kind}"):
                listed = self._client.list(_class(kind), labels=dict(labels))
                found = [dict(each.to_dict()) for each in listed]
        except Missing as error:
            raise Undefined(kind) from error
        return sorted(found, key=lambda each: str(each["metadata"]["name"]))

    def create(self, manifest: Manifest) -> Manifest:
        """Create an object. Raises `Conflicting` if it exists."""
        with self._calling(f"create {_called(manifest)}"):
            return dict(self._client.create(_object(manifest)).to_dict())

    def replace(self, manifest: Manifest) -> Manifest:
        """Replace an object. Raises `Conflicting` if it has another version than the manifest's."""
        with self._calling(f"change {_called(manifest)}"):
            return dict(self._client.replace(_object(manifest)).to_dict())

    def ensure(self, manifest: Manifest) -> Manifest:
        """Create an object, unless there is one of its name. Return what is there."""
        try:
            return self.create(manifest)
        except Conflicting:
            found = self.get(manifest["kind"], manifest["metadata"]["name"])
            if found is None:
                raise Unavailable(f"{_called(manifest)} is just being deleted: try again") from None
            return found

    def patch(self, kind: str, name: str, patch: Manifest, part: str = "") -> Manifest:
        """Change some fields of an object (a JSON merge patch), or of its Status or Scale alone.

        Raises `Missing`, and `Conflicting` if the patch names another version.
        """
        from lightkube.types import PatchType

        its = getattr(_class(kind), part) if part else _class(kind)
        with self._calling(f"change the {f'{part.lower()} of the ' if part else ''}{kind} {name}"):
            made = self._client.patch(its, name, patch, patch_type=PatchType.MERGE)
            return dict(made.to_dict())

    def delete(self, kind: str, name: str, grace: int | None = None) -> None:
        """Delete an object, and what it owns after it. One that is gone is no error."""
        from lightkube.types import CascadeType

        try:
            with self._calling(f"delete the {kind} {name}"):
                self._client.delete(
                    _class(kind), name, grace_period=grace, cascade=CascadeType.BACKGROUND
                )
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
        """Return the lines that a pod's container has written.

        Raises `Missing` also if the container has not begun.
        `within`: those of the last so many seconds; `tail`: so many, the last ones.
        """
        with self._calling(f"read the log of {pod}", missing=(404, 400)):
            return list(
                self._client.log(
                    pod, tail_lines=tail, since=within, timestamps=timestamps, newlines=False
                )
            )

    @contextmanager
    def _calling(self, what: str, missing: Collection[int] = (NOT_FOUND,)) -> Iterator[None]:
        """Count a call, and turn its errors into ours.

        `missing` are the codes by which the server says that there is no such object.
        """
        import httpx2
        from lightkube.core.exceptions import ConfigError

        call, came = ApiCall(what, self.namespace, self._server, missing), "ok"
        try:
            yield
        except httpx2.HTTPStatusError as error:
            code, message = answer(error)
            came = outcome(code)
            raise call.refused(code, message) from error
        except httpx2.HTTPError as error:
            came = "no answer"
            raise call.unanswered(error) from error
        except (ConfigError, OSError) as error:  # of the program that the kubeconfig names for it
            came = "refused"
            raise call.without_login(error) from error
        finally:
            with self._lock:
                self._calls["kubernetes", came] += 1


def connect(context: str | None = None, namespace: str | None = None) -> KubeApi:
    """Return the API of the cluster that kubectl would use, or of the pod that this process is in.

    `context` names another entry of the kubeconfig, `namespace` another one than the entry's.
    Raises `UsageError` if there is no cluster, and `EnvironmentFailure` without the extra.
    """
    try:
        from lightkube import Client, KubeConfig
        from lightkube.core.exceptions import ConfigError
        from yaml import YAMLError
    except ImportError as error:
        raise EnvironmentFailure(
            f"Kubernetes clusters need the extra `kubernetes`: {INSTALL}"
        ) from error
    try:
        known = KubeConfig.from_env()
        if context is not None and context not in known.contexts:
            there = ", ".join(known.contexts) or "none"
            raise UsageError(f"--context {context}: there is no such context; there are: {there}")
        config = known.get(context_name=context)
        assert config is not None
        where = namespace or config.namespace or "default"
        told = config.context_name if known.fname else ""  # else it is the pod's own account
        server = NamedServer(str(config.cluster.server), told, context is not None)
        return KubeApi(Client(config=config, namespace=where), where, server)
    except (ConfigError, YAMLError, OSError, *ODD_FILE) as error:
        raise UsageError(
            f"no Kubernetes cluster is configured ({words(error)}): set KUBECONFIG, or name a "
            "context of your kubeconfig with --context"
        ) from error


def _class(kind: str) -> Any:
    from importlib import import_module

    from lightkube.generic_resource import create_global_resource, create_namespaced_resource

    if kind in CUSTOM:
        group, version, plural = CUSTOM[kind]
        is_global = kind == "WorkloadPriorityClass"
        make = create_global_resource if is_global else create_namespaced_resource
        return make(group, version, kind, plural)
    return getattr(import_module(f"lightkube.resources.{KINDS.get(kind, 'core_v1')}"), kind)


def _object(manifest: Manifest) -> Any:
    from lightkube.codecs import from_dict

    _class(manifest["kind"])  # which has to be known before
    return from_dict(manifest)


def _called(manifest: Manifest) -> str:
    return f"the {manifest['kind']} {manifest['metadata']['name']}"
