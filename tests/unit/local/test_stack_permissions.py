"""That CloudFormation may do for the stack what it has to, in the name of each who asks it to.

Nothing of the local cloud asks for these permissions: there CloudFormation acts by itself.
"""

from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatch

import pytest
from support.aws.policies import deletion, shipped
from support.aws.stack_calls import NOT_OURS, WHOLE, accesses, declared, network_accesses
from support.aws.template import SERVICE_ROLE, arn, policies
from support.strict.evaluation import AccessRequest, Policy, Resource, permits

from spotelastic.aws.base.names import SHARED_NETWORK


@pytest.mark.parametrize("operation", ["create", "update", "delete"])
@pytest.mark.parametrize("policy", [shipped])
def test_whoever_runs_up_and_down_may_have_the_stack_made_changed_and_deleted(
    policy: Callable[[], Policy], operation: str
) -> None:
    assert refused(policy(), operation) == []


def test_the_service_role_may_delete_every_resource_of_the_stack() -> None:
    assert refused(deletion(), "delete") == []


@pytest.mark.parametrize("operation", ["create", "update", "delete"])
@pytest.mark.parametrize("policy", [shipped])
def test_whoever_runs_up_and_down_may_have_the_shared_network_made_changed_and_deleted(
    policy: Callable[[], Policy], operation: str
) -> None:
    wanted = list(network_accesses(operation))
    assert len(wanted) > 10
    assert [each for each in wanted if not permits([policy()], each)] == []


def test_the_end_of_a_cluster_can_never_delete_the_network_that_others_are_in() -> None:
    """Neither by the service role, with which a leader has its stack deleted, nor by its own."""
    wanted = [
        each
        for each in network_accesses("delete")
        if not any(fnmatch(each.action, pattern) for pattern in WHOLE)
    ]
    assert {"ec2:DeleteVpc", "ec2:DeleteSubnet", "ec2:DeleteRoute"} <= {e.action for e in wanted}
    for role in ([deletion()], policies("ControlRole"), policies("WorkerRole")):
        assert [each for each in wanted if permits(role, each)] == []
    stack = Resource(arn("cloudformation", f"stack/{SHARED_NETWORK}/id"))
    for role in (policies("ControlRole"), policies("WorkerRole")):
        assert not permits(role, AccessRequest("cloudformation:DeleteStack", (stack,)))


def refused(policy: Policy, operation: str) -> list[str]:
    wanted = list(accesses(operation))
    assert len(wanted) > 50
    return [
        f"{each.action} on {each.resources[0].arn}"
        for each in wanted
        if not permits([policy], each)
    ]


def test_the_service_role_may_do_nothing_else() -> None:
    """And so it passes no role, makes nothing, and reads neither objects nor secrets."""
    needed = {each.action for each in accesses("delete")}
    given = [action for each in deletion()["Statement"] for action in actions(each)]
    assert [each for each in given if not any(fnmatch(a, each) for a in needed)] == []
    wide = {action for action in given if "*" in action}
    assert wide == {"autoscaling:Describe*", "ec2:Describe*"}


def test_the_service_role_touches_nothing_that_is_not_a_clusters() -> None:
    for access in accesses("delete"):
        if not any(fnmatch(access.action, pattern) for pattern in WHOLE):
            for foreign in ("orders", "spotless", "my-spotelastic"):
                assert not permits([deletion()], of_somebody_else(access, foreign)), access
    itself = AccessRequest("iam:DeleteRole", (Resource(SERVICE_ROLE),))
    assert not permits([deletion()], itself)


def of_somebody_else(access: AccessRequest, name: str) -> AccessRequest:
    """The same on things of the account that are called so, and have tags of their own."""
    resources = (
        Resource(each.arn.replace("spotelastic", name), {"team": name}) for each in access.resources
    )
    return replace(access, resources=tuple(resources))


def actions(statement: Policy) -> list[str]:
    found = statement["Action"]
    return [found] if isinstance(found, str) else list(found)


def test_nothing_is_left_out_that_no_handler_asks_for() -> None:
    """What is told to be not ours is what AWS names: else it would hide a need by a slip."""
    asked = declared()
    assert [p for p in NOT_OURS if not any(fnmatch(action, p) for action in asked)] == []
