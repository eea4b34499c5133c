"""Decides which local AWS calls a role or user may make, and records them for tests.

A call with a role's credentials is judged by the role's policies, as on AWS, and one with an IAM
user's keys by that user's. The account's administrator may do everything, and any other key
nothing. Tests ask what each role has used, and what it was denied.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

from support.strict import evaluation
from support.strict.evaluation import AccessRequest, Policy, Resource

from spotelastic.local.cloud import ADMINISTRATOR

_MADE = {
    "ec2:CreateInternetGateway": ("internet-gateway",),
    "ec2:CreateLaunchTemplate": ("launch-template",),
    "ec2:CreateSecurityGroup": ("security-group",),
    "ec2:CreateVolume": ("volume",),
    "ec2:CreateVpc": ("vpc",),
    "ec2:RunInstances": ("instance", "network-interface", "volume"),
}
"""What calls create that has no name yet."""
_READ_BY_NAME = frozenset({"ec2:GetConsoleOutput"})
"""EC2's read calls that are permitted per resource."""
_PREFIXES = {"service-quotas": "servicequotas"}
"""Services whose prefix in policies differs from their API's name."""
OPEN = frozenset({"sts:GetCallerIdentity"})
"""Calls that every caller may make."""
_EC2_KINDS = {
    "eni": "network-interface",
    "i": "instance",
    "igw": "internet-gateway",
    "lt": "launch-template",
    "rtb": "route-table",
    "sg": "security-group",
    "subnet": "subnet",
    "vol": "volume",
    "vpc": "vpc",
}


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller."""

    name: str
    """Name of the role or user; "" for the administrator."""
    policies: tuple[Policy, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a role or user."""

    principal: str
    access: AccessRequest
    permitted: bool


class Authority:
    """Judges calls and records them, denied ones included."""

    def __init__(self) -> None:
        self._calls: dict[tuple[Any, ...], Call] = {}

    @property
    def calls(self) -> tuple[Call, ...]:
        """The distinct calls; different instances count as one."""
        return tuple(self._calls.values())

    def judge(
        self, principal: Principal, accesses: Iterable[AccessRequest]
    ) -> AccessRequest | None:
        """Return the first access that is denied; None if all are permitted."""
        if not principal.name:
            return None
        for access in accesses:
            if access.action in OPEN:
                continue
            permitted = evaluation.permits(principal.policies, access)
            which = tuple(_without_instances(r.arn) for r in access.resources)
            key = (principal.name, access.action, which, permitted)
            self._calls.setdefault(key, Call(principal.name, access, permitted))
            if not permitted:
                return access
        return None


def _without_instances(arn: str) -> str:
    """Shorten an ARN, so that objects of a folder and instances count as one."""
    head, _, last = arn.rpartition("/")
    return head or last


# -- the caller ---------------------------------------------------------------------------------


def principal_of(account: str, key: str) -> Principal:
    """Return the owner of an access key, with all policies that apply."""
    from moto.iam.models import iam_backends
    from moto.sts.models import sts_backends

    backend = iam_backends[account]["aws"]
    session = sts_backends[account]["aws"].get_assumed_role_from_access_key(key)
    if session is not None:
        role = next((each for each in backend.roles.values() if each.arn == session.role_arn), None)
        if role is None:  # the role was deleted, and permits nothing any more
            return Principal(f"{session.role_arn} (deleted)")
        attached = role.managed_policies.values()
        return Principal(role.name, _documents([*role.policies.values(), *_managed(attached)]))
    for user in backend.users.values():
        if any(each.access_key_id == key for each in user.access_keys):
            own = [each["policy_document"] for each in backend_policies(backend, user.name)]
            return Principal(
                user.name, _documents([*own, *_managed(user.managed_policies.values())])
            )
    return Principal("" if key == ADMINISTRATOR else f"{key} (unknown)")


def backend_policies(backend: Any, user: str) -> list[dict[str, Any]]:
    """Return a user's own policies."""
    return [backend.get_user_policy(user, name) for name in backend.list_user_policies(user)]


def _managed(policies: Iterable[Any]) -> list[str]:
    return [policy.default_version.document for policy in policies]


def _documents(texts: Iterable[Any]) -> tuple[Policy, ...]:
    return tuple(json.loads(text) if isinstance(text, str) else text for text in texts)


# -- the call -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AwsRequest:
    """One call, as far as permissions depend on it; `given` are its parameters."""

    service: str
    operation: str
    account: str
    region: str
    given: Mapping[str, Any]

    def arn(self, service: str, rest: str) -> str:
        """Return an ARN in the request's region and account."""
        return f"arn:aws:{service}:{self.region}:{self.account}:{rest}"


def accesses(request: AwsRequest) -> list[AccessRequest]:
    """Return what the call needs permission for: its action on its resources, and roles that it
    passes.
    """
    where = {"aws:RequestedRegion": request.region}
    return [replace(each, context=where | dict(each.context)) for each in _accesses(request)]


def _accesses(request: AwsRequest) -> list[AccessRequest]:
    action = f"{_PREFIXES.get(request.service, request.service)}:{request.operation}"
    reading = request.operation.startswith(("Describe", "List", "Get"))
    reading = reading and action not in _READ_BY_NAME
    name = _RESOURCES.get(request.service)
    whole = reading and request.service in ("ec2", "autoscaling")
    named = name(request) if name is not None and not whole else []
    if action in _MADE:
        return _making(request, action, named)
    service = request.given.get("AWSServiceName")
    circumstances = {"iam:AWSServiceName": service} if service else _boundary(request)
    found = [AccessRequest(action, tuple(named) or (Resource("*"),), circumstances)]
    role = request.given.get("RoleARN")
    if role and request.service == "cloudformation":
        context = {"iam:PassedToService": "cloudformation.amazonaws.com"}
        found.append(AccessRequest("iam:PassRole", (Resource(role),), context))
    return found


def _making(request: AwsRequest, action: str, named: list[Resource]) -> list[AccessRequest]:
    """Return the accesses of a call that creates something near what it names: judged by tags, plus
    the tagging of each kind.
    """

    def new(kind: str) -> Resource:
        return Resource(request.arn("ec2", f"{kind}/*"))

    tags: dict[str, dict[str, str]] = {}
    for each in request.given.get("TagSpecifications", ()):
        of_kind = tags.setdefault(each["ResourceType"], {})
        of_kind |= {f"aws:RequestTag/{tag['Key']}": str(tag["Value"]) for tag in each["Tags"]}
    asked = {key: value for of_kind in tags.values() for key, value in of_kind.items()}
    found = [AccessRequest(action, (*map(new, _MADE[action]), *named), asked)]
    return found + [
        AccessRequest(
            "ec2:CreateTags", (new(kind),), {**of_kind, "ec2:CreateAction": request.operation}
        )
        for kind, of_kind in tags.items()
    ]


def _boundary(request: AwsRequest) -> dict[str, str]:
    """Return the permissions boundary that a call about a role is judged by: the one that it sets,
    or else the role's own.
    """
    if request.service != "iam":
        return {}
    from moto.iam.models import iam_backends

    name = request.given.get("RoleName")
    roles = iam_backends[request.account]["aws"].roles.values()
    arns = [each.permissions_boundary_arn for each in roles if each.name == name]
    arn = request.given.get("PermissionsBoundary") or next(iter(arns), None)
    return {"iam:PermissionsBoundary": arn} if arn else {}


def s3_access(
    action: str, bucket: str, key: str, prefix: str, owner: str, write: Mapping[str, str]
) -> AccessRequest:
    """Return the access of an S3 call.

    `owner` is the bucket's account; "" if there is no bucket. `write` are the condition keys of a
    write.
    """
    action = {"HeadObject": "GetObject", "HeadBucket": "ListBucket"}.get(action, action)
    arn = f"arn:aws:s3:::{bucket}" + (f"/{unquote(key)}" if key else "")
    context = {"s3:ResourceAccount": owner} if owner else {}
    if action == "PutObject":
        context |= write
    if prefix and action in ("ListBucket", "ListBucketVersions"):
        context["s3:prefix"] = prefix
    return AccessRequest(f"s3:{action}", (Resource(arn),), context)


def _ec2(request: AwsRequest) -> list[Resource]:
    from moto.ec2.models import ec2_backends

    backend = ec2_backends[request.account][request.region]
    found = []
    template = str(request.given.get("LaunchTemplateName"))
    named = backend.launch_template_name_to_ids.get(template, "")
    attached = _attached(backend, request.given.get("AttachmentId"))
    given = [*request.given.values(), *attached, named]
    for text in _texts(given):
        kind = _EC2_KINDS.get(text.partition("-")[0])
        if kind is not None and text.count("-") == 1:
            tags = dict(backend.tags.get(text, {}))
            found.append(Resource(request.arn("ec2", f"{kind}/{text}"), tags))
    return found


def _attached(backend: Any, attachment: str | None) -> list[str]:
    """Return the interface and the instance of an attachment, which itself is not a resource."""
    return [
        id
        for interface in backend.enis.values()
        if attachment and interface.attachment_id == attachment
        for id in (interface.id, interface.instance.id)
    ]


def _autoscaling(request: AwsRequest) -> list[Resource]:
    from moto.autoscaling.models import autoscaling_backends

    groups = autoscaling_backends[request.account][request.region].autoscaling_groups
    name, instance = request.given.get("AutoScalingGroupName"), request.given.get("InstanceId")
    chosen = [
        group
        for group in groups.values()
        if group.name == name
        or (instance and instance in [each.instance_id for each in group.instance_states])
    ]
    tags = {group.name: {tag["Key"]: tag["Value"] for tag in group.tags} for group in chosen}
    if name and not tags:
        tags = {name: {}}  # a group that is to be created
    return [
        Resource(request.arn("autoscaling", f"autoScalingGroup:*:autoScalingGroupName/{each}"), has)
        for each, has in tags.items()
    ]


def _cloudformation(request: AwsRequest) -> list[Resource]:
    name = str(request.given.get("StackName") or "")
    if name.startswith("arn:"):
        return [Resource(name)]
    return [Resource(request.arn("cloudformation", f"stack/{name}/id"))] if name else []


def _iam(request: AwsRequest) -> list[Resource]:
    if service := request.given.get("AWSServiceName"):  # AWS chooses the name of its role
        return [Resource(f"arn:aws:iam::{request.account}:role/aws-service-role/{service}/*")]
    kinds = {"RoleName": "role", "InstanceProfileName": "instance-profile", "UserName": "user"}
    named = [
        f"{kind}/{request.given[name]}" for name, kind in kinds.items() if request.given.get(name)
    ]
    if not named and (policy := request.given.get("PolicyArn")):
        return [Resource(policy)]
    there = _role_arns(request.account)
    return [Resource(there.get(each, f"arn:aws:iam::{request.account}:{each}")) for each in named]


def _role_arns(account: str) -> dict[str, str]:
    """Return role ARNs by kind and name.

    They contain the path, which a missing role does not have.
    """
    from moto.iam.models import iam_backends

    roles = list(iam_backends[account]["aws"].roles.values())
    return {f"role/{role.name}": str(role.arn) for role in roles}


def _logs(request: AwsRequest) -> list[Resource]:
    group, stream = request.given.get("logGroupName"), request.given.get("logStreamName", "")
    if not group:
        return []
    return [Resource(request.arn("logs", f"log-group:{group}:log-stream:{stream}"))]


def _sqs(request: AwsRequest) -> list[Resource]:
    name = request.given.get("QueueName") or request.given.get("QueueUrl", "").rpartition("/")[2]
    return [Resource(request.arn("sqs", name))] if name else []


def _ssm(request: AwsRequest) -> list[Resource]:
    keys = ("Name", "Names", "Path")
    names = _texts([request.given[key] for key in keys if request.given.get(key)])
    # Parameters that Amazon publishes belong to no account.
    return [
        Resource(
            f"arn:aws:ssm:{request.region}::parameter{name}"
            if name.startswith("/aws/")
            else request.arn("ssm", f"parameter/{name.lstrip('/')}")
        )
        for name in names
    ]


_RESOURCES = {
    "autoscaling": _autoscaling,
    "cloudformation": _cloudformation,
    "ec2": _ec2,
    "iam": _iam,
    "logs": _logs,
    "sqs": _sqs,
    "ssm": _ssm,
}


def _texts(values: Iterable[Any]) -> list[str]:
    return [
        text
        for value in values
        for text in (_texts(value) if isinstance(value, list | tuple) else [str(value)])
    ]
