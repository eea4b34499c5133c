"""The worker groups and instances of one cluster on Kubernetes: `CapacityProvider` over pods.

An instance is a pod that has a machine, a group is a ReplicaSet (`pod_groups.py`). Kubernetes has
no counterpart of some things that the port asks for, and these have no effect here: it chooses
zones itself, suspends no launches, and knows no prices, placement scores or quotas.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from spotelastic.clock import Clock, steady, wall
from spotelastic.cloud.model import (
    GroupNames,
    Instance,
    LaunchQuotas,
    WorkerGroup,
    ZoneOffer,
)
from spotelastic.errors import EnvironmentFailure, LeaseLost, Unavailable
from spotelastic.kubernetes.pods import Manifest
from spotelastic.kubernetes.provider import pod_groups, pod_reading
from spotelastic.kubernetes.provider.api_client import KubeApi
from spotelastic.kubernetes.provider.call_errors import Conflicting, Missing
from spotelastic.kubernetes.provider.kube_names import GROUP, KubeNames

AT_ONCE = 1
"""Seconds of grace of a pod that ends at once. With 0 its object would go before its processes."""
CONSOLE_LINES = 200
TRIES = 10
LEAVES_WITHIN = 10.0
"""Seconds within which Kubernetes lets a pod go that is too many."""
LOOK = 0.1


class KubernetesCapacity:
    """The groups and pods of one cluster.

    Must never happen: a controller that does not lead any more changes anything. `alive` tells from
    memory whether this one may, and is asked before each change.
    """

    def __init__(
        self,
        api: KubeApi,
        cluster: str,
        pods: Callable[[], Sequence[Manifest]],
        alive: Callable[[], bool] = lambda: True,
        clock: Clock = wall,
    ) -> None:
        """`pods` returns the cluster's pods, and notes what has become of them."""
        self._api = api
        self._pods = pods
        self._its = KubeNames(cluster)
        self._alive = alive
        self._clock = clock

    @property
    def names(self) -> GroupNames:
        """The names of the cluster's groups."""
        return GroupNames(self._its.spot, self._its.on_demand)

    # -- observe ---------------------------------------------------------------------------------

    def groups(self) -> Mapping[str, WorkerGroup]:
        """Return the worker groups. One whose ReplicaSet is gone has no pods."""
        if not self._is_there():
            return {}
        pods, sizes = self._pods(), self._sizes()
        return {
            name: pod_reading.worker_group(name, sizes.get(name, 0), pods)
            for name in (self._its.spot, self._its.on_demand)
        }

    def instances(self) -> tuple[Instance, ...]:
        """Return the pods that have a machine."""
        placed = filter(pod_reading.is_placed, self._pods())
        return tuple(pod_reading.instance(pod, self._its.spot) for pod in placed)

    def console(self, instance: str) -> str:
        """Return the end of what the pod has written, and why it does not run."""
        pod = self._api.get("Pod", instance)
        try:
            lines = self._api.log(instance, CONSOLE_LINES) if pod is not None else []
        except EnvironmentFailure:  # it has not begun
            lines = []
        return pod_reading.console(pod, lines)

    # -- instances -------------------------------------------------------------------------------

    def replace(self, instance: str) -> None:
        """End a pod of a group, which makes another one at once."""
        if self._staying(instance) is not None:
            self._change(lambda: self._api.delete("Pod", instance))

    def remove(self, instance: str) -> None:
        """End a pod of a group, and shrink the group by one.

        Kubernetes chooses who goes. A pod that has not begun goes before the one that is named,
        which is then the next one.
        """
        pod = self._staying(instance)
        name = "" if pod is None else pod["metadata"].get("labels", {}).get(GROUP, "")
        if not name:
            return
        first = {"metadata": {"annotations": {pod_groups.COST: pod_groups.GOES_FIRST}}}
        self._change(lambda: self._api.patch("Pod", instance, first))
        before = self._count(name)
        self._resize(name, lambda desired: max(0, desired - 1))
        # Asked again before that shows, it would shrink the group once more.
        self._await(lambda: self._count(name) < before)

    def complete_drain(self, group: str, instance: str) -> None:
        """End a pod that has drained, before its grace is over."""
        pod = self._api.get("Pod", instance)
        if pod is not None and pod_reading.is_ending(pod):
            self._change(lambda: self._api.delete("Pod", instance, AT_ONCE))

    def end(self, instances: Sequence[str]) -> None:
        """End pods at once, whether in a group or not."""
        for each in instances:
            self._change(lambda each=each: self._api.delete("Pod", each, AT_ONCE))  # type: ignore[misc]

    # -- groups ----------------------------------------------------------------------------------

    def set_desired(self, group: str, desired: int) -> None:
        """Set the number of pods that the group keeps.

        One that is not there is made again by who made the cluster: whoever may make it may make
        any pod.
        """
        try:
            self._resize(group, lambda _: desired)
        except Missing as error:
            if desired:
                raise Unavailable(f"{error}: it is made again") from error

    def set_subnets(self, group: str, subnets: Sequence[str]) -> None:
        """Do nothing: there is one place to launch in."""

    def resume(self, group: str) -> None:
        """Do nothing: launches are never suspended."""

    def postpone(self, until: float) -> None:
        """Keep the groups until then: put off the deadline of the switch."""
        found = self._switch()
        if found is None:
            return
        started = found.get("status", {}).get("startTime")
        since = pod_reading.seconds(started) if started else self._clock()
        deadline = max(1, round(until - since))
        patch = {"spec": {"activeDeadlineSeconds": deadline}}
        self._change(lambda: self._api.patch("Job", self._its.switch, patch))

    def tear_down(self) -> None:
        """Delete what all that runs belongs to. The objects stay."""
        self._change(lambda: self._api.delete("ConfigMap", self._its.root))

    # -- where to launch -------------------------------------------------------------------------

    def zones(self, subnets: Sequence[str]) -> tuple[ZoneOffer, ...]:
        """Return the one place that there is."""
        there = pod_reading.ANYWHERE in subnets
        return (ZoneOffer(pod_reading.ANYWHERE, (pod_reading.ANYWHERE,)),) if there else ()

    def offers(
        self, zones: Iterable[ZoneOffer], types: Sequence[str], nodes: int
    ) -> tuple[ZoneOffer, ...]:
        """Return the zones as they are: prices and scores are not known."""
        return tuple(zones)

    def quotas(self, types: Sequence[str]) -> LaunchQuotas:
        """Return no quotas."""
        return LaunchQuotas()

    # -- within ----------------------------------------------------------------------------------

    def _change(self, change: Callable[[], object]) -> None:
        if not self._alive():
            raise LeaseLost("another controller may lead: nothing is changed")
        change()

    def _is_there(self) -> bool:
        root = self._api.get("ConfigMap", self._its.root)
        return root is not None and not pod_reading.is_ending(root)

    def _sizes(self) -> dict[str, int]:
        """Return the sizes of the groups that are there and stay."""
        if self._switch() is None:
            return {}
        names = (self._its.spot, self._its.on_demand)
        found = {name: self._api.get("ReplicaSet", name) for name in names}
        return {
            name: int(each["spec"]["replicas"])
            for name, each in found.items()
            if each is not None and not pod_reading.is_ending(each)
        }

    def _switch(self) -> Manifest | None:
        """Return the switch; None if it is gone, or goes."""
        found = self._api.get("Job", self._its.switch)
        return None if found is None or pod_groups.is_over(found) else found

    def _staying(self, instance: str) -> Manifest | None:
        """Return a pod that was not told to end, or None."""
        pod = self._api.get("Pod", instance)
        return None if pod is None or pod_reading.is_ending(pod) else pod

    def _count(self, group: str) -> int:
        """Return how many pods of a group stay."""
        return sum(
            pod["metadata"]["labels"].get(GROUP) == group and not pod_reading.is_ending(pod)
            for pod in self._pods()
        )

    def _resize(self, group: str, size: Callable[[int], int]) -> None:
        """Change a group's size by what it is. Raises `Missing` if there is no such group."""
        for _ in range(TRIES):
            found = self._api.get("ReplicaSet", group)
            if found is None or pod_reading.is_ending(found) or self._switch() is None:
                raise Missing(f"there is no group {group}")
            before, version = int(found["spec"]["replicas"]), found["metadata"]["resourceVersion"]
            after = size(before)
            if after == before:
                return
            try:
                patch = {"metadata": {"resourceVersion": version}, "spec": {"replicas": after}}
                self._change(partial(self._api.patch, "ReplicaSet", group, patch, "Scale"))
                return
            except Conflicting:
                continue  # its status changes with each pod
        raise Unavailable(f"cannot change the size of {group}: it keeps changing")

    def _await(self, holds: Callable[[], bool]) -> None:
        """Wait until Kubernetes has done what was asked. Raises `Unavailable` if it takes long."""
        deadline = steady() + LEAVES_WITHIN
        while not holds():
            if steady() > deadline:
                raise Unavailable("Kubernetes has not let a pod go that is too many")
            threading.Event().wait(LOOK)
