"""Tells how many instances of a type the account's vCPU quotas still allow.

It also tells where to ask for more.

AWS counts spot and on-demand separately, and gives new accounts none of some families.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from spotelastic.aws.base.clients import Aws, calling, listed_instances, optional, passing
from spotelastic.aws.base.identity import CLUSTER
from spotelastic.aws.base.partitions import partition_of
from spotelastic.aws.compute import instance_types
from spotelastic.aws.compute.instance_types import InstanceType


@dataclass(frozen=True, slots=True)
class Family:
    """Instance types that share a quota."""

    name: str
    pattern: str
    """Matches the beginning of a type's name."""
    spot: str
    """Code of the spot quota."""
    on_demand: str
    """Code of the on-demand quota."""


FAMILIES = (
    Family("Standard", r"(a|c|d|h|i|im|is|m|mac|r|t|z)\d", "L-34B43A08", "L-1216C47A"),
    Family("G and VT", r"(g|gr|vt)\d", "L-3819A6DF", "L-DB2E81BA"),
    Family("P5", r"p5", "L-C4BD4855", "L-417A185B"),
    Family("P4, P3 and P2", r"p[234]", "L-7212CCBC", "L-417A185B"),
    Family("Inf", r"inf\d", "L-B5D1601B", "L-1945791B"),
    Family("Trn", r"trn\d", "L-6B0D517C", "L-2C3B7624"),
    Family("DL", r"dl\d", "L-85EED4F7", "L-6E869C2A"),
    Family("X", r"x\d", "L-E3A00192", "L-7295265B"),
    Family("F", r"f\d", "L-88CF9481", "L-74FC7D96"),
)


@dataclass(frozen=True, slots=True)
class Allowance:
    """What is left of one quota."""

    family: str
    code: str
    spot: bool
    region: str
    vcpus: int
    """The quota itself."""
    used: int
    """vCPUs of running instances, without those of the cluster in question."""

    @property
    def free(self) -> int:
        """VCPUs that are left."""
        return max(0, self.vcpus - self.used)

    def request(self, kind: InstanceType, wanted: int) -> str:
        """Return the command that asks for as many vCPUs as so many more instances need."""
        return request(self.region, self.code, self.used + wanted * kind.vcpus)

    def instances(self, kind: InstanceType) -> int:
        """Return how many instances of a type fit."""
        return self.free // kind.vcpus

    def describe(self, kind: InstanceType, wanted: int, instead: str = "") -> str:
        """Return, e.g., "quota allows 3 of 8 spot g5.xlarge (...)"; `instead` precedes advice."""
        in_use = f", {self.used} in use" if self.used else ""
        purchase = "spot" if self.spot else "on-demand"
        return (
            f"quota allows {min(self.instances(kind), wanted)} of {wanted} {purchase} "
            f"{kind.name} ({self.family}: {self.vcpus} vCPUs{in_use}, {kind.vcpus} each); "
            f"{instead}ask for more: {self.request(kind, wanted)}"
        )


def instead(left: Allowance, control: InstanceType) -> str:
    """Return what to do instead of asking for more quota (pure).

    It is put before the advice to ask for more, where the quota has room for one control node
    alone. Empty where it has room for none.
    """
    if not left.instances(control):
        return ""
    return "take one control node, --control 1, without which training goes on, or "


class QuotaLookup(Protocol):
    """Returns what the quota leaves for a type; None if that is not known."""

    def __call__(self, type: str, /, *, spot: bool) -> Allowance | None: ...


@dataclass(frozen=True, slots=True)
class NodeDemand:
    """How many nodes a job needs at least, and may have at most by purchase."""

    least: int
    spot: int
    on_demand: int = 0


@dataclass(frozen=True, slots=True)
class Share:
    """Nodes of one purchase, judged by the type of which the quotas allow most."""

    wanted: int
    had: int
    """How many of the wanted nodes the quota allows; all if it is not known."""
    text: str = ""
    """The description of the allowance; "" if it is not known."""


def shares(
    kinds: Sequence[InstanceType], allowed: QuotaLookup, nodes: NodeDemand
) -> tuple[Share, Share]:
    """Return the shares of spot and of on-demand nodes."""
    spot = _share(kinds, allowed, nodes.spot, spot=True)
    return spot, _share(kinds, allowed, nodes.on_demand, spot=False)


def refusal(found: Sequence[Share], nodes: NodeDemand) -> str:
    """Return which quotas together allow too few nodes; "" if they allow enough."""
    if sum(share.had for share in found) >= nodes.least:
        return ""
    return "; and ".join(share.text for share in found if share.wanted and share.text)


def _share(
    kinds: Sequence[InstanceType], allowed: QuotaLookup, wanted: int, *, spot: bool
) -> Share:
    """Return the share of one purchase; no quota is looked up if nothing is wanted."""
    left = [(allowed(kind.name, spot=spot), kind) for kind in kinds] if wanted else []
    known = [(allowance, kind) for allowance, kind in left if allowance is not None]
    if not known or len(known) < len(left):
        return Share(wanted, wanted)
    most, its = max(known, key=lambda each: each[0].instances(each[1]))
    return Share(wanted, min(wanted, most.instances(its)), most.describe(its, wanted))


def family(name: str) -> Family | None:
    """Return the family of a type; None if it is not known here, and its quota is not checked."""
    return next((each for each in FAMILIES if re.match(each.pattern, name)), None)


def link(region: str, code: str, service: str = "ec2") -> str:
    """Return the page where a quota can be raised."""
    quotas = f"https://{region}.{partition_of(region).console}/servicequotas/home/services"
    return f"{quotas}/{service}/quotas/{code}"


def request(region: str, code: str, value: int, service: str = "ec2") -> str:
    """Return the command that asks AWS to raise a quota to a value, which may take days."""
    return (
        f"aws service-quotas request-service-quota-increase --region {region} "
        f"--service-code {service} --quota-code {code} --desired-value {value}"
    )


def named(types: Iterable[str], region: str, *, spot: bool) -> str:
    """Return the quotas that such types count against, with code and link, for people."""
    its = {each for name in types if (each := family(name)) is not None}
    codes = {(each.name, each.spot if spot else each.on_demand) for each in its}
    purchase = "spot" if spot else "on-demand"
    return ", ".join(
        f"{name} {purchase} ({code}; more at {link(region, code)})" for name, code in sorted(codes)
    )


def value(aws: Aws, code: str, service: str = "ec2") -> int | None:
    """Return a quota of the account and region; None if AWS has none of that code."""
    with passing("NoSuchResourceException"), calling(f"look up the quota {code}"):
        answer = aws.quotas.get_service_quota(ServiceCode=service, QuotaCode=code)
        return int(answer["Quota"]["Value"])
    return None


class Quotas:
    """The quotas of one region, each looked up once. Raises `Rejected`, `Unavailable`."""

    def __init__(self, aws: Aws, cluster: str = "") -> None:
        """`cluster`: its own instances are not counted as used."""
        self._aws = aws
        self._cluster = cluster
        self._values: dict[str, int | None] = {}
        self._in_use: Counter[tuple[str, bool]] | None = None
        self.unknown = ""

    def allowance(self, type: str, *, spot: bool) -> Allowance | None:
        """Return what is left for a type; None if AWS does not tell the quota."""
        its = family(type)
        if its is None:
            return None
        code = its.spot if spot else its.on_demand
        vcpus = self._value(code)
        if vcpus is None:
            return None
        return Allowance(its.name, code, spot, self._aws.region, vcpus, self._used(code))

    def told(self, type: str, *, spot: bool) -> Allowance | None:
        """As `allowance`; None also where AWS does not answer. `unknown` then says why."""
        with optional(partial(setattr, self, "unknown")):
            return None if self.unknown else self.allowance(type, spot=spot)
        return None

    def _value(self, code: str) -> int | None:
        if code not in self._values:
            self._values[code] = value(self._aws, code)
        return self._values[code]

    def _used(self, code: str) -> int:
        if self._in_use is None:
            self._in_use = self._count()
        return self._in_use[code, True] + self._in_use[code, False]

    def _count(self) -> Counter[tuple[str, bool]]:
        """Return used vCPUs by (quota code, whether spot)."""
        with calling("count the instances that run"):
            alive = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
            running = [
                (item["InstanceType"], item.get("InstanceLifecycle") == "spot")
                for item in listed_instances(self._aws, alive)
                if not self._is_own(item.get("Tags", ()))
            ]
        names = sorted({name for name, _ in running})
        kinds = {kind.name: kind for kind in instance_types.describe(self._aws, names)}
        used: Counter[tuple[str, bool]] = Counter()
        for name, spot in running:
            if its := family(name):
                used[its.spot if spot else its.on_demand, spot] += kinds[name].vcpus
        return used

    def _is_own(self, tags: Sequence[dict[str, str]]) -> bool:
        return any(tag["Key"] == CLUSTER and tag["Value"] == self._cluster for tag in tags)
