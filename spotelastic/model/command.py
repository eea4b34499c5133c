"""What a person tells a cluster to do, and what its leading controller answers."""

from dataclasses import dataclass
from typing import Literal

from spotelastic.model.job import Settings

CommandKind = Literal["stop", "restart", "scale"]


@dataclass(frozen=True, slots=True)
class Command:
    """Carried out once, however often it arrives."""

    id: str
    kind: CommandKind
    min_nodes: int | None = None
    """Of scale, as the next one; None: as it is."""
    max_nodes: int | None = None

    def sizes(self, settings: Settings) -> tuple[int, int]:
        """Min and max of a job with these settings once it is carried out."""
        low, high = self.min_nodes, self.max_nodes
        return (
            settings.min_nodes if low is None else low,
            settings.max_nodes if high is None else high,
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """The leader's word on a command, within seconds."""

    id: str
    at: float
    text: str
    accepted: bool = True
