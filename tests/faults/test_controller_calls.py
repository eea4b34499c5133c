"""A controller that leads, in an account where each of its calls fails the first time it is made.

It is signed in with the role of control nodes, which must permit all of it, and nothing of that to
another cluster.

The calls are found by recording, not by a list: a call is an operation of AWS's, and for S3 its
object. Whatever fails, the controller does at another turn, and at each point of the story AWS
holds what the decision says.
"""

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError
from support.aws.account import DENIED, LOST_ANSWER, THROTTLED, TIMED_OUT, Fault, account, truth
from support.aws.cluster_remains import remains
from support.aws.cluster_requests import request
from support.aws.policies import keeps_to_its_cluster, role_of, signed_in
from support.clusters.local_cloud import until
from support.processes.patience import PATIENT
from support.store.memory_store import MemoryStore

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.identity import CLUSTER, ROLE
from spotelastic.aws.base.names import Names
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.clusters import teardown
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.aws.compute import autoscaling, worker_groups
from spotelastic.aws.messaging import command_queue
from spotelastic.aws.network import cloudformation
from spotelastic.aws.provider.cloud import connect
from spotelastic.clock import unbroken
from spotelastic.cloud.model import Instance, WorkerGroup
from spotelastic.controller.effects.price_cache import PriceCache
from spotelastic.controller.etcd.etcd_mirror import Mirror
from spotelastic.controller.loop.controller_loop import lead_with
from spotelastic.controller.model.config import ControllerConfig, LoopPace
from spotelastic.controller.model.observation import ControllerPolicy
from spotelastic.model.job import Job
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.requests.command import Command
from spotelastic.store.codec import encode
from spotelastic.store.election import campaign
from spotelastic.store.keys import Keys
from spotelastic.store.port import StoredValue

pytestmark = [pytest.mark.soak, pytest.mark.every_turn]

NAME = "quokka"
ITS, KEYS = Names(NAME), Keys(NAME)
TYPES = ("c5.large", "m5.large", "c5.xlarge")
"""Enough for placement scores."""
WAYS = (THROTTLED, LOST_ANSWER, TIMED_OUT, DENIED)
# A console is read once: where that one failed, nobody may ask for another.
DONE = {
    "autoscaling:CompleteLifecycleAction",
    "autoscaling:SetDesiredCapacity",
    "autoscaling:UpdateAutoScalingGroup",
    "ec2:TerminateInstances",
    "s3:PutObject",
    "sqs:DeleteMessage",
}
TURN = int(os.environ.get("SOAK_TURN", "0"))
POLICY = ControllerPolicy(boot_within=3.0, strange_for=0.0, command_lifetime=PATIENT)
PACE = LoopPace(busy=0.25, soon=0.25, long_poll=1, retry=0.25)
WARNING = """{{"id": "w-{0}", "source": "aws.ec2", "time": "2026-01-01T00:00:00Z",
"detail-type": "EC2 Spot Instance Interruption Warning",
"detail": {{"instance-id": "{0}", "instance-action": "terminate"}}}}"""
NO_CAPACITY = """{{"id": "f-{0}", "source": "aws.autoscaling", "time": "2026-01-01T00:00:00Z",
"detail-type": "EC2 Instance Launch Unsuccessful",
"detail": {{"AutoScalingGroupName": "{1}", "EC2InstanceId": "", "StatusMessage": "no capacity",
"Details": {{"Availability Zone": "{2}"}}}}}}"""


class FirstTimes:
    """Lets every call of one boto3 session fail once."""

    def __init__(self, aws: Aws, fault: Fault) -> None:
        self.struck: set[str] = set()
        self._fault, self._lock, self._silenced = fault, threading.Lock(), threading.local()
        events = aws.session.events
        events.register("before-call", self._before)
        events.register("after-call", self._after)

    def _before(self, model: Any, params: Any, **_: Any) -> Any:
        name = f"{model.service_model.service_name}.{model.name}"
        if model.service_model.service_name == "s3":
            name += " " + re.sub(r"\d{6,}|\?.*|(?<=commands/).*", "", params["url_path"])
        with self._lock:
            first = name not in self.struck
            self.struck.add(name)
        self._silenced.now = first and self._fault.executed
        if not first or self._fault.executed:
            return None
        if not self._fault.code:
            raise ReadTimeoutError(endpoint_url="https://aws")
        error = {"Code": self._fault.code, "Message": self._fault.name}
        answer = {"Error": error, "ResponseMetadata": {"HTTPStatusCode": self._fault.status}}
        return SimpleNamespace(status_code=self._fault.status), answer

    def _after(self, **_: Any) -> None:
        if self._silenced.now:
            raise ReadTimeoutError(endpoint_url="https://aws")


class Story:
    """A cluster, seen by who suffers no faults, and its nodes, of which only the keys are there."""

    def __init__(self, cluster: ClusterRecord, store: MemoryStore) -> None:
        self.cluster, self.aws, self.store = cluster, cluster.aws, store
        self.boots = True
        """Whether instances come up."""

    @truth()
    def group(self) -> WorkerGroup:
        found = autoscaling.group(self.aws, ITS.workers)
        assert found is not None
        return found

    def staying(self) -> set[str]:
        return {place.instance for place in self.group().members if not place.leaving}

    @truth()
    def machines(self) -> dict[str, Instance]:
        return {each.id: each for each in autoscaling.instances(self.aws, NAME)}

    def live(self) -> None:
        """Agents come and go as their instances do."""
        staying = self.staying()
        for name in staying:
            if self.boots and self.store.get(KEYS.live(name)) is None:
                node = Node(name, f"{name}-1", "", "", Fingerprint())
                self.store.put(KEYS.live(name), encode(node))
        for value in self.store.range(KEYS.live())[0]:
            if value.key.removeprefix(KEYS.live()) not in staying:
                self.store.delete(value.key)

    def until(self, met: Callable[[], object]) -> None:
        def look() -> object:
            self.live()
            return met()

        until(look, PATIENT)

    def tell(self, queue: str, body: str) -> None:
        url = command_queue.queue_url(self.aws, queue)
        self.aws.sqs.send_message(QueueUrl=url, MessageBody=body)

    def heard_all(self) -> bool:
        """Of the events: none waits, and none is being dealt with."""
        counts = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        url = command_queue.queue_url(self.aws, ITS.queue)
        found = self.aws.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=counts)
        return all(found["Attributes"][name] == "0" for name in counts)


@contextmanager
def leading(
    cluster: ClusterRecord, store: MemoryStore, aws: Aws, fault: Fault
) -> Iterator[FirstTimes]:
    """One controller's term, of which every call fails the first time."""
    wake, over = threading.Event(), threading.Event()
    mirror = Mirror(KEYS, wake.set)
    watch = store.watch(KEYS.root, mirror)
    leadership = campaign(store, KEYS.leader, b"i-control", store.grant(1e6))
    assert leadership is not None
    spec = replace(cluster.spec, etcd=(), etcd_members=())
    config = ControllerConfig(spec, "i-control", "", None, POLICY, pace=PACE)
    struck = FirstTimes(aws, fault)
    cloud = connect(aws, spec, cluster.bucket)
    cloud = replace(cloud, prices=PriceCache(cloud.prices, print))
    term = lead_with(config, cloud, store, mirror, leadership, wake, lambda: True)
    thread = threading.Thread(target=term.lead, args=(over,), name="term")
    thread.start()
    try:
        yield struck
    finally:
        over.set()
        wake.set()
        thread.join(PATIENT)
        term.close()
        watch.close()


@pytest.mark.parametrize("fault", [WAYS[TURN % len(WAYS)]], ids=lambda fault: fault.name)
def test_every_call_of_a_controller_fails_once_and_all_comes_right(
    fault: Fault, tmp_path: Path
) -> None:
    with account(tmp_path) as authority:
        cluster = clusters.create(REQUEST, lambda _: None, Aws())
        role = role_of(cluster.aws, NAME, "ControlRole")
        store = MemoryStore(unbroken)
        store.put(KEYS.job, encode(Job("running", unbroken())))
        story = Story(cluster, store.client())
        with leading(cluster, store, signed_in(cluster.aws, role), fault) as calls:
            it_is_looked_after(story)
            a_warned_node_is_replaced_and_goes(story)
            a_stranger_is_ended(story)
            it_is_scaled_into_another_zone(story)
            an_instance_that_does_not_come_up_is_examined(story)
            it_is_scaled_down_and_ends(story)
            until(lambda: remains_of_workers(story) == [], PATIENT)
            until(lambda: cloudformation.describe(cluster.aws, ITS.stack) is None, PATIENT)
        assert calls.struck >= {
            "autoscaling.UpdateAutoScalingGroup",
            "ec2.GetConsoleOutput",
            "cloudformation.DeleteStack",
        }
        keeps_to_its_cluster(role, NAME, authority.calls, DONE)
        teardown.delete(NAME, aws=cluster.aws)
        assert remains(NAME) == []


REQUEST = request(NAME, 2, instance_types=TYPES, linger=0.0)


def it_is_looked_after(story: Story) -> None:
    story.until(lambda: len(story.staying()) == 2)
    story.until(lambda: (status := story.cluster.objects.status()) and len(status.nodes) == 5)


def a_warned_node_is_replaced_and_goes(story: Story) -> None:
    victim = min(story.staying())
    story.tell(ITS.queue, WARNING.format(victim))
    story.until(lambda: len(story.staying() - {victim}) == 2)
    story.until(lambda: story.group().member(victim) is None)
    story.until(story.heard_all)


def a_stranger_is_ended(story: Story) -> None:
    tags = [{"Key": CLUSTER, "Value": NAME}, {"Key": ROLE, "Value": "worker"}]
    launched = story.aws.ec2.run_instances(
        ImageId="ami-12345678",
        InstanceType=TYPES[0],
        SubnetId=story.group().subnets[0],
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
    )
    stranger = launched["Instances"][0]["InstanceId"]
    story.until(lambda: story.machines()[stranger].state == "terminated")


def it_is_scaled_into_another_zone(story: Story) -> None:
    home = {story.machines()[name].zone for name in story.staying()}
    before, (zone,) = story.group().subnets, home
    for number in range(3):
        story.tell(ITS.queue, NO_CAPACITY.format(number, ITS.workers, zone))
    story.until(story.heard_all)
    assert story.group().subnets == before, "nothing is missing there"
    worker_groups.allow(story.aws, ITS.workers, 3)
    is_scaled_to(story, 3)
    story.until(lambda: len(story.staying()) == 3)
    assert story.group().subnets != before


def is_scaled_to(story: Story, count: int) -> None:
    """Done already, when only its answer failed, is a success as well."""
    command = Command(f"to-{count}", "scale", None, count)
    command_queue.send(story.aws, NAME, command)
    story.until(lambda: story.cluster.objects.answer_to(command.id))
    answer = story.cluster.objects.answer_to(command.id)
    assert answer is not None
    wanted = f"1 to {count} nodes" if count > 1 else "1 node"
    assert (wanted in answer.text, answer.accepted) == (True, True)


def an_instance_that_does_not_come_up_is_examined(story: Story) -> None:
    story.boots = False
    story.tell(ITS.queue, WARNING.format(min(story.staying())))
    story.until(lambda: any(b"did not boot" in held.data for held in events(story)))
    story.boots = True
    story.until(lambda: len(story.staying()) == 3)


def events(story: Story) -> tuple[StoredValue, ...]:
    return story.store.range(KEYS.event())[0]


def it_is_scaled_down_and_ends(story: Story) -> None:
    is_scaled_to(story, 1)
    story.until(lambda: len(story.staying()) == 1)
    story.store.put(KEYS.job, encode(Job("succeeded", unbroken(), "done")))


def remains_of_workers(story: Story) -> list[str]:
    return [m.id for m in story.machines().values() if m.state != "terminated"]
