"""Chooses the zones of a new cluster.

These are one for each control node, and all that offer its workers' types.

They are fixed when the stack is created. The first ones have a control node each. Workers are in
the others, and in those of the first ones that offer a worker type.
"""

from collections.abc import Mapping, Sequence

from spotelastic.aws.base.names import MEMBERS
from spotelastic.errors import EnvironmentFailure

MOST = 6
"""Most zones for which the stack has subnets; no region offers more to everyone."""
NONE = "-"
"""Placeholder in a parameter for a zone or subnet that does not exist."""

Offers = Mapping[str, frozenset[str]]
"""By zone: the types that it offers."""
_NO_PARTS = ",".join([NONE] * MOST)
NETWORK: Mapping[str, str] = {
    "GivenVpc": "",
    "GivenSubnets": _NO_PARTS,
    "SharedNetwork": "no",
    "SubnetCidrs": _NO_PARTS,
    "PrivateCidrs": _NO_PARTS,
    "Zones": "",
    "Cidr": "",
    "MemberAddresses": "",
}
"""The parameters of a cluster's stack that say which network it is in. They never change."""


def choose(
    offers: Offers,
    types: Sequence[str],
    control_type: str,
    region: str,
    controls: int = len(MEMBERS),
) -> tuple[str, ...]:
    """Return the zones of a new cluster, those of the control nodes first (pure).

    Control nodes go where workers can be, if possible, so that etcd is near. Raises
    `EnvironmentFailure` if there are too few zones for control nodes, or none for workers.
    """
    for_workers = with_workers(offers, sorted(offers), types)
    if not for_workers:
        raise EnvironmentFailure(
            f"no zone of {region} offers {', '.join(types)}: choose other --instance-types or "
            "another --region"
        )
    for_control = [zone for zone in sorted(offers) if control_type in offers[zone]]
    for_control.sort(key=lambda zone: zone not in for_workers)
    if len(for_control) < controls:
        raise EnvironmentFailure(
            f"{region} offers {control_type} in {len(for_control)} zones, but the control nodes "
            f"need {controls}: choose another --region or --control-type"
            + (", or --control 1" if controls > 1 else "")
        )
    first = for_control[:controls]
    return tuple([*first, *(zone for zone in for_workers if zone not in first)][:MOST])


def with_workers(offers: Offers, zones: Sequence[str], types: Sequence[str]) -> tuple[str, ...]:
    """Return the zones that offer at least one of the types."""
    return tuple(zone for zone in zones if offers.get(zone, frozenset()) & set(types))


def padded(values: Sequence[str], most: int = MOST) -> str:
    """Return the values as the stack's parameters take them."""
    return ",".join([*values, *[NONE] * (most - len(values))])


def given(parameter: str) -> tuple[str, ...]:
    """Return the values of such a parameter."""
    return tuple(value for value in parameter.split(",") if value != NONE)
