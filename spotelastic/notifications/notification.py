"""A notification: a short text for people, with what to do, that is sent to receivers."""

from dataclasses import dataclass
from typing import Literal, Protocol

NotificationType = Literal["info", "success", "warning", "failure"]
"""How much it matters, in Apprise's words: services show each in a colour of its own."""
LONGEST = 1800
"""Most characters of a text. Discord takes 2,000 with the title, and others more."""


@dataclass(frozen=True, slots=True)
class Notification:
    """One notification."""

    id: str
    """The same whichever controller makes it: a word for its kind, and what happened once."""
    title: str
    text: str
    type: NotificationType = "info"
    """"warning" or "failure": somebody should look at it soon."""

    @property
    def kind(self) -> str:
        return self.id.partition(" ")[0]


class Receiver(Protocol):
    """Where notifications go. Used by one thread."""

    @property
    def name(self) -> str:
        """For people: a number and the service, e.g. 1-slack. Nothing secret."""

    def send(self, notification: Notification) -> "SendOutcome":
        """Send it, within a deadline."""


@dataclass(frozen=True, slots=True)
class SendOutcome:
    """What came of sending a notification to one receiver."""

    why: str = ""
    """Why it could not be delivered, without secrets; empty if it was."""
    unsure: bool = False
    """Whether it may have been delivered, although nobody said so. It is not sent again then."""


def shortened(text: str, most: int = LONGEST) -> str:
    """Return the text, or its end, which is where a traceback says what went wrong."""
    return text if len(text) <= most else f"[…]\n{text[len(text) - most + 4 :]}"
