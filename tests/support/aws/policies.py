"""Reads what IAM policies permit: those that are shipped or documented, in each form that the
documentation advises, and those of roles whose calls were recorded."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import boto3
from support.aws.account import is_kind
from support.aws.template import ACCOUNT, KEY, REGION
from support.strict import evaluation
from support.strict.authority import Call

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.infra_files import infra
from spotelastic.aws.base.names import Names

GROUP = ":autoScalingGroup:"
"""Part of the ARN of each Auto Scaling group."""
DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "reference/permissions.md"
BOUNDARY = "arn:*:iam::*:policy/spotelastic-boundary"
"""As infra/laptop.json names the boundary that roles are made with."""
PLACES = {
    "ACCOUNT": ACCOUNT,
    "REGION": REGION,
    "MY-BUCKET": "results",
    "MY-DATA": "datasets",
    "MY-KEY": KEY.rpartition("/")[2],
    "MY-TOPIC": "alerts",
}
"""What a reader puts in the place of these words."""
LONGEST = PLACES | {
    "REGION": "ap-southeast-1",
    "MY-BUCKET": "b" * 63,
    "MY-DATA": "d" * 63,
    "MY-KEY": f"mrk-{'0' * 32}",
    "MY-TOPIC": "t" * 256,
}
"""The longest that AWS takes there."""


def shipped() -> evaluation.Policy:
    """Of whoever runs the commands."""
    return dict(json.loads(infra("laptop.json").read_text()))


def bounded_by(arn: str) -> evaluation.Policy:
    """The same with a boundary of the user's own, as docs/how-to/tags-and-boundaries.md says."""
    text = infra("laptop.json").read_text()
    assert text.count(BOUNDARY.rpartition("/")[2]) == 2  # to look at it, and to make roles with it
    return dict(
        json.loads(
            text.replace(
                f'"iam:PermissionsBoundary": "{BOUNDARY}"', f'"iam:PermissionsBoundary": "{arn}"'
            )
        )
    )


def boundary() -> evaluation.Policy:
    """Of all roles, where the account has it."""
    return dict(json.loads(infra("boundary.json").read_text()))


def more_of_boundary(places: Mapping[str, str] = PLACES) -> evaluation.Policy:
    """What a job may use besides, as the documentation adds it to that."""
    more = _blocks(DOCS / "how-to/tags-and-boundaries.md", places)[0]
    return {"Version": "2012-10-17", "Statement": json.loads(more)}


def boundary_with_more(places: Mapping[str, str] = PLACES) -> evaluation.Policy:
    """Both together."""
    its = boundary()
    return {**its, "Statement": [*its["Statement"], *more_of_boundary(places)["Statement"]]}


def documented() -> evaluation.Policy:
    """The list that a reader of the documentation copies."""
    return dict(json.loads(_blocks(PAGE)[0]))


def additions(places: Mapping[str, str] = PLACES) -> evaluation.Policy:
    """What the documentation adds to that where it is needed."""
    return dict(json.loads(_blocks(PAGE, places)[1]))


def watching() -> evaluation.Policy:
    """What it calls enough for the commands that only look."""
    return dict(json.loads(_blocks(PAGE)[2]))


def _blocks(page: Path, places: Mapping[str, str] = PLACES) -> list[str]:
    """The JSON of a page, with a reader's own names."""
    text = page.read_text()
    for word, value in places.items():
        text = text.replace(word, value)
    return [each.partition("```")[0] for each in text.split("```json")[1:]]


def deletion() -> evaluation.Policy:
    """Of the role that CloudFormation deletes a stack with."""
    return dict(json.loads(infra("deletion.json").read_text()))


@dataclass(frozen=True)
class Role:
    """One that the stack of a cluster has made, as it was when it was looked at."""

    name: str
    arn: str
    policies: tuple[evaluation.Policy, ...]


def role_of(aws: Aws, cluster: str, logical: str) -> Role:
    """`logical`: what the template calls it, e.g. "ControlRole"."""
    stack = aws.cloudformation.describe_stack_resource(
        StackName=Names(cluster).stack, LogicalResourceId=logical
    )
    name = str(stack["StackResourceDetail"]["PhysicalResourceId"])
    arn = str(aws.iam.get_role(RoleName=name)["Role"]["Arn"])
    names = aws.iam.list_role_policies(RoleName=name)["PolicyNames"]
    found = [aws.iam.get_role_policy(RoleName=name, PolicyName=each) for each in names]
    return Role(name, arn, tuple(each["PolicyDocument"] for each in found))


def session_of(aws: Aws, role: Role) -> boto3.Session:
    """As an instance that has the role is signed in."""
    keys = aws.sts.assume_role(RoleArn=role.arn, RoleSessionName="i-0123456789")["Credentials"]
    return boto3.Session(
        aws_access_key_id=keys["AccessKeyId"],
        aws_secret_access_key=keys["SecretAccessKey"],
        aws_session_token=keys["SessionToken"],
        region_name=REGION,
    )


def signed_in(aws: Aws, role: Role) -> Aws:
    return Aws(REGION, session=session_of(aws, role))


def keeps_to_its_cluster(
    role: Role, cluster: str, recorded: Iterable[Call], done: set[str]
) -> None:
    """Of the recorded calls those of the role, among them the actions `done`: none was refused,
    and of those about the cluster none would be permitted about another one."""
    calls = [call for call in recorded if call.principal == role.name]
    refused = [call.access for call in calls if not call.permitted and not came_late(call.access)]
    assert not refused, refused
    permitted = {call.access.action for call in calls if call.permitted}
    beyond = [
        call.access
        for call in calls
        if call.permitted and not evaluation.permits([boundary()], call.access)
    ]
    assert not beyond, beyond
    assert not (missing := done - permitted), missing
    for call in calls:
        elsewhere = of_another(call.access, cluster)
        if elsewhere != call.access:
            assert not evaluation.permits(role.policies, elsewhere), elsewhere


def came_late(access: evaluation.AccessRequest) -> bool:
    """Its instance was in no group any more: AWS was ending it on its own, as a test let it do. Or
    the group itself was gone, which an unkind account shows later. There is no group's tag then
    that could permit it, and nothing left to be done."""
    ends = access.action == "autoscaling:TerminateInstanceInAutoScalingGroup"
    arns = [each.arn for each in access.resources]
    if ends and arns == ["*"]:
        return True
    gone = [GROUP in each.arn and not each.tags for each in access.resources]
    return bool(gone) and all(gone) and not is_kind()


def of_another(access: evaluation.AccessRequest, name: str) -> evaluation.AccessRequest:
    """The same call about the same things of a cluster, or a run, with another name."""

    def other(text: str) -> str:
        return text.replace(name, "another")

    resources = tuple(
        evaluation.Resource(
            other(each.arn), {key: other(value) for key, value in each.tags.items()}
        )
        for each in access.resources
    )
    context = {key: other(value) for key, value in access.context.items()}
    return replace(access, resources=resources, context=context)
