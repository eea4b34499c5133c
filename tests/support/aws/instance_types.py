"""All instance types that AWS has, and the launch template of workers of some of them."""

import gzip
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from spotelastic.aws.base.names import Names
from spotelastic.aws.compute.instance_types import describe_mismatch, parse_type
from spotelastic.aws.compute.launch_template import WorkerGroups, launch_template
from spotelastic.aws.compute.network_interfaces import Interface, choose_interfaces


def _described() -> Mapping[str, Mapping[str, Any]]:
    packed = resources.files("moto").joinpath("ec2/resources/instance_types.json.gz").read_bytes()
    found: Mapping[str, Mapping[str, Any]] = json.loads(gzip.decompress(packed))
    return found


DESCRIBED = _described()
"""What DescribeInstanceTypes says, as moto has recorded it."""
TYPES = {name: parse_type(dict(item)) for name, item in DESCRIBED.items()}
SERVED = [name for name, kind in TYPES.items() if not describe_mismatch(kind)]


def interfaces_of(*names: str) -> tuple[Interface, ...]:
    return choose_interfaces([TYPES[name].network for name in names])


def template(*names: str, public: bool | None = True) -> dict[str, Any]:
    return launch_template(
        WorkerGroups(
            names=Names("demo"),
            types=names,
            size=2,
            image="ami-1",
            bucket="b",
            profile="arn",
            security_group="sg-1",
            subnets=("subnet-1",),
            start=2,
            interfaces=interfaces_of(*names),
            public=public,
        )
    )
