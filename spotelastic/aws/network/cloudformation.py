"""Creates, changes, describes and deletes CloudFormation stacks, above all that of a cluster.

That one is made from `infra/cluster.yaml`.
"""

import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from spotelastic.aws.base.clients import Aws, Rejected, calling, listed, passing
from spotelastic.aws.base.demands import NO_TAGS, own_of, pairs_of
from spotelastic.aws.base.identity import CLUSTER
from spotelastic.aws.base.infra_files import infra
from spotelastic.aws.base.names import PREFIX
from spotelastic.aws.base.waiting import until
from spotelastic.clock import steady
from spotelastic.errors import EnvironmentFailure, SpotelasticError, UsageError

CREATE_TIMEOUT = 900.0
DELETE_TIMEOUT = 1200.0
LONGEST_BODY = 51_200
"""Bytes of a template that CloudFormation takes in a call. A longer one it reads from a bucket."""
TEMPLATE = "spotelastic:template"
"""Tag of the stack with the hash of its template."""
MAKER = "spotelastic:maker"
"""Tag of the stack with the id of the `up` that made it."""
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
STUCK = "UPDATE_ROLLBACK_FAILED"
WAYS_OUT = {
    "UPDATE_ROLLBACK_COMPLETE": "; the cluster is as it was: fix that, and run `up` again",
    STUCK: (
        "; a change of it failed, and CloudFormation could not take it back: end the cluster with "
        "`spotelastic down`, and run `up` again; checkpoints stay"
    ),
    "CREATE_FAILED": "; fix that, and run `up` again: it deletes what was made",
}
"""What to do about a stack in such a state, after the reason."""
NO_REASON = "CloudFormation gives no reason"
QUEUE_REST = 60.0
"""Seconds after which SQS allows the name of a deleted queue again."""
QUEUE_RESTS = re.compile(r"QueueDeletedRecently|60 seconds after deleting", re.I)
NETWORK_IN_USE = re.compile(r"(vpc|subnet) \S+ has dependencies", re.I)
EXPORT_IN_USE = re.compile(r"cannot delete export|export \S+ cannot be deleted", re.I)
"""Recognizes the refusal to delete a stack because another one imports something of it."""

Say = Callable[[str], None]


def describe(aws: Aws, name: str) -> dict[str, Any] | None:
    """Return the stack as CloudFormation describes it; None if there is none."""
    with passing("ValidationError"), calling(f"describe the stack {name}"):
        found = aws.cloudformation.describe_stacks(StackName=name)["Stacks"]
        stack: dict[str, Any] | None = next(iter(found), None)
        return None if stack is None or stack["StackStatus"] == "DELETE_COMPLETE" else stack
    return None


def of_cluster(aws: Aws, name: str, cluster: str) -> dict[str, Any] | None:
    """Return the stack. Raises `UsageError` if the stack of that name is not the cluster's."""
    found = describe(aws, name)
    if found is not None and tags(found).get(CLUSTER) != cluster:
        raise UsageError(
            f"{cluster}: the stack {name} was not made by spotelastic: "
            "choose another name, or delete it"
        )
    return found


def clusters(aws: Aws) -> tuple[str, ...]:
    """Return the names of the account's and region's clusters that have a stack."""
    with calling("list the clusters"):
        stacks = list(listed(aws.cloudformation, "describe_stacks", "Stacks"))
    return tuple(
        tag["Value"]
        for stack in stacks
        if stack["StackName"].startswith(PREFIX) and stack["StackStatus"] != "DELETE_COMPLETE"
        for tag in stack.get("Tags", ())
        if tag["Key"] == CLUSTER
    )


def ensure(
    aws: Aws,
    name: str,
    wanted: Mapping[str, str],
    say: Say,
    *,
    maker: str,
    store: Callable[[str], str] = lambda body: body,
    own_tags: Mapping[str, str] = NO_TAGS,
    sleep: Callable[[float], None] = time.sleep,
    meanwhile: Callable[[], object] = lambda: None,
    clear: Callable[[], object] = lambda: None,
) -> dict[str, str]:
    """Create the stack or update the existing one, and return its outputs when it is complete.

    `own_tags` are the user's, for all that is in the stack. `store` puts a template that is too
    long for a call into a bucket, and returns its URL.

    A stack whose creation failed or was rolled back is deleted first; `clear` ends what uses it
    before. `meanwhile` is called at each look at a stack that is just being created. Raises
    `EnvironmentFailure` with CloudFormation's reason.
    """
    body = stack_template(own_tags)
    given = body if len(body.encode()) <= LONGEST_BODY else store(body)
    found = settled(aws, name, say)
    if found is not None and found["StackStatus"] in UNUSABLE:
        say(f"stack {name}: deleting the remains of an earlier attempt")
        clear()
        delete(aws, name)
        found = None
    began = steady()
    if found is None:
        its = _tags(wanted, body, maker, own_tags)
        create(aws, name, wanted, given, its)
        if _lacks_a_queue(aws, name, say, meanwhile):
            say(f"stack {name}: its queues' names are not free yet, retrying in {QUEUE_REST:.0f} s")
            clear()
            delete(aws, name)
            sleep(QUEUE_REST)
            create(aws, name, wanted, given, its)
    elif found["StackStatus"] == STUCK:
        raise EnvironmentFailure(f"the stack {name} cannot be changed{WAYS_OUT[STUCK]}")
    elif (
        parameters(found) != dict(wanted)
        or tags(found).get(TEMPLATE) != digest(body)
        or own_of(tags(found)) != dict(own_tags)
    ):
        its = _tags(wanted, body, tags(found).get(MAKER, maker), own_tags)
        update(aws, name, wanted, given, its)
        meanwhile = _nothing
    else:
        return outputs(found)
    found = settled(aws, name, say, meanwhile)
    if found is None or not stands(found):
        way_out = WAYS_OUT.get("" if found is None else found["StackStatus"], "")
        raise EnvironmentFailure(f"the stack {name} failed: {failure(aws, name)}{way_out}")
    say(f"stack {name}: complete after {steady() - began:.0f} s")
    return outputs(found)


def _nothing() -> None: ...


def _lacks_a_queue(aws: Aws, name: str, say: Say, meanwhile: Callable[[], object]) -> bool:
    """Whether a queue could not be created because its name was in use less than a minute ago."""
    found = settled(aws, name, say, meanwhile)
    if found is None or stands(found):
        return False
    return any(QUEUE_RESTS.search(failure) for failure in _failures(aws, name))


def settled(
    aws: Aws, name: str, say: Say, meanwhile: Callable[[], object] = _nothing
) -> dict[str, Any] | None:
    """Return the stack once no operation is in progress; None if there is none.

    `meanwhile` is called at each look before.
    """
    told = ""

    def at_rest() -> tuple[dict[str, Any] | None] | None:
        nonlocal told
        stack = describe(aws, name)
        status = "" if stack is None else stack["StackStatus"]
        if not status.endswith("IN_PROGRESS"):
            return (stack,)
        if status != told:
            say(f"stack {name}: {status.lower().replace('_', ' ')}")
        told = status
        meanwhile()
        return None

    return until(at_rest, f"the stack {name} does not settle", CREATE_TIMEOUT)[0]


def made_so_far(aws: Aws, name: str, parts: Sequence[str]) -> dict[str, str] | None:
    """Return the ids of these parts of a stack that is just being created, None if any is missing.

    CloudFormation makes a part, and then watches for a while that it lasts, up to minutes. It can
    be used as soon as it has an id.
    """
    found: dict[str, str] = {}
    for part in parts:
        answer: dict[str, Any] = {}
        with passing("ValidationError"), calling(f"look at {part} of the stack {name}"):
            answer = aws.cloudformation.describe_stack_resource(
                StackName=name, LogicalResourceId=part
            )["StackResourceDetail"]
        id = answer.get("PhysicalResourceId")
        if not id or answer["ResourceStatus"] not in ("CREATE_IN_PROGRESS", "CREATE_COMPLETE"):
            return None
        found[part] = str(id)
    return found


def create(
    aws: Aws, name: str, wanted: Mapping[str, str], body: str, its_tags: Mapping[str, str]
) -> None:
    """Begin to create a stack from that template, or from the one at that URL."""
    with calling(f"create the stack {name}"):
        aws.cloudformation.create_stack(
            **_asked(name, wanted, body, its_tags),
            OnFailure="DO_NOTHING",  # keeps the failed resources for the error message
        )


def update(
    aws: Aws, name: str, wanted: Mapping[str, str], body: str, its_tags: Mapping[str, str]
) -> None:
    """Begin to change a stack; one that is so already is not an error."""
    try:
        with calling(f"change the stack {name}"):
            aws.cloudformation.update_stack(**_asked(name, wanted, body, its_tags))
    except Rejected as error:
        if "No updates are to be performed" not in str(error):
            raise


def _asked(
    name: str, wanted: Mapping[str, str], body: str, its_tags: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "StackName": name,
        "TemplateURL" if body.startswith("https://") else "TemplateBody": body,
        "Parameters": [{"ParameterKey": k, "ParameterValue": v} for k, v in wanted.items()],
        "Capabilities": ["CAPABILITY_IAM"],
        "Tags": pairs_of(its_tags),
    }


def _tags(
    wanted: Mapping[str, str], body: str, maker: str, own_tags: Mapping[str, str]
) -> dict[str, str]:
    its = {CLUSTER: wanted["Cluster"], TEMPLATE: digest(body), MAKER: maker}
    return {**own_tags, **its}


def digest(body: str) -> str:
    """Return the hash of a template, which is a tag of the stacks that are made from it."""
    return hashlib.sha256(body.encode()).hexdigest()[:32]


def stands(stack: Mapping[str, Any]) -> bool:
    """Whether the stack is complete."""
    return stack["StackStatus"] in ("CREATE_COMPLETE", "UPDATE_COMPLETE")


def parameters(stack: Mapping[str, Any]) -> dict[str, str]:
    """Return the stack's parameters by name."""
    return {item["ParameterKey"]: item["ParameterValue"] for item in stack.get("Parameters", ())}


def tags(stack: Mapping[str, Any]) -> dict[str, str]:
    """Return the stack's tags by key."""
    return {item["Key"]: item["Value"] for item in stack.get("Tags", ())}


def summary(zones: int, conditions: Mapping[str, bool], *, private: bool) -> tuple[str, ...]:
    """Return what the stack of a cluster consists of, for people: "3 SQS::Queue", ...

    `private`: it has a network of its own, in which workers have no public addresses. `conditions`:
    the template's others, by name.
    """
    resources = infra("cluster.yaml").read_text().partition("\nResources:")[2]
    found = re.findall(r"^    Type: AWS::(\S+)\n(?:    Condition: (\w+)$)?", resources, re.M)

    def made(condition: str) -> bool:
        kind, zone = condition.rstrip("BCDEF"), "ABCDEF".find(condition[-1:] or "A")
        return {"": True, **conditions}.get(kind, private and zone < zones)

    kinds = Counter(kind for kind, condition in found if made(condition))
    return tuple(f"{count} {kind}" for kind, count in sorted(kinds.items()))


def outputs(stack: Mapping[str, Any]) -> dict[str, str]:
    """Return the stack's outputs by name."""
    return {item["OutputKey"]: item["OutputValue"] for item in stack.get("Outputs", ())}


def delete(aws: Aws, name: str) -> None:
    """Delete the stack and wait until it is gone. No error if there is none."""
    stack = describe(aws, name)
    if stack is None:
        return
    failed = stack["StackStatus"] == "DELETE_FAILED"
    earlier = _beginning(aws, name) if failed else ""
    begin_deletion(aws, name)

    def gone() -> bool | None:
        left = describe(aws, name)
        if left is not None and left["StackStatus"] == "DELETE_FAILED":
            if failed and _beginning(aws, name) == earlier:
                return None  # CloudFormation still shows how the earlier deletion ended
            raise EnvironmentFailure(f"the stack {name} could not be deleted: {_kept(aws, left)}")
        if left is not None and EXPORT_IN_USE.search(str(left.get("StackStatusReason", ""))):
            raise EnvironmentFailure(f"the stack {name} stays: {left['StackStatusReason']}")
        return True if left is None else None

    until(gone, f"the stack {name} is not deleted", DELETE_TIMEOUT)


def begin_deletion(aws: Aws, name: str, role: str = "") -> None:
    """Start the deletion, with the caller's own permissions or those of `role`."""
    with calling(f"delete the stack {name}"):
        aws.cloudformation.delete_stack(StackName=name, **({"RoleARN": role} if role else {}))


def _newest_operation(aws: Aws, name: str) -> list[dict[str, Any]]:
    """Return the stack's events since it was last created, changed or deleted, newest first."""
    own = name.split("/")[1] if name.startswith("arn:") else name
    events: list[dict[str, Any]] = []
    with calling(f"read the events of the stack {name}"):
        call = "describe_stack_events"
        for event in listed(aws.cloudformation, call, "StackEvents", StackName=name):
            events.append(event)
            if event["LogicalResourceId"] == own and event["ResourceStatus"] in BEGINNINGS:
                break
    return events


def _beginning(aws: Aws, name: str) -> str:
    """Return the id of the event with which the newest operation began."""
    events = _newest_operation(aws, name)
    return str(events[-1].get("EventId", "")) if events else ""


def failure(aws: Aws, name: str) -> str:
    """Return the reason of the first failure of the newest operation on a stack."""
    return next(iter(_failures(aws, name)), NO_REASON)


def _failures(aws: Aws, name: str, status: str = "FAILED") -> list[str]:
    """Return the reasons of such failures, the first one first."""
    return [
        f"{event['LogicalResourceId']}: {reason}"
        for event in reversed(_newest_operation(aws, name))
        if event["ResourceStatus"].endswith(status)
        and (reason := str(event.get("ResourceStatusReason", "")))
        and "cancelled" not in reason
    ]


def _kept(aws: Aws, stack: Mapping[str, Any]) -> str:
    """Return why the stack could not be deleted, and what to do."""
    failures = _failures(aws, stack["StackName"], "DELETE_FAILED") or [NO_REASON]
    in_use = next((failure for failure in failures if NETWORK_IN_USE.search(failure)), "")
    if not in_use:
        return f"{failures[-1]}; run `spotelastic down` again"
    others = ", ".join(_others(aws, tags(stack).get(CLUSTER, "")))
    return (
        f"{in_use}; its network contains something that does not belong to the cluster"
        f"{f' ({others})' if others else ''}: delete that, and run `spotelastic down` again"
    )


def _others(aws: Aws, cluster: str) -> list[str]:
    """Return what others have put into the network that the stack made, if that can be seen."""
    tagged = [{"Name": f"tag:{CLUSTER}", "Values": [cluster]}]
    with suppress(SpotelasticError), calling(f"look into the network of {cluster}"):
        vpcs = [vpc["VpcId"] for vpc in aws.ec2.describe_vpcs(Filters=tagged)["Vpcs"]]
        return inside(aws, vpcs, CLUSTER)
    return []


def inside(aws: Aws, vpcs: Sequence[str], tag: str) -> list[str]:
    """Return the interfaces and security groups in these networks that do not have the tag.

    An endpoint, for example, shows by its network interfaces.
    """
    filters = [{"Name": "vpc-id", "Values": list(vpcs)}]
    with calling(f"look into {', '.join(vpcs)}"):
        interfaces = aws.ec2.describe_network_interfaces(Filters=filters)["NetworkInterfaces"]
        groups = aws.ec2.describe_security_groups(Filters=filters)["SecurityGroups"]
    found = [(i["NetworkInterfaceId"], i.get("Description"), i.get("TagSet")) for i in interfaces]
    found += [(g["GroupId"], g["GroupName"], g.get("Tags")) for g in groups]
    return [
        f"{id} ({what})" if what else id
        for id, what, its in found
        if what != "default" and not any(each["Key"] == tag for each in its or ())
    ]


_MORE = re.compile(r"^( *)# own tags\n", re.M)
"""Where tags end of something that launch templates make, or of a launch template."""
_OF_A_KIND = re.compile(r"^( *)# own tags of (\S+)\n", re.M)
"""Where a kind of resource stands that has no other tags; a list of no tags is refused."""


def stack_template(tags: Mapping[str, str]) -> str:
    """Return the template's text."""
    text = infra("cluster.yaml").read_text()
    lines = [f"- {{Key: {json.dumps(k)}, Value: {json.dumps(v)}}}\n" for k, v in tags.items()]

    def items(indent: str) -> str:
        return "".join(indent + line for line in lines)

    def kind(found: re.Match[str]) -> str:
        indent = found[1]
        if not lines:
            return ""
        return f"{indent}- ResourceType: {found[2]}\n{indent}  Tags:\n{items(indent + '    ')}"

    return _OF_A_KIND.sub(kind, _MORE.sub(lambda found: items(found[1]), text))
