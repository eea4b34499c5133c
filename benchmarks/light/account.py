"""Sets up a local cloud with idle worker instances, and real controllers that look after them.

Each controller is the product's own, in its own process, which counts its calls to AWS. Nodes
register at once: the benchmark writes their keys.
"""

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.identity import CLUSTER, ROLE
from spotelastic.aws.base.names import MEMBERS, TERMINATE_HOOK, Names
from spotelastic.aws.compute import autoscaling
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.aws.provider.cloud import connect
from spotelastic.cloud.model import WorkerGroup
from spotelastic.controller.etcd.member_lifecycle import MemberLifecycle, MemberLifecycleConfig
from spotelastic.controller.loop.controller_loop import run as run_controller
from spotelastic.controller.model.config import ControllerConfig
from spotelastic.local import cloud
from spotelastic.local.cloud import CloudInfo
from spotelastic.model.job import JobSpec, Settings
from spotelastic.model.node import Fingerprint, Node
from spotelastic.store.codec import encode
from spotelastic.store.etcd import EtcdStore
from spotelastic.store.etcd_server.process import MemberConfig
from spotelastic.store.keys import Keys

NAME = "bench"
TYPE = "g5.xlarge"
IDLE = ("/bin/sh", "-c", "exec sleep 100000")
BUCKET = "spotelastic-bench"
AS_DEPLOYED = {"VisibilityTimeout": "5"}
"""Settings of the event queue, as in `infra/cluster.yaml`."""


@dataclass(frozen=True)
class Account:
    info: CloudInfo
    aws: Aws
    spec: JobSpec

    @property
    def objects(self) -> BucketObjects:
        return BucketObjects(self.aws, BUCKET, NAME)

    def group(self) -> WorkerGroup:
        found = autoscaling.group(self.aws, Names(NAME).workers)
        assert found is not None
        return found

    def staying(self) -> int:
        return sum(place.state == "InService" for place in self.group().members)

    def launched(self) -> int:
        """Number of worker instances that ever existed."""
        return len(autoscaling.instances(self.aws, NAME, "worker"))

    def register(self, store: EtcdStore) -> None:
        """Register all instances of the group as nodes."""
        for place in self.group().members:
            node = Node(place.instance, f"{place.instance}-1", "", "", Fingerprint())
            store.put(Keys(NAME).live(place.instance), encode(node))


@contextlib.contextmanager
def account(endpoint: str, size: int) -> Iterator[Account]:
    """Yield an account with a group of `size` spot instances; `endpoint` is etcd's."""
    with tempfile.TemporaryDirectory(prefix="spotelastic-control-") as home:
        os.environ["SPOTELASTIC_HOME"] = home
        info = cloud.start(detach=False, boot_command=IDLE)
        try:
            os.environ.update(cloud.environment(info))
            aws = Aws(info.region)
            its = Names(NAME)
            aws.s3.create_bucket(Bucket=BUCKET)
            _make_queue(aws, its.queue)
            aws.sqs.create_queue(QueueName=its.commands)
            _make_groups(aws, info, its, size)
            yield Account(
                info,
                aws,
                JobSpec(
                    cluster=NAME,
                    run=NAME,
                    script="train.py",
                    args=(),
                    code="",
                    settings=Settings(1, size),
                    storage=f"s3://{BUCKET}/{NAME}/checkpoints",
                    etcd=(endpoint,),
                    etcd_members=("a",),
                    queue=its.queue,
                    worker_group=its.workers,
                    instance_types=(TYPE,),
                ),
            )
        finally:
            cloud.stop(info)


def _make_queue(aws: Aws, name: str) -> None:
    """Create a queue to which all events of EC2 and Auto Scaling are delivered."""
    import boto3

    url = aws.sqs.create_queue(QueueName=name, Attributes=AS_DEPLOYED)["QueueUrl"]
    wanted = ["QueueArn"]
    arn = aws.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=wanted)["Attributes"]
    events: Any = boto3.client("events", region_name=aws.region)
    events.put_rule(Name=name, EventPattern=json.dumps({"source": ["aws.ec2", "aws.autoscaling"]}))
    events.put_targets(Rule=name, Targets=[{"Id": "queue", "Arn": arn["QueueArn"]}])


def _make_groups(aws: Aws, info: CloudInfo, its: Names, size: int) -> None:
    """Create a group of spot nodes, and an empty one of on-demand nodes."""
    prefix = info.net.split(".0.0/")[0]
    vpc = aws.ec2.create_vpc(CidrBlock=info.net)["Vpc"]["VpcId"]
    subnet = aws.ec2.create_subnet(
        VpcId=vpc, CidrBlock=f"{prefix}.0.0/24", AvailabilityZone=info.zones[0]
    )["Subnet"]["SubnetId"]
    tags = [{"Key": CLUSTER, "Value": NAME}, {"Key": ROLE, "Value": "worker"}]
    aws.ec2.create_launch_template(
        LaunchTemplateName=its.workers,
        LaunchTemplateData={
            "ImageId": "ami-12345678",
            "InstanceType": TYPE,
            "TagSpecifications": [{"ResourceType": "instance", "Tags": tags}],
        },
    )
    _make_group(aws, its.workers, its.workers, subnet, size)
    _make_group(aws, its.on_demand, its.workers, subnet, 0)


def _make_group(aws: Aws, name: str, launch: str, subnet: str, size: int) -> None:
    template = {"LaunchTemplateName": launch, "Version": "$Latest"}
    aws.autoscaling.create_auto_scaling_group(
        AutoScalingGroupName=name,
        MinSize=0,
        MaxSize=max(1, 2 * size),
        DesiredCapacity=size,
        VPCZoneIdentifier=subnet,
        MixedInstancesPolicy={
            "LaunchTemplate": {
                "LaunchTemplateSpecification": template,
                "Overrides": [{"InstanceType": TYPE}],
            },
            "InstancesDistribution": {
                "OnDemandBaseCapacity": 0,
                "OnDemandPercentageAboveBaseCapacity": 0,
                "SpotAllocationStrategy": "price-capacity-optimized",
            },
        },
        LifecycleHookSpecificationList=[
            {
                "LifecycleHookName": TERMINATE_HOOK,
                "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING",
                "HeartbeatTimeout": 180,
                "DefaultResult": "CONTINUE",
            }
        ],
        Tags=[{"Key": CLUSTER, "Value": NAME, "PropagateAtLaunch": True}],
    )


# -- controllers ---------------------------------------------------------------------------------


class Controllers:
    """One process per controller, by the instance it claims to run on, and one for the etcd
    members.

    The latter look for newer generations.
    """

    def __init__(self, spec: JobSpec, region: str) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.calls = spawn.Value("q", 0)
        self._processes: dict[str, Any] = {}
        for name in ("i-control-a", "i-control-b"):
            config = ControllerConfig(spec, name, "127.0.0.1")
            self._start(
                spawn.Process(target=_control, args=(config, region, self.calls), name=name)
            )
        self._start(spawn.Process(target=_sit, args=(spec, region, self.calls), name="seats"))

    def _start(self, process: Any) -> None:
        process.start()
        self._processes[process.name] = process

    def kill(self, name: str) -> None:
        os.kill(self._processes[name].pid or 0, signal.SIGKILL)

    def close(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()


def _control(config: ControllerConfig, region: str, calls: Any) -> None:
    _count(calls)
    with Path(os.devnull).open("w") as nowhere:
        sys.stdout = sys.stderr = nowhere  # its output would mix with the results
        run_controller(config, connect(Aws(region), config.spec, BUCKET))


def _sit(spec: JobSpec, region: str, calls: Any) -> None:
    """Run one member lifecycle per control node; the benchmark's etcd serves them."""
    _count(calls)
    objects, (endpoint,) = BucketObjects(Aws(region), BUCKET, NAME), spec.etcd
    for name in MEMBERS:
        member = MemberConfig(name, Path(), endpoint, "")
        seat = MemberLifecycle(MemberLifecycleConfig(member, Path(), {}, Path(os.devnull)), objects)
        threading.Thread(target=seat.follow, daemon=True).start()
    threading.Event().wait()


def _count(calls: Any) -> None:
    """Count every request to AWS, S3's included, and every retry."""
    from botocore.httpsession import URLLib3Session

    send = URLLib3Session.send

    def counted(session: URLLib3Session, request: Any) -> Any:
        with calls.get_lock():
            calls.value += 1
        return send(session, request)

    URLLib3Session.send = counted
