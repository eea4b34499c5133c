"""Looks at the AWS account that `up` would use here. Nothing in it is changed.

Each function raises what AWS's client raises; `examine` makes findings of that.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from email.utils import parsedate_to_datetime

from spotelastic.aws.base import account
from spotelastic.aws.base.clients import Aws, calling
from spotelastic.aws.base.names import CONTROL_TYPE, MEMBERS, SHARED_NETWORK
from spotelastic.aws.compute import instance_types, quotas
from spotelastic.aws.compute.instance_types import InstanceType
from spotelastic.aws.compute.quotas import Allowance, Quotas
from spotelastic.aws.network import shared_network
from spotelastic.aws.planning import network_quotas
from spotelastic.client.doctor.finding import FindingState, Verdict
from spotelastic.clock import Clock, wall

USUAL_TYPE = "g5.xlarge"
"""The type whose quota is looked at if none is named: its family is what most jobs use first."""
SKEW, MOST_SKEW = 30.0, 240.0
"""Seconds that this machine's clock may be off, and with which AWS soon refuses requests (300)."""


def identity(aws: Aws) -> Verdict:
    """Look up whose credentials these are."""
    region = aws.region
    with calling("find out which AWS account this is"):
        caller = aws.sts.get_caller_identity()
        who = str(caller["Arn"]).rpartition(":")[2]
        return Verdict("ok", f"account {caller['Account']}, {who}, in {region}")


def clock_skew(aws: Aws, clock: Clock = wall) -> Verdict:
    """Compare this machine's clock with AWS's, by the date of an answer."""
    before = clock()
    with calling("ask AWS for the time"):
        answer = aws.sts.get_caller_identity()
    after = clock()
    date = answer["ResponseMetadata"]["HTTPHeaders"]["date"]
    return judge_clock(parsedate_to_datetime(date).timestamp(), before, after)


def judge_clock(theirs: float, before: float, after: float) -> Verdict:
    """Judge AWS's time, told in whole seconds between two times of this machine."""
    off = max(before - theirs - 1.0, theirs - after, 0.0)
    if off < SKEW:
        return Verdict("ok", "as AWS's")
    state: FindingState = "missing" if off >= MOST_SKEW else "warning"
    advice = "set it by NTP (timedatectl set-ntp true): AWS refuses requests that are 5 min off"
    return Verdict(state, f"{off:.0f} s off AWS's", advice)


def bucket(aws: Aws, name: str | None) -> Verdict:
    """Look whether the bucket of code and checkpoints can be used."""
    its = name or account.default_bucket(aws)
    account.check_bucket(aws, its)
    made = "" if name else " (made by the first `up`)"
    return Verdict("ok", f"s3://{its} can be used{made}")


def quota(aws: Aws, types: Sequence[str]) -> Verdict:
    """Look up how many spot nodes the quotas allow, of the first type that is named."""
    (kind,) = instance_types.describe(aws, list(types[:1]) or [USUAL_TYPE])
    return judge_quota(Quotas(aws).allowance(kind.name, spot=True), kind, needed=bool(types))


def control_quota(aws: Aws) -> Verdict:
    """Look up how many control nodes the quota of on-demand instances allows."""
    (kind,) = instance_types.describe(aws, [CONTROL_TYPE])
    left = Quotas(aws).allowance(kind.name, spot=False)
    told = judge_quota(left, kind, needed=True, wanted=len(MEMBERS))
    if left is None or told.state == "ok":
        return told
    return replace(told, advice=quotas.instead(left, kind) + told.advice)


def network_quota(aws: Aws) -> Verdict:
    """Look up whether there is room for the network that clusters share."""
    if shared_network.look(aws) is not None:
        return Verdict("ok", f"{SHARED_NETWORK} is there")
    short = network_quotas.shortages(aws, 1, 0)
    return _room(short, "room for one more VPC, which all clusters share")


def rule_quota(aws: Aws) -> Verdict:
    """Look up whether there is room for the event rules of another cluster."""
    short = network_quotas.shortages(aws, 0, 0, network_quotas.RULES_EACH)
    return _room(short, f"room for the {network_quotas.RULES_EACH} rules of another cluster")


def _room(shortages: Iterator[str], room: str) -> Verdict:
    found, _, advice = next(shortages, "").partition(": ")
    return Verdict("missing", found, advice) if found else Verdict("ok", room)


def judge_quota(
    left: Allowance | None, kind: InstanceType, *, needed: bool, wanted: int = 1
) -> Verdict:
    """Judge what is left of a quota, of which so many instances are `wanted`."""
    if left is None:
        return Verdict("note", f"AWS tells none for {kind.name}")
    many = left.instances(kind)
    text = (
        f"{many} x {kind.name} ({left.family}: {left.free} of {left.vcpus} vCPUs free, "
        f"{kind.vcpus} each)"
    )
    if many >= wanted:
        return Verdict("ok", text)
    state: FindingState = "missing" if needed else "warning"
    advice = f"ask for more, which may take days: {left.request(kind, wanted)}"
    return Verdict(state, text, advice)
