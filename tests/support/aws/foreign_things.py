"""Provides things of an account that are no cluster's, of every kind that a policy could reach, and
what a caller may say about a call to get it permitted.

A test tries all actions of all policies on them, so a statement that is added later is tried too.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatch
from functools import lru_cache

from botocore.loaders import Loader
from support.aws.template import ACCOUNT, CLUSTER, REGION, arn
from support.strict.evaluation import Policy, Resource

from spotelastic.aws.base.identity import CLUSTER as TAG

NAMES = ("orders", "spotless", "my-spotelastic-x", "Spotelastic-x")
ANOTHER = "spotelastic-another"
"""What another cluster's is called, or begins with."""
UNTAGGED: Mapping[str, str] = {}
OF_OTHERS = {
    "team": "orders",
    "Name": "spotelastic-x",
    "cluster": CLUSTER,
    "spotelastic": "cluster",
    "spotelastic:clusters": CLUSTER,
    f"x:{TAG}": CLUSTER,
}
"""Tags of which none makes a thing a cluster's."""
OF_ANOTHER = {TAG: "another"}


@lru_cache
def operations(service: str) -> tuple[str, ...]:
    """All that AWS has of a service, as botocore knows it."""
    return tuple(Loader().load_service_model(service, "service-2")["operations"])


@lru_cache
def kinds_of_ec2() -> tuple[str, ...]:
    """What EC2 can tag. It judges nothing else by tags; images and pools are among it."""
    found = Loader().load_service_model("ec2", "service-2")["shapes"]["ResourceType"]["enum"]
    return tuple(found)


def actions(policies: Iterable[Policy]) -> list[str]:
    """All actions that the policies name; a pattern stands for all that AWS has of it."""
    found = set()
    for policy in policies:
        for statement in policy["Statement"]:
            for pattern in actions_of(statement):
                service, _, name = pattern.partition(":")
                if "*" not in name:
                    found.add(pattern)
                    continue
                those = {f"{service}:{each}" for each in operations(service) if fnmatch(each, name)}
                assert those, f"{pattern}: AWS has no such action"
                found |= those
    return sorted(found)


def actions_of(statement: Policy) -> list[str]:
    """As the statement names them."""
    its = statement["Action"]
    return [its] if isinstance(its, str) else list(its)


def things(action: str, *, another: bool) -> Iterator[Resource]:
    """Whatever the action could be about, and nothing of it the cluster's.

    `another`: with the same of another cluster.
    """
    service = action.partition(":")[0]
    all_tags = (UNTAGGED, OF_OTHERS, *((OF_ANOTHER,) if another else ()))
    names = (*NAMES, *((ANOTHER,) if another else ()))
    if service in ("ec2", "ssm"):  # sessions are with instances
        for kind in kinds_of_ec2() if service == "ec2" else ("instance",):
            for tags in all_tags:
                yield Resource(arn("ec2", f"{kind}/{kind}-0a1b2c3d4e5f67890"), tags)
    for name in names if service != "ec2" else ():
        for resource in OTHERS[service](name):
            for tags in all_tags:
                yield Resource(resource, tags)
    yield Resource("*")


def kind(resource: Resource) -> str:
    """E.g. "route-table"."""
    return resource.arn.rpartition(":")[2].partition("/")[0]


def _of(service: str, *rests: str, region: str = REGION) -> Callable[[str], list[str]]:
    return lambda name: [arn(service, each.format(name), region=region) for each in rests]


def _s3(name: str) -> list[str]:
    return [f"arn:aws:s3:::{name}", f"arn:aws:s3:::{name}/spotelastic-x/object"]


OTHERS: Mapping[str, Callable[[str], list[str]]] = {
    "autoscaling": _of(
        "autoscaling",
        "autoScalingGroup:0000:autoScalingGroupName/{}",
        "launchConfiguration:0000:launchConfigurationName/{}",
    ),
    "cloudformation": _of("cloudformation", "stack/{}/id", "stackset/{}:id", "changeSet/{}/id"),
    "ecr": _of("ecr", "repository/{}"),
    "events": _of("events", "rule/{}", "rule/bus/{}", "event-bus/{}", "event-bus/default"),
    "fis": _of("fis", "experiment-template/{}", "experiment/{}", "action/aws:ec2:{}"),
    "iam": _of(
        "iam",
        *("role/{}", "role/service-role/{}", "instance-profile/{}", "user/{}", "group/{}"),
        *("policy/{}", "mfa/{}", "saml-provider/{}"),
        region="",
    ),
    "kms": _of("kms", "key/{}", "alias/{}"),
    "logs": _of(
        "logs", "log-group:{}:log-stream:x", "log-group:/{}:log-stream:x", "log-group:/aws/{}:*"
    ),
    "s3": _s3,
    "sns": _of("sns", "{}"),
    "sqs": _of("sqs", "{}"),
    "ssm": _of("ssm", "parameter/{}", "parameter/{}/spotelastic/x", "document/{}"),
}
"""What a service has, by its name. A policy that names another service needs a line here."""


def circumstances(action: str) -> Iterator[dict[str, str]]:
    """All that a caller may choose. `ec2:CreateAction` is not of it: AWS sets that."""
    to = ("autoscaling", "cloudformation", "ec2", "fis") if action.startswith("iam:") else ("ec2",)
    for service in to:
        yield {
            "aws:RequestedRegion": REGION,
            f"aws:RequestTag/{TAG}": CLUSTER,
            "iam:AWSServiceName": f"{service}.amazonaws.com",
            "iam:PassedToService": f"{service}.amazonaws.com",
            "iam:PermissionsBoundary": arn("iam", "policy/spotelastic-boundary", region=""),
            "kms:GrantIsForAWSResource": "true",
            "kms:ViaService": f"ec2.{REGION}.amazonaws.com",
            "s3:ResourceAccount": ACCOUNT,
            "s3:prefix": f"{CLUSTER}/",
        }
