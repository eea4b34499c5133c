"""Lists the AWS calls that CloudFormation makes on the caller's behalf for the stack's resources.

AWS's registry lists, for each resource type, the permissions that its handlers need; cfn-lint
includes the registry. It covers everything that such a resource could be asked for, hence
`NOT_OURS`.
"""

from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatch
from functools import lru_cache
from typing import Any

from cfnlint.schema import PROVIDER_SCHEMA_MANAGER
from support.aws.template import CLUSTER, REGION, arn, resources
from support.strict.evaluation import AccessRequest, Resource

from spotelastic.aws.base.identity import CLUSTER as TAG
from spotelastic.aws.base.identity import NETWORK

NOT_OURS = {
    "autoscaling:*InstanceRefresh": "control nodes are replaced by nobody's order",
    "autoscaling:*LifecycleHook": "only workers have one, and they are not the stack's",
    "autoscaling:*LoadBalancer*": "there is none",
    "autoscaling:*MetricsCollection": "not asked for",
    "autoscaling:*NotificationConfiguration": "not asked for",
    "autoscaling:*Processes": "no UpdatePolicy",
    "autoscaling:*TrafficSources": "there is no load balancer",
    "cloudwatch:*": "no alarms",
    "ec2:*VpnGateway": "no VPN",
    "ec2:AcceptAddressTransfer": "a new address",
    "ec2:AssociateAddress": "the NAT gateway takes its address by itself",
    "ec2:CopyVolumes": "a new volume",
    "ec2:CreateSnapshot": "DeletionPolicy is not Snapshot",
    "ec2:CreateVpcEncryptionControl": "not asked for",
    "ec2:Get*": "no types by attributes",
    "ec2:ModifyNetworkInterfaceAttribute": "nothing but what CreateNetworkInterface takes",
    "ec2:ModifyPublicIpDnsNameOptions": "not asked for",
    "ec2:ModifyVolumeAttribute": "no AutoEnableIO",
    "ec2:ReplaceRouteTableAssociation": "new subnets, which have no table of their own yet",
    "elasticloadbalancing:*": "there is none",
    "iam:*GroupPolicy": "roles only",
    "iam:*UserPolicy": "roles only",
    "iam:AttachRolePolicy": "the roles' policies are their own",
    "iam:CreateServiceLinkedRole": "`up` has made it before",
    "iam:DeleteRolePermissionsBoundary": "a boundary is replaced at most",
    "iam:UpdateAssumeRolePolicy": "what takes a role stays",
    "iam:UpdateRole*": "of roles the policies change alone",
    "kms:*": "what the user's own key permits is that key's policy, and asked through a service",
    "managed-fleets:*": "a group of one's own",
    "ssm:*": "an image by its id",
    "vpc-lattice:*": "no lattice",
    "vpce:*": "a service of the same region",
}
"""Permissions of handlers that nothing in the template makes them use, and why."""
CHANGED = frozenset(
    {
        "AWS::AutoScaling::AutoScalingGroup",
        "AWS::EC2::LaunchTemplate",
        "AWS::EC2::VPCEndpoint",
        "AWS::IAM::Policy",
        "AWS::IAM::Role",
    }
)
"""What the stack's parameters change in place; of other types only their tags are."""
TAGGING = frozenset({"ec2:CreateTags", "iam:TagRole"})
"""What nothing that goes is given."""
TAGGED_BY_THE_TEMPLATE = frozenset({"AWS::EC2::LaunchTemplate"})
"""What a stack's own tags do not reach."""
PARTS = {
    "Route": ("RouteTable",),
    "SecurityGroupEgress": ("SecurityGroup",),
    "SecurityGroupIngress": ("SecurityGroup",),
    "SubnetRouteTableAssociation": ("RouteTable", "Subnet"),
    "VPCGatewayAttachment": ("InternetGateway", "VPC"),
}
"""Of EC2: what is no resource in IAM's sense, and whose it is."""
EC2 = {
    "EIP": "elastic-ip/eipalloc-1",
    "Image": "image/ami-1",
    "Instance": "instance/i-1",
    "InternetGateway": "internet-gateway/igw-1",
    "LaunchTemplate": "launch-template/lt-1",
    "NatGateway": "natgateway/nat-1",
    "NetworkInterface": "network-interface/eni-1",
    "PlacementGroup": "placement-group/placement-1",
    "RouteTable": "route-table/rtb-1",
    "SecurityGroup": "security-group/sg-1",
    "Subnet": "subnet/subnet-1",
    "VPC": "vpc/vpc-1",
    "VPCEndpoint": "vpc-endpoint/vpce-1",
    "Volume": "volume/vol-1",
}
NEW = {
    "ec2:AllocateAddress": ("EIP",),
    "ec2:CreateInternetGateway": ("InternetGateway",),
    "ec2:CreateLaunchTemplate": ("LaunchTemplate",),
    "ec2:CreateNatGateway": ("NatGateway",),
    "ec2:CreateNetworkInterface": ("NetworkInterface",),
    "ec2:CreatePlacementGroup": ("PlacementGroup",),
    "ec2:CreateRouteTable": ("RouteTable",),
    "ec2:CreateSecurityGroup": ("SecurityGroup",),
    "ec2:CreateSubnet": ("Subnet",),
    "ec2:CreateVolume": ("Volume",),
    "ec2:CreateVpc": ("VPC",),
    "ec2:CreateVpcEndpoint": ("VPCEndpoint",),
    "ec2:RunInstances": ("Image", "Instance", "NetworkInterface", "Volume"),
}
"""Of EC2: what calls make, which has no tags yet (and AWS's own image)."""
NEAR = {
    "ec2:CreateNatGateway": ("EIP", "Subnet"),
    "ec2:CreateNetworkInterface": ("SecurityGroup", "Subnet"),
    "ec2:CreateRouteTable": ("VPC",),
    "ec2:CreateSecurityGroup": ("VPC",),
    "ec2:CreateSubnet": ("VPC",),
    "ec2:CreateVpcEndpoint": ("RouteTable", "VPC"),
    "ec2:RunInstances": ("LaunchTemplate", "PlacementGroup", "SecurityGroup", "Subnet"),
}
"""What has been there, and is needed for it."""
BOUNDARY = arn("iam", "policy/spotelastic-boundary", region="")
WHOLE = (
    "autoscaling:Describe*",
    "ec2:Describe*",
)
"""Calls that are permitted for all resources or for none."""


def accesses(operation: str) -> Iterator[AccessRequest]:
    """All that CloudFormation does to create, update or delete the stack of a cluster."""
    for logical, resource in resources().items():
        kind = resource["Type"]
        for action in sorted(_actions(kind, operation)):
            if not any(fnmatch(action, pattern) for pattern in NOT_OURS):
                yield from _access(logical, action, made=operation == "create")


def network_accesses(operation: str) -> Iterator[AccessRequest]:
    """The same of the stack of the network that clusters share, whose parts have its tag."""
    for resource in resources(file="network.yaml").values():
        kind = resource["Type"]
        name = kind.removeprefix("AWS::EC2::")
        for action in sorted(_actions(kind, operation)):
            if any(fnmatch(action, pattern) for pattern in NOT_OURS):
                continue
            access = AccessRequest(action, context={"aws:RequestedRegion": REGION})
            if any(fnmatch(action, pattern) for pattern in WHOLE):
                yield access
                continue
            its = tuple(map(_of_ec2, PARTS.get(name, (name,))))
            for each in _judged(access, its, made=operation == "create"):
                (thing,) = each.resources
                tags = {NETWORK: "1"} if thing.tags else {}
                yield replace(each, resources=(replace(thing, tags=tags),))


def declared() -> set[str]:
    """All permissions that handlers of the template's types may ever use."""
    kinds = {resource["Type"] for resource in resources().values()}
    operations = ("create", "read", "update", "delete")
    return {a for kind in kinds for operation in operations for a in _handler(kind, operation)}


def _actions(kind: str, operation: str) -> set[str]:
    found = _handler(kind, operation)
    if operation == "create":
        found |= _handler(kind, "read")
    if operation == "update" and kind not in CHANGED:
        found = set((_schema(kind).get("tagging") or {}).get("permissions", ()))
    if operation == "delete":
        found -= TAGGING
    if kind == "AWS::Events::Rule":
        found -= {"iam:PassRole"}  # its target is a queue, which needs none
    return found


def _handler(kind: str, operation: str) -> set[str]:
    return set(_schema(kind)["handlers"].get(operation, {}).get("permissions", ()))


@lru_cache
def _schema(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = PROVIDER_SCHEMA_MANAGER.get_resource_schema(REGION, kind).schema
    return found


def _access(logical: str, action: str, *, made: bool) -> Iterator[AccessRequest]:
    access = AccessRequest(action, context={"aws:RequestedRegion": REGION})
    if action == "iam:PassRole":
        passed = {**access.context, "iam:PassedToService": "ec2.amazonaws.com"}
        for role in ("ControlRole", "WorkerRole"):
            yield replace(access, resources=of(role), context=passed)
    elif any(fnmatch(action, pattern) for pattern in WHOLE):
        yield access
    else:
        yield from _judged(access, of(logical), made=made)


def _judged(
    access: AccessRequest, its: tuple[Resource, ...], *, made: bool
) -> Iterator[AccessRequest]:
    """The access on each resource that it is judged by. `made`: its own are made just now."""
    action = access.action
    if action in NEW:
        near = tuple(map(_of_ec2, NEAR.get(action, ())))
        its = (*(replace(_of_ec2(each), tags={}) for each in NEW[action]), *near)
    elif action == "ec2:CreateTags" and made:
        its = tuple(replace(each, tags={}) for each in its)
        access = replace(access, context={**access.context, "ec2:CreateAction": "CreateThing"})
    elif action.startswith("iam:"):
        bounded = {**access.context, "iam:PermissionsBoundary": BOUNDARY}
        access = replace(access, context=bounded)
    yield from (replace(access, resources=(each,)) for each in its)


def of(logical: str) -> tuple[Resource, ...]:
    """What IAM judges a call about this resource of the stack by."""
    resource = resources()[logical]
    kind, properties = resource["Type"], resource.get("Properties", {})
    service, _, name = kind.removeprefix("AWS::").partition("::")
    physical = f"spotelastic-{CLUSTER}-{logical}-1QAZ2WSX3EDC"
    match service, name:
        case "EC2", _:
            return tuple(_of_ec2(each) for each in PARTS.get(name, (name,)))
        case "IAM", "Policy":
            roles = (each[1] if isinstance(each, list) else each for each in properties["Roles"])
            return tuple(its for role in roles for its in of(role))
        case "SQS", "QueuePolicy":
            return of(properties["Queues"][0])
        case "IAM", _:
            path = {"Role": "role", "InstanceProfile": "instance-profile"}[name]
            return (Resource(arn("iam", f"{path}/{physical}", region="")),)
        case "AutoScaling", _:
            group = properties["AutoScalingGroupName"]
            its = arn("autoscaling", f"autoScalingGroup:0000:autoScalingGroupName/{group}")
            return (Resource(its, {TAG: CLUSTER}),)
        case "Events", _:
            return (Resource(arn("events", f"rule/{properties['Name']}")),)
        case "SQS", _:
            return (Resource(arn("sqs", properties["QueueName"])),)
    raise AssertionError(f"no ARN for {kind}")


def _of_ec2(name: str) -> Resource:
    kind = f"AWS::EC2::{name}"
    if name in ("Image", "Instance"):
        return Resource(arn("ec2", EC2[name]))
    tagged = kind in TAGGED_BY_THE_TEMPLATE or (_schema(kind).get("tagging") or {}).get("taggable")
    return Resource(arn("ec2", EC2[name]), {TAG: CLUSTER} if tagged else {})
