"""Adds CloudFormation resources that moto lacks: queue policies, egress rules, placement groups.

moto finds these classes by their base class.
"""

import json
from typing import Any

from moto.core.common_models import CloudFormationModel
from moto.ec2.models import ec2_backends
from moto.sqs.models import sqs_backends


class _Plain:
    """A resource without attributes, identified by its name.

    A separate base beside moto's, because moto looks only for direct subclasses of its own.
    """

    name: str

    @property
    def physical_resource_id(self) -> str:
        return self.name

    @staticmethod
    def cloudformation_name_type() -> str:
        return ""

    @classmethod
    def has_cfn_attr(cls, attr: str) -> bool:
        return False


class QueuePolicyResource(_Plain, CloudFormationModel):
    """An AWS::SQS::QueuePolicy."""

    def __init__(self, name: str, queues: list[Any]) -> None:
        self.name = name
        self.queues = queues

    @staticmethod
    def cloudformation_type() -> str:
        return "AWS::SQS::QueuePolicy"

    @classmethod
    def create_from_cloudformation_json(
        cls,
        resource_name: str,
        cloudformation_json: Any,
        account_id: str,
        region_name: str,
        **_: Any,
    ) -> "QueuePolicyResource":
        properties = cloudformation_json["Properties"]
        backend = sqs_backends[account_id][region_name]
        names = [url.rpartition("/")[2] for url in properties["Queues"]]
        for name in names:
            policy = {"Policy": json.dumps(properties["PolicyDocument"])}
            backend.set_queue_attributes(name, policy)
        return cls(resource_name, names)

    def delete(self, account_id: str, region_name: str) -> None:
        backend = sqs_backends[account_id][region_name]
        for name in self.queues:
            if name in backend.queues:
                backend.set_queue_attributes(name, {"Policy": ""})


class EgressResource(_Plain, CloudFormationModel):
    """An AWS::EC2::SecurityGroupEgress to another group; it is deleted with its own group."""

    def __init__(self, name: str) -> None:
        self.name = name

    @staticmethod
    def cloudformation_type() -> str:
        return "AWS::EC2::SecurityGroupEgress"

    @classmethod
    def create_from_cloudformation_json(
        cls,
        resource_name: str,
        cloudformation_json: Any,
        account_id: str,
        region_name: str,
        **_: Any,
    ) -> "EgressResource":
        properties = cloudformation_json["Properties"]
        ec2_backends[account_id][region_name].authorize_security_group_egress(
            properties["GroupId"],
            properties["IpProtocol"],
            properties.get("FromPort"),
            properties.get("ToPort"),
            [],
            source_groups=[{"GroupId": properties["DestinationSecurityGroupId"]}],
        )
        return cls(resource_name)

    def delete(self, account_id: str, region_name: str) -> None: ...


class PlacementGroup(_Plain, CloudFormationModel):
    """An AWS::EC2::PlacementGroup."""

    def __init__(self, name: str, tags: list[dict[str, str]]) -> None:
        self.name = name
        self.tags = tags

    @staticmethod
    def cloudformation_type() -> str:
        return "AWS::EC2::PlacementGroup"

    @classmethod
    def create_from_cloudformation_json(
        cls,
        resource_name: str,
        cloudformation_json: Any,
        account_id: str,
        region_name: str,
        **_: Any,
    ) -> "PlacementGroup":
        group = cls(resource_name, cloudformation_json["Properties"].get("Tags", []))
        placement_groups(ec2_backends[account_id][region_name])[group.name] = group
        return group

    def delete(self, account_id: str, region_name: str) -> None:
        placement_groups(ec2_backends[account_id][region_name]).pop(self.name, None)


def placement_groups(backend: Any) -> dict[str, PlacementGroup]:
    """Return EC2's placement groups, by name."""
    groups: dict[str, PlacementGroup] = vars(backend).setdefault("placement_groups", {})
    return groups


MODELS = (EgressResource, PlacementGroup, QueuePolicyResource)
