"""The CloudFormation stack of a cluster: its fixed part, from `infra/cluster.yaml`."""

from collections.abc import Callable, Mapping
from typing import Any

from spotelastic.aws.clients import Aws, Rejected, calling
from spotelastic.aws.identity import CLUSTER
from spotelastic.aws.names import PREFIX
from spotelastic.aws.template import infra
from spotelastic.aws.waiting import until
from spotelastic.errors import EnvironmentFailure

CREATE_TIMEOUT = 900.0
DELETE_TIMEOUT = 1200.0

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


def clusters(aws: Aws) -> tuple[str, ...]:
    """Names of all clusters of the account and region."""
    with calling("list the clusters"):
        pages = aws.cloudformation.get_paginator("describe_stacks").paginate()
        stacks = [stack for page in pages for stack in page["Stacks"]]
    return tuple(
        sorted(
            tag["Value"]
            for stack in stacks
            if stack["StackName"].startswith(PREFIX) and stack["StackStatus"] != "DELETE_COMPLETE"
            for tag in stack.get("Tags", ())
            if tag["Key"] == CLUSTER
        )
    )


def create(aws: Aws, name: str, parameters: Mapping[str, str], say: Say) -> dict[str, str]:
    """Creates the stack, waits until it stands, and returns its outputs."""
    with calling(f"create the stack {name}"):
        aws.cloudformation.create_stack(
            StackName=name,
            TemplateBody=infra("cluster.yaml").read_text(),
            Parameters=[
                {"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()
            ],
            Capabilities=["CAPABILITY_IAM"],
            Tags=[{"Key": CLUSTER, "Value": parameters["Cluster"]}],
            OnFailure="DO_NOTHING",  # what failed stays readable until it is deleted
        )
    told = ""

    def settled() -> dict[str, Any] | None:
        nonlocal told
        stack = describe(aws, name)
        status = "" if stack is None else stack["StackStatus"]
        if status != told and status.endswith("IN_PROGRESS"):
            say(f"stack {name}: {status.lower().replace('_', ' ')}")
        told = status
        return None if status.endswith("IN_PROGRESS") else stack

    stack = until(settled, f"the stack {name} is not complete", CREATE_TIMEOUT)
    if stack["StackStatus"] != "CREATE_COMPLETE":
        raise EnvironmentFailure(f"the stack {name} failed: {_first_failure(aws, name)}")
    return outputs(stack)


def outputs(stack: Mapping[str, Any]) -> dict[str, str]:
    return {item["OutputKey"]: item["OutputValue"] for item in stack.get("Outputs", ())}


def delete(aws: Aws, name: str) -> None:
    """Deletes the stack and waits until it is gone; no error where there is none."""
    stack = describe(aws, name)
    if stack is None:
        return
    with calling(f"delete the stack {name}"):
        aws.cloudformation.delete_stack(StackName=name)

    def gone() -> bool | None:
        left = describe(aws, name)
        if left is not None and left["StackStatus"] == "DELETE_FAILED":
            raise EnvironmentFailure(
                f"the stack {name} could not be deleted: {left.get('StackStatusReason', '')}; "
                "run `spotelastic down` again"
            )
        return True if left is None else None

    until(gone, f"the stack {name} is not deleted", DELETE_TIMEOUT)


def resource(aws: Aws, name: str, logical: str) -> str:
    """The physical id of one of the stack's resources."""
    with calling(f"look up {logical} of the stack {name}"):
        answer = aws.cloudformation.describe_stack_resource(
            StackName=name, LogicalResourceId=logical
        )
    return str(answer["StackResourceDetail"]["PhysicalResourceId"])


def _first_failure(aws: Aws, name: str) -> str:
    with calling(f"read the events of the stack {name}"):
        events = aws.cloudformation.describe_stack_events(StackName=name)["StackEvents"]
    for event in reversed(events):
        reason = str(event.get("ResourceStatusReason", ""))
        if event["ResourceStatus"].endswith("FAILED") and "cancelled" not in reason:
            return f"{event['LogicalResourceId']}: {reason}"
    return "CloudFormation gives no reason"
