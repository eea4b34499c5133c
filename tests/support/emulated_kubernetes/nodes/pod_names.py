"""The names by which pods find each other (pure), as the cluster's DNS gives them.

Each pod has a hosts file of its own. Names of a headless Service are those of its pods, and the
Service's own name has all their addresses. Other Services have those of their pods, too, because
there is nothing between: a port of the Service must be that of its pods.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from support.emulated_kubernetes.api.selectors import by_labels
from support.emulated_kubernetes.control.conditions import condition

Object = dict[str, Any]

DOMAIN = "cluster.local"


def hosts_file(
    pod: Object, hostname: str, services: Iterable[Object], pods: Sequence[Object]
) -> str:
    """Return the text of a pod's hosts file. Names of its own namespace are short, too."""
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    if address := pod["status"].get("podIP"):
        lines.append(f"{address} {hostname}")
    place = pod["metadata"]["namespace"]
    for service in services:
        for address, name in _records(service, pods):
            lines.append(f"{address} {' '.join(_spelled(name, service, place))}")
    return "\n".join(lines) + "\n"


def hostname_of(pod: Object) -> str:
    """Return a pod's host name: what it asks for, or its own name."""
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])[:63]


def _records(service: Object, pods: Sequence[Object]) -> Iterator[tuple[str, str]]:
    """Yield the addresses and names of a Service; names end with the Service's."""
    spec, metadata = service["spec"], service["metadata"]
    matches = by_labels(spec.get("selector") or {})
    for pod in pods:
        address = pod["status"].get("podIP")
        same = pod["metadata"]["namespace"] == metadata["namespace"]
        if not address or not same or not matches(pod) or not _is_published(pod, spec):
            continue
        yield address, metadata["name"]
        if pod["spec"].get("subdomain") == metadata["name"]:
            yield address, f"{hostname_of(pod)}.{metadata['name']}"


def _is_published(pod: Object, spec: Object) -> bool:
    if pod["status"].get("phase") in ("Succeeded", "Failed"):
        return False
    return bool(spec.get("publishNotReadyAddresses")) or condition(pod["status"], "Ready") == "True"


def _spelled(name: str, service: Object, place: str) -> tuple[str, ...]:
    """Return all spellings of a name that a pod of that namespace may use."""
    where = service["metadata"]["namespace"]
    full = (f"{name}.{where}.svc.{DOMAIN}", f"{name}.{where}.svc", f"{name}.{where}")
    return (*full, name) if where == place else full
