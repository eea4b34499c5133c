"""What policies permit: those that are handed out, and those of roles whose calls were recorded."""

import json
from dataclasses import replace
from pathlib import Path

from support.template import ACCOUNT, REGION

from spotelastic.aws.clients import Aws
from spotelastic.aws.template import infra
from spotelastic.local import iam
from spotelastic.local.faults import Faults

DOCUMENT = Path(__file__).parents[2] / "docs/aws.md"


def shipped() -> iam.Policy:
    """Of whoever runs the commands."""
    return dict(json.loads(infra("laptop.json").read_text()))


def documented() -> iam.Policy:
    """The short list for the same, which a reader of the documentation copies."""
    text = DOCUMENT.read_text().partition("```json")[2].partition("```")[0]
    return dict(json.loads(text.replace("ACCOUNT", ACCOUNT).replace("REGION", REGION)))


def deletion() -> iam.Policy:
    """Of the role that CloudFormation deletes a stack with."""
    return dict(json.loads(infra("deletion.json").read_text()))


def role_keeps_to_its_cluster(
    faults: Faults, aws: Aws, cluster: str, role: str, done: set[str]
) -> None:
    """The calls of the role, e.g. "ControlRole", among them the actions `done`: none was refused,
    and of those about the cluster none would be permitted about another one."""
    calls = [call for call in faults.calls() if f"{cluster}-{role}" in call.principal]
    assert not (refused := [call.access for call in calls if not call.permitted]), refused
    assert {call.access.action for call in calls} >= done
    (name,) = {call.principal for call in calls}
    policies = _policies(aws, name)
    for call in calls:
        elsewhere = _of_another_cluster(call.access, cluster)
        if elsewhere != call.access:
            assert not iam.permits(policies, elsewhere), elsewhere


def _policies(aws: Aws, role: str) -> list[iam.Policy]:
    names = aws.iam.list_role_policies(RoleName=role)["PolicyNames"]
    found = [aws.iam.get_role_policy(RoleName=role, PolicyName=name) for name in names]
    return [each["PolicyDocument"] for each in found]


def _of_another_cluster(access: iam.Access, cluster: str) -> iam.Access:
    """The same call about the same things of a cluster with another name."""

    def other(text: str) -> str:
        return text.replace(cluster, "another")

    resources = tuple(
        iam.Resource(other(each.arn), {key: other(value) for key, value in each.tags.items()})
        for each in access.resources
    )
    context = {key: other(value) for key, value in access.context.items()}
    return replace(access, resources=resources, context=context)
