"""Who is connected to the daemon: the agent, and the workers of this node."""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from spotelastic_checkpoints import framing, messages


@dataclass
class Client:
    """One connection. The worker's fields are set once it has attached."""

    send: Callable[[bytes], None]
    rank: int = -1
    local_rank: int = -1
    round: str = ""
    slots: list[Path] = field(default_factory=list)
    """Of its local rank, whether they are in memory yet or not."""
    reserving: int = 0
    """Id of a Reserve that could not be answered yet."""
    awaiting: tuple[int, int] | None = None
    """Id and target of an Await that is not answered yet."""
    sealed: int = 0
    waiting: bool = False
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def attached(self) -> bool:
        """It is a worker that trains."""
        return self.rank >= 0


class Connections:
    """All that there are; who has subscribed hears of events."""

    def __init__(self) -> None:
        self._clients: list[Client] = []
        self._subscribers: list[Client] = []
        self._left = asyncio.Event()

    def __iter__(self) -> Iterator[Client]:
        return iter(self._clients)

    @property
    def workers(self) -> list[Client]:
        return [client for client in self._clients if client.attached]

    def add(self, client: Client) -> None:
        self._clients.append(client)

    def subscribe(self, client: Client) -> None:
        self._subscribers.append(client)

    def emit(self, event: messages.DaemonEvent) -> None:
        for subscriber in self._subscribers:
            subscriber.send(framing.frame(0, "", event))

    def remove(self, client: Client) -> None:
        """And what it had asked for."""
        self._clients.remove(client)
        if client in self._subscribers:
            self._subscribers.remove(client)
        for task in client.tasks:
            task.cancel()
        self._left.set()

    def detach(self, client: Client) -> None:
        """The worker trains no more; it may still be connected."""
        client.rank = -1
        self._left.set()

    async def deserted(self, timeout: float) -> None:
        """Wait until no worker is attached any more, or time (s) ran out."""
        deadline = time.monotonic() + timeout
        while self.workers:
            self._left.clear()
            try:
                await asyncio.wait_for(self._left.wait(), deadline - time.monotonic())
            except TimeoutError:
                return
