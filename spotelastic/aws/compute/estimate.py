"""Estimates what a cluster costs per hour, line by line, including disks and addresses (pure).

The prices here are those of us-east-1 on one day.
"""

from collections.abc import Sequence
from dataclasses import dataclass

AS_OF = "2025-07"
HOURS_A_MONTH = 730.0
ADDRESS = 0.005
"""US dollars an hour for a public IPv4 address."""
DISK_GIB_MONTH = 0.08
"""US dollars a month for a GiB of gp3."""
NAT = 0.045
"""US dollars an hour for a NAT gateway, and as much for each GB through it."""
WORKER_DISK_GIB = 100
"""Least size of a worker's encrypted root volume, unless `--disk` says another."""
DISK_MIB_S = 250
"""Throughput of a worker's root volume: a boot reads gigabytes of it."""
MIB_S_INCLUDED = 125
"""Throughput of gp3 that costs nothing more."""
MIB_S_MONTH = 0.04
"""US dollars a month for each further MiB/s of gp3."""
CONTROL_DISKS_GIB = 8 + 8
"""Sizes of a control node's root volume and its etcd member's."""
MEMBERS_DISKS_GIB = 3 * 8
"""Sizes of the disks of all etcd members: a cluster that is asleep has no others."""
NAT_GATEWAY = "NAT gateway"
CREDIT = 0.05
"""US dollars for an hour of a t3's vCPU beyond the share that its price includes."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the estimate: `usd` an hour for each."""

    what: str
    low: int
    """Count at --min."""
    high: int
    """Count at --max."""
    usd: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Estimate:
    """All lines of the estimate."""

    lines: tuple[Line, ...]

    @property
    def low(self) -> float:
        """US dollars an hour with --min workers."""
        return sum(line.low * line.usd for line in self.lines)

    @property
    def high(self) -> float:
        """US dollars an hour with --max workers."""
        return sum(line.high * line.usd for line in self.lines)

    @property
    def asleep_month(self) -> float:
        """US dollars a month for such a cluster while it is asleep: disks, and NAT gateways."""
        nat = sum(line.low for line in self.lines if line.what == NAT_GATEWAY)
        return (_disk(MEMBERS_DISKS_GIB) + gateways(nat)) * HOURS_A_MONTH


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
    disk_gib: int = WORKER_DISK_GIB,
) -> Estimate:
    """Return the estimate. `nodes` is (--min, --max); `addresses` the public ones at these."""
    low, high = nodes
    busy = f", {CREDIT:g} USD a vCPU-hour if busy" if control.startswith("t3") else ""
    control_disks = _disk(CONTROL_DISKS_GIB)
    lines: Sequence[Line] = (
        Line(f"worker, {worker}", low, high, worker_usd),
        Line(f"worker disk, {disk_gib} GiB", low, high, _worker_disk(disk_gib, DISK_MIB_S)),
        Line(f"control node, {control}", controls, controls, control_usd, f"on demand{busy}"),
        Line(f"control disks, {CONTROL_DISKS_GIB} GiB", controls, controls, control_disks),
        Line("public IPv4 address", *addresses, ADDRESS),
        Line(NAT_GATEWAY, nat_gateways, nat_gateways, NAT, f"and {NAT:g} USD a GB"),
    )
    return Estimate(tuple(line for line in lines if line.high))


def besides(
    role: str, *, public: bool, disk_gib: int = WORKER_DISK_GIB, disk_mib_s: int = DISK_MIB_S
) -> float:
    """Return US dollars an hour for a node's disks and public address.

    `disk_gib` and `disk_mib_s` are size and throughput of a worker's root disk.
    """
    control = role == "control"
    disks = _disk(CONTROL_DISKS_GIB) if control else _worker_disk(disk_gib, disk_mib_s)
    return disks + ADDRESS * public


def gateways(count: int) -> float:
    """Return US dollars an hour for NAT gateways, each with an address."""
    return count * (NAT + ADDRESS)


def _worker_disk(gib: int, mib_s: int) -> float:
    billed = max(0, mib_s - MIB_S_INCLUDED)
    return _disk(gib) + billed * MIB_S_MONTH / HOURS_A_MONTH


def _disk(gib: int) -> float:
    return gib * DISK_GIB_MONTH / HOURS_A_MONTH
