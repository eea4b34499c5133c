"""Names a cluster's AWS resources, and divides its network.

Everything follows from the cluster's name.
"""

import ipaddress
import re
from dataclasses import dataclass

from spotelastic.errors import EnvironmentFailure, UsageError
from spotelastic.model.job import JobSpec

MEMBERS = ("a", "b", "c")
"""The etcd members; each runs on a control node in its own zone. With `--control 1` the first."""
CONTROL_TYPE = "t3.small"
"""Instance type of the control nodes, unless `--control-type` names another."""
CLIENT_PORT = 2379
PEER_PORT = 2380
PREFIX = "spotelastic-"
SHARED_NETWORK = f"{PREFIX}SharedNetwork"
"""The stack of the network that clusters share. No cluster's stack is called so: names of clusters
have no capitals."""
BOUNDARY = f"{PREFIX}boundary"
"""The policy that bounds all roles of clusters, in an account whose administrator has made it."""
TERMINATE_HOOK = "spotelastic-drain"
"""The lifecycle hook at which a terminating instance waits until it has drained."""
SWITCH = "spotelastic-unattended"
"""The scheduled action that empties a worker group which no controller looks after."""
PARTS_DIFF = 4
"""A cluster's network has 2 ** PARTS_DIFF parts of equal size, for one subnet each."""
SHARED_PARTS_DIFF = 3
"""The same for the network that clusters share: it has one subnet per zone, and no private ones."""
SHARED_SIZE = 16
"""Prefix length of that network, the largest of a VPC: its subnets hold 8,187 addresses each."""
RESERVED = 32
"""Addresses of a subnet that workers cannot have: AWS's, a control node's, those of leaving nodes.
"""
LONGEST = 39
"""Longest cluster name. `spotelastic-NAME-interruption`, an event rule, has at most 64 characters.
"""
COMMANDS = "-commands"
"""What the name of a cluster's second queue ends in, so that no cluster's name may."""
_NAME = re.compile(rf"[a-z][a-z0-9-]{{0,{LONGEST - 1}}}")


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one cluster's resources."""

    cluster: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.cluster):
            raise UsageError(
                f"--name {self.cluster!r}: a name is lower-case letters, digits and hyphens, "
                f"starts with a letter, and has at most {LONGEST} characters"
            )
        if self.cluster.endswith(COMMANDS):
            raise UsageError(
                f"--name {self.cluster!r}: the queue of a cluster "
                f"{self.cluster.removesuffix(COMMANDS)!r} has this name; choose one that does not "
                f"end in {COMMANDS}"
            )

    @property
    def stack(self) -> str:
        """The CloudFormation stack."""
        return PREFIX + self.cluster

    @property
    def queue(self) -> str:
        """The queue on which AWS's events arrive."""
        return PREFIX + self.cluster

    @property
    def commands(self) -> str:
        """The queue on which users' commands arrive."""
        return f"{PREFIX}{self.cluster}{COMMANDS}"

    @property
    def workers(self) -> str:
        """The Auto Scaling group of spot workers, and the launch template of all workers."""
        return f"{PREFIX}{self.cluster}-workers"

    @property
    def on_demand(self) -> str:
        """The Auto Scaling group of on-demand workers."""
        return f"{PREFIX}{self.cluster}-workers-on-demand"

    def control(self, member: str) -> str:
        """Return the name of one control node's Auto Scaling group and launch template."""
        return f"{PREFIX}{self.cluster}-control-{member}"

    @property
    def log_group(self) -> str:
        """The CloudWatch log group."""
        return f"/spotelastic/{self.cluster}"

    @property
    def secrets(self) -> str:
        """The folder of the cluster's parameters."""
        return f"/spotelastic/{self.cluster}"

    @property
    def token(self) -> str:
        """The parameter with the secret that the cluster's nodes share."""
        return f"{self.secrets}/token"

    @property
    def authority(self) -> str:
        """The parameter with the certificate authority and its key.

        No role of the cluster may read it.
        """
        return f"{self.secrets}/authority"

    def member_certificate(self, member: str) -> str:
        """Return the parameter with an etcd member's certificate, for control nodes."""
        return f"{self.secrets}/control/{member}"

    @property
    def worker_certificate(self) -> str:
        """The parameter with the certificate of etcd clients on worker nodes."""
        return f"{self.secrets}/worker/etcd"


def bucket(account: str, region: str) -> str:
    """Return the bucket that all clusters of an account and region share."""
    return f"{PREFIX}{account}-{region}"


@dataclass(frozen=True, slots=True)
class Addresses:
    """The address blocks of one cluster's network, and the fixed address of each etcd member."""

    block: str
    subnets: tuple[str, ...]
    """One block per zone; the first ones hold a control node each."""
    private: tuple[str, ...]
    """One block per zone, for workers that cannot have public addresses."""
    members: tuple[str, ...]


def block_size(needed: int) -> int:
    """Return the prefix length of a network whose subnets each have room for `needed` addresses."""
    for size in range(19, 16, -1):
        if 2 ** (32 - size - PARTS_DIFF) - RESERVED >= needed:
            return size
    return 16


def members_of(job: JobSpec) -> tuple[str, ...]:
    """Return the etcd members that a job is to have; it names none where nobody has chosen."""
    return job.etcd_members or MEMBERS


def addresses(
    pool: str, taken: tuple[str, ...], zones: int = 3, size: int = 19, members: int = len(MEMBERS)
) -> Addresses:
    """Return the first block of `pool` that overlaps no `taken` one, divided between zones.

    Networks in AWS may overlap, but then they can never be peered. In the local cloud all share one
    loopback.
    """
    block = _free_block(pool, taken, size)
    parts = list(block.subnets(prefixlen_diff=PARTS_DIFF))
    subnets = parts[:zones]
    private = parts[len(parts) // 2 :][:zones]
    return Addresses(
        block=str(block),
        subnets=tuple(map(str, subnets)),
        private=tuple(map(str, private)),
        # AWS assigns addresses at random; the template reserves these before any launch.
        # The last address of a subnet belongs to AWS.
        members=tuple(str(subnet[-3]) for subnet in subnets[:members]),
    )


def shared_block(pool: str, taken: tuple[str, ...]) -> str:
    """Return the block of `pool` for the network that clusters share.

    At most half of the pool: the rest is for networks of clusters that need one of their own.
    """
    size = max(SHARED_SIZE, ipaddress.IPv4Network(pool).prefixlen + 1)
    return str(_free_block(pool, taken, size))


def shared_subnets(block: str) -> tuple[str, ...]:
    """Return the blocks of the subnets of the network that clusters share, one per zone."""
    parts = ipaddress.IPv4Network(block).subnets(prefixlen_diff=SHARED_PARTS_DIFF)
    return tuple(map(str, parts))


def _free_block(pool: str, taken: tuple[str, ...], size: int) -> ipaddress.IPv4Network:
    used = [ipaddress.IPv4Network(block) for block in taken]
    for block in ipaddress.IPv4Network(pool).subnets(new_prefix=size):
        if not any(block.overlaps(other) for other in used):
            return block
    raise EnvironmentFailure(
        f"no free /{size} network is left in {pool}: delete a cluster that is not needed "
        "(`spotelastic ls`, `spotelastic down NAME`)"
    )
