"""The longest name of a cluster: AWS takes all that is called after it, and of no longer one."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from support.aws.template import CLUSTER, resources, template

from spotelastic.aws.base.names import LONGEST, MEMBERS, Names
from spotelastic.errors import UsageError

NAMED = {
    "AWS::AutoScaling::AutoScalingGroup": ("AutoScalingGroupName", 255),
    "AWS::EC2::LaunchTemplate": ("LaunchTemplateName", 128),
    "AWS::Events::Rule": ("Name", 64),
    "AWS::SQS::Queue": ("QueueName", 80),
}
"""By kind of resource: the property that is its name, and how long AWS takes that."""
GENERATED = ("RoleName", "InstanceProfileName", "ManagedPolicyName", "GroupName")
"""Names that CloudFormation makes, and shortens, where a template gives none."""


def by_kind(cluster: str) -> Iterator[tuple[str, str]]:
    """All that is called after a cluster, with the kind within which names must differ."""
    its = Names(cluster)
    yield "stack", its.stack
    yield "queue", its.queue
    yield "queue", its.commands
    yield "group", its.workers
    yield "group", its.on_demand
    yield from (("group", its.control(member)) for member in MEMBERS)
    yield "parameter", its.token
    yield "log group", its.log_group
    for each in resources().values():
        if each["Type"] in NAMED:
            yield each["Type"], name_of(each, NAMED[each["Type"]][0]).replace(CLUSTER, cluster)


def derived(cluster: str) -> Iterator[tuple[str, int]]:
    """All that is called after a cluster, and how long that may be."""
    its = Names(cluster)
    yield its.stack, 128
    for queue in (its.queue, its.commands):
        yield queue, 80
    yield its.workers, 128  # the launch template; a group's may be longer
    yield its.on_demand, 255
    for member in MEMBERS:
        yield its.control(member), 128
        yield its.member_certificate(member), 1011
    yield its.log_group, 512
    for parameter in (its.token, its.authority, its.worker_certificate):
        yield parameter, 1011
    for each in resources().values():
        if each["Type"] in NAMED:
            key, limit = NAMED[each["Type"]]
            yield name_of(each, key).replace(CLUSTER, cluster), limit


def name_of(resource: dict[str, Any], key: str) -> str:
    return str(resource["Properties"][key])


def test_all_that_is_called_after_a_cluster_is_short_enough() -> None:
    found = dict(derived("x" * LONGEST))
    assert len(found) > 15
    assert {name: limit for name, limit in found.items() if len(name) > limit} == {}
    assert any(len(name) == limit for name, limit in found.items()), "one more would be too many"


def test_roles_have_names_that_cloudformation_shortens() -> None:
    for each in resources().values():
        assert not set(GENERATED) & set(each.get("Properties", {})), each


def test_the_stack_and_the_command_take_the_same_names() -> None:
    pattern = template()["Parameters"]["Cluster"]["AllowedPattern"]
    for name in ("x" * LONGEST, "x" * (LONGEST + 1), "a-1", "1a", "A", ""):
        fits = re.fullmatch(pattern, name) is not None
        assert fits == accepted(name), name


def accepted(name: str) -> bool:
    try:
        Names(name)
    except UsageError:
        return False
    return True


def test_a_longer_name_is_refused_with_the_limit() -> None:
    with pytest.raises(UsageError, match=f"--name 'x+': .* at most {LONGEST} characters"):
        Names("x" * (LONGEST + 1))


def test_no_two_clusters_share_a_name_of_a_resource() -> None:
    own = set(by_kind("demo"))
    endings = {name.partition("demo")[2].replace("/", "-") for _, name in own} - {""}
    assert len(endings) > 5
    others = [f"demo{ending}" for ending in endings if accepted(f"demo{ending}")]
    assert len(others) > 3
    for other in others:
        assert own & set(by_kind(other)) == set(), other
    with pytest.raises(UsageError, match="queue of a cluster 'demo' has this name"):
        Names("demo-commands")
