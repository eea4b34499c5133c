"""What a leading controller works with: where its messages come from, and where its results go."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from spotelastic.controller.accounting.status import Account
from spotelastic.controller.effects.executor import ControllerExecutor
from spotelastic.controller.model.observation import Message, PendingCommand
from spotelastic.model.progress import Event
from spotelastic.notifications.notification import Notification

T_co = TypeVar("T_co", covariant=True)


class Receives(Protocol[T_co]):
    """A queue whose messages have been received, as `Inbox`."""

    @property
    def messages(self) -> tuple[T_co, ...]:
        """Those not deleted yet, oldest first."""

    @property
    def handled(self) -> frozenset[str]:
        """Ids of the last messages that were dealt with."""

    def settle(self, done: Sequence[object]) -> None:
        """Forgets the messages that these actions deleted."""

    def close(self) -> None: ...


class Publishes(Protocol):
    """Writes accounts to the bucket, as `Publisher`."""

    @property
    def entries(self) -> tuple[Event, ...]:
        """What is to be put on record of the newest account."""

    def offer(self, account: Account) -> None: ...

    def settle(self) -> bool: ...

    def finish(self) -> None: ...

    def close(self) -> None: ...


class Notifies(Protocol):
    """Sends notifications without being waited for, as `Notifier`."""

    @property
    def undelivered(self) -> tuple[str, ...]:
        """What could not be delivered."""

    def offer(self, names: Mapping[str, int], notifications: Sequence[Notification]) -> None: ...


class Closes(Protocol):
    """Runs on a thread of its own until it is closed, as `Snapshots`."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Collaborators:
    """The parts with effects that one leader uses, and closes at its end."""

    executor: ControllerExecutor
    events: Receives[Message]
    """The cloud's events about the cluster."""
    commands: Receives[PendingCommand]
    """Commands from people."""
    publisher: Publishes
    snapshots: Closes
    notifier: Notifies
    """Outlives the leader: what it has put on record is sent by nobody else."""

    def close(self) -> None:
        for part in (self.events, self.commands, self.snapshots, self.publisher):
            part.close()
