"""Describes EC2 instance types, and checks which can train together and boot the workers' image."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotelastic.aws.base.clients import Aws, Rejected, calling
from spotelastic.aws.compute.network_interfaces import NetworkCards, parse_network
from spotelastic.errors import UsageError
from spotelastic.model.job import Capacity


@dataclass(frozen=True, slots=True)
class InstanceType:
    """What an instance type has."""

    name: str
    vcpus: int
    gpus: int
    """Number of its GPUs; a fraction of one counts as one."""
    gpu: str
    """Model of its GPUs; "" without any."""
    architecture: str
    gpu_memory_mib: int = 0
    """Memory of each GPU."""
    network: NetworkCards = NetworkCards()
    placements: tuple[str, ...] = ()
    """Kinds of placement groups that it supports."""
    gpu_maker: str = ""
    """Maker of its GPUs: NVIDIA, AMD, ...; "" without any."""
    gpu_share: float = 1.0
    """Part of a GPU that each of its GPUs is."""
    memory_mib: int = 2**20
    spot: bool = True
    """Whether it can be bought as spot."""
    nvme: bool = True
    """Whether its EBS disks are NVMe devices."""

    @property
    def processors(self) -> str:
        """What trains."""
        return "GPUs" if self.gpus else "CPUs"

    @property
    def workers(self) -> int:
        """Default number of workers: one per GPU, or one without GPUs."""
        return max(1, self.gpus)


def describe(
    aws: Aws, names: Sequence[str], flag: str = "--instance-types"
) -> tuple[InstanceType, ...]:
    """Return the types in the given order.

    Raises `UsageError` for one that the region does not have.
    """
    try:
        with calling("look up instance types"):
            look, parts = aws.ec2.describe_instance_types, range(0, len(names), AT_ONCE)
            answers = [look(InstanceTypes=list(names[at : at + AT_ONCE])) for at in parts]
            items = (item for answer in answers for item in answer["InstanceTypes"])
            found = {item["InstanceType"]: parse_type(item) for item in items}
    except Rejected as error:
        if error.code != "InvalidInstanceType":
            raise
        raise UsageError(
            f"{flag} {','.join(names)}: {aws.region} has no such type ({error})"
        ) from error
    if unknown := [name for name in names if name not in found]:
        raise UsageError(f"{flag}: {aws.region} has no type {', '.join(unknown)}")
    return tuple(found[name] for name in names)


def control(aws: Aws, name: str) -> InstanceType:
    """Return the type of control nodes. Raises `UsageError` for one that could not be one."""
    (kind,) = describe(aws, [name], "--control-type")
    if kind.architecture != "x86_64":
        wrong = f"it is for {kind.architecture}, and etcd and the image are for x86_64"
    elif kind.memory_mib < LEAST_MEMORY_MIB:
        wrong = f"etcd and the controller need {LEAST_MEMORY_MIB} MiB, and it has {kind.memory_mib}"
    elif not kind.nvme:
        wrong = "it has no NVMe disks, by which a node finds that of etcd"
    else:
        return kind
    raise UsageError(f"--control-type {name}: {wrong}: use t3.small, t3.medium or m5.large")


ALIKE = ("gpus", "gpu", "gpu_memory_mib", "gpu_share", "architecture")
"""What all types of a job must have in common."""
WITH_VIRTUAL_RANKS = ("processors", "gpu_share", "architecture")
"""The same where each node computes as much as it can: the smallest memory rules then."""
_SPELLED = {"gpu_memory_mib": "GPU memory in MiB", "gpu_share": "part of a GPU"}
AT_ONCE = 100
"""Types that EC2 describes in one call."""
TOO_OLD = frozenset({"K520", "GRID K520", "K80", "M60", "V100"})
"""NVIDIA's GPUs from before Turing, for which there is no open kernel driver."""
LEAST_MEMORY_MIB = 2048
"""Memory below which installing and importing PyTorch fails, and etcd has no room to grow."""
_ACCELERATED = re.compile(r"(g|gr|p|trn|inf|dl|vt|f)\d")
"""Names of types with GPUs or other accelerators: EC2 does not describe those of every type."""


def traits(kind: InstanceType) -> tuple[object, ...]:
    """Return what must be equal for types to share a job."""
    return tuple(getattr(kind, trait) for trait in ALIKE)


def check_alike(types: Sequence[InstanceType], *, unlike: bool = False) -> InstanceType:
    """Return the first type if all can serve one job; else raise `UsageError`, naming two.

    `unlike`: whether the job deals each batch out by what nodes can do.
    """
    first = types[0]
    for other in types[1:]:
        for trait in WITH_VIRTUAL_RANKS if unlike else ALIKE:
            mine, theirs = getattr(first, trait), getattr(other, trait)
            if mine != theirs:
                raise UsageError(
                    f"--instance-types: {first.name} and {other.name} must not share a job: "
                    f"{_SPELLED.get(trait, trait)} {mine or 'none'} and {theirs or 'none'}"
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
    if kind.gpu_share < 1:
        return (
            f"it has {kind.gpu_share:g} of an {kind.gpu}, and the driver of the workers' image is "
            "for whole GPUs: use g4dn, g5 or g6"
        )
    if not kind.gpus and _ACCELERATED.match(kind.name):
        return "EC2 describes no GPU of it, and PyTorch would train on the CPU: use g4dn, g5 or g6"
    if kind.memory_mib < LEAST_MEMORY_MIB:
        return f"PyTorch needs {LEAST_MEMORY_MIB} MiB of memory, and it has {kind.memory_mib}"
    return ""


def check_fit(types: Sequence[InstanceType]) -> None:
    """Raise `UsageError` for a type that would be paid for but could not train."""
    for kind in types:
        if why := describe_mismatch(kind):
            raise UsageError(f"--instance-types {kind.name}: {why}")


def check_spot(types: Sequence[InstanceType], bought: Capacity, most: int) -> None:
    """Raise `UsageError` for types that AWS never sells as spot, if the job needs spot.

    It does unless all of `most` nodes are bought on demand, or on-demand nodes may fill in for spot
    ones.
    """
    if bought.on_demand == "fallback" or bought.base >= most or any(kind.spot for kind in types):
        return
    raise UsageError(
        f"--instance-types {','.join(kind.name for kind in types)}: AWS does not sell it as spot: "
        f"choose others, or buy all {most} nodes with --on-demand base={most}"
    )


def check_placement(types: Sequence[InstanceType], strategy: str) -> None:
    """Raise `UsageError` for a type that such a placement group does not accept."""
    for kind in types:
        if strategy not in kind.placements:
            raise UsageError(
                f"--placement {strategy}: {kind.name} cannot be in such a placement group: choose "
                "other --instance-types"
            )


def parse_type(item: dict[str, Any]) -> InstanceType:
    """Return the type that EC2 describes."""
    gpus = item.get("GpuInfo", {}).get("Gpus", [])
    return InstanceType(
        name=item["InstanceType"],
        vcpus=item["VCpuInfo"]["DefaultVCpus"],
        gpus=sum(gpu.get("LogicalGpuCount") or gpu.get("Count", 0) for gpu in gpus),
        gpu=gpus[0].get("Name", "") if gpus else "",
        architecture=item["ProcessorInfo"]["SupportedArchitectures"][-1],
        gpu_memory_mib=gpus[0].get("MemoryInfo", {}).get("SizeInMiB", 0) if gpus else 0,
        network=parse_network(item.get("NetworkInfo", {})),
        placements=tuple(item.get("PlacementGroupInfo", {}).get("SupportedStrategies", ())),
        gpu_maker=gpus[0].get("Manufacturer", "") if gpus else "",
        gpu_share=gpus[0].get("GpuPartitionSize", 1.0) if gpus else 1.0,
        memory_mib=item.get("MemoryInfo", {}).get("SizeInMiB", 2**20),
        spot="spot" in item.get("SupportedUsageClasses", ("spot",)),
        nvme=item.get("EbsInfo", {}).get("NvmeSupport", "required") != "unsupported",
    )


def shipped() -> tuple[InstanceType, ...]:
    """Return the GPU types with a shipped price, as EC2 describes them.

    They are for plans without an account.
    """
    rows = json.loads(Path(__file__).with_name("gpu_types.json").read_text())
    return tuple(
        InstanceType(name, vcpus, gpus, gpu, "x86_64", each, gpu_maker="NVIDIA", memory_mib=memory)
        for name, vcpus, gpus, gpu, each, memory in rows
    )
