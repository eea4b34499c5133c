"""A node: one machine (on AWS one instance) that runs an agent and its workers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What must be equal on all nodes of a round; unequal nodes are refused, never left to hang.

    Empty fields are unknown and match anything.
    """

    python: str = ""
    torch: str = ""
    cuda: str = ""
    code: str = ""
    workers: int = 1

    def difference(self, other: "Fingerprint") -> str | None:
        """The first field in which the two differ, naming both sides; None where they match."""
        for name in ("python", "torch", "cuda", "code", "workers"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine and theirs and mine != theirs:
                return f"{name} {mine} here, {theirs} there"
        return None


@dataclass(frozen=True, slots=True)
class Node:
    """A registered node, stored under a leased key for as long as its agent lives."""

    id: str
    """The EC2 instance id on AWS; a name derived from the host elsewhere."""
    incarnation: str
    """Random, new with every registration: tells a node that came back from one that stayed."""
    address: str
    zone: str
    fingerprint: Fingerprint
    daemon: str = ""
    """host:port of its checkpoint daemon, for peers that restore from it."""
    spot: bool = True
    node_rank: int | None = None
    """The rank the user asked for with --node-rank (rank policy "pinned")."""
    registered_at: float = 0.0

    @property
    def workers(self) -> int:
        return self.fingerprint.workers
