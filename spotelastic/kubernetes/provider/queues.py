"""What the controller hears: events of pods, and the commands of users.

Kubernetes has no queues. What happens to pods is seen by looking at them, and a command is a
ConfigMap, which its sender creates and the controller deletes. Each is kept in memory until it is
deleted, and delivered again if that takes long, as the port says.
"""

import threading
import uuid
from collections.abc import Sequence

import msgspec
from spotelastic_checkpoints.decoders import from_json

from spotelastic.clock import Clock, steady, wall
from spotelastic.cloud.events import CloudEvent
from spotelastic.cloud.memory.queue import MemoryQueue
from spotelastic.cloud.port import Delivery
from spotelastic.kubernetes.pods import Manifest
from spotelastic.kubernetes.provider import pod_reading
from spotelastic.kubernetes.provider.api_client import KubeApi
from spotelastic.kubernetes.provider.config_map_objects import config_map, content_of
from spotelastic.kubernetes.provider.kube_names import KubeNames
from spotelastic.model.requests.command import Command

LOOK = 1.0
"""Seconds between two looks at the cluster while a queue is waited for."""
INVISIBLE_FOR = 5.0
PART = "command"


class PodEvents(MemoryQueue[CloudEvent]):
    """What happens to the pods of one cluster: launches, evictions, and ends."""

    def __init__(
        self,
        api: KubeApi,
        cluster: str,
        invisible_for: float = INVISIBLE_FOR,
        clock: Clock = wall,
    ) -> None:
        super().__init__(invisible_for)
        self._api = api
        self._labels = KubeNames(cluster).labels("worker")
        self._now = clock
        self._lock = threading.Lock()
        self._pods: Sequence[Manifest] | None = None

    def receive(self, seconds: float) -> tuple[Delivery[CloudEvent], ...]:
        """Look once, wait at most so long for messages, and return them."""
        self.pods()
        return super().receive(min(LOOK, seconds))

    def pods(self) -> Sequence[Manifest]:
        """Return the cluster's pods, and note what has happened since they were seen last.

        Looks follow each other: an answer that is older than the one before would tell of ends that
        there were not.
        """
        with self._lock:
            found = self._api.found("Pod", self._labels)
            for each in pod_reading.news(self._pods, found, self._now()):
                self.send(each)
            self._pods = found
            return found


class CommandQueue:
    """The commands of users, which lie in ConfigMaps. Their names are the receipts' beginnings."""

    def __init__(self, api: KubeApi, cluster: str, invisible_for: float = INVISIBLE_FOR) -> None:
        self._api = api
        self._labels = KubeNames(cluster).labels(PART)
        self._invisible_for = invisible_for
        self._lock = threading.Lock()
        self._visible_at: dict[str, float] = {}

    def receive(self, seconds: float) -> Sequence[Delivery[Command | None]]:
        """Look, wait at most so long for messages, and return them."""
        found = self._found()
        if not found and seconds:
            threading.Event().wait(min(LOOK, seconds))
            found = self._found()
        return found

    def delete(self, receipt: str) -> None:
        """Delete a command."""
        self._api.delete("ConfigMap", receipt)

    def hand_back(self, receipt: str) -> None:
        """Make a command visible again at once."""
        with self._lock:
            self._visible_at.pop(receipt, None)

    def _found(self) -> list[Delivery[Command | None]]:
        listed, now = self._api.found("ConfigMap", self._labels), steady()
        with self._lock:
            names = {str(each["metadata"]["name"]) for each in listed}
            self._visible_at = {k: at for k, at in self._visible_at.items() if k in names}
            new = [
                each for each in listed if self._visible_at.get(each["metadata"]["name"], 0) <= now
            ]
            for each in new:
                self._visible_at[each["metadata"]["name"]] = now + self._invisible_for
        return [_delivery(each) for each in new]


def send(api: KubeApi, cluster: str, content: bytes) -> None:
    """Send a command to the cluster's controller."""
    name = f"{cluster}.command.{uuid.uuid4().hex[:12]}"
    api.create(config_map(name, KubeNames(cluster).labels(PART), {}, content))


def _delivery(found: Manifest) -> Delivery[Command | None]:
    metadata = found["metadata"]
    try:
        command = from_json(content_of(found), Command)
    except msgspec.MsgspecError:
        command = None
    sent_at = pod_reading.seconds(metadata["creationTimestamp"])
    return Delivery(metadata["uid"], metadata["name"], command, sent_at)
