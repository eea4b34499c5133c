"""Selects instance types for a job that states only its needs: the cheapest kind within the quotas.

A kind is what can share a job: the same number and model of GPUs and the same architecture. All
types of the kind that cost at most twice the cheapest are taken (EC2's own limit when it chooses by
requirements). More types mean that a group finds capacity sooner.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spotelastic.aws.base.clients import Aws, calling, listed
from spotelastic.aws.compute import instance_types, offers, quotas
from spotelastic.aws.compute.instance_types import InstanceType
from spotelastic.aws.compute.prices import shipped_table
from spotelastic.aws.compute.quotas import NodeDemand, QuotaLookup
from spotelastic.errors import EnvironmentFailure, UsageError

DEARER_AT_MOST = 2.0
"""Most times the price of the cheapest type of the kind."""
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Requirement:
    """What a node must have."""

    gpus: int = 0
    """Exact number of GPUs; 0: any number."""
    gpu_memory: int = 0
    """Least bytes of memory per GPU."""

    @property
    def gpu_memory_mib(self) -> int:
        """The memory in MiB, rounded down as EC2 states it: an L4 of 24 GB has 22888 there."""
        return self.gpu_memory // MIB

    def fits(self, kind: InstanceType) -> bool:
        """Whether a type meets the requirement."""
        count = kind.gpus == self.gpus if self.gpus else kind.gpus > 0
        return count and kind.gpu_memory_mib >= self.gpu_memory_mib

    def __str__(self) -> str:
        """Return the requirement as flags."""
        gpus = f"--gpus {self.gpus}" if self.gpus else ""
        memory = f"--gpu-memory {self.gpu_memory / 1e9:g}GB" if self.gpu_memory else ""
        return " ".join(filter(None, (gpus, memory)))


@dataclass(frozen=True, slots=True)
class Option:
    """The types of one kind."""

    types: tuple[InstanceType, ...]
    """The types, the cheapest first."""
    usd: float
    """US dollars an hour of the cheapest."""
    refusal: str = ""
    """Why it cannot be had; "" if it can."""


def options(
    kinds: Iterable[InstanceType], usd: Mapping[str, float], allowed: QuotaLookup, nodes: NodeDemand
) -> tuple[Option, ...]:
    """Return the kinds to choose from, best first (pure).

    Types without a known price are left out.
    """
    alike: dict[tuple[object, ...], list[InstanceType]] = {}
    for kind in sorted(kinds, key=lambda kind: (usd.get(kind.name, 0.0), kind.name)):
        if usd.get(kind.name, 0.0) > 0:
            alike.setdefault(instance_types.traits(kind), []).append(kind)
    found = [_option(each, usd, allowed, nodes) for each in alike.values()]
    return tuple(sorted(found, key=lambda each: (bool(each.refusal), each.usd)))


def _option(
    kinds: Sequence[InstanceType], usd: Mapping[str, float], allowed: QuotaLookup, nodes: NodeDemand
) -> Option:
    """Return the option of one kind, given its types with the cheapest first."""
    cheapest = usd[kinds[0].name]
    taken = tuple(kind for kind in kinds if usd[kind.name] <= DEARER_AT_MOST * cheapest)
    found = quotas.shares(taken, allowed, nodes)
    return Option(taken, cheapest, quotas.refusal(found, nodes))


def best(found: Sequence[Option], requirement: Requirement, region: str) -> Option:
    """Return the best option (pure).

    Raises `EnvironmentFailure` if none fits or no quota allows one.
    """
    such = f"type with {requirement}" if str(requirement) else "GPU type"
    if not found:
        raise EnvironmentFailure(f"{region} offers no {such}: choose --region or --instance-types")
    if found[0].refusal:
        least = min(found, key=lambda option: option.types[0].vcpus)
        raise EnvironmentFailure(f"no {such} is within the account's quotas: {least.refusal}")
    return found[0]


def check(kinds: Iterable[InstanceType], requirement: Requirement) -> None:
    """Raise `UsageError` if a type that the cluster has does not meet the requirement."""
    for kind in kinds:
        if not requirement.fits(kind):
            raise UsageError(
                f"{requirement}: the cluster has {kind.name} with {kind.gpus or 'no'} GPUs of "
                f"{kind.gpu_memory_mib * MIB / 1e9:.0f} GB: choose another --name, or take it down "
                "first"
            )


# -- what a region offers ------------------------------------------------------------------------


def survey(
    aws: Aws, requirement: Requirement, nodes: NodeDemand, allowed: QuotaLookup
) -> tuple[Option, ...]:
    """Return the options of this region at present, best first."""
    kinds = [
        kind
        for kind in instance_types.describe(aws, _fitting(aws, requirement))
        if requirement.fits(kind) and not instance_types.describe_mismatch(kind)
    ]
    usd = _usd(aws, [kind.name for kind in kinds]) if kinds else {}
    return options(kinds, usd, allowed, nodes)


def _fitting(aws: Aws, requirement: Requirement) -> list[str]:
    count = {"Min": requirement.gpus or 1}
    with calling(f"look for GPU types {requirement}".rstrip()):
        found = listed(
            aws.ec2,
            "get_instance_types_from_instance_requirements",
            "InstanceTypes",
            ArchitectureTypes=["x86_64"],  # the architecture of the workers' images
            VirtualizationTypes=["hvm"],
            InstanceRequirements={
                "VCpuCount": {"Min": 0},
                "MemoryMiB": {"Min": 0},
                "AcceleratorTypes": ["gpu"],
                "AcceleratorManufacturers": ["nvidia"],
                "AcceleratorCount": count | ({"Max": requirement.gpus} if requirement.gpus else {}),
                "AcceleratorTotalMemoryMiB": {"Min": count["Min"] * requirement.gpu_memory_mib},
            },
        )
        return [item["InstanceType"] for item in found]


def _usd(aws: Aws, names: Sequence[str]) -> Mapping[str, float]:
    listed = shipped_table().usd_per_hour
    now = offers.spot_prices(aws, names)
    return {name: min(now.get(name, {}).values(), default=listed.get(name, 0.0)) for name in names}
