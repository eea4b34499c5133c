"""What is known of a node's GPUs: one reading of a GPU, and a fault that was found."""

from dataclasses import dataclass
from typing import Any

from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.progress import Event
from spotelastic.model.protocol import Word

FaultSource = Word["kernel", "nvidia-smi", "check", "controller", "audit"]
"""Who found a fault: the kernel's messages, nvidia-smi after a failure, the check before a node
joins, the controller, which sees that a node always fails first, or other ranks, which have
computed the same again with another result."""
UNHEALTHY = InterruptionKind.UNHEALTHY.value
"""Kind of the event that a node left, or did not join, for a fault."""


@dataclass(frozen=True, slots=True)
class GpuFault:
    """A fault of a node's GPU."""

    what: str
    """What was seen, in words."""
    source: FaultSource
    cause: str
    """What it has in common with the same fault elsewhere, e.g. “xid 79”."""
    gpu: str = ""
    """Which GPU: its index or its PCI address; empty: none, or all of them."""
    xid: int = 0
    """NVIDIA's number of the fault; 0: it has none."""

    @property
    def line(self) -> str:
        """The fault as one line for people."""
        return ": ".join(filter(None, (f"GPU {self.gpu}" if self.gpu else "", self.what)))

    def event(self, node: str, at: float, *, joined: bool) -> Event:
        """Return the event that a node leaves, or does not join, for this fault."""
        verb = "leaves" if joined else "does not join"
        data: dict[str, Any] = {
            "kind": UNHEALTHY,
            "source": self.source,
            "cause": self.cause,
            "gpu": self.gpu,
            "xid": self.xid,
            "at": at,
            "seen_at": at,
        }
        return Event(at, UNHEALTHY, f"{node} {verb}: {self.line}", node, data)


@dataclass(frozen=True, slots=True)
class GpuReading:
    """What nvidia-smi says of one GPU. None: this GPU or driver does not tell."""

    index: str
    address: str
    """Its PCI address, e.g. 00000000:1B:00.0."""
    uncorrected: int | None = None
    """Uncorrected memory errors since the driver was loaded."""
    pending: bool | None = None
    """Whether rows of its memory wait for a reset to be replaced."""
    failed: bool | None = None
    """Whether its memory could not be repaired."""
    busy: int | None = None
    """Percent of the last moments in which it has computed."""
    used: int | None = None
    """MiB of its memory that are in use."""
    total: int | None = None
    """MiB of memory that it has."""
