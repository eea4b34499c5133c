"""Estimates how fast types of nodes are beside each other, by the peak rates of their GPUs (pure).

What a script makes of a GPU is measured while it trains. Before that, nobody knows better.
"""

from collections.abc import Mapping, Sequence
from functools import cache

from spotelastic.aws.compute import instance_types

PEAK = {
    "T4": 65.0,
    "A10G": 70.0,
    "L4": 121.0,
    "L40S": 362.0,
    "A100": 312.0,
    "H100": 989.0,
    "H200": 989.0,
    "B200": 2250.0,
}
"""Tera-operations a second of a GPU in 16 bits, without sparsity, as NVIDIA states them."""


def relative(types: Sequence[str]) -> Mapping[str, float]:
    """Return how many times as fast as the first one each of these types is.

    Nothing where that is not known of all, or where all are alike.
    """
    rates = [_rates().get(name, 0.0) for name in types]
    if not all(rates) or len({*rates}) < 2:
        return {}
    return {name: rate / rates[0] for name, rate in zip(types, rates, strict=True)}


@cache
def _rates() -> Mapping[str, float]:
    return {kind.name: kind.gpus * PEAK.get(kind.gpu, 0.0) for kind in instance_types.shipped()}
