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
    """Hash of the script or of the folder that it came in."""
    workers: int = 1
    """On this node; not compared, since machines may have unlike numbers of GPUs."""
    launcher: str = ""
    """What starts the workers: each launcher has its own idea of a restart."""

    def difference(self, other: "Fingerprint") -> str | None:
        """The first field in which the two differ, naming both sides; None where they match."""
        if self == other:  # As a thousand do, each time that the holder looks.
            return None
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
}


def _short(value: object) -> str:
    """Of a hash, what people compare."""
    return str(value) if len(str(value)) < 40 else str(value)[:12]


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
    """The slot that it asks for (rank policy "pinned"); no two live nodes ask for the same."""

    @property
    def workers(self) -> int:
        return self.fingerprint.workers
