"""The local cloud as boto3 sees it: what is promised of AWS holds here."""

import contextlib
import copy
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import boto3
import pytest
from botocore.exceptions import ClientError
from support.local_cloud import Laptop, environment, running_cloud, until

from spotelastic.aws.clients import Aws
from spotelastic.aws.identity import from_imds
from spotelastic.aws.imds import Imds
from spotelastic.aws.packing import Zones
from spotelastic.errors import Unavailable, UsageError
from spotelastic.local import cloud


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    with running_cloud(tmp_path_factory.mktemp("home")) as info:
        laptop = Laptop(info)
        laptop.make_network()
        yield laptop


@pytest.fixture
def name(request: pytest.FixtureRequest, laptop: Laptop) -> Iterator[str]:
    """A launch template and, if the test makes it, a group of this name; both end with the test."""
    name = str(request.node.name)[:60]
    yield name
    groups = laptop.scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[name])
    if groups["AutoScalingGroups"]:
        laptop.delete_group(name)


@pytest.fixture
def template(laptop: Laptop, name: str) -> Iterator[str]:
    template = laptop.make_template(name)
    yield template
    laptop.ec2.delete_launch_template(LaunchTemplateId=template)


@pytest.fixture
def queue(laptop: Laptop, name: str) -> Iterator["Queue"]:
    queue = Queue(laptop, name)
    yield queue
    queue.close()


class Queue:
    """An SQS queue that EventBridge sends everything of EC2 and Auto Scaling to."""

    def __init__(self, laptop: Laptop, name: str) -> None:
        self._sqs, self._events = laptop.client("sqs"), laptop.client("events")
        self._rule = name[:40]
        self.url = self._sqs.create_queue(QueueName=name[:40])["QueueUrl"]
        arn = self._sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=["QueueArn"])
        pattern = {"source": ["aws.ec2", "aws.autoscaling"]}
        self._events.put_rule(Name=self._rule, EventPattern=json.dumps(pattern))
        target = {"Id": "queue", "Arn": arn["Attributes"]["QueueArn"]}
        self._events.put_targets(Rule=self._rule, Targets=[target])

    def next(self, kind: str, **detail: str) -> dict[str, Any]:
        """The next event of that detail-type with this detail; others are dropped."""

        def receive() -> dict[str, Any]:
            found = self._sqs.receive_message(QueueUrl=self.url, WaitTimeSeconds=5)
            for message in found.get("Messages", []):
                self._sqs.delete_message(QueueUrl=self.url, ReceiptHandle=message["ReceiptHandle"])
                event = json.loads(message["Body"])
                if event["detail-type"] == kind and detail.items() <= event["detail"].items():
                    return dict(event)
            return {}

        return until(receive)

    def close(self) -> None:
        self._events.remove_targets(Rule=self._rule, Ids=["queue"])
        self._events.delete_rule(Name=self._rule)
        with contextlib.suppress(self._sqs.exceptions.QueueDoesNotExist):
            self._sqs.delete_queue(QueueUrl=self.url)


# -- groups -----------------------------------------------------------------------------------


def test_a_group_spreads_over_zones_with_its_share_of_on_demand(
    laptop: Laptop, name: str, template: str
) -> None:
    policy = laptop.spot_policy(template, "g5.xlarge", "g4dn.xlarge", on_demand=1)
    tags = [{"Key": "team", "Value": "a", "PropagateAtLaunch": True}]
    laptop.make_group(name, template, 4, MixedInstancesPolicy=policy, Tags=tags)
    members = laptop.in_service(name, 4)
    zones = sorted(member["AvailabilityZone"] for member in members.values())
    assert zones == ["us-east-1a", "us-east-1a", "us-east-1b", "us-east-1c"]
    instances = [laptop.instance(member) for member in members]
    kinds = sorted((i.get("InstanceLifecycle", ""), i["InstanceType"]) for i in instances)
    assert kinds == [("", "g5.xlarge")] + [("spot", "g4dn.xlarge")] * 3  # the cheapest for spot
    addresses = [i["PrivateIpAddress"] for i in instances]
    assert len(set(addresses)) == 4
    assert all(address.startswith(laptop.info.net[:7]) for address in addresses)
    tags_seen = {tag["Key"]: tag["Value"] for tag in instances[0]["Tags"]}
    assert tags_seen["aws:autoscaling:groupName"] == name
    assert tags_seen["team"] == "a"


def test_sizes_change_without_losing_the_policy(laptop: Laptop, name: str, template: str) -> None:
    laptop.make_group(name, template, 1)
    laptop.in_service(name, 1)
    laptop.scaling.update_auto_scaling_group(AutoScalingGroupName=name, MaxSize=3)
    laptop.scaling.set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=3)
    members = laptop.in_service(name, 3)
    assert all(laptop.instance(member)["InstanceLifecycle"] == "spot" for member in members)
    laptop.scaling.update_auto_scaling_group(AutoScalingGroupName=name, MaxSize=2)
    laptop.in_service(name, 2)
    assert laptop.group(name)["DesiredCapacity"] == 2
    with pytest.raises(ClientError, match="above max value 2"):
        laptop.scaling.set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=3)


def test_a_launch_without_capacity_fails_visibly_and_is_tried_again(
    laptop: Laptop, name: str
) -> None:
    template = laptop.make_template(name, InstanceType="p4d.24xlarge")
    for zone in laptop.info.zones:
        laptop.faults.set_capacity("p4d.24xlarge", zone, int(zone == "us-east-1b"))
    laptop.make_group(name, template, 2)
    failed = until(
        lambda: [
            activity
            for activity in laptop.scaling.describe_scaling_activities(AutoScalingGroupName=name)[
                "Activities"
            ]
            if activity["StatusCode"] == "Failed"
        ]
    )
    assert "InsufficientInstanceCapacity" in failed[0]["StatusMessage"]
    (only,) = laptop.in_service(name, 1).values()
    assert only["AvailabilityZone"] == "us-east-1b"
    laptop.faults.set_capacity("p4d.24xlarge", "us-east-1c", 1)
    members = laptop.in_service(name, 2)
    assert sorted(member["AvailabilityZone"][-1] for member in members.values()) == ["b", "c"]


def test_a_launch_above_the_quota_is_refused_until_others_have_ended(
    laptop: Laptop, name: str
) -> None:
    template = laptop.make_template(name, InstanceType="inf1.xlarge")
    laptop.faults.set_quota("L-B5D1601B", 4)
    laptop.make_group(name, template, 2)
    (only,) = laptop.in_service(name, 1)
    laptop.faults.set_quota("L-B5D1601B", 8)
    laptop.faults.set_capacity("inf1.xlarge", "us-east-1a", 9)  # upon which it tries again
    assert only in laptop.in_service(name, 2)
    failed = laptop.scaling.describe_scaling_activities(AutoScalingGroupName=name)["Activities"]
    assert "MaxSpotInstanceCountExceeded" in str(failed)


def test_run_instances_answers_insufficient_capacity(laptop: Laptop) -> None:
    laptop.faults.set_capacity("p5.48xlarge", "us-east-1a", 0)
    with pytest.raises(ClientError, match="InsufficientInstanceCapacity"):
        laptop.ec2.run_instances(
            ImageId="ami-12345678",
            InstanceType="p5.48xlarge",
            MinCount=1,
            MaxCount=1,
            SubnetId=laptop.subnets[0],
        )


def test_a_launching_instance_waits_for_its_hook(
    laptop: Laptop, name: str, template: str, queue: Queue
) -> None:
    hook = {
        "LifecycleHookName": "ready",
        "LifecycleTransition": "autoscaling:EC2_INSTANCE_LAUNCHING",
        "HeartbeatTimeout": 300,
    }
    laptop.make_group(name, template, 1, LifecycleHookSpecificationList=[hook])
    event = queue.next("EC2 Instance-launch Lifecycle Action")
    detail = event["detail"]
    assert (detail["LifecycleHookName"], detail["AutoScalingGroupName"]) == ("ready", name)
    instance = detail["EC2InstanceId"]
    assert laptop.members(name)[instance]["LifecycleState"] == "Pending:Wait"
    action = {"AutoScalingGroupName": name, "LifecycleHookName": "ready"}
    token = {"LifecycleActionToken": detail["LifecycleActionToken"]}
    laptop.scaling.record_lifecycle_action_heartbeat(**action, **token)
    laptop.scaling.complete_lifecycle_action(**action, **token, LifecycleActionResult="CONTINUE")
    assert list(laptop.in_service(name, 1)) == [instance]
    queue.next("EC2 Instance Launch Successful", EC2InstanceId=instance)
    with pytest.raises(ClientError, match="No active Lifecycle Action"):
        laptop.scaling.complete_lifecycle_action(
            **action, InstanceId=instance, LifecycleActionResult="CONTINUE"
        )


def test_an_abandoned_launch_is_replaced(laptop: Laptop, name: str, template: str) -> None:
    hook = {
        "LifecycleHookName": "ready",
        "LifecycleTransition": "autoscaling:EC2_INSTANCE_LAUNCHING",
        "HeartbeatTimeout": 300,
    }
    laptop.make_group(name, template, 1, LifecycleHookSpecificationList=[hook])
    (first,) = until(lambda: laptop.members(name, "Pending:Wait"))
    laptop.scaling.complete_lifecycle_action(
        AutoScalingGroupName=name,
        LifecycleHookName="ready",
        InstanceId=first,
        LifecycleActionResult="ABANDON",
    )
    until(lambda: laptop.state(first) == "terminated")
    (second,) = until(lambda: set(laptop.members(name, "Pending:Wait")) - {first})
    assert second != first


def test_a_hook_that_nobody_answers_times_out_with_its_default(
    laptop: Laptop, name: str, template: str
) -> None:
    laptop.make_group(name, template, 0)
    laptop.scaling.put_lifecycle_hook(
        AutoScalingGroupName=name,
        LifecycleHookName="ready",
        LifecycleTransition="autoscaling:EC2_INSTANCE_LAUNCHING",
        HeartbeatTimeout=1,
        DefaultResult="CONTINUE",
    )
    laptop.scaling.set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=1)
    until(lambda: laptop.members(name, "Pending:Wait"))
    laptop.in_service(name, 1)


def test_a_node_drains_while_its_replacement_launches(
    laptop: Laptop, name: str, template: str, queue: Queue
) -> None:
    laptop.make_group(name, template, 1)
    laptop.scaling.put_lifecycle_hook(
        AutoScalingGroupName=name,
        LifecycleHookName="drain",
        LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING",
        HeartbeatTimeout=300,
    )
    (leaving,) = laptop.in_service(name, 1)
    laptop.scaling.terminate_instance_in_auto_scaling_group(
        InstanceId=leaving, ShouldDecrementDesiredCapacity=False
    )
    (arrived,) = until(lambda: laptop.members(name, "InService"))
    assert laptop.members(name)[leaving]["LifecycleState"] == "Terminating:Wait"
    assert laptop.state(leaving) == "running"
    queue.next("EC2 Instance-terminate Lifecycle Action", EC2InstanceId=leaving)
    laptop.scaling.complete_lifecycle_action(
        AutoScalingGroupName=name,
        LifecycleHookName="drain",
        InstanceId=leaving,
        LifecycleActionResult="CONTINUE",
    )
    assert list(laptop.in_service(name, 1)) == [arrived]
    assert laptop.state(leaving) == "terminated"
    queue.next("EC2 Instance Terminate Successful", EC2InstanceId=leaving)


def test_terminating_with_decrement_shrinks_the_group(
    laptop: Laptop, name: str, template: str
) -> None:
    laptop.make_group(name, template, 2, MinSize=1)
    leaving, staying = laptop.in_service(name, 2)
    laptop.scaling.terminate_instance_in_auto_scaling_group(
        InstanceId=leaving, ShouldDecrementDesiredCapacity=True
    )
    assert list(laptop.in_service(name, 1)) == [staying]
    with pytest.raises(ClientError, match="min size"):
        laptop.scaling.terminate_instance_in_auto_scaling_group(
            InstanceId=staying, ShouldDecrementDesiredCapacity=True
        )


@pytest.mark.parametrize("loss", ["terminate", "stop", "unhealthy", "detach", "kill"])
def test_whatever_takes_an_instance_the_group_replaces_it(
    laptop: Laptop, name: str, template: str, loss: str
) -> None:
    laptop.make_group(name, template, 1)
    (lost,) = laptop.in_service(name, 1)
    match loss:
        case "terminate":
            laptop.ec2.terminate_instances(InstanceIds=[lost])
        case "stop":
            laptop.ec2.stop_instances(InstanceIds=[lost])
        case "unhealthy":
            laptop.scaling.set_instance_health(InstanceId=lost, HealthStatus="Unhealthy")
        case "detach":
            laptop.scaling.detach_instances(
                InstanceIds=[lost], AutoScalingGroupName=name, ShouldDecrementDesiredCapacity=False
            )
            laptop.ec2.terminate_instances(InstanceIds=[lost])
        case "kill":
            laptop.faults.kill(lost)
    until(lambda: set(laptop.members(name, "InService")) - {lost})
    until(lambda: laptop.state(lost) == "terminated")
    assert lost not in laptop.in_service(name, 1)


def test_scale_in_spares_the_protected_and_suspended_processes_rest(
    laptop: Laptop, name: str, template: str
) -> None:
    laptop.make_group(name, template, 2)
    protected, other = laptop.in_service(name, 2)
    laptop.scaling.set_instance_protection(
        AutoScalingGroupName=name, InstanceIds=[protected], ProtectedFromScaleIn=True
    )
    laptop.scaling.set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=0)
    until(lambda: laptop.state(other) == "terminated")
    assert list(laptop.in_service(name, 1)) == [protected]
    laptop.scaling.suspend_processes(AutoScalingGroupName=name, ScalingProcesses=["Launch"])
    laptop.scaling.set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=2)
    laptop.ec2.terminate_instances(InstanceIds=[protected])
    until(lambda: not laptop.members(name))
    laptop.scaling.resume_processes(AutoScalingGroupName=name, ScalingProcesses=["Launch"])
    laptop.in_service(name, 2)


def test_only_an_empty_group_is_deleted_unless_forced(
    laptop: Laptop, name: str, template: str
) -> None:
    laptop.make_group(name, template, 1)
    (member,) = laptop.in_service(name, 1)
    with pytest.raises(ClientError, match="ResourceInUse"):
        laptop.scaling.delete_auto_scaling_group(AutoScalingGroupName=name)
    laptop.delete_group(name)
    assert laptop.state(member) == "terminated"


def test_many_clients_at_once_break_nothing(laptop: Laptop, name: str, template: str) -> None:
    """moto alone answers 500 to some of these."""
    laptop.make_group(name, template, 6)
    members = laptop.in_service(name, 6)

    def replace(member: str) -> None:
        client = laptop.client("autoscaling")
        client.terminate_instance_in_auto_scaling_group(
            InstanceId=member, ShouldDecrementDesiredCapacity=False
        )
        for _ in range(4):
            laptop.client("ec2").describe_instances(InstanceIds=[member])
            client.describe_auto_scaling_groups(AutoScalingGroupNames=[name])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(replace, members))
    assert not members.keys() & laptop.in_service(name, 6).keys()


def test_events_that_nobody_takes_stop_nothing(
    laptop: Laptop, name: str, template: str, queue: Queue
) -> None:
    laptop.client("sqs").delete_queue(QueueUrl=queue.url)
    laptop.make_group(name, template, 1)
    laptop.in_service(name, 1)


# -- interruptions ----------------------------------------------------------------------------


def test_an_interruption_is_announced_then_carried_out_then_replaced(
    laptop: Laptop, name: str, template: str, queue: Queue
) -> None:
    laptop.make_group(name, template, 1)
    (doomed,) = laptop.in_service(name, 1)
    laptop.faults.interrupt(doomed, 0.5)
    warning = queue.next("EC2 Spot Instance Interruption Warning")
    assert warning["detail"] == {"instance-id": doomed, "instance-action": "terminate"}
    assert warning["source"] == "aws.ec2"
    queue.next(
        "EC2 Instance State-change Notification", **{"instance-id": doomed, "state": "terminated"}
    )
    assert laptop.instance(doomed)["StateReason"]["Code"] == "Server.SpotInstanceTermination"
    assert doomed not in laptop.in_service(name, 1)


def test_a_rebalance_recommendation_takes_nothing(
    laptop: Laptop, name: str, template: str, queue: Queue
) -> None:
    laptop.make_group(name, template, 1)
    (member,) = laptop.in_service(name, 1)
    laptop.faults.rebalance(member)
    recommendation = queue.next("EC2 Instance Rebalance Recommendation")
    assert recommendation["detail"] == {"instance-id": member}
    assert list(laptop.in_service(name, 1)) == [member]


def test_a_fault_on_nothing_is_one_clear_line(laptop: Laptop) -> None:
    with pytest.raises(UsageError, match="i-0 is not there"):
        laptop.faults.kill("i-0")


# -- machines ---------------------------------------------------------------------------------


def test_a_terminated_instance_has_no_process_no_memory_and_no_address(
    laptop: Laptop, name: str, template: str
) -> None:
    laptop.make_group(name, template, 1)
    (member,) = laptop.in_service(name, 1)
    running = until(lambda: found if len(found := laptop.faults.processes(member)) == 2 else None)
    memory = Path("/dev/shm", f"spotelastic-{laptop.info.id}", member)
    assert memory.is_dir()
    laptop.delete_group(name)
    assert not any(Path(f"/proc/{process.pid}").exists() for process in running)
    assert not memory.exists()
    assert "PrivateIpAddress" not in laptop.instance(member)
    assert not laptop.ec2.describe_network_interfaces()["NetworkInterfaces"]


def test_one_process_of_an_instance_can_be_killed(laptop: Laptop, name: str, template: str) -> None:
    laptop.make_group(name, template, 1)
    (member,) = laptop.in_service(name, 1)
    until(lambda: len(laptop.faults.processes(member)) == 2)
    killed = laptop.faults.kill_process(member, "sleep")
    until(lambda: killed not in [process.pid for process in laptop.faults.processes(member)])
    assert laptop.state(member) == "running"
    with pytest.raises(UsageError, match="runs no se-agent; it runs sleep"):
        laptop.faults.kill_process(member, "se-agent")


def test_a_volume_and_an_address_belong_to_one_instance_and_outlive_it(
    laptop: Laptop, name: str, template: str
) -> None:
    zone, subnet = laptop.info.zones[0], laptop.subnets[0]
    address = laptop.info.net.replace("0.0/16", "0.200")
    volume = laptop.ec2.create_volume(AvailabilityZone=zone, Size=1)["VolumeId"]
    interface = laptop.ec2.create_network_interface(SubnetId=subnet, PrivateIpAddress=address)
    eni = interface["NetworkInterface"]["NetworkInterfaceId"]
    with pytest.raises(ClientError, match="in use"):
        laptop.ec2.create_network_interface(SubnetId=subnet, PrivateIpAddress=address)
    laptop.make_group(name, template, 2, VPCZoneIdentifier=subnet)
    first, second = laptop.in_service(name, 2)

    def attach(instance: str) -> None:
        laptop.ec2.attach_volume(VolumeId=volume, InstanceId=instance, Device="/dev/sdf")
        laptop.ec2.attach_network_interface(
            NetworkInterfaceId=eni, InstanceId=instance, DeviceIndex=1
        )

    attach(first)
    with pytest.raises(ClientError, match="VolumeInUse"):
        attach(second)
    with pytest.raises(ClientError, match=r"InvalidNetworkInterface\.InUse"):
        laptop.ec2.attach_network_interface(
            NetworkInterfaceId=eni, InstanceId=second, DeviceIndex=1
        )
    folder = Path(laptop.info.folder, "instances", first, "volumes", volume)
    (folder / "kept").write_text("yes")
    laptop.faults.kill(first)
    until(lambda: laptop.state(first) == "terminated")
    attach(second)
    assert (folder.parents[2] / second / "volumes" / volume / "kept").read_text() == "yes"
    laptop.delete_group(name)
    laptop.ec2.delete_network_interface(NetworkInterfaceId=eni)
    laptop.ec2.delete_volume(VolumeId=volume)
    assert not laptop.ec2.describe_volumes()["Volumes"]


def test_a_stopped_instance_starts_again_where_it_was(laptop: Laptop) -> None:
    launched = laptop.ec2.run_instances(
        ImageId="ami-12345678", MinCount=1, MaxCount=1, SubnetId=laptop.subnets[0]
    )["Instances"][0]["InstanceId"]
    address = laptop.instance(launched)["PrivateIpAddress"]
    laptop.ec2.stop_instances(InstanceIds=[launched])
    until(lambda: laptop.state(launched) == "stopped")
    laptop.ec2.start_instances(InstanceIds=[launched])
    until(lambda: laptop.state(launched) == "running")
    assert laptop.instance(launched)["PrivateIpAddress"] == address
    laptop.ec2.terminate_instances(InstanceIds=[launched])
    until(lambda: laptop.state(launched) == "terminated")


def test_an_instance_outside_the_loopback_network_is_refused(laptop: Laptop) -> None:
    subnet = laptop.ec2.describe_subnets(Filters=[{"Name": "default-for-az", "Values": ["true"]}])
    with pytest.raises(ClientError, match="not on this machine"):
        laptop.ec2.run_instances(
            ImageId="ami-12345678",
            MinCount=1,
            MaxCount=1,
            SubnetId=subnet["Subnets"][0]["SubnetId"],
        )


# -- prices, and S3 ---------------------------------------------------------------------------


def test_spot_prices_can_be_set(laptop: Laptop) -> None:
    def price(zone: str) -> float:
        history = laptop.ec2.describe_spot_price_history(
            InstanceTypes=["g5.xlarge"], AvailabilityZone=zone
        )["SpotPriceHistory"]
        return float(history[0]["SpotPrice"])

    assert price("us-east-1a") == pytest.approx(1.006 * 0.3, abs=1e-3)
    laptop.faults.set_spot_price("g5.xlarge", "us-east-1b", 0.75)
    assert (price("us-east-1b"), price("us-east-1a")) == (0.75, pytest.approx(0.3018))


def test_placement_scores_follow_capacity(laptop: Laptop) -> None:
    types = ["g6e.xlarge", "g6e.2xlarge", "g6e.4xlarge"]
    for type in types:
        laptop.faults.set_capacity(type, "us-east-1a", 0)
    with environment(**cloud.environment(laptop.info)):
        zones = Zones(Aws(laptop.info.region))
        scored = zones.offers(zones.of(laptop.subnets), types, 4)
        unscored = zones.offers(zones.named(laptop.info.zones), types[:2], 4)
    a, b, _ = scored
    assert (a.name, a.score) == ("us-east-1a", 1)
    assert (b.name, b.score, b.usd) == ("us-east-1b", 9, pytest.approx(1.861 * 0.3, abs=1e-3))
    assert b.subnets == laptop.subnets[1:2]
    assert [zone.score for zone in unscored] == [0, 0, 0], "two types: EC2's answer means nothing"
    assert [zone.id for zone in unscored][:2] == [a.id, b.id]


def test_only_one_of_many_conditional_puts_succeeds(laptop: Laptop) -> None:
    s3 = laptop.client("s3")
    s3.create_bucket(Bucket="conditional")

    def put(value: int) -> bool:
        try:
            s3.put_object(Bucket="conditional", Key="k", Body=bytes([value]), IfNoneMatch="*")
        except ClientError as error:
            assert error.response["ResponseMetadata"]["HTTPStatusCode"] == 412
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(put, range(16))) == 1


# -- the metadata service ---------------------------------------------------------------------


@pytest.fixture
def profile(laptop: Laptop) -> Iterator[str]:
    """An instance profile with a role."""
    iam = laptop.client("iam")
    trust = {"Version": "2012-10-17", "Statement": []}
    iam.create_role(RoleName="worker-role", AssumeRolePolicyDocument=json.dumps(trust))
    iam.create_instance_profile(InstanceProfileName="worker")
    iam.add_role_to_instance_profile(InstanceProfileName="worker", RoleName="worker-role")
    yield "worker"
    iam.remove_role_from_instance_profile(InstanceProfileName="worker", RoleName="worker-role")
    iam.delete_instance_profile(InstanceProfileName="worker")
    iam.delete_role(RoleName="worker-role")


def metadata_of(laptop: Laptop, instance: str) -> str:
    return f"http://{laptop.instance(instance)['PrivateIpAddress']}:{laptop.info.imds_port}"


def test_an_instance_learns_who_it_is_and_what_it_may_do(
    laptop: Laptop, name: str, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = laptop.make_template(
        name,
        IamInstanceProfile={"Name": profile},
        MetadataOptions={"HttpTokens": "required", "InstanceMetadataTags": "enabled"},
        TagSpecifications=[
            {"ResourceType": "instance", "Tags": [{"Key": "spotelastic:role", "Value": "worker"}]}
        ],
    )
    laptop.make_group(name, template, 1)
    (member,) = laptop.in_service(name, 1)
    url = metadata_of(laptop, member)
    identity = from_imds(url)
    assert (identity.instance, identity.zone, identity.spot) == (member, "us-east-1a", True)
    assert identity.tags["spotelastic:role"] == "worker"
    assert Imds(url).lifecycle_state() == "InService"

    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_EC2_METADATA_DISABLED"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", url)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    session = boto3.Session(region_name=identity.region)
    caller = session.client("sts", endpoint_url=laptop.info.endpoint).get_caller_identity()
    assert caller["Arn"].endswith(f":assumed-role/worker-role/{member}")


def test_the_metadata_service_wants_a_token_and_goes_with_its_instance(
    laptop: Laptop, name: str, template: str
) -> None:
    laptop.make_group(name, template, 1)
    (member,) = laptop.in_service(name, 1)
    url = metadata_of(laptop, member)
    with pytest.raises(HTTPError) as refused:
        urlopen(f"{url}/latest/meta-data/instance-id", timeout=5)
    assert refused.value.code == 401
    imds = Imds(url)
    assert imds.get("instance-id") == member
    assert imds.tags() == {}  # not enabled in this template's metadata options
    assert imds.interruption() is None
    laptop.faults.interrupt(member, 60)
    assert imds.interruption() == pytest.approx(time.time() + 60, abs=30)
    assert Imds(url).get("spot/termination-time")
    laptop.ec2.terminate_instances(InstanceIds=[member])
    until(lambda: laptop.state(member) == "terminated")
    with pytest.raises(Unavailable):
        Imds(url).get("instance-id")


# -- stacks -----------------------------------------------------------------------------------

TEMPLATE: dict[str, Any] = {
    "Parameters": {"Net": {"Type": "String"}, "Size": {"Type": "String", "Default": "1"}},
    "Resources": {
        "Vpc": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": {"Ref": "Net"}}},
        "Gateway": {"Type": "AWS::EC2::InternetGateway"},
        "Attachment": {
            "Type": "AWS::EC2::VPCGatewayAttachment",
            "Properties": {"VpcId": {"Ref": "Vpc"}, "InternetGatewayId": {"Ref": "Gateway"}},
        },
        "Routes": {"Type": "AWS::EC2::RouteTable", "Properties": {"VpcId": {"Ref": "Vpc"}}},
        "Route": {
            "Type": "AWS::EC2::Route",
            "DependsOn": "Attachment",
            "Properties": {
                "RouteTableId": {"Ref": "Routes"},
                "DestinationCidrBlock": "0.0.0.0/0",
                "GatewayId": {"Ref": "Gateway"},
            },
        },
        "Subnet": {
            "Type": "AWS::EC2::Subnet",
            "Properties": {
                "VpcId": {"Ref": "Vpc"},
                "CidrBlock": {"Ref": "Net"},
                "AvailabilityZone": "us-east-1b",
            },
        },
        "SubnetRoutes": {
            "Type": "AWS::EC2::SubnetRouteTableAssociation",
            "Properties": {"SubnetId": {"Ref": "Subnet"}, "RouteTableId": {"Ref": "Routes"}},
        },
        "Members": {
            "Type": "AWS::EC2::SecurityGroup",
            "Properties": {"GroupDescription": "members", "VpcId": {"Ref": "Vpc"}},
        },
        "Queue": {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": "stack-queue"}},
        "QueuePolicy": {
            "Type": "AWS::SQS::QueuePolicy",
            "Properties": {
                "Queues": [{"Ref": "Queue"}],
                "PolicyDocument": {"Version": "2012-10-17", "Statement": []},
            },
        },
        "Address": {
            "Type": "AWS::EC2::NetworkInterface",
            "Properties": {
                "SubnetId": {"Ref": "Subnet"},
                "GroupSet": [{"Ref": "Members"}],
                "Tags": [{"Key": "member", "Value": "a"}],
            },
        },
        "Disk": {
            "Type": "AWS::EC2::Volume",
            "Properties": {
                "AvailabilityZone": "us-east-1b",
                "Size": 1,
                "Tags": [{"Key": "member", "Value": "a"}],
            },
        },
        "Template": {
            "Type": "AWS::EC2::LaunchTemplate",
            "Properties": {
                "LaunchTemplateData": {
                    "ImageId": "ami-12345678",
                    "InstanceType": "t3.small",
                    "SecurityGroupIds": [{"Ref": "Members"}],
                    "UserData": {"Fn::Base64": "hello"},
                },
            },
        },
        "Group": {
            "Type": "AWS::AutoScaling::AutoScalingGroup",
            "Properties": {
                "AutoScalingGroupName": "stack-group",
                "MinSize": {"Ref": "Size"},
                "MaxSize": {"Ref": "Size"},
                "VPCZoneIdentifier": [{"Ref": "Subnet"}],
                "LaunchTemplate": {
                    "LaunchTemplateId": {"Ref": "Template"},
                    "Version": {"Fn::GetAtt": ["Template", "LatestVersionNumber"]},
                },
            },
        },
        "Hook": {
            "Type": "AWS::AutoScaling::LifecycleHook",
            "Properties": {
                "AutoScalingGroupName": {"Ref": "Group"},
                "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING",
                "HeartbeatTimeout": 600,
            },
        },
    },
}


@pytest.fixture
def stack(laptop: Laptop) -> Iterator[str]:
    """The name of a stack, deleted after the test if it is still there."""
    cloudformation = laptop.client("cloudformation")
    yield "demo"
    cloudformation.delete_stack(StackName="demo")
    assert cloudformation.list_stacks(StackStatusFilter=["CREATE_COMPLETE"])["StackSummaries"] == []


def status(laptop: Laptop, stack: str) -> str:
    summaries = laptop.client("cloudformation").list_stacks()["StackSummaries"]
    return str(next(item["StackStatus"] for item in summaries if item["StackId"] == stack))


def create(laptop: Laptop, stack: str, template: dict[str, Any], net: str) -> str:
    return str(
        laptop.client("cloudformation").create_stack(
            StackName=stack,
            TemplateBody=json.dumps(template),
            Parameters=[{"ParameterKey": "Net", "ParameterValue": net}],
        )["StackId"]
    )


def resources(laptop: Laptop) -> dict[str, int]:
    """How many there are of what stacks make, and of what a default account has."""
    ec2, groups = laptop.ec2, laptop.scaling.describe_auto_scaling_groups()
    return {
        "vpcs": len(ec2.describe_vpcs()["Vpcs"]),
        "subnets": len(ec2.describe_subnets()["Subnets"]),
        "gateways": len(ec2.describe_internet_gateways()["InternetGateways"]),
        "route tables": len(ec2.describe_route_tables()["RouteTables"]),
        "security groups": len(ec2.describe_security_groups()["SecurityGroups"]),
        "interfaces": len(ec2.describe_network_interfaces()["NetworkInterfaces"]),
        "volumes": len(ec2.describe_volumes()["Volumes"]),
        "templates": len(ec2.describe_launch_templates()["LaunchTemplates"]),
        "groups": len(groups["AutoScalingGroups"]),
        "queues": len(laptop.client("sqs").list_queues().get("QueueUrls", [])),
    }


def test_a_stack_is_made_updated_in_place_and_deleted_without_a_trace(
    laptop: Laptop, stack: str
) -> None:
    before = resources(laptop)
    net = laptop.info.net.replace(".0.0/16", ".64.0/24")
    created = create(laptop, stack, TEMPLATE, net)
    assert status(laptop, created) == "CREATE_COMPLETE"
    (member,) = laptop.in_service("stack-group", 1)
    assert laptop.instance(member)["Placement"]["AvailabilityZone"] == "us-east-1b"
    hooks = laptop.scaling.describe_lifecycle_hooks(AutoScalingGroupName="stack-group")
    assert [hook["HeartbeatTimeout"] for hook in hooks["LifecycleHooks"]] == [600]
    found = [{"Name": "tag:member", "Values": ["a"]}]
    assert len(laptop.ec2.describe_volumes(Filters=found)["Volumes"]) == 1
    assert len(laptop.ec2.describe_network_interfaces(Filters=found)["NetworkInterfaces"]) == 1
    laptop.client("cloudformation").update_stack(
        StackName=stack,
        UsePreviousTemplate=True,
        Parameters=[
            {"ParameterKey": "Net", "UsePreviousValue": True},
            {"ParameterKey": "Size", "ParameterValue": "2"},
        ],
    )
    assert member in laptop.in_service("stack-group", 2)
    laptop.client("cloudformation").delete_stack(StackName=stack)
    assert status(laptop, created) == "DELETE_COMPLETE"
    assert laptop.state(member) == "terminated"
    assert resources(laptop) == before


def test_a_stack_that_cannot_be_made_is_rolled_back_and_says_why(
    laptop: Laptop, stack: str
) -> None:
    before = resources(laptop)
    broken = copy.deepcopy(TEMPLATE)
    broken["Resources"]["Address"]["Properties"]["PrivateIpAddress"] = "10.0.0.1"
    created = create(laptop, stack, broken, laptop.info.net.replace(".0.0/16", ".65.0/24"))
    assert status(laptop, created) == "ROLLBACK_COMPLETE"
    events = laptop.client("cloudformation").describe_stack_events(StackName=stack)["StackEvents"]
    reasons = [e for e in events if e["ResourceStatus"] == "CREATE_FAILED"]
    assert "10.0.0.1" in reasons[0]["ResourceStatusReason"]
    assert resources(laptop) == before


def test_a_stack_whose_network_is_in_use_is_not_forgotten(laptop: Laptop, stack: str) -> None:
    net = laptop.info.net.replace(".0.0/16", ".66.0/24")
    created = create(laptop, stack, TEMPLATE, net)
    subnets = laptop.ec2.describe_subnets(Filters=[{"Name": "cidr-block", "Values": [net]}])
    foreign = laptop.ec2.create_network_interface(SubnetId=subnets["Subnets"][0]["SubnetId"])
    laptop.client("cloudformation").delete_stack(StackName=stack)
    assert status(laptop, created) == "DELETE_FAILED"
    interface = foreign["NetworkInterface"]["NetworkInterfaceId"]
    laptop.ec2.delete_network_interface(NetworkInterfaceId=interface)
    laptop.client("cloudformation").delete_stack(StackName=stack)
    assert status(laptop, created) == "DELETE_COMPLETE"
