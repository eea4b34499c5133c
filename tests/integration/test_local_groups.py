"""Auto Scaling groups of the local cloud: what is promised of AWS holds here."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError
from support.clusters.local_cloud import Laptop, until

from spotelastic.errors import UsageError


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
        try:
            self._sqs.delete_queue(QueueUrl=self.url)
        except ClientError as error:  # of which class it is depends on what botocore has loaded
            assert "NonExistentQueue" in str(error)


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
    failed = until(lambda: laptop.activities(name, "Failed"))
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


def test_a_node_drains_while_its_replacement_launches(
    laptop: Laptop, name: str, template: str, queue: Queue
) -> None:
    laptop.make_group(name, template, 1)
    laptop.drains(name)
    (leaving,) = laptop.in_service(name, 1)
    laptop.scaling.terminate_instance_in_auto_scaling_group(
        InstanceId=leaving, ShouldDecrementDesiredCapacity=False
    )
    (arrived,) = until(lambda: laptop.members(name, "InService"))
    assert laptop.members(name)[leaving]["LifecycleState"] == "Terminating:Wait"
    assert laptop.state(leaving) == "running"
    queue.next("EC2 Instance-terminate Lifecycle Action", EC2InstanceId=leaving)
    laptop.drained(name, leaving)
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


@pytest.mark.parametrize("loss", ["terminate", "kill"])
def test_whatever_takes_an_instance_the_group_replaces_it(
    laptop: Laptop, name: str, template: str, loss: str
) -> None:
    laptop.make_group(name, template, 1)
    (lost,) = laptop.in_service(name, 1)
    match loss:
        case "terminate":
            laptop.ec2.terminate_instances(InstanceIds=[lost])
        case "kill":
            laptop.faults.kill(lost)
    until(lambda: set(laptop.members(name, "InService")) - {lost})
    until(lambda: laptop.state(lost) == "terminated")
    assert lost not in laptop.in_service(name, 1)


def test_a_group_whose_launches_are_suspended_launches_once_they_are_resumed(
    laptop: Laptop, name: str, template: str
) -> None:
    laptop.make_group(name, template, 1)
    (member,) = laptop.in_service(name, 1)
    laptop.scaling.suspend_processes(AutoScalingGroupName=name, ScalingProcesses=["Launch"])
    laptop.ec2.terminate_instances(InstanceIds=[member])
    until(lambda: not laptop.members(name))
    laptop.scaling.resume_processes(AutoScalingGroupName=name, ScalingProcesses=["Launch"])
    laptop.in_service(name, 1)


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
