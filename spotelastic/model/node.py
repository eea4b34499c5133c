"""What identifies a node, and what nodes of one round must have in common."""

from dataclasses import dataclass

from spotelastic.model.protocol import PROTOCOL, ProtocolVersion


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The software of a node, which must be equal on all nodes of a round.

    Nodes that differ are refused. Empty fields are unknown and match anything.
    """

    python: str = ""
    torch: str = ""
    cuda: str = ""
    code: str = ""
    """Hash of the script, or of the folder that it was shipped in."""
    workers: int = 1
    """Workers on this node. Not compared: nodes may have different numbers of GPUs."""
    launcher: str = ""
    """The program that starts the workers: launchers differ in how they restart."""
    kernels: str = ""
    """What else decides the last bits of what is computed; empty where these may differ."""
    protocol: ProtocolVersion = PROTOCOL
    """The protocol that the node speaks: nodes of one major version work together."""

    def difference(self, other: "Fingerprint") -> str | None:
        """Return the first field in which the two differ, naming both sides, or None."""
        if self is other or self == other:  # as usual, and the holder compares thousands of nodes
            return None
        if self.protocol.major != other.protocol.major:
            return (
                f"protocol {self.protocol} here, {other.protocol} there: install the same version "
                "of spotelastic on both"
            )
        for name, told in _FIELDS.items():
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine and theirs and mine != theirs:
                return f"{told} {_short(mine)} here, {_short(theirs)} there"
        return None


_FIELDS = {
    "launcher": "started by",
    "python": "Python",
    "torch": "torch",
    "cuda": "CUDA",
    "code": "code",
    "kernels": "kernels (--exact) of",
}


def _short(value: object) -> str:
    """Shortens a hash to the part that people compare."""
    return str(value) if len(str(value)) < 60 else str(value)[:12]


@dataclass(frozen=True, slots=True)
class Node:
    """A registered node, stored under a leased key for as long as its agent lives."""

    id: str
    """The EC2 instance id on AWS; a name derived from the host elsewhere."""
    incarnation: str
    """Random id, new with every registration: tells a node that came back from one that stayed."""
    address: str
    zone: str
    fingerprint: Fingerprint
    daemon: str = ""
    """host:port of the node's checkpoint daemon, which other nodes restore from."""
    spot: bool = True
    node_rank: int | None = None
    """The group rank that the node asks for (rank policy "pinned"); unique among live nodes."""
    type: str = ""
    """The instance type; empty: not known. Nodes of unlike types are not equally fast."""
    efa: bool | None = None
    """Whether its workers reach those of other nodes through EFA; None: not known."""
    prepares: bool = False
    """Whether its workers still prepare beside the round, so that it counts only if needed."""

    @property
    def workers(self) -> int:
        return self.fingerprint.workers
