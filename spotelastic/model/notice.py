"""Warnings that a node will go, and the drain that follows from one."""

from dataclasses import dataclass

from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.progress import Event
from spotelastic.model.protocol import Word

Source = Word["imds", "sqs", "signal", "command", "health", "controller"]
"""imds: the instance's metadata service; sqs: the event bus, through the cluster's queue; health:
the node's own look at its GPUs."""
ORIGINS = {"imds": " (from its metadata service)", "sqs": " (from the event bus)"}


@dataclass(frozen=True, slots=True)
class Notice:
    """What AWS, or a person, said about one node. Times are in seconds since the epoch.

    `at` is when it was issued as far as known, `seen_at` when it was first observed, and `deadline`
    when the node may be gone.
    """

    kind: InterruptionKind
    node: str
    source: Source
    at: float
    seen_at: float
    deadline: float | None = None

    @property
    def line(self) -> str:
        """The notice as one line for people."""
        traits = self.kind.traits
        said = f"{self.node} {traits.outlook}"
        if traits.is_asked_for:
            return said
        if traits.has_deadline and self.deadline is not None and self.source == "imds":
            said += f" in {self.deadline - self.seen_at:.0f} s"
        return said + ORIGINS.get(self.source, "")

    def event(self, at: float) -> Event:
        """Returns the event that an observer of the notice records."""
        return Event(
            at,
            self.kind.traits.event,
            self.line,
            self.node,
            {
                "kind": self.kind.value,
                "source": self.source,
                "at": self.at,
                "seen_at": self.seen_at,
                "deadline": self.deadline,
            },
        )


@dataclass(frozen=True, slots=True)
class Drain:
    """The stored form of a notice that makes the node leave. Its first observer writes it, once."""

    node: str
    notice: Notice
