"""The CloudFormation stack of a cluster: its fixed part, from `infra/cluster.yaml`."""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from spotelastic.aws.clients import Aws, Rejected, calling
from spotelastic.aws.identity import CLUSTER
from spotelastic.aws.names import PREFIX
from spotelastic.aws.template import infra
from spotelastic.aws.waiting import until
from spotelastic.errors import EnvironmentFailure, UsageError

CREATE_TIMEOUT = 900.0
DELETE_TIMEOUT = 1200.0
TEMPLATE = "spotelastic:template"
"""The stack's tag with the hash of the template that it was made from."""
MAKER = "spotelastic:maker"
"""And with the `up` that made it."""
UNUSABLE = frozenset(
    {
        "CREATE_FAILED",
        "DELETE_FAILED",
        "REVIEW_IN_PROGRESS",
        "ROLLBACK_COMPLETE",
        "ROLLBACK_FAILED",
    }
)
BEGINNINGS = frozenset({"CREATE_IN_PROGRESS", "DELETE_IN_PROGRESS", "UPDATE_IN_PROGRESS"})

Say = Callable[[str], None]


def describe(aws: Aws, name: str) -> dict[str, Any] | None:
    """The stack as CloudFormation describes it; None where there is none (any more)."""
    try:
        with calling(f"describe the stack {name}"):
            found = aws.cloudformation.describe_stacks(StackName=name)["Stacks"]
    except Rejected as error:
        if error.code == "ValidationError":
            return None
        raise
    stack: dict[str, Any] | None = next(iter(found), None)
    return None if stack is None or stack["StackStatus"] == "DELETE_COMPLETE" else stack


def of_cluster(aws: Aws, name: str, cluster: str) -> dict[str, Any] | None:
    """As `describe`; raises `UsageError` for a stack of that name that is not the cluster's."""
    found = describe(aws, name)
    if found is not None and tags(found).get(CLUSTER) != cluster:
        raise UsageError(
            f"{cluster}: there is a stack {name} that spotelastic has not made: "
            "choose another name, or delete it"
        )
    return found


def clusters(aws: Aws) -> tuple[str, ...]:
    """Names of the clusters of the account and region that have a stack."""
    with calling("list the clusters"):
        pages = aws.cloudformation.get_paginator("describe_stacks").paginate()
        stacks = [stack for page in pages for stack in page["Stacks"]]
    return tuple(
        tag["Value"]
        for stack in stacks
        if stack["StackName"].startswith(PREFIX) and stack["StackStatus"] != "DELETE_COMPLETE"
        for tag in stack.get("Tags", ())
        if tag["Key"] == CLUSTER
    )


def ensure(
    aws: Aws, name: str, wanted: Mapping[str, str], say: Say, *, maker: str
) -> dict[str, str]:
    """Makes the stack, or changes the one there is, and returns its outputs when it stands.

    One whose creation failed or was undone is deleted first. Raises `EnvironmentFailure` with
    CloudFormation's reason.
    """
    body = infra("cluster.yaml").read_text()
    found = _settled(aws, name, say)
    if found is not None and found["StackStatus"] in UNUSABLE:
        say(f"stack {name}: deleting what an earlier attempt has left")
        delete(aws, name)
        found = None
    if found is None:
        _create(aws, name, wanted, body, maker)
    elif parameters(found) != dict(wanted) or tags(found).get(TEMPLATE) != _digest(body):
        _update(aws, name, wanted, body, tags(found).get(MAKER, maker))
    else:
        return outputs(found)
    found = _settled(aws, name, say)
    if found is None or not stands(found):
        raise EnvironmentFailure(f"the stack {name} failed: {_failure(aws, name)}")
    return outputs(found)


def _settled(aws: Aws, name: str, say: Say) -> dict[str, Any] | None:
    """The stack once nothing is under way; None where there is none."""
    told = ""

    def settled() -> tuple[dict[str, Any] | None] | None:
        nonlocal told
        stack = describe(aws, name)
        status = "" if stack is None else stack["StackStatus"]
        if not status.endswith("IN_PROGRESS"):
            return (stack,)
        if status != told:
            say(f"stack {name}: {status.lower().replace('_', ' ')}")
        told = status
        return None

    return until(settled, f"the stack {name} does not settle", CREATE_TIMEOUT)[0]


def _create(aws: Aws, name: str, wanted: Mapping[str, str], body: str, maker: str) -> None:
    with calling(f"create the stack {name}"):
        aws.cloudformation.create_stack(
            StackName=name,
            TemplateBody=body,
            Parameters=_pairs(wanted),
            Capabilities=["CAPABILITY_IAM"],
            Tags=_tags(wanted, body, maker),
            OnFailure="DO_NOTHING",  # what failed stays readable until it is deleted
        )


def _update(aws: Aws, name: str, wanted: Mapping[str, str], body: str, maker: str) -> None:
    try:
        with calling(f"change the stack {name}"):
            aws.cloudformation.update_stack(
                StackName=name,
                TemplateBody=body,
                Parameters=_pairs(wanted),
                Capabilities=["CAPABILITY_IAM"],
                Tags=_tags(wanted, body, maker),
            )
    except Rejected as error:
        if "No updates are to be performed" not in str(error):
            raise


def _pairs(wanted: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"ParameterKey": key, "ParameterValue": value} for key, value in wanted.items()]


def _tags(wanted: Mapping[str, str], body: str, maker: str) -> list[dict[str, str]]:
    return [
        {"Key": CLUSTER, "Value": wanted["Cluster"]},
        {"Key": TEMPLATE, "Value": _digest(body)},
        {"Key": MAKER, "Value": maker},
    ]


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:32]


def stands(stack: Mapping[str, Any]) -> bool:
    """Whether all of it has come about."""
    return stack["StackStatus"] in ("CREATE_COMPLETE", "UPDATE_COMPLETE")


def parameters(stack: Mapping[str, Any]) -> dict[str, str]:
    return {item["ParameterKey"]: item["ParameterValue"] for item in stack.get("Parameters", ())}


def tags(stack: Mapping[str, Any]) -> dict[str, str]:
    return {item["Key"]: item["Value"] for item in stack.get("Tags", ())}


def summary(zones: int, *, private: bool, given: bool, placed: bool) -> tuple[str, ...]:
    """What the stack is made of, for people: "3 EC2::Subnet", ...

    `private`: its workers have no public addresses; `given`: the network is the user's; `placed`:
    workers are in a placement group.
    """
    resources = infra("cluster.yaml").read_text().partition("\nResources:")[2]
    found = re.findall(r"^    Type: AWS::(\S+)\n(?:    Condition: (\w+)$)?", resources, re.M)

    def made(condition: str) -> bool:
        kind, zone = condition.rstrip("DEF"), "ABCDEF".find(condition[-1:] or "A")
        network = not given and zone < zones
        return {"": True, "Placed": placed, "Private": network and private}.get(kind, network)

    kinds = Counter(kind for kind, condition in found if made(condition))
    return tuple(f"{count} {kind}" for kind, count in sorted(kinds.items()))


def outputs(stack: Mapping[str, Any]) -> dict[str, str]:
    return {item["OutputKey"]: item["OutputValue"] for item in stack.get("Outputs", ())}


def delete(aws: Aws, name: str) -> None:
    """Deletes the stack and waits until it is gone; no error where there is none."""
    stack = describe(aws, name)
    if stack is None:
        return
    begin_deletion(aws, name)

    def gone() -> bool | None:
        left = describe(aws, name)
        if left is not None and left["StackStatus"] == "DELETE_FAILED":
            raise EnvironmentFailure(
                f"the stack {name} could not be deleted: {_failure(aws, name, 'DELETE_FAILED')}; "
                "run `spotelastic down` again"
            )
        return True if left is None else None

    until(gone, f"the stack {name} is not deleted", DELETE_TIMEOUT)


def begin_deletion(aws: Aws, name: str, role: str = "") -> None:
    """Asks for the deletion, by the caller's own permissions or by those of `role`."""
    with calling(f"delete the stack {name}"):
        aws.cloudformation.delete_stack(StackName=name, **({"RoleARN": role} if role else {}))


def _newest_operation(aws: Aws, name: str) -> list[dict[str, Any]]:
    """What has happened to the stack since it was last made, changed or deleted, newest first."""
    events: list[dict[str, Any]] = []
    with calling(f"read the events of the stack {name}"):
        pages = aws.cloudformation.get_paginator("describe_stack_events").paginate(StackName=name)
        for event in (event for page in pages for event in page["StackEvents"]):
            events.append(event)
            if event["LogicalResourceId"] == name and event["ResourceStatus"] in BEGINNINGS:
                break
    return events


def _failure(aws: Aws, name: str, status: str = "") -> str:
    """The reason of the first failure; with a status, of the last failure of that kind."""
    events = _newest_operation(aws, name)
    for event in events if status else reversed(events):
        reason = str(event.get("ResourceStatusReason", ""))
        failed = event["ResourceStatus"].endswith(status or "FAILED")
        if failed and reason and "cancelled" not in reason:
            return f"{event['LogicalResourceId']}: {reason}"
    return "CloudFormation gives no reason"
