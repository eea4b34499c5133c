"""Commands from people to a running cluster (stop, restart, scale), and their answers."""

from dataclasses import dataclass

from spotelastic.model.job import Settings
from spotelastic.model.protocol import PROTOCOL, ProtocolVersion, Word

CommandKind = Word["stop", "restart", "scale"]
LIFETIME = 8.0
"""Seconds within which a leading controller must have seen a command."""
ANSWERED_WITHIN = 10.0
"""Seconds that the sender waits for the answer."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command. It is carried out once, however often it arrives."""

    id: str
    kind: CommandKind
    min_nodes: int | None = None
    """The new minimum, for "scale"; None leaves it as it is."""
    max_nodes: int | None = None
    """The new maximum, for "scale"; None leaves it as it is."""
    protocol: ProtocolVersion = PROTOCOL
    """The protocol of the sender."""
    reason: str = ""
    """Why the job is stopped, for "stop"; empty: somebody wants it."""

    def sizes(self, settings: Settings) -> tuple[int, int]:
        """Return min and max nodes of a job with these settings after the command."""
        low, high = self.min_nodes, self.max_nodes
        return (
            settings.min_nodes if low is None else low,
            settings.max_nodes if high is None else high,
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """The leading controller's answer to a command."""

    id: str
    at: float
    text: str
    accepted: bool = True
