"""The worker groups: their sizes are the controller's, and groups of others stay theirs."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.aws.account import REGION, account
from support.aws.cluster_remains import remains
from support.aws.cluster_requests import request

from spotelastic.aws.base.account import default_bucket
from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.names import Names
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.clusters import teardown
from spotelastic.errors import UsageError
from spotelastic.model.job import Capacity

NAME = "quokka"
ITS = Names(NAME)


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aws]:
    with account(tmp_path_factory.mktemp("account")):
        yield Aws(REGION)


def up(aws: Aws, nodes: int = 3, **changes: Any) -> None:
    clusters.create(request(NAME, nodes, **changes), lambda _: None, aws)


def group(aws: Aws, name: str) -> dict[str, Any]:
    (found,) = aws.autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=[name])[
        "AutoScalingGroups"
    ]
    return dict(found)


def sizes(aws: Aws) -> tuple[int, int]:
    """Desired, of spot and on-demand nodes."""
    spot, on_demand = (group(aws, name) for name in (ITS.workers, ITS.on_demand))
    return spot["DesiredCapacity"], on_demand["DesiredCapacity"]


def set_size(aws: Aws, name: str, size: int) -> None:
    aws.autoscaling.set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=size)


def test_up_again_leaves_the_sizes_of_the_groups_to_the_controller(aws: Aws) -> None:
    up(aws, capacity=Capacity(base=1))
    assert sizes(aws) == (2, 0), "the node of the base is not bought twice"
    set_size(aws, ITS.on_demand, 1)
    set_size(aws, ITS.workers, 1)  # as after launches that failed
    up(aws, capacity=Capacity(base=1))
    assert sizes(aws) == (1, 1)
    set_size(aws, ITS.workers, 2)
    up(aws, nodes=1)
    assert sizes(aws) == (2, 1), "who goes is named: AWS is not left to choose"
    up(aws, nodes=5)
    assert (group(aws, ITS.workers)["MaxSize"], sizes(aws)) == (5, (2, 1))
    what_they_launch_is_protected(aws)
    nobody_but_the_controller_ends_or_replaces_a_node(aws)
    the_bucket_is_protected(aws)
    teardown.delete(NAME, aws=aws)
    assert remains(NAME) == []


def what_they_launch_is_protected(aws: Aws) -> None:
    for name in (ITS.workers, *(f"spotelastic-{NAME}-control-{each}" for each in "abc")):
        (version,) = aws.ec2.describe_launch_template_versions(
            LaunchTemplateName=name, Versions=["$Latest"]
        )["LaunchTemplateVersions"]
        data = version["LaunchTemplateData"]
        assert data["MetadataOptions"]["HttpTokens"] == "required"
        assert data["MetadataOptions"]["HttpPutResponseHopLimit"] == 1
        assert [each["Ebs"]["Encrypted"] for each in data["BlockDeviceMappings"]] == [True]
        (template,) = aws.ec2.describe_launch_templates(LaunchTemplateNames=[name])[
            "LaunchTemplates"
        ]
        tags = {tag["Key"]: tag["Value"] for tag in template["Tags"]}
        assert tags["spotelastic:cluster"] == NAME, "or nobody may delete it"
    policy = group(aws, ITS.workers)["MixedInstancesPolicy"]["InstancesDistribution"]
    assert policy["SpotAllocationStrategy"] == "price-capacity-optimized"


def nobody_but_the_controller_ends_or_replaces_a_node(aws: Aws) -> None:
    for name in (ITS.workers, ITS.on_demand):
        found = group(aws, name)
        assert "AZRebalance" in {process["ProcessName"] for process in found["SuspendedProcesses"]}
        assert found["CapacityRebalance"] is False
        (hook,) = aws.autoscaling.describe_lifecycle_hooks(AutoScalingGroupName=name)[
            "LifecycleHooks"
        ]
        assert hook["LifecycleTransition"] == "autoscaling:EC2_INSTANCE_TERMINATING"
        assert (hook["HeartbeatTimeout"], hook["DefaultResult"]) == (180, "CONTINUE")


def the_bucket_is_protected(aws: Aws) -> None:
    bucket = default_bucket(aws)
    (rule,) = aws.s3.get_bucket_encryption(Bucket=bucket)["ServerSideEncryptionConfiguration"][
        "Rules"
    ]
    assert rule["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"] == "AES256"
    blocked = aws.s3.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"]
    assert set(blocked.values()) == {True}
    (denied,) = json.loads(aws.s3.get_bucket_policy(Bucket=bucket)["Policy"])["Statement"]
    assert (denied["Effect"], denied["Condition"]) == (
        "Deny",
        {"Bool": {"aws:SecureTransport": "false"}},
    )
    (rule,) = aws.s3.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]
    assert rule["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 2}


def test_nothing_is_launched_before_a_price_was_looked_at(aws: Aws) -> None:
    up(aws, capacity=Capacity(max_price=0.5))
    assert sizes(aws) == (0, 0)
    policy = group(aws, ITS.workers)["MixedInstancesPolicy"]["InstancesDistribution"]
    assert policy["SpotMaxPrice"] == "0.500000", "of any type, not of the cheapest alone"
    teardown.delete(NAME, aws=aws)


def test_a_group_of_somebody_else_is_left_alone(aws: Aws) -> None:
    aws.autoscaling.create_launch_configuration(
        LaunchConfigurationName="theirs", ImageId="ami-12345678", InstanceType="t3.small"
    )
    aws.autoscaling.create_auto_scaling_group(
        AutoScalingGroupName=ITS.workers,
        LaunchConfigurationName="theirs",
        MinSize=0,
        MaxSize=1,
        AvailabilityZones=["us-east-1a"],
    )
    with pytest.raises(UsageError, match=f"{ITS.workers} already exists and does not belong"):
        up(aws)
    assert group(aws, ITS.workers)["LaunchConfigurationName"] == "theirs"
    aws.autoscaling.delete_auto_scaling_group(AutoScalingGroupName=ITS.workers, ForceDelete=True)
    assert remains(NAME) == []
