"""Carries messages between two ranks of a round, over its process group.

A message is a head of three numbers, and perhaps a body of as many numbers as both sides know of.

Must never happen: a rank waits for a send alone. Nobody tells a sender that its peer is gone (gloo
wakes whoever receives). So sends are left to themselves, and each is followed by a message from the
same peer, or by a collective, which fails in its place.
"""

import threading
from collections import defaultdict
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from spotelastic.training.parameter_server import vectors

_HEAD, _BODY = 1, 2
"""Tags."""
NUMBERS = 3
"""Numbers in a head."""

Head = tuple[int, ...]


class Link:
    """The messages of this rank in one attempt at a window."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Bodies are parameters or gradients of this model."""
        self._model = model
        self._sent: dict[int, list[Any]] = defaultdict(list)
        """What may still be on its way to a rank: it must stay in memory."""

    def send(self, rank: int, head: Sequence[int], body: torch.Tensor | None = None) -> None:
        """Send a message. It has arrived when a later one comes back from the same rank."""
        numbers = torch.tensor([*head, *[0] * (NUMBERS - len(head))])
        works = [(dist.isend(numbers, rank, tag=_HEAD), numbers)]
        if body is not None:
            works.append((dist.isend(body, rank, tag=_BODY), body))
        self._sent[rank] += works

    def head(self, rank: int) -> Head:
        """Wait for the head of the next message. Raises `RuntimeError` where the peer is lost."""
        numbers = torch.zeros(NUMBERS, dtype=torch.int64)
        dist.recv(numbers, rank, tag=_HEAD)
        self._sent[rank].clear()
        return tuple(numbers.tolist())

    def body(self, rank: int) -> torch.Tensor:
        """Wait for the body that follows."""
        numbers = vectors.empty(self._model)
        dist.recv(numbers, rank, tag=_BODY)
        return numbers


class RankMessage(NamedTuple):
    """What has come from a rank."""

    rank: int
    head: Head
    body: torch.Tensor | None


class ServerInbox:
    """Waits for messages of several ranks at once, each in a thread of its own.

    torch can receive from any rank, too, but nothing wakes that where a peer is lost.
    """

    def __init__(self, link: Link) -> None:
        """Read messages of this link. One has a body where the first number is not negative."""
        self._link = link
        self._come: SimpleQueue[RankMessage | Exception] = SimpleQueue()

    def expect(self, rank: int) -> None:
        """Wait for one message of a rank."""
        threading.Thread(target=self._read, args=(rank,), name="inbox", daemon=True).start()

    def next(self) -> RankMessage:
        """Return the message that has come first. Raises `RuntimeError` where a peer is lost."""
        found = self._come.get()
        if isinstance(found, Exception):
            raise found
        return found

    def _read(self, rank: int) -> None:
        try:
            head = self._link.head(rank)
            body = self._link.body(rank) if head[0] >= 0 else None
            self._come.put(RankMessage(rank, head, body))
        except Exception as error:
            self._come.put(error)
