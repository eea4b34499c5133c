"""Puts a cluster's Kubernetes together as the `Cloud` that its controller needs."""

from collections.abc import Callable

from spotelastic.cloud.memory.prices import FixedPrices
from spotelastic.cloud.port import Cloud
from spotelastic.kubernetes.provider.api_client import KubeApi
from spotelastic.kubernetes.provider.config_map_objects import ConfigMapObjects
from spotelastic.kubernetes.provider.pod_capacity import KubernetesCapacity
from spotelastic.kubernetes.provider.queues import INVISIBLE_FOR, CommandQueue, PodEvents


def connect(
    api: KubeApi,
    cluster: str,
    alive: Callable[[], bool] = lambda: True,
    invisible_for: float = INVISIBLE_FOR,
) -> Cloud:
    """Return the cloud of a cluster. `alive` tells whether this process may change anything.

    Nothing is known of prices: who runs the cluster pays for its machines.
    """
    events = PodEvents(api, cluster, invisible_for)
    return Cloud(
        KubernetesCapacity(api, cluster, events.pods, alive),
        events,
        CommandQueue(api, cluster, invisible_for),
        FixedPrices(),
        ConfigMapObjects(api, cluster),
        calls=api.calls,
    )
