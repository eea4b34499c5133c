"""CloudFormation in the local cloud: what a stack makes, changes and deletes."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.clusters.local_cloud import Laptop

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
                "LifecycleHookSpecificationList": [
                    {
                        "LifecycleHookName": "drain",
                        "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING",
                        "HeartbeatTimeout": 600,
                    }
                ],
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
