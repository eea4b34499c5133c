"""What a person tells a cluster to do, and what its leading controller answers."""

from dataclasses import dataclass
from typing import Literal

CommandKind = Literal["stop", "restart", "scale"]


@dataclass(frozen=True, slots=True)
class Command:
    """Carried out once, however often it arrives."""

    id: str
    kind: CommandKind
    min_nodes: int = 0
    """Of scale, as the next one."""
    max_nodes: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """The leader's word on a command, within seconds."""

    id: str
    at: float
    text: str
    accepted: bool = True
