"""The local cloud as AWS on a bad day: it refuses, answers from the past, and takes its time."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from support.clusters.local_cloud import Laptop, environment, until
from support.unkind.conditions import KIND, Conditions, parse

from spotelastic.aws.base.clients import Aws, Busy, calling
from spotelastic.aws.base.names import MEMBERS, Names
from spotelastic.aws.clusters import control_boot
from spotelastic.aws.clusters.control_boot import ControlGroup
from spotelastic.aws.compute import worker_groups
from spotelastic.local import cloud
from spotelastic.local.local_session import LocalSession

pytestmark = pytest.mark.soak  # only `make soak` makes clouds so unkind

KEY = "arn:aws:kms:us-east-1:123456789012:key/1234"
DISK = {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 20, "Encrypted": True}}


@pytest.fixture(autouse=True)
def kind_again(laptop: Laptop) -> Iterator[None]:
    yield
    laptop.faults.set_conditions(KIND)
    laptop.faults.set_disk_key("alias/aws/ebs", granted=True)


def run(laptop: Laptop, **request: Any) -> str:
    """Launches one instance; returns its id."""
    wanted = {"ImageId": "ami-12345678", "InstanceType": "c5.large", "MinCount": 1, "MaxCount": 1}
    launched = laptop.ec2.run_instances(**(wanted | {"SubnetId": laptop.subnets[0]} | request))
    return str(launched["Instances"][0]["InstanceId"])


def refused(what: Callable[[], object]) -> str:
    with pytest.raises(ClientError) as caught:
        what()
    return str(caught.value.response["Error"]["Code"])


# -- launches -------------------------------------------------------------------------------------


def test_a_launch_that_does_not_fit_its_type_fails_in_the_group_with_ec2s_words(
    laptop: Laptop, name: str
) -> None:
    cards = [
        {"DeviceIndex": 0, "NetworkCardIndex": card, "InterfaceType": "efa"} for card in (0, 1)
    ]
    template = laptop.make_template(name, InstanceType="c5.large", NetworkInterfaces=cards)
    laptop.make_group(name, template, 1)
    failed = until(lambda: laptop.activities(name, "Failed"))
    assert "Network card index 1 does not exist on c5.large" in failed[0]["StatusMessage"]
    assert not laptop.members(name)
    laptop.ec2.delete_launch_template(LaunchTemplateId=template)


def test_an_image_of_another_architecture_and_a_disk_that_is_too_small_are_refused(
    laptop: Laptop,
) -> None:
    images = laptop.ec2.describe_images()["Images"]
    image = next(each for each in images if each["Architecture"] == "x86_64")
    its = {"ImageId": image["ImageId"]}
    assert refused(lambda: run(laptop, **its, InstanceType="c7g.large")) == "InvalidParameterValue"
    small = {"DeviceName": image["RootDeviceName"], "Ebs": {"VolumeSize": 7}}
    assert (
        refused(lambda: run(laptop, **its, BlockDeviceMappings=[small]))
        == "InvalidBlockDeviceMapping"
    )


def test_an_instance_profile_that_is_not_known_yet_is_refused(laptop: Laptop) -> None:
    iam, its = laptop.client("iam"), {"IamInstanceProfile": {"Name": "late"}}
    assert refused(lambda: run(laptop, **its)) == "InvalidParameterValue"
    iam.create_instance_profile(InstanceProfileName="late")
    laptop.faults.set_conditions(Conditions(stale=3600.0))
    assert refused(lambda: run(laptop, **its)) == "InvalidParameterValue"
    laptop.faults.set_conditions(KIND)
    laptop.ec2.terminate_instances(InstanceIds=[run(laptop, **its)])
    iam.delete_instance_profile(InstanceProfileName="late")


def test_an_instance_whose_disk_key_may_not_be_used_ends_at_its_launch(
    laptop: Laptop, name: str
) -> None:
    laptop.faults.set_disk_key(KEY, granted=False)
    assert laptop.ec2.get_ebs_default_kms_key_id()["KmsKeyId"] == KEY
    template = laptop.make_template(name, BlockDeviceMappings=[DISK])
    laptop.make_group(name, template, 1)
    (ended, *_) = until(lambda: laptop.activities(name, "Cancelled"))
    assert "Termination Reason: Client.InternalError" in ended["StatusMessage"]
    laptop.delete_group(name)
    laptop.ec2.delete_launch_template(LaunchTemplateId=template)


def test_what_aws_says_of_control_nodes_that_cannot_start_is_known(
    laptop: Laptop, name: str
) -> None:
    template = laptop.make_template(name, BlockDeviceMappings=[DISK])
    groups = [Names("never-come").control(member) for member in MEMBERS]
    laptop.faults.refuse_launches("PendingVerification", "Your request is being verified.")
    try:
        for group in groups:
            laptop.make_group(group, template, 1)
        found = until(lambda: _all_failed(looked(laptop)))
        assert len(found) == len(MEMBERS)
        assert {each.running for each in found} == {0}
        assert all("Your request is being verified." in each.failure for each in found)
    finally:
        laptop.faults.refuse_launches("", "")
    found = until(lambda: _all_run(looked(laptop)))
    assert len(found) == len(MEMBERS)
    assert not any(each.failure for each in found)
    for group in groups:
        laptop.delete_group(group)
    laptop.ec2.delete_launch_template(LaunchTemplateId=template)


def looked(laptop: Laptop) -> tuple[ControlGroup, ...]:
    with environment(**cloud.environment(laptop.info)):
        return control_boot.look(Aws(laptop.info.region), "never-come")


def _all_failed(found: tuple[ControlGroup, ...]) -> tuple[ControlGroup, ...]:
    return found if all(each.failure for each in found) else ()


def _all_run(found: tuple[ControlGroup, ...]) -> tuple[ControlGroup, ...]:
    return found if all(each.running for each in found) else ()


# -- quotas ---------------------------------------------------------------------------------------


def test_networks_addresses_and_parameters_have_limits(laptop: Laptop) -> None:
    there = len(laptop.ec2.describe_vpcs()["Vpcs"])
    laptop.faults.set_quota("L-F678F1CE", there)
    laptop.faults.set_quota("L-0263D0A3", 0)
    assert refused(lambda: laptop.ec2.create_vpc(CidrBlock="127.7.0.0/16")) == "VpcLimitExceeded"
    assert refused(lambda: laptop.ec2.allocate_address(Domain="vpc")) == "AddressLimitExceeded"
    quotas = laptop.client("service-quotas")
    answer = quotas.get_service_quota(ServiceCode="vpc", QuotaCode="L-F678F1CE")
    assert answer["Quota"]["Value"] == there
    ssm = laptop.client("ssm")

    def put(size: int, **more: str) -> Any:
        return ssm.put_parameter(Name="/long", Value="x" * size, Type="SecureString", **more)

    assert refused(lambda: put(4097)) == "ValidationException"
    put(4097, Tier="Advanced")
    put(4096, Overwrite=True)  # type: ignore[arg-type]
    ssm.delete_parameter(Name="/long")


# -- conditions -----------------------------------------------------------------------------------


def test_answers_may_be_old_and_a_new_instance_unknown(laptop: Laptop) -> None:
    filters = [{"Name": "tag:its", "Values": ["stale"]}]

    def known() -> list[str]:
        found = laptop.ec2.describe_instances(Filters=filters)["Reservations"]
        return [item["InstanceId"] for each in found for item in each["Instances"]]

    laptop.faults.set_conditions(Conditions(stale=3600.0))
    assert known() == []
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "its", "Value": "stale"}]}]
    new = run(laptop, TagSpecifications=tags)
    seen = {tuple(known()) for _ in range(10)}
    assert seen == {()}, "as it was before, within the hour"
    asked = {"InstanceIds": [new]}
    assert refused(lambda: laptop.ec2.describe_instances(**asked)) == "InvalidInstanceID.NotFound"
    laptop.faults.set_conditions(KIND)
    assert known() == [new]
    laptop.ec2.terminate_instances(InstanceIds=[new])


CALLS: dict[str, Callable[[Any], object]] = {
    "autoscaling": lambda client: client.describe_auto_scaling_groups(),
    "cloudformation": lambda client: client.list_stacks(),
    "ec2": lambda client: client.describe_vpcs(),
    "ecr": lambda client: client.describe_repositories(),
    "iam": lambda client: client.list_roles(),
    "logs": lambda client: client.describe_log_groups(),
    "s3": lambda client: client.list_buckets(),
    "service-quotas": lambda client: client.list_services(),
    "sqs": lambda client: client.list_queues(),
    "ssm": lambda client: client.describe_parameters(),
    "sts": lambda client: client.get_caller_identity(),
}


def test_what_aws_does_not_show_yet_is_deleted_all_the_same(laptop: Laptop) -> None:
    """An `up` that fails takes down what it has made a moment ago."""
    its = Names("unseen")
    with environment(**cloud.environment(laptop.info)):
        aws = Aws(laptop.info.region)
        laptop.faults.set_conditions(Conditions(stale=3600.0))
        # Nothing is there, which is what it will be told again.
        worker_groups.delete(aws, its, unseen=True)
        worker_groups.delete_template(aws, its, unseen=True)
        template = laptop.make_template(its.workers)
        laptop.make_group(its.workers, template, 1)
        worker_groups.delete(aws, its, unseen=True)
        worker_groups.delete_template(aws, its, unseen=True)
    laptop.faults.set_conditions(KIND)
    groups = laptop.scaling.describe_auto_scaling_groups()["AutoScalingGroups"]
    left = [group["AutoScalingGroupName"] for group in groups if not group.get("Status")]
    assert its.workers not in left
    shown = laptop.ec2.describe_launch_templates()["LaunchTemplates"]
    assert its.workers not in [each["LaunchTemplateName"] for each in shown]


def test_a_call_that_is_refused_for_their_number_is_known_as_such(laptop: Laptop) -> None:
    """By every service in its own words: all are answers that AWS is busy, and nothing else."""
    at_once, session = Config(retries={"total_max_attempts": 1}), LocalSession(laptop.info)
    region = laptop.info.region
    clients = {name: session.client(name, region_name=region, config=at_once) for name in CALLS}
    laptop.faults.set_conditions(Conditions(throttled=1.0))
    for name, call in CALLS.items():
        with pytest.raises(Busy), calling(f"ask {name}"):
            call(clients[name])
    with pytest.raises(Busy), calling("look for a bucket"):
        clients["s3"].head_bucket(Bucket="b")  # whose answer has no body to tell a code in


def test_a_slow_cloud_takes_its_time_and_ends_all_the_same(
    laptop: Laptop, name: str, template: str
) -> None:
    """Its states are seen one after the other; how long they last is drawn elsewhere."""
    laptop.faults.set_conditions(parse("slow=0.01"))
    laptop.make_group(name, template, 1)
    (member,) = laptop.in_service(name, 1)
    assert laptop.console(member) == ""
    laptop.faults.set_conditions(parse("slow=0.05"))  # its end takes seconds, in which to look
    laptop.faults.kill(member)
    assert laptop.state(member) == "shutting-down"
    laptop.faults.set_conditions(parse("slow=0.01"))
    until(lambda: set(laptop.members(name, "InService")) - {member})
    until(lambda: laptop.state(member) == "terminated")
    laptop.in_service(name, 1)


def test_a_disk_that_detaches_slowly_cannot_be_attached_meanwhile(laptop: Laptop) -> None:
    one, other = run(laptop), run(laptop)
    detached, volume = [attached(laptop, one, f"/dev/sd{letter}") for letter in "fg"]
    its = {"VolumeId": volume, "Device": "/dev/sdg"}
    laptop.faults.set_conditions(parse("slow=1"))  # far longer than the next calls take
    assert laptop.ec2.detach_volume(VolumeId=volume)["State"] == "detaching"
    (held,) = attachments(laptop, volume)
    assert held["State"] == "detaching"
    assert refused(lambda: laptop.ec2.attach_volume(**its, InstanceId=other)) == "VolumeInUse"
    assert refused(lambda: laptop.ec2.detach_volume(VolumeId=volume)) == "IncorrectState"
    laptop.faults.set_conditions(parse("slow=0.02"))
    assert laptop.ec2.detach_volume(VolumeId=detached)["State"] == "detaching"
    until(lambda: not attachments(laptop, detached))
    laptop.ec2.attach_volume(VolumeId=detached, Device="/dev/sdf", InstanceId=other)
    laptop.faults.set_conditions(KIND)
    laptop.ec2.terminate_instances(InstanceIds=[one, other])


def attached(laptop: Laptop, instance: str, device: str) -> str:
    """A new volume."""
    volume = laptop.ec2.create_volume(AvailabilityZone=laptop.info.zones[0], Size=1)["VolumeId"]
    laptop.ec2.attach_volume(VolumeId=volume, InstanceId=instance, Device=device)
    return str(volume)


def attachments(laptop: Laptop, volume: str) -> list[dict[str, Any]]:
    return list(laptop.ec2.describe_volumes(VolumeIds=[volume])["Volumes"][0]["Attachments"])


def test_instances_of_one_pool_have_their_notices_together(
    laptop: Laptop, name: str, template: str
) -> None:
    laptop.make_group(name, template, 3, VPCZoneIdentifier=laptop.subnets[0])
    first, *others = laptop.in_service(name, 3)
    laptop.faults.set_conditions(Conditions(together=1))
    laptop.faults.interrupt(first, 1.0)
    until(lambda: len(set(laptop.members(name, "InService")) - {first, *others}) == 2)
    assert len({first, *others} & set(laptop.members(name, "InService"))) == 1


def test_an_instance_that_ec2_has_taken_waits_at_the_hook_until_it_is_completed(
    laptop: Laptop, name: str, template: str
) -> None:
    laptop.make_group(name, template, 1)
    laptop.drains(name)
    (lost,) = laptop.in_service(name, 1)
    laptop.faults.kill(lost)
    until(lambda: set(laptop.members(name, "InService")) - {lost})
    until(lambda: laptop.state(lost) == "terminated")
    assert laptop.members(name)[lost]["LifecycleState"] == "Terminating:Wait"
    laptop.drained(name, lost)
    assert lost not in laptop.in_service(name, 1)
    laptop.scaling.put_lifecycle_hook(
        AutoScalingGroupName=name,
        LifecycleHookName="drain",
        LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING",
        HeartbeatTimeout=1,
    )
    (lost,) = laptop.in_service(name, 1)
    laptop.faults.kill(lost)
    until(lambda: set(laptop.members(name, "InService")) - {lost})
    until(lambda: lost not in laptop.members(name))
