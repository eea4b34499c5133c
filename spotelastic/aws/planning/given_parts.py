"""Looks at what an account gives a cluster in place of what `up` would make.

It may give instance profiles with their roles, a security group, and machine images.

Must never happen: nodes are paid for that cannot do their work with what was given. So what can be
known beforehand is an obstacle, with what is missing. What a role has to permit says
`infra/roles.json`, from which an administrator makes roles as well.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from spotelastic.aws.base import names
from spotelastic.aws.base.clients import DENIED, Aws, calling, explained, passing
from spotelastic.aws.base.infra_files import infra
from spotelastic.aws.base.partitions import partition_of
from spotelastic.aws.network.existing_vpc import Network
from spotelastic.aws.planning.encryption_key import find_key, several
from spotelastic.errors import UsageError
from spotelastic.model.job import JobSpec

PAGE = "docs/how-to/for-your-administrator.md"
AT_ONCE = 8
"""Questions to IAM that are asked beside each other."""
TOLD = 5
"""Most missing rights that are named."""


# -- instance profiles and their roles -------------------------------------------------------------


def find_profile(aws: Aws, flag: str, given: str) -> tuple[str, str]:
    """Return the ARNs of an instance profile, given by name or ARN, and of its role.

    The latter is empty where these credentials may not look. Raises `UsageError` if it cannot be
    used.
    """
    name = given.rpartition("/")[2]
    unknown = UsageError(
        f"--{flag} {given}: the account has no such instance profile; {PAGE} says how to make one"
    )
    what = f"look at the instance profile {name}"
    with passing(*DENIED), explained(unknown, "NoSuchEntity"), calling(what):
        found = aws.iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
        if not found["Roles"]:
            raise UsageError(f"--{flag} {given}: the instance profile has no role: add it")
        return str(found["Arn"]), str(found["Roles"][0]["Arn"])
    arn = f"arn:{aws.partition}:iam::{aws.account}:instance-profile/{name}"
    return (given if given.startswith("arn:") else arn), ""


def profile_parameters(aws: Aws, job: JobSpec) -> dict[str, str]:
    """Return the given profiles and the security group as the stack's parameters."""
    return {
        "GivenControlProfile": _arn(aws, "control-profile", job.demands.control_profile),
        "GivenGroup": job.demands.security_group,
        "GivenWorkerProfile": _arn(aws, "worker-profile", job.demands.worker_profile),
    }


def _arn(aws: Aws, flag: str, given: str) -> str:
    return find_profile(aws, flag, given)[0] if given else ""


def needs(role: str, values: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the statements of what a role, as `infra/roles.json` calls it, has to permit (pure).

    `values` are those of the template's parameters, and of AWS's own.
    """

    def resolved(found: dict[str, Any]) -> Any:
        match found:
            case {"Fn::Sub": text}:
                return re.sub(r"\$\{(.+?)\}", lambda match: values[match[1]], text)
            case {"Ref": name}:
                return values.get(name)
            case {"Fn::GetAtt": [name, _]}:
                return values[name]
            case {"Fn::If": [condition, then, _]}:
                return then if values.get({"Keyed": "Key"}.get(condition, "")) else None
        return found

    template = json.loads(infra("roles.json").read_text(), object_hook=resolved)
    policies = template["Resources"][role]["Properties"]["Policies"]
    documents = (policy["PolicyDocument"] for policy in policies if policy)
    return [statement for document in documents for statement in document["Statement"]]


def values_of(aws: Aws, job: JobSpec, bucket: str, key: str) -> dict[str, str]:
    """Return what the template of the roles refers to, for the cluster of a job."""
    partition, account = aws.partition, aws.account
    usual = f"arn:{partition}:iam::{account}:role/spotelastic-cloudformation-{aws.region}"
    return {
        "AWS::AccountId": account,
        "AWS::Partition": partition,
        "AWS::URLSuffix": partition_of(aws.region).domain,
        "Bucket": bucket or names.bucket(account, aws.region),
        "Clusters": job.cluster,
        "Key": key,
        "Regions": aws.region,
        "Runs": job.run or job.cluster,
        "StackRole": job.demands.stack_role or usual,
    }


def _lacking(aws: Aws, role: str, statements: Iterable[Mapping[str, Any]]) -> list[str] | None:
    """Return what a role may not do, each as action and resource.

    IAM's own simulator tells that. None where these credentials may not ask it.
    """
    asked = [
        (several(each["Action"]), resource, _context(each.get("Condition", {})))
        for each in statements
        for resource in several(each["Resource"])
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = pool.map(partial(_denied, aws, role), *zip(*asked, strict=True))
    with passing(*DENIED):
        return [each for answer in answers for each in answer]
    return None


def _denied(
    aws: Aws, role: str, actions: list[str], resource: str, context: list[dict[str, Any]]
) -> list[str]:
    with calling(f"ask IAM what {role} may do"):
        answer = aws.iam.simulate_principal_policy(
            PolicySourceArn=role,
            ActionNames=actions,
            ResourceArns=[resource],
            ContextEntries=context,
        )
        return [
            f"{each['EvalActionName']} on {resource}"
            for each in answer["EvaluationResults"]
            if each["EvalDecision"] != "allowed"
        ]


def _context(conditions: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a call's circumstances that meet a statement's conditions (pure)."""
    return [
        {
            "ContextKeyName": key,
            "ContextKeyType": "boolean" if operator == "Bool" else "string",
            "ContextKeyValues": ["*" if operator == "Null" else str(several(value)[0])],
        }
        for operator, tested in conditions.items()
        for key, value in tested.items()
    ]


# -- the whole -------------------------------------------------------------------------------------


def look(
    aws: Aws, job: JobSpec, network: Network | None, bucket: str, key: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what is to be known of what is given, and why nodes could not work with it."""
    demands, told, obstacles = job.demands, list(_told(job)), list[str]()
    for flag, given, role in (
        ("worker-profile", demands.worker_profile, "WorkerRole"),
        ("control-profile", demands.control_profile, "ControlRole"),
    ):
        if not given:
            continue
        _, its = find_profile(aws, flag, given)
        missing = None
        if its:
            whole = find_key(aws, key) if key else ""
            missing = _lacking(aws, its, needs(role, values_of(aws, job, bucket, whole)))
        if missing is None:
            told.append(f"--{flag} {given}: these credentials may not look what its role permits")
        elif missing:
            more = f" and {len(missing) - TOLD} more" if len(missing) > TOLD else ""
            obstacles.append(
                f"--{flag} {given}: its role may not do what nodes do: "
                f"{', '.join(missing[:TOLD])}{more}; {PAGE} has the policies"
            )
    if demands.security_group and network is not None:
        obstacles += _of_group(aws, demands.security_group, network)
    return tuple(told), tuple(obstacles)


def _told(job: JobSpec) -> Iterator[str]:
    """Yield what cannot be looked up (pure)."""
    demands = job.demands
    if demands.worker_profile or demands.control_profile:
        yield (
            "roles that are given need rights to --read, --write, --data-key and topics of "
            f"--notify, which are not looked at ({PAGE})"
        )
    if images := [*filter(None, (demands.worker_image, demands.control_image))]:
        yield (
            f"{', '.join(dict.fromkeys(images))}: images need systemd, bash, curl, the AWS CLI and "
            "Python 3.11 to 3.13, or dnf to install that; for workers with GPUs NVIDIA's driver, "
            f"and docker for --image ({PAGE})"
        )


def _of_group(aws: Aws, group: str, network: Network) -> Iterator[str]:
    """Yield why nodes in a security group of the account's own could not work."""
    flag = f"--security-group {group}"
    unknown = UsageError(f"{flag}: there is no such security group in {aws.region}")
    with explained(unknown, "InvalidGroup"), calling(f"look at the security group {group}"):
        (found,) = aws.ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"]
    if found["VpcId"] != network.vpc:
        raise UsageError(f"{flag}: it is in {found['VpcId']}, and the nodes are in {network.vpc}")
    blocks = [subnet.block for subnet in network.subnets]
    for what, rules in (("in", "IpPermissions"), ("out", "IpPermissionsEgress")):
        if not any(_lets_all(rule, group, blocks) for rule in found[rules]):
            yield (
                f"{flag} does not let {what} all traffic between its members: nodes talk on many "
                "ports, and with EFA without any; add a rule of all protocols that names the group "
                "itself"
            )


def _lets_all(rule: Mapping[str, Any], group: str, blocks: Sequence[str]) -> bool:
    """Return whether a rule lets all traffic between members pass (pure)."""
    if rule["IpProtocol"] != "-1":
        return False
    ranges = {each["CidrIp"] for each in rule.get("IpRanges", ())}
    named = any(each.get("GroupId") == group for each in rule.get("UserIdGroupPairs", ()))
    return named or "0.0.0.0/0" in ranges or ranges.issuperset(blocks)
