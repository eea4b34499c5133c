"""The nodes of the emulated cluster, and what befalls them and their pods.

A node that is lost is replaced by another one in its zone, as a node pool of spot instances does.
"""

import itertools
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from aiohttp import web
from support.emulated_kubernetes.api.http import Addressed, answer
from support.emulated_kubernetes.api.kinds import BUDGETS, NODES, PODS
from support.emulated_kubernetes.api.objects import Object, ObjectStore, timestamp
from support.emulated_kubernetes.api.refusals import ApiError, bad_request, not_found
from support.emulated_kubernetes.api.selectors import by_selector
from support.emulated_kubernetes.control.control_plane import record_event
from support.emulated_kubernetes.nodes import pod_status
from support.emulated_kubernetes.nodes.kubelet import Kubelet

ZONES = ("zone-a", "zone-b", "zone-c")
NODES_IN_ZONE = 2
PODS_ON_NODE = 8
DISRUPTED = "karpenter.sh/disrupted"
"""The taint by which Karpenter announces that it takes a node away."""
TAINTED = "aws-node-termination-handler/spot-itn"


class MachineRoom:
    """Nodes, evictions and faults. `later` calls a function after so many seconds."""

    def __init__(
        self,
        store: ObjectStore,
        kubelet: Kubelet,
        later: Callable[[float, Callable[[], object]], object],
    ) -> None:
        self._store, self._kubelet, self._later = store, kubelet, later
        self._numbers = itertools.count(1)

    def furnish(self) -> None:
        """Make the first nodes."""
        for _ in range(NODES_IN_ZONE):
            for zone in ZONES:
                self._join(zone)

    def _join(self, zone: str) -> None:
        name = f"node-{next(self._numbers)}"
        labels = {
            "kubernetes.io/hostname": name,
            "topology.kubernetes.io/zone": zone,
            "karpenter.sh/capacity-type": "spot",
            "node.kubernetes.io/instance-type": "process",
        }
        self._store.create(NODES, "", {"metadata": {"name": name, "labels": labels}, "spec": {}})
        room = {"pods": str(PODS_ON_NODE)}
        ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
        status = {"allocatable": room, "capacity": room, "conditions": ready}
        self._store.update(NODES, "", name, lambda it: it.update(status=status))

    # -- evictions -------------------------------------------------------------------------------

    async def evict(self, request: web.Request, at: Addressed) -> web.Response:
        """Answer `POST …/pods/NAME/eviction`. Raises `ApiError` where a budget forbids it."""
        # kubectl writes an eviction in a binary form; what it may say in it is not read.
        is_json = request.content_type == "application/json"
        given = json.loads(await request.read() or b"{}") if is_json else {}
        grace = (given.get("deleteOptions") or {}).get("gracePeriodSeconds")
        pod = self._store.get(PODS, at.place, at.name)
        self._check_budgets(pod)
        told = "Eviction API: evicting"
        self._evict(pod, "EvictionByEvictionAPI", told, None if grace is None else int(grace))
        return answer({"kind": "Status", "apiVersion": "v1", "status": "Success"}, 201)

    def _check_budgets(self, pod: Object) -> None:
        for budget in self._store.items(BUDGETS, pod["metadata"]["namespace"]):
            matches = by_selector(budget["spec"].get("selector") or {})
            if matches(pod) and not budget["status"].get("disruptionsAllowed"):
                told = "Cannot evict pod as it would violate the pod's disruption budget."
                raise ApiError(429, "TooManyRequests", told)

    def _evict(self, pod: Object, reason: str, message: str, grace: int | None = None) -> None:
        """End a pod for a reason that is not its own."""
        metadata, now = pod["metadata"], timestamp(self._store.clock())
        place, name = metadata["namespace"], metadata["name"]

        def disrupt(it: Object) -> None:
            it["status"] = pod_status.disrupted(it["status"], reason, message, now)

        self._store.update(PODS, place, name, disrupt)
        record_event(self._store, PODS, pod, "Evicted", message)
        self._store.delete(PODS, place, name, grace=grace)

    # -- faults ----------------------------------------------------------------------------------

    def routes(self) -> list[tuple[str, Callable[[Mapping[str, Any]], None]]]:
        """Return the faults by their names; each is given what the request says."""
        return [
            ("lose-node", lambda told: self.lose(str(told["node"]))),
            ("reclaim-node", lambda told: self.reclaim(str(told["node"]), float(told["seconds"]))),
            ("taint-node", lambda told: self.taint(str(told["node"]), float(told["seconds"]))),
            ("kill-pod", lambda told: self.kill(str(told["namespace"]), str(told["pod"]))),
            ("missing-image", lambda told: self.lack(str(told["image"]))),
            ("image-found", lambda told: self._kubelet.missing_images.discard(str(told["image"]))),
        ]

    def lack(self, image: str) -> None:
        """Let pulls of an image fail from now on."""
        self._kubelet.missing_images.add(image)

    def kill(self, namespace: str, pod: str) -> None:
        """Kill a pod's processes, as the kernel does where memory runs out."""
        self._kubelet.vanish(self._store.get(PODS, namespace, pod))

    def reclaim(self, node: str, seconds: float) -> None:
        """Take a node away with a notice, as Karpenter does at a spot interruption.

        Its pods are evicted at once, whatever budgets say, and killed after so many seconds.
        """
        self.taint(node, seconds, DISRUPTED)
        for pod in self._pods_on(node):
            self._evict(pod, "EvictionByEvictionAPI", f"Evicted pod: {node} is interrupted")

    def taint(self, node: str, seconds: float, key: str = TAINTED) -> None:
        """Say by a taint that a node is taken away after so many seconds, and nothing to its pods.

        Node Termination Handler does so where it is told not to drain.
        """
        uid = self._store.get(NODES, "", node)["metadata"]["uid"]
        taint = {"key": key, "effect": "NoSchedule"}
        self._store.update(NODES, "", node, lambda it: it["spec"].update(taints=[taint]))
        self._later(seconds, partial(self._take, node, uid))

    def lose(self, node: str) -> None:
        """Let a node vanish with all that runs on it, without a notice."""
        found = self._store.get(NODES, "", node)
        self._take(node, found["metadata"]["uid"])

    def _take(self, node: str, uid: str) -> None:
        found = self._store.find(NODES, "", node)
        if found is None or found["metadata"]["uid"] != uid:
            return
        for pod in self._pods_on(node):
            self._kubelet.vanish(pod)
            if "deletionTimestamp" not in pod["metadata"]:
                told = "PodGC: node no longer exists"
                self._evict(pod, "DeletionByPodGC", told)
        self._store.delete(NODES, "", node)
        self._join(str(found["metadata"]["labels"]["topology.kubernetes.io/zone"]))

    def _pods_on(self, node: str) -> list[Object]:
        return [pod for pod in self._store.items(PODS) if pod["spec"].get("nodeName") == node]


def fault_application(
    faults: Mapping[str, Callable[[Mapping[str, Any]], None]],
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Return the handler of `POST /faults/NAME`."""

    async def cause(request: web.Request) -> web.StreamResponse:
        fault = faults.get(request.match_info["name"])
        if fault is None:
            raise not_found(f"the fault {request.match_info['name']}")
        try:
            fault(await request.json())
        except (KeyError, ValueError) as error:
            raise bad_request(f"{error!r}") from error
        return answer({})

    return cause
