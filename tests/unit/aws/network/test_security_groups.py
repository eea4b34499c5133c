"""Who may reach a node: the nodes of its cluster, and nobody else."""

from typing import Any

from support.aws.template import resources

GROUP = "MemberGroup"
EITHER = [["MakesGroup", GROUP, "GivenGroup"]]
"""The cluster's own, or the one that the account gives."""


def of_type(name: str) -> list[dict[str, Any]]:
    return [each["Properties"] for each in resources().values() if each["Type"] == name]


def test_nothing_comes_in_but_from_the_group_itself() -> None:
    (group,) = of_type("AWS::EC2::SecurityGroup")
    assert "SecurityGroupIngress" not in group
    assert resources()[GROUP]["Properties"] is group
    (rule,) = of_type("AWS::EC2::SecurityGroupIngress")
    assert (rule["GroupId"], rule["SourceSecurityGroupId"]) == (GROUP, GROUP)
    assert not {"CidrIp", "CidrIpv6", "SourcePrefixListId"} & rule.keys()


def test_the_group_is_named_in_both_directions_for_all_protocols_as_efa_wants_it() -> None:
    (rule,) = of_type("AWS::EC2::SecurityGroupEgress")
    assert (rule["GroupId"], rule["DestinationSecurityGroupId"]) == (GROUP, GROUP)
    (other,) = of_type("AWS::EC2::SecurityGroupIngress")
    assert rule["IpProtocol"] == other["IpProtocol"] == "-1"
    assert not {"FromPort", "ToPort"} & (rule.keys() | other.keys())


def test_all_nodes_and_interfaces_are_in_that_group_and_in_no_other() -> None:
    launched = [each["LaunchTemplateData"] for each in of_type("AWS::EC2::LaunchTemplate")]
    assert [each["SecurityGroupIds"] for each in launched] == [EITHER] * 3
    interfaces = of_type("AWS::EC2::NetworkInterface")
    assert [each["GroupSet"] for each in interfaces] == [EITHER] * 3
