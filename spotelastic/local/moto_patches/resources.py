"""Adds CloudFormation resources that moto lacks: queue policies, egress rules, placement groups.

moto finds these classes by their base class.
"""

from typing import Any

from moto.core.common_models import CloudFormationModel
from moto.ec2.models import ec2_backends


class _Plain:
    """A resource without attributes, identified by its name, that does nothing.

    A separate base beside moto's, because moto looks only for direct subclasses of its own.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def physical_resource_id(self) -> str:
        return self.name

    @staticmethod
    def cloudformation_name_type() -> str:
        return ""

    @classmethod
    def has_cfn_attr(cls, attr: str) -> bool:
        return False

    @classmethod
    def create_from_cloudformation_json(cls, resource_name: str, *_: Any, **__: Any) -> Any:
        return cls(resource_name)

    def delete(self, account_id: str, region_name: str) -> None: ...


class QueuePolicyResource(_Plain, CloudFormationModel):
    """An AWS::SQS::QueuePolicy: nobody is asked for rights."""

    @staticmethod
    def cloudformation_type() -> str:
        return "AWS::SQS::QueuePolicy"


class EgressResource(_Plain, CloudFormationModel):
    """An AWS::EC2::SecurityGroupEgress: there is no firewall."""

    @staticmethod
    def cloudformation_type() -> str:
        return "AWS::EC2::SecurityGroupEgress"


class PlacementGroup(_Plain, CloudFormationModel):
    """An AWS::EC2::PlacementGroup."""

    def __init__(self, name: str, tags: list[dict[str, str]]) -> None:
        super().__init__(name)
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
