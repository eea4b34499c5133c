"""Pure: what a cluster costs an hour, line by line, and what is billed besides its instances.

These prices are of us-east-1 and of one day.
"""

from collections.abc import Sequence
from dataclasses import dataclass

AS_OF = "2025-07"
HOURS_A_MONTH = 730.0
ADDRESS = 0.005
"""US dollars an hour for a public IPv4 address."""
DISK_GIB_MONTH = 0.08
"""gp3."""
NAT = 0.045
"""US dollars an hour for a NAT gateway, and as much for each GB through it."""
WORKER_DISK_GIB = 100
"""Of a worker's encrypted root volume: a Deep Learning image takes 50 of them."""
CONTROL_DISKS_GIB = 8 + 8
"""A control node's root volume and its etcd member's."""


@dataclass(frozen=True, slots=True)
class Line:
    """`count` of something, at `usd` an hour each."""

    what: str
    low: int
    """At --min."""
    high: int
    """At --max."""
    usd: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Estimate:
    lines: tuple[Line, ...]

    @property
    def low(self) -> float:
        """US dollars an hour with --min workers."""
        return sum(line.low * line.usd for line in self.lines)

    @property
    def high(self) -> float:
        return sum(line.high * line.usd for line in self.lines)


def estimate(
    *,
    nodes: tuple[int, int],
    worker: str,
    worker_usd: float,
    control: str,
    control_usd: float,
    controls: int,
    nat_gateways: int,
    addresses: tuple[int, int],
) -> Estimate:
    """`nodes` is (--min, --max), and `addresses` the public ones at these."""
    low, high = nodes
    lines: Sequence[Line] = (
        Line(f"worker, {worker}", low, high, worker_usd),
        Line(f"worker disk, {WORKER_DISK_GIB} GiB", low, high, _disk(WORKER_DISK_GIB)),
        Line(f"control node, {control}", controls, controls, control_usd, "on demand"),
        Line(
            f"control disks, {CONTROL_DISKS_GIB} GiB",
            controls,
            controls,
            _disk(CONTROL_DISKS_GIB),
        ),
        Line("public IPv4 address", *addresses, ADDRESS),
        Line("NAT gateway", nat_gateways, nat_gateways, NAT, f"and {NAT:g} USD a GB"),
    )
    return Estimate(tuple(line for line in lines if line.high))


def besides(role: str, *, public: bool) -> float:
    """US dollars an hour for the disks of a worker or control node, and its public address."""
    disks = CONTROL_DISKS_GIB if role == "control" else WORKER_DISK_GIB
    return _disk(disks) + ADDRESS * public


def gateways(count: int) -> float:
    """US dollars an hour for NAT gateways, each of which has an address."""
    return count * (NAT + ADDRESS)


def _disk(gib: int) -> float:
    return gib * DISK_GIB_MONTH / HOURS_A_MONTH
