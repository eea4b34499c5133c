"""The GPU types that plans without an account know are those that EC2 describes."""

from moto.ec2.models.instance_types import INSTANCE_TYPES

from spotelastic.aws.compute import instance_types
from spotelastic.aws.compute.prices import shipped_table


def test_each_is_as_ec2_describes_it() -> None:
    traits = ("name", "vcpus", "memory_mib", "gpu_maker", *instance_types.ALIKE)
    for kind in instance_types.shipped():
        described = instance_types.parse_type(INSTANCE_TYPES[kind.name])
        assert [getattr(kind, each) for each in traits] == [
            getattr(described, each) for each in traits
        ]


def test_all_that_have_a_price_and_can_train_are_there() -> None:
    priced = [name for name in shipped_table().usd_per_hour if name in INSTANCE_TYPES]
    kinds = [instance_types.parse_type(INSTANCE_TYPES[name]) for name in priced]
    can = [kind.name for kind in kinds if kind.gpus and not instance_types.describe_mismatch(kind)]
    assert [kind.name for kind in instance_types.shipped()] == can
