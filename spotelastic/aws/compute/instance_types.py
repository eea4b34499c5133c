"""Describes EC2 instance types, and checks which can train together and boot the workers' image."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spotelastic.aws.base.clients import Aws, Rejected, calling
from spotelastic.errors import UsageError


@dataclass(frozen=True, slots=True)
class InstanceType:
    """What an instance type has."""

    name: str
    vcpus: int
    gpus: int
    gpu: str
    """Model of its GPUs; "" without any."""
    architecture: str
    gpu_memory_mib: int = 0
    """Memory of each GPU."""
    efa_cards: int = 0
    """Network cards that EFA can use; 0 without EFA."""
    placements: tuple[str, ...] = ()
    """Kinds of placement groups that it supports."""
    gpu_maker: str = ""
    """Maker of its GPUs: NVIDIA, AMD, ...; "" without any."""

    @property
    def workers(self) -> int:
        """Default number of workers: one per GPU, or one without GPUs."""
        return max(1, self.gpus)


def describe(aws: Aws, names: Sequence[str]) -> tuple[InstanceType, ...]:
    """Return the types in the given order.

    Raises `UsageError` for one that the region does not have.
    """
    try:
        with calling("look up instance types"):
            answers = [
                aws.ec2.describe_instance_types(InstanceTypes=list(names[start : start + AT_ONCE]))
                for start in range(0, len(names), AT_ONCE)
            ]
    except Rejected as error:
        if error.code != "InvalidInstanceType":
            raise
        raise UsageError(
            f"--instance-types {','.join(names)}: {aws.region} has no such type ({error})"
        ) from error
    items = (item for answer in answers for item in answer["InstanceTypes"])
    found = {item["InstanceType"]: _parsed(item) for item in items}
    if unknown := [name for name in names if name not in found]:
        raise UsageError(f"--instance-types: {aws.region} has no type {', '.join(unknown)}")
    return tuple(found[name] for name in names)


ALIKE = ("gpus", "gpu", "architecture")
"""What all types of a job must have in common."""
AT_ONCE = 100
"""Types that EC2 describes in one call."""
TOO_OLD = frozenset({"K520", "GRID K520", "K80", "M60", "V100"})
"""NVIDIA's GPUs from before Turing, for which there is no open kernel driver."""


def traits(kind: InstanceType) -> tuple[object, ...]:
    """Return what must be equal for types to share a job."""
    return tuple(getattr(kind, trait) for trait in ALIKE)


def check_alike(types: Sequence[InstanceType]) -> InstanceType:
    """Return the first type if all can serve one job; else raise `UsageError`, naming two."""
    first = types[0]
    for other in types[1:]:
        for trait in ALIKE:
            mine, theirs = getattr(first, trait), getattr(other, trait)
            if mine != theirs:
                raise UsageError(
                    f"--instance-types: {first.name} and {other.name} must not share a job: "
                    f"{trait} {mine or 'none'} and {theirs or 'none'}"
                )
    return first


def describe_mismatch(kind: InstanceType) -> str:
    """Return why the workers' image does not run on the type; "" if it does (pure)."""
    if kind.architecture != "x86_64":
        instead = "g4dn, g5 or g6" if kind.gpus else "c5, m5 or m6i"
        return f"the workers' image is for x86_64, not {kind.architecture}: use {instead}"
    if kind.gpus and kind.gpu_maker != "NVIDIA":
        maker = kind.gpu_maker or "unknown"
        return f"the workers' image supports NVIDIA GPUs, not {maker} ones: use g4dn, g5 or g6"
    if kind.gpu in TOO_OLD:
        return f"NVIDIA's open driver supports Turing and later, not {kind.gpu}: use g4dn, g5 or g6"
    return ""


def check_fit(types: Sequence[InstanceType]) -> None:
    """Raise `UsageError` for a type that would be paid for but could not train."""
    for kind in types:
        if why := describe_mismatch(kind):
            raise UsageError(f"--instance-types {kind.name}: {why}")


def check_placement(types: Sequence[InstanceType], strategy: str) -> None:
    """Raise `UsageError` for a type that such a placement group does not accept."""
    for kind in types:
        if strategy not in kind.placements:
            raise UsageError(
                f"--placement {strategy}: {kind.name} cannot be in such a placement group: choose "
                "other --instance-types"
            )


def efa_cards(types: Sequence[InstanceType]) -> int:
    """Return the number of EFA cards that all types have: they share one launch template."""
    return min(kind.efa_cards for kind in types)


def _parsed(item: dict[str, Any]) -> InstanceType:
    gpus = item.get("GpuInfo", {}).get("Gpus", [])
    network = item.get("NetworkInfo", {})
    return InstanceType(
        name=item["InstanceType"],
        vcpus=item["VCpuInfo"]["DefaultVCpus"],
        gpus=sum(gpu.get("Count", 0) for gpu in gpus),
        gpu=gpus[0].get("Name", "") if gpus else "",
        architecture=item["ProcessorInfo"]["SupportedArchitectures"][-1],
        gpu_memory_mib=gpus[0].get("MemoryInfo", {}).get("SizeInMiB", 0) if gpus else 0,
        efa_cards=network.get("MaximumNetworkCards", 1) if network.get("EfaSupported") else 0,
        placements=tuple(item.get("PlacementGroupInfo", {}).get("SupportedStrategies", ())),
        gpu_maker=gpus[0].get("Manufacturer", "") if gpus else "",
    )
