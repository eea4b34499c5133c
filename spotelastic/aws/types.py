"""Instance types: what they have, and whether they may share a worker group."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spotelastic.aws.clients import Aws, Rejected, calling
from spotelastic.errors import UsageError


@dataclass(frozen=True, slots=True)
class InstanceType:
    name: str
    vcpus: int
    gpus: int
    gpu: str
    """Model of its GPUs; "" without any."""
    architecture: str
    efa_cards: int = 0
    """Network cards that EFA can use; 0 without EFA."""

    @property
    def workers(self) -> int:
        """One worker per GPU; without GPUs one per node."""
        return max(1, self.gpus)


def describe(aws: Aws, names: Sequence[str]) -> tuple[InstanceType, ...]:
    """In the order given. Raises `UsageError` for a type that the region does not know."""
    try:
        with calling("look up instance types"):
            answer = aws.ec2.describe_instance_types(InstanceTypes=list(names))
    except Rejected as error:
        if error.code != "InvalidInstanceType":
            raise
        raise UsageError(
            f"--instance-types {','.join(names)}: {aws.region} has no such type ({error})"
        ) from error
    found = {item["InstanceType"]: _parsed(item) for item in answer["InstanceTypes"]}
    if unknown := [name for name in names if name not in found]:
        raise UsageError(f"--instance-types: {aws.region} has no type {', '.join(unknown)}")
    return tuple(found[name] for name in names)


def check_alike(types: Sequence[InstanceType]) -> InstanceType:
    """The first, if all may serve one job. Raises `UsageError` naming two that may not."""
    first = types[0]
    for other in types[1:]:
        for trait in ("gpus", "gpu", "architecture"):
            mine, theirs = getattr(first, trait), getattr(other, trait)
            if mine != theirs:
                raise UsageError(
                    f"--instance-types: {first.name} and {other.name} must not share a job: "
                    f"{trait} {mine or 'none'} and {theirs or 'none'}"
                )
    return first


def efa_cards(types: Sequence[InstanceType]) -> int:
    """As many as all of the types have: they share one launch template."""
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
        efa_cards=network.get("MaximumNetworkCards", 1) if network.get("EfaSupported") else 0,
    )
