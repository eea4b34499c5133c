"""Warnings that a node will go, and the drain that follows from one."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.progress import Event
from spotelastic.model.protocol import Word

Source = Word["imds", "sqs", "signal", "command", "health", "controller"]
"""imds: the metadata service; sqs: the event bus; health: the node's look at its GPUs."""
SCHEDULED = "scheduled"
"""Kind of the event that tells what is announced for a later time, or called off."""
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
    action: str = ""
    """The cloud's own word for what it will do: terminate, hibernate, system-reboot, ..."""
    id: str = ""
    """What tells something scheduled from others of its kind; "" where there is only one."""
    called_off: bool = False
    """Whether what was announced will not happen after all."""

    def is_ahead(self, now: float) -> bool:
        """Whether the node need not leave yet for what is announced."""
        return self.deadline is not None and now < self.deadline - self.kind.traits.ahead

    @property
    def is_announcement(self) -> bool:
        """Whether the node stays for now, so that this is no part of its end."""
        return self.called_off or self.is_ahead(self.seen_at)

    @property
    def line(self) -> str:
        """The notice as one line for people."""
        traits = self.kind.traits
        word = f" ({self.action})" if self.action else ""
        if self.called_off:
            return f"{self.node} stays: what was scheduled has been called off{word}"
        if self.is_announcement and self.deadline is not None:
            return f"{self.node} {traits.outlook} at {_utc(self.deadline)}{word}"
        said = f"{self.node} {traits.outlook}"
        if traits.is_asked_for:
            return said
        if traits.has_deadline and self.deadline is not None and self.source == "imds":
            said += f" in {self.deadline - self.seen_at:.0f} s"
        return said + ORIGINS.get(self.source, "")

    def event(self, at: float) -> Event:
        """Return the event that an observer of the notice records."""
        data: dict[str, Any] = {
            "kind": self.kind.value,
            "source": self.source,
            "at": self.at,
            "seen_at": self.seen_at,
            "deadline": self.deadline,
        }
        if self.action:
            data["action"] = self.action
        if not self.is_announcement:
            return Event(at, self.kind.traits.event, self.line, self.node, data)
        data |= {
            "scheduled": self.id,
            "called_off": self.called_off,
            # An occurrence of its own for each time that is named.
            "id": f"{self.source} {self.id} {self.deadline} {self.called_off}",
        }
        return Event(at, SCHEDULED, self.line, self.node, data)


def _utc(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"


@dataclass(frozen=True, slots=True)
class Drain:
    """The stored form of a notice that makes the node leave. Its first observer writes it, once."""

    node: str
    notice: Notice
