"""What an agent knows of its own node's GPUs, as one frozen value."""

from dataclasses import dataclass

from spotelastic.model.gpu import GpuFault
from spotelastic.model.progress import GpuUse

EXAMINED_WITHIN = 15.0
"""Seconds after which an examination is waited for no longer. It takes less, or ends the node."""


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """Whether this node's GPUs were checked, and what was found."""

    unchecked: bool = False
    """Whether a check is due before the node may join."""
    checking: bool = False
    """Whether the check has begun."""
    gpus: int = 0
    """How many GPUs it has found."""
    efa: int = 0
    """EFA devices of this node."""
    nccl_plugin: bool = False
    """Whether NCCL's plugin for EFA is there."""
    examined: str = ""
    """The round after whose failure the GPUs were examined last, or are being examined."""
    examining_at: float = 0.0
    """Since when they are being examined; 0: they are not."""
    suspect: GpuFault | None = None
    """What may be to blame for the next failure of a worker."""
    warnings: tuple[GpuFault, ...] = ()
    """What the kernel told and changes nothing, each kind once."""
    fault: GpuFault | None = None
    """Why this node leaves, or does not join."""
    ill_since: float = 0.0
    use: GpuUse | None = None
    """How busy they are; None: that is not known."""

    def examines(self, now: float) -> bool:
        """Whether an examination is waited for."""
        return bool(self.examining_at) and now < self.examining_at + EXAMINED_WITHIN
