"""Each action of each policy, tried on what is no cluster's, and all ways to become administrator.

The policies themselves say which actions there are: one that is added to them is tried as well.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial

import pytest
from support.aws.foreign_things import actions, actions_of, circumstances, kind, operations, things
from support.aws.policies import (
    LONGEST,
    PAGE,
    additions,
    boundary,
    boundary_with_more,
    bounded_by,
    deletion,
    documented,
    more_of_boundary,
    shipped,
    watching,
)
from support.aws.role_calls import calls
from support.aws.stack_calls import accesses
from support.aws.template import CLUSTER, KEY, arn, policies, resources
from support.strict.evaluation import AccessRequest, Policy, Resource, permits

from spotelastic.aws.base.identity import CLUSTER as TAG

ANY_POLICY = "arn:aws:iam::123456789012:policy/" + "x" * 128
LONGEST_BOUNDARY = "arn:aws-us-gov:iam::123456789012:policy/" + "x" * 128
OWN_BOUNDARY = arn("iam", "policy/spotelastic-boundary", region="")
A_ROLE = arn("iam", f"role/spotelastic-{CLUSTER}-ControlRole-1QAZ2WSX", region="")
SERVICES = ("autoscaling", "codebuild", "ecs-tasks", "glue", "lambda", "sagemaker", "ssm", "states")


def moving() -> Policy:
    return dict(resources()["MovingPolicy"]["Properties"]["PolicyDocument"])


POLICIES: dict[str, tuple[Callable[[], list[Policy]], bool]] = {
    "laptop": (lambda: [shipped()], False),
    "watching": (lambda: [watching()], False),
    "boundary": (lambda: [boundary()], False),
    "deletion": (lambda: [deletion()], False),
    "ControlRole": (lambda: [*policies("ControlRole"), moving()], True),
    "WorkerRole": (lambda: policies("WorkerRole"), True),
}
"""With whether another cluster's things are foreign, too."""

LOOKS = (
    *("autoscaling:Describe*", "cloudformation:DescribeStacks", "ec2:Describe*"),
    "ec2:GetEbsDefaultKmsKeyId",
    *("ec2:GetInstanceTypesFromInstanceRequirements", "ec2:GetSpotPlacementScores"),
    "events:ListRules",
    *("ecr:GetAuthorizationToken", "iam:GetRole", "logs:DescribeLogGroups"),
    *("kms:DescribeKey", "kms:GetKeyPolicy", "kms:ListGrants"),
    *("pricing:GetProducts", "servicequotas:GetServiceQuota", "ssm:DescribeParameters"),
)
"""Actions that are permitted on everything: they tell and change nothing, and for most of them AWS
knows no narrower permission."""
OF_THE_CALLER = (
    *("ssm:UpdateInstanceInformation", "ssmmessages:CreateControlChannel"),
    *("ssmmessages:CreateDataChannel", "ssmmessages:OpenControlChannel"),
    "ssmmessages:OpenDataChannel",
)
"""What AWS confines to the instance that calls."""
IMAGES = ("ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer")
"""Images of containers are read wherever they are: a registry of another account decides itself."""
UNFENCED = (*LOOKS, *OF_THE_CALLER, *IMAGES)

MADE = {
    "ec2:AllocateAddress": {"elastic-ip"},
    "ec2:CreateInternetGateway": {"internet-gateway"},
    "ec2:CreateLaunchTemplate": {"launch-template"},
    "ec2:CreateNatGateway": {"natgateway"},
    "ec2:CreateNetworkInterface": {"network-interface"},
    "ec2:CreatePlacementGroup": {"placement-group"},
    "ec2:CreateRouteTable": {"route-table"},
    "ec2:CreateSecurityGroup": {"security-group"},
    "ec2:CreateSubnet": {"subnet"},
    "ec2:CreateVolume": {"volume"},
    "ec2:CreateVpc": {"vpc"},
    "ec2:CreateVpcEndpoint": {"vpc-endpoint"},
    "ec2:RunInstances": {"instance", "network-interface", "volume"},
}
"""What does not exist yet when the call is judged, and so is nobody's."""
REFERRED = {
    "ec2:CreateNetworkInterface": {"security-group", "subnet"},
    "ec2:CreateSecurityGroup": {"vpc"},
    "ec2:RunInstances": {"capacity-reservation", "image", "security-group", "subnet"},
}
"""What the call refers to, and leaves as it is: networks of `--vpc` have no tag of ours."""
JUDGED = {
    "ec2:AllocateAddress": {"ipv4pool-ec2"},
    "ec2:CreateNatGateway": {"elastic-ip", "subnet"},
    "ec2:CreateRouteTable": {"vpc"},
    "ec2:CreateSubnet": {"ipam-pool", "vpc"},
    "ec2:CreateVolume": {"snapshot"},
    "ec2:CreateVpc": {"ipam-pool", "ipv6pool-ec2"},
    "ec2:CreateVpcEndpoint": {"route-table", "security-group", "subnet", "vpc"},
    "ec2:RunInstances": {
        *("key-pair", "launch-template", "placement-group", "snapshot"),
    },
}
"""What else AWS judges the call by, if it is named. Other kinds it never asks about."""


def named(patterns: Iterable[str], action: str) -> bool:
    return any(fnmatchcase(action, each) for each in patterns)


def reached(given: list[Policy], *, another: bool) -> dict[str, set[str]]:
    """What is permitted of what is foreign, and is not merely told: kinds by the action."""
    found: dict[str, set[str]] = {}
    for action in actions(given):
        if named(UNFENCED, action):
            continue
        its = [policy_of(action, each) for each in given]
        asked = MADE.get(action, set()) | REFERRED.get(action, set()) | JUDGED.get(action, set())
        for thing in things(action, another=another):
            if action in MADE and kind(thing) not in asked:
                continue
            for context in circumstances(action):
                if permits(its, AccessRequest(action, (thing,), context)):
                    found.setdefault(action, set()).add(kind(thing))
    return found


def policy_of(action: str, policy: Policy) -> Policy:
    """The statements that name the action, which saves the time to look at the others each time."""
    these = [each for each in policy["Statement"] if named(actions_of(each), action)]
    return {**policy, "Statement": these}


@pytest.mark.parametrize("name", POLICIES)
def test_what_is_foreign_is_not_changed_tagged_ended_or_opened(name: str) -> None:
    policies_of_it, another = POLICIES[name]
    found = reached(policies_of_it(), another=another)
    makers = set(MADE) if name == "laptop" else {"ec2:CreateVolume"} & set(found)
    assert found == {each: MADE[each] | REFERRED.get(each, set()) for each in makers}


def test_what_is_permitted_on_everything_is_in_use_and_only_tells() -> None:
    used = actions([policy for given, _ in POLICIES.values() for policy in given()])
    for pattern in UNFENCED:
        assert any(named([pattern], each) for each in used), pattern
    for pattern in LOOKS:
        assert pattern.partition(":")[2].startswith(("Describe", "Get", "List")), pattern


def test_the_additions_reach_what_they_name_and_what_the_page_says() -> None:
    """Of the Fault Injection Service they reach all templates; nothing else that is foreign."""
    found = reached([additions()], another=False)
    assert {action.partition(":")[0] for action in found} == {"fis"}
    assert "may start and delete any experiment template" in " ".join(PAGE.read_text().split())
    assert not reached([more_of_boundary()], another=False)


def test_tags_are_set_on_what_is_made_just_then_and_on_what_has_one() -> None:
    for policy in (shipped(), boundary()):
        for thing in things("ec2:CreateTags", another=False):
            for context in circumstances("ec2:CreateTags"):
                assert not permits([policy], AccessRequest("ec2:CreateTags", (thing,), context))
    for action, kinds in MADE.items():
        context = {"ec2:CreateAction": action.partition(":")[2]}
        new = tuple(Resource(arn("ec2", f"{each}/*")) for each in kinds)
        assert permits([shipped()], AccessRequest("ec2:CreateTags", new, context)), action
    its = (Resource(arn("ec2", "subnet/subnet-1"), {TAG: CLUSTER}),)
    assert permits([shipped()], AccessRequest("ec2:CreateTags", its))


def test_a_call_that_names_a_thing_of_ones_own_and_a_foreign_one_is_refused() -> None:
    own, foreign = {TAG: CLUSTER}, {"team": "orders"}
    for action, *kinds in (
        ("ec2:AssociateRouteTable", "route-table", "subnet"),
        ("ec2:AttachInternetGateway", "internet-gateway", "vpc"),
        ("ec2:CreateVpcEndpoint", "vpc", "route-table"),
        ("ec2:DetachVolume", "volume", "instance"),
    ):
        for at in range(2):
            both = [Resource(arn("ec2", f"{each}/{each}-1"), own) for each in kinds]
            assert permits([shipped()], AccessRequest(action, tuple(both))), action
            both[at] = Resource(both[at].arn, foreign)
            assert not permits([shipped()], AccessRequest(action, tuple(both))), action


def test_sessions_are_with_nodes_alone_by_the_two_documents() -> None:
    node = Resource(arn("ec2", "instance/i-1"), {TAG: CLUSTER})
    for name, may in (
        ("AWS-StartPortForwardingSession", True),
        ("SSM-SessionManagerRunShell", True),
        ("AWS-RunShellScript", False),
        ("Own", False),
    ):
        document = Resource(arn("ssm", f"document/{name}"))
        assert permits([shipped()], AccessRequest("ssm:StartSession", (node, document))) is may
    assert not permits([shipped()], AccessRequest("ssm:SendCommand", (node,)))


# -- administrators ------------------------------------------------------------------------------

HARMLESS = (
    *("iam:Get*", "iam:List*", "iam:*InstanceProfile", "iam:TagRole", "iam:UntagRole"),
    *("iam:DeleteRole", "iam:DeleteRolePolicy", "iam:DetachRolePolicy"),
    "iam:SimulatePrincipalPolicy",
)
"""What takes rights, or says who has them. A role comes into a profile by iam:PassRole alone."""
BOUNDED = {"iam:CreateRole", "iam:PutRolePermissionsBoundary", "iam:PutRolePolicy"}
"""What gives rights, and so is permitted with the boundary alone."""
OF_IAM = [
    arn("iam", rest, region="")
    for rest in (
        *("role/orders", "user/orders", "group/orders", "policy/orders"),
        *("policy/spotelastic-boundary", "policy/spotelastic", "policy/spotelastic-x"),
        *("instance-profile/spotelastic-x", "user/spotelastic-x", "group/spotelastic-x"),
        *("role/spotelastic-x", "role/spotelastic-cloudformation-us-east-1"),
    )
]


def rights(policy: Policy, bound: str) -> set[str]:
    """Actions of IAM that are permitted on anything of it that has, or gets, this boundary."""
    context = {"iam:PermissionsBoundary": bound} if bound else {}
    found = set()
    for action in (f"iam:{each}" for each in operations("iam")):
        for one in (*OF_IAM, A_ROLE, "*"):
            if permits([policy], AccessRequest(action, (Resource(one),), context)):
                found.add(action)
    return {each for each in found if not named(HARMLESS, each)}


@pytest.mark.parametrize("bound", ["", ANY_POLICY, "arn:aws:iam::aws:policy/AdministratorAccess"])
def test_no_right_is_given_without_the_boundary(bound: str) -> None:
    for policy in (shipped(), boundary(), boundary_with_more(), deletion(), additions()):
        assert rights(policy, bound) == set()


def test_with_the_boundary_roles_are_made_and_by_a_role_none_is() -> None:
    assert rights(shipped(), OWN_BOUNDARY) == BOUNDED
    assert rights(bounded_by(ANY_POLICY), ANY_POLICY) == BOUNDED
    assert rights(bounded_by(ANY_POLICY), OWN_BOUNDARY) == set()
    for policy in (boundary_with_more(), deletion(), additions()):
        assert rights(policy, OWN_BOUNDARY) == set()


def test_roles_are_passed_to_the_services_that_are_meant_and_foreign_ones_to_none() -> None:
    def may(policy: Policy, role: str, service: str) -> bool:
        context = {"iam:PassedToService": service} if service else {}
        return permits([policy], AccessRequest("iam:PassRole", (Resource(role),), context))

    meant = [f"{each}.amazonaws.com" for each in ("cloudformation", "ec2", "fis")]
    meant.append("ec2.amazonaws.com.cn")
    others = ["", *(f"{each}.amazonaws.com" for each in SERVICES)]
    foreign = [arn("iam", f"role/{each}", region="") for each in ("admin", "my-spotelastic-x")]
    for service in (*meant, *others):
        assert may(shipped(), A_ROLE, service) is (service in meant), service
        assert not may(boundary(), A_ROLE, service), service
        for role in foreign:
            assert not may(shipped(), role, service) and not may(boundary(), role, service)
    for policy in (shipped(), boundary_with_more()):
        assume = AccessRequest("sts:AssumeRole", (Resource(foreign[0]),))
        assert not permits([policy], assume)


# -- what is needed ------------------------------------------------------------------------------


def test_the_boundary_permits_all_that_the_roles_of_a_cluster_are_for() -> None:
    its = [boundary_with_more()]
    for role in ("ControlRole", "WorkerRole"):
        for access in calls(role):
            given = replace(access, resources=tuple(map(known_key, access.resources)))
            assert permits(its, given), access
            if not access.action.startswith("kms:"):
                assert permits([boundary()], access), access
    for access in accesses("delete"):
        assert permits([boundary()], access), access
    interrupts = (Resource(arn("ec2", "instance/i-1"), {TAG: CLUSTER}),)
    assert permits([boundary()], AccessRequest("ec2:SendSpotInstanceInterruptions", interrupts))


def known_key(resource: Resource) -> Resource:
    return Resource(KEY) if ":kms:" in resource.arn else resource


def test_clusters_in_a_network_that_is_given_need_no_tag_on_it() -> None:
    def ec2(each: str, tags: dict[str, str]) -> Resource:
        return Resource(arn("ec2", f"{each}/{each}-1"), tags)

    own, given = {TAG: CLUSTER}, {"team": "network"}
    for action, these in (
        ("ec2:CreateSecurityGroup", (ec2("security-group", {}), ec2("vpc", given))),
        (
            "ec2:CreateNetworkInterface",
            (ec2("network-interface", {}), ec2("subnet", given), ec2("security-group", own)),
        ),
        ("ec2:RunInstances", (ec2("instance", {}), ec2("subnet", given), ec2("image", {}))),
    ):
        assert permits([shipped()], AccessRequest(action, these)), action


def test_what_is_added_permits_what_it_is_for() -> None:
    region = {"kms:ViaService": "ec2.us-east-1.amazonaws.com"}
    for action, thing in (
        ("s3:PutObject", "arn:aws:s3:::results/x/checkpoints/1"),
        ("s3:ListBucket", "arn:aws:s3:::results"),
        ("kms:GenerateDataKeyWithoutPlaintext", KEY),
        ("kms:CreateGrant", KEY),
        ("sns:Publish", arn("sns", "alerts")),
    ):
        access = AccessRequest(action, (Resource(thing),), region)
        assert permits([additions()], access), action
        assert permits([boundary_with_more()], access), action
        assert not permits([shipped()], access) and not permits([boundary()], access), action


# -- lengths -------------------------------------------------------------------------------------

MANAGED, INLINE = 6144, 10_240
"""AWS's limits for a policy that is attached, and for those inside a role or a permission set."""
FORMS: dict[str, Callable[[], Policy]] = {
    "laptop": shipped,
    "laptop, another boundary": partial(bounded_by, LONGEST_BOUNDARY),
    "additions": partial(additions, LONGEST),
    "watching": watching,
    "boundary": boundary,
    "boundary with more": partial(boundary_with_more, LONGEST),
    "deletion": deletion,
}


def length(*given: Policy) -> int:
    """As IAM counts: all characters but white space, of which our policies have none in a text."""
    return sum(len(json.dumps(each, separators=(",", ":"))) for each in given)


@pytest.mark.parametrize("form", FORMS)
def test_each_form_that_is_advised_fits_into_one_policy(form: str) -> None:
    assert length(FORMS[form]()) <= MANAGED


def test_what_is_inline_fits_too() -> None:
    assert length(bounded_by(LONGEST_BOUNDARY), additions(LONGEST)) <= INLINE
    assert length(*policies("ControlRole"), moving()) <= INLINE
    assert length(*policies("WorkerRole")) <= INLINE


def test_the_page_shows_the_policy_that_is_shipped() -> None:
    assert documented() == shipped()
