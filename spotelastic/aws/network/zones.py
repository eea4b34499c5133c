"""In which zones a cluster lies: three for the control nodes, and all that offer its workers.

A cluster's zones are fixed when its stack is made. The first three have a control node each; the
others, and those of the first three that offer a worker type, have workers.
"""

from collections.abc import Mapping, Sequence

from spotelastic.aws.base.names import MEMBERS
from spotelastic.errors import EnvironmentFailure

MOST = 6
"""Zones that the stack has subnets for; no region has more that offer instances to everybody."""
NONE = "-"
"""Stands in a parameter for a zone or a subnet that there is not."""

Offers = Mapping[str, frozenset[str]]
"""By zone: the types that it offers."""


def choose(offers: Offers, types: Sequence[str], control_type: str, region: str) -> tuple[str, ...]:
    """The zones of a new cluster, those of the control nodes first (pure).

    Control nodes go where workers can be, where possible: etcd is then near. Raises
    `EnvironmentFailure` where there are fewer than three zones for them, or none for the workers.
    """
    for_workers = with_workers(offers, sorted(offers), types)
    if not for_workers:
        raise EnvironmentFailure(
            f"{region} offers {', '.join(types)} in no zone: choose another --instance-types or "
            "--region"
        )
    for_control = [zone for zone in sorted(offers) if control_type in offers[zone]]
    for_control.sort(key=lambda zone: zone not in for_workers)
    if len(for_control) < len(MEMBERS):
        raise EnvironmentFailure(
            f"{region} offers {control_type} in {len(for_control)} zones, but the control nodes "
            f"need {len(MEMBERS)}: choose another --region"
        )
    first = for_control[: len(MEMBERS)]
    return tuple([*first, *(zone for zone in for_workers if zone not in first)][:MOST])


def with_workers(offers: Offers, zones: Sequence[str], types: Sequence[str]) -> tuple[str, ...]:
    """Those of the zones that offer at least one of the types."""
    return tuple(zone for zone in zones if offers.get(zone, frozenset()) & set(types))


def padded(values: Sequence[str]) -> str:
    """As the stack's parameters take them."""
    return ",".join([*values, *[NONE] * (MOST - len(values))])


def given(parameter: str) -> tuple[str, ...]:
    """The values of such a parameter."""
    return tuple(value for value in parameter.split(",") if value != NONE)
