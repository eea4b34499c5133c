"""Which instance types the workers' image serves: others would be paid for, and never train."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.aws.cluster_requests import job, request
from support.aws.fake_services import Pages, fake_aws

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.compute import instance_types
from spotelastic.aws.compute.quotas import NodeDemand
from spotelastic.aws.planning import type_selection
from spotelastic.aws.planning.plan import plan_of
from spotelastic.aws.planning.survey import survey
from spotelastic.errors import UsageError

X86, ARM = ["x86_64"], ["arm64"]
CATALOG: dict[str, tuple[Sequence[str], str, str]] = {
    "m5.large": (X86, "", ""),
    "m6g.large": (ARM, "", ""),
    "g5g.xlarge": (ARM, "NVIDIA", "T4g"),
    "g4ad.xlarge": (X86, "AMD", "Radeon Pro V520"),
    "g3s.xlarge": (X86, "NVIDIA", "M60"),
    "p2.xlarge": (X86, "NVIDIA", "K80"),
    "p3.2xlarge": (X86, "NVIDIA", "V100"),
    "g4dn.xlarge": (X86, "NVIDIA", "T4"),
    "p5.48xlarge": (X86, "NVIDIA", "H100"),
}


@dataclass
class Ec2:
    """Only looks: whatever would make something is not there."""

    asked: list[str] = field(default_factory=list)

    def describe_instance_types(self, InstanceTypes: list[str]) -> dict[str, Any]:
        return {"InstanceTypes": [described(name) for name in InstanceTypes]}

    def describe_availability_zones(self, **_: Any) -> dict[str, Any]:
        return {"AvailabilityZones": [{"ZoneName": "eu-x-1a"}]}

    def get_paginator(self, operation: str) -> Pages:
        self.asked.append(operation)
        zone = {"AvailabilityZone": "eu-x-1a", "Location": "eu-x-1a"}
        each = [{"InstanceType": name, **zone} for name in CATALOG]
        prices = [{**item, "SpotPrice": "0.1", "Timestamp": 0} for item in each]
        page = {
            "InstanceTypeOfferings": each,
            "SpotPriceHistory": prices,
            "InstanceTypes": each,
        }
        return Pages(lambda **_: [page])


def account(ec2: Ec2) -> Aws:
    return fake_aws("eu-x-1", ec2=ec2)


def described(name: str) -> dict[str, Any]:
    architectures, maker, gpu = CATALOG[name]
    gpus = [{"Name": gpu, "Manufacturer": maker, "Count": 1, "MemoryInfo": {"SizeInMiB": 16384}}]
    return {
        "InstanceType": name,
        "VCpuInfo": {"DefaultVCpus": 4},
        "ProcessorInfo": {"SupportedArchitectures": architectures},
        **({"GpuInfo": {"Gpus": gpus}} if gpu else {}),
    }


WRONG = [
    ("m6g.large", "x86_64, not arm64: use c5, m5 or m6i"),
    ("g5g.xlarge", "x86_64, not arm64: use g4dn"),
    ("g4ad.xlarge", "supports NVIDIA GPUs, not AMD ones: use g4dn"),
    ("g3s.xlarge", "supports Turing and later, not M60: use g4dn"),
    ("p2.xlarge", "not K80"),
    ("p3.2xlarge", "not V100"),
]


@pytest.mark.parametrize(("name", "why"), WRONG)
def test_a_type_that_the_image_does_not_serve_is_refused_before_anything_else(
    name: str, why: str
) -> None:
    ec2 = Ec2()
    aws = account(ec2)
    with pytest.raises(UsageError, match=f"^--instance-types {name}: .*{why}"):
        plan_of(request("demo", instance_types=(name,)), aws, None)
    with pytest.raises(UsageError, match=why):
        instance_types.check_fit(instance_types.describe(aws, ["m5.large", name]))
    with pytest.raises(UsageError, match=why):
        survey(aws, job("demo", 2, instance_types=(name,)))
    assert ec2.asked == []


def test_the_others_are_served() -> None:
    right = [name for name in CATALOG if name not in dict(WRONG)]
    instance_types.check_fit(instance_types.describe(account(Ec2()), right))
    assert right == ["m5.large", "g4dn.xlarge", "p5.48xlarge"]


def test_none_of_them_is_chosen_where_no_type_is_named() -> None:
    class Free:
        def allowance(self, name: str, /, *, spot: bool) -> None:
            return None

    found = type_selection.survey(
        account(Ec2()), type_selection.Requirement(), NodeDemand(1, 1), Free().allowance
    )
    chosen = {kind.name for option in found for kind in option.types}
    assert chosen == {"g4dn.xlarge", "p5.48xlarge"}
