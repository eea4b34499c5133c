"""Keeps track of the agent and the workers that are connected to a checkpoint daemon."""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from spotelastic_checkpoints import framing, messages


@dataclass
class Client:
    """One connection. Fields that concern a worker are set once it has attached."""

    send: Callable[[bytes], None]
    rank: int = -1
    """Global rank of the worker; -1 while the client is not a worker that trains."""
    local_rank: int = -1
    round: str = ""
    """Incarnation of the worker's round."""
    slots: list[Path] = field(default_factory=list)
    """Slots of its local rank, whether they are in memory yet or not."""
    reserving: int = 0
    """Id of a `Reserve` that could not be answered yet; 0 if none."""
    awaiting: tuple[int, int] | None = None
    """Id and target of an `Await` that is not answered yet."""
    sealed: int = 0
    """The last step that the worker has sealed."""
    waiting: bool = False
    """Whether the worker waits at a target."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    """Requests of this client that are being answered."""

    @property
    def attached(self) -> bool:
        """Whether this is a worker that trains."""
        return self.rank >= 0


class Connections:
    """All clients of the daemon, and those that have subscribed to events."""

    def __init__(self) -> None:
        self._clients: list[Client] = []
        self._subscribers: list[Client] = []
        self._left = asyncio.Event()

    def __iter__(self) -> Iterator[Client]:
        return iter(self._clients)

    @property
    def workers(self) -> list[Client]:
        """Clients that are workers and train."""
        return [client for client in self._clients if client.attached]

    def add(self, client: Client) -> None:
        """Add a client."""
        self._clients.append(client)

    def subscribe(self, client: Client) -> None:
        """Send events to this client from now on."""
        self._subscribers.append(client)

    def emit(self, event: messages.DaemonEvent) -> None:
        """Send an event to all subscribers."""
        for subscriber in self._subscribers:
            subscriber.send(framing.frame(0, "", event))

    def remove(self, client: Client) -> None:
        """Remove a client whose connection ended, and cancel what it had asked for."""
        self._clients.remove(client)
        if client in self._subscribers:
            self._subscribers.remove(client)
        for task in client.tasks:
            task.cancel()
        self._left.set()

    def detach(self, client: Client) -> None:
        """Note that the worker has stopped training. It may still be connected."""
        client.rank = -1
        self._left.set()

    async def deserted(self, timeout: float) -> None:
        """Wait until no worker is attached any more, at most `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while self.workers:
            self._left.clear()
            try:
                await asyncio.wait_for(self._left.wait(), deadline - time.monotonic())
            except TimeoutError:
                return
