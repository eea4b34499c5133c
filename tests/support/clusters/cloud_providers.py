"""Clouds that the contract of `spotelastic.cloud.port` is run on, each with what a test does to it.

AWS's adapters run on an account in this process (moto, with the local cloud's additions), or on a
real one.
"""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import pytest
from lightkube.resources.core_v1 import Pod
from support.aws.account import NETWORK, account
from support.aws.cluster_requests import request
from support.clusters.local_cloud import until
from support.clusters.memory_bucket import MemoryBucket
from support.clusters.memory_capacity import MemoryCapacity, MemoryHooks
from support.clusters.process_cloud import ProcessCloud
from support.kubernetes.kube_client import IMAGE, Kube, emulated, shell
from support.processes.patience import PATIENT
from support.unkind.maintenance import scheduled_change

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.names import Names
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.clusters import teardown
from spotelastic.aws.messaging import command_queue
from spotelastic.aws.provider.cloud import connect
from spotelastic.clock import wall
from spotelastic.cloud.events import CloudEvent
from spotelastic.cloud.memory.prices import FixedPrices
from spotelastic.cloud.memory.queue import MemoryQueue
from spotelastic.cloud.model import UNATTENDED, WorkerGroup, ZoneOffer
from spotelastic.cloud.port import Cloud
from spotelastic.kubernetes.provider import api_client as kube_api
from spotelastic.kubernetes.provider import kubernetes_cloud as kube_cloud
from spotelastic.kubernetes.provider import pod_groups, queues
from spotelastic.kubernetes.provider.kube_names import KubeNames
from spotelastic.model.requests.command import Command

WARNING = """{{"id": "{1}", "source": "aws.ec2", "time": "2026-01-01T00:00:00Z",
"detail-type": "EC2 Spot Instance Interruption Warning",
"detail": {{"instance-id": "{0}", "instance-action": "terminate"}}}}"""


def change(instance: str, begins: float) -> str:
    """What AWS Health says of an instance's maintenance."""
    event = scheduled_change("us-east-1", instance, "c1", "AWS_EC2_X", begins)
    told = {"id": f"h-{instance}", "source": event.source, "detail-type": event.type}
    return json.dumps({**told, "time": "2026-01-01T00:00:00Z", "detail": event.detail})


@dataclass(frozen=True)
class ProvidedCloud:
    """A cloud with one cluster, and what a test does to it from outside."""

    cloud: Cloud
    warn: Callable[[str], None]
    """Announces that an instance is taken back."""
    announce: Callable[[str, float], None]
    """Announces that an instance is maintained from that time on."""
    send: Callable[[Command], None]
    """Sends a command, as a user does."""
    junk: Callable[[], None]
    """Sends what is no command."""
    types: tuple[str, ...]
    are_processes: bool = False
    """Whether its instances are processes of this test, which may not outlive it."""

    lacks: Mapping[str, str] = field(default_factory=dict)
    """What the cloud has no counterpart of, and why."""

    is_up: Callable[[str], bool] = lambda name: True
    """Whether what an instance runs has begun, and can be told to end."""
    made_again: Callable[[], None] = lambda: None
    """Makes groups that have ended, where who made the cluster does so and not its controller."""

    def needs(self, what: str) -> None:
        """Skips a test of what the cloud has no counterpart of."""
        if what in self.lacks:
            pytest.skip(self.lacks[what])

    def group(self, *, spot: bool = True) -> WorkerGroup:
        names = self.cloud.provider.names
        return self.cloud.provider.groups()[names.spot if spot else names.on_demand]

    def staying(self, *, spot: bool = True) -> set[str]:
        return {each.instance for each in self.group(spot=spot).members if not each.leaving}

    def sized(self, size: int) -> set[str]:
        """The spot group's instances, once it has so many and lets all others go."""
        provider, name = self.cloud.provider, self.cloud.provider.names.spot
        provider.set_desired(name, size)

        def settled() -> bool:
            for each in self.group().members:
                if each.leaving:
                    provider.complete_drain(name, each.instance)
            settled = len(self.group().members) == len(self.staying()) == size
            return settled and all(map(self.is_up, self.staying()))

        until(settled, PATIENT)
        return self.staying()


@contextmanager
def memory_cloud() -> Iterator[ProvidedCloud]:
    """The provider in memory."""
    events, commands = MemoryQueue[CloudEvent](0.5), MemoryQueue[Command | None](0.5)
    zones = tuple(ZoneOffer(name, (f"subnet-{name}",), name, 0.5, 5) for name in "abc")
    capacity = MemoryCapacity(wall, MemoryHooks(emit=events.send), offered=zones)
    cloud = Cloud(capacity, events, commands, FixedPrices(0.5, 1.5), MemoryBucket("demo"))
    yield ProvidedCloud(
        cloud,
        capacity.warn,
        capacity.announce,
        commands.send,
        lambda: commands.send(None),
        ("memory",),
    )


@contextmanager
def process_cloud() -> Iterator[ProvidedCloud]:
    """Plain processes of this machine, which idle."""
    with ProcessCloud(lambda instance, place: ("sleep", "1000")) as its:
        yield ProvidedCloud(
            its.cloud,
            its.warn,
            its.capacity.announce,
            its.send,
            partial(its.send, None),
            ("process",),
            True,
        )


@contextmanager
def kubernetes_cloud() -> Iterator[ProvidedCloud]:
    """The adapters of Kubernetes over an emulated cluster, whose pods idle."""
    with emulated() as kube:
        its = KubeNames("contract")
        api = kube_api.KubeApi(kube.client, "default")
        root = api.create(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": its.root, "labels": its.labels("root")},
            }
        )

        def make() -> None:
            until(lambda: not _there(api, its), PATIENT)
            switch = api.create(pod_groups.switch(its, IMAGE, root, UNATTENDED))
            for name in (its.spot, its.on_demand):
                api.create(pod_groups.group(its, name, {"spec": _idle(30)}, switch))

        make()
        cloud = kube_cloud.connect(api, its.cluster, invisible_for=1.0)
        yield ProvidedCloud(
            cloud,
            partial(_evicted, kube, its, cloud),
            lambda instance, begins: None,
            lambda command: queues.send(api, its.cluster, msgspec.json.encode(command)),
            lambda: queues.send(api, its.cluster, b"no command"),
            ("pod",),
            True,
            {
                "zones": "Kubernetes' scheduler chooses the machines of pods",
                "prices": "who runs the cluster pays for its machines: no API tells their prices",
                "announcements": "machines are drained when it is time, and not announced before",
            },
            lambda name: bool(api.log(name)),
            make,
        )


def _there(api: kube_api.KubeApi, its: KubeNames) -> bool:
    """Return whether anything is left of groups that have ended."""
    groups = (api.get("ReplicaSet", name) for name in (its.spot, its.on_demand))
    return any((api.get("Job", its.switch), *groups))


def _idle(grace: int) -> dict[str, object]:
    """The specification of a pod that needs its grace until it ends."""
    deaf = shell("trap '' TERM", "echo deaf", "while true; do sleep 1000; done")
    container = {"name": "node", "image": IMAGE, "command": list(deaf)}
    return {"containers": [container], "terminationGracePeriodSeconds": grace}


def _evicted(kube: Kube, its: KubeNames, cloud: Cloud, name: str) -> None:
    """Runs a pod of that name, which belongs to no group, and evicts it once it was seen."""
    labels = its.labels("worker")
    kube.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": labels},
            "spec": _idle(30),
        }
    )
    found = {each.metadata.name: each for each in kube.client.list(Pod, labels=labels)}
    kube.evict(found[name])


@contextmanager
def moto_cloud(folder: Path) -> Iterator[ProvidedCloud]:
    """AWS's adapters over the local cloud's AWS, in this process."""
    with account(folder):
        yield from _cluster(Aws(), NETWORK, ("c5.large", "m5.large"))


@contextmanager
def aws_cloud() -> Iterator[ProvidedCloud]:
    """AWS's adapters over a real account. Costs money: a few small instances for minutes."""
    yield from _cluster(Aws(), "10.64.0.0/12", ("c5.large", "m5.large"))


def _cluster(aws: Aws, network: str, types: tuple[str, ...]) -> Iterator[ProvidedCloud]:
    name, ids = "contract", itertools.count(1)
    spec = request(name, 4, instance_types=types, network=network)
    cluster = clusters.create(spec, lambda _: None, aws)

    def tell(queue: str, body: str) -> None:
        url = command_queue.queue_url(aws, queue)
        aws.sqs.send_message(QueueUrl=url, MessageBody=body)

    try:
        yield ProvidedCloud(
            connect(aws, cluster.spec, cluster.bucket),
            lambda instance: tell(Names(name).queue, WARNING.format(instance, f"w{next(ids)}")),
            lambda instance, begins: tell(Names(name).queue, change(instance, begins)),
            lambda command: command_queue.send(aws, name, command),
            lambda: tell(Names(name).commands, "no command"),
            types,
        )
    finally:
        teardown.delete(name, aws=aws, keep_data=False)
