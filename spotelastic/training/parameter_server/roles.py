"""What the ranks do in one attempt at a window: one serves, one stands by, the others work.

    worker → server    batch (-1: none), version that it has; then the batch's gradient
    server → worker    batch (-1: the window is over), version; then the parameters, if they are
                       others than those that the worker has
    server → standby   first batch, batches, version; then the update's gradient
    standby → server   version

An update is acknowledged to a worker by a later version than the one that its gradient was computed
on.

Must never happen:

- a worker sees a version that the standby does not have: an update that has an effect outlives the
  server;
- the standby leaves an update out: the version tells. Of another server it hears nothing, as that
  one is in a group which is closed.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from spotelastic.errors import SpotelasticError
from spotelastic.training.parameter_server.link import Link, RankMessage, ServerInbox
from spotelastic.training.parameter_server.order import Order
from spotelastic.training.parameter_server.served_state import ServedState

NONE = -1
SERVER = 0
"""The rank that serves."""

Compute = Callable[[int], torch.Tensor]
"""Returns a batch's gradient as one vector, and its loss as the last number."""
Acknowledged = Callable[[int], None]


@dataclass
class WindowLoss:
    """Of the batches that this rank has seen applied in a window."""

    total: float = 0.0
    count: int = 0

    def add(self, gradient: torch.Tensor, batches: int) -> None:
        self.total += float(gradient[-1]) * batches
        self.count += batches

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None


def work_alone(
    state: ServedState, order: Order, compute: Compute, told: Acknowledged
) -> WindowLoss:
    """Do everything, as the only rank."""
    losses, gradients = WindowLoss(), dict[int, torch.Tensor]()
    while (batch := order.take()) is not None:
        gradients[batch] = compute(batch)
        order.give(batch)
        while batches := order.due():
            mean = _mean(batches, gradients)
            state.apply(mean, batches)
            order.made(batches)
            losses.add(mean, len(batches))
            for each in batches:
                told(each)
    return losses


def _mean(batches: Sequence[int], gradients: dict[int, torch.Tensor]) -> torch.Tensor:
    """Return the mean of these batches' gradients, summed in this order, and drop them."""
    mean = gradients.pop(batches[0])
    for batch in batches[1:]:
        mean += gradients.pop(batch)
    mean /= len(batches)
    return mean


@dataclass
class Serving:
    """Takes gradients, makes updates, and hands out parameters and batches."""

    state: ServedState
    order: Order
    link: Link
    workers: tuple[int, ...]
    standby: int | None
    losses: WindowLoss = field(default_factory=WindowLoss)
    _gradients: dict[int, torch.Tensor] = field(default_factory=dict)
    _waiting: deque[RankMessage] = field(default_factory=deque)
    """What workers have sent that have no answer yet."""
    _shown: tuple[int, torch.Tensor] | None = None
    """A version, and its parameters."""

    def serve(self) -> None:
        """Serve until all updates of the window are made and all workers know."""
        inbox = ServerInbox(self.link)
        for worker in self.workers:
            inbox.expect(worker)
        while True:
            while batches := self.order.due():
                self._update(batches)
            for rank in self._answer():
                inbox.expect(rank)
            if self.order.is_over and len(self._waiting) == len(self.workers):
                break
            self._receive(inbox.next())
        for rank in (*self.workers, *self._standbys):
            self._tell(rank, NONE)

    @property
    def _standbys(self) -> tuple[int, ...]:
        return () if self.standby is None else (self.standby,)

    def _receive(self, message: RankMessage) -> None:
        if message.body is not None:
            batch = message.head[0]
            self.order.give(batch)
            self._gradients[batch] = message.body
        self._waiting.append(message)

    def _update(self, batches: Sequence[int]) -> None:
        """Make an update, and return when the standby has made it, too."""
        mean, version = _mean(batches, self._gradients), self.state.applied.version + 1
        for standby in self._standbys:
            self.link.send(standby, (batches[0], len(batches), version), mean)
        self.state.apply(mean, batches)
        self.order.made(batches)
        self.losses.add(mean, len(batches))
        for standby in self._standbys:
            if (its := self.link.head(standby)[0]) != version:
                raise SpotelasticError(f"the standby has version {its}, not {version}")

    def _answer(self) -> list[int]:
        """Give batches to workers that wait, and return those that have one now."""
        answered, left = [], deque[RankMessage]()
        for message in self._waiting:
            rank, (given, has, _), _ = message
            # An answer tells that the gradient counts.
            batch = None if self.order.holds(given) else self.order.take()
            if batch is None:
                left.append(message)
            else:
                self._tell(rank, batch, has)
                answered.append(rank)
        self._waiting = left
        return answered

    def _tell(self, rank: int, batch: int, has: int | None = None) -> None:
        version, body = self.state.applied.version, None
        if has is not None and has != version:
            if self._shown is None or self._shown[0] != version:
                self._shown = version, self.state.parameters()
            body = self._shown[1]
        self.link.send(rank, (batch, version), body)


def stand_by(state: ServedState, link: Link) -> None:
    """Make each update that the server makes, and say so, until the window is over."""
    while True:
        first, count, version = link.head(SERVER)
        if first == NONE:
            return
        mean = link.body(SERVER)
        if version != state.applied.version + 1:
            raise SpotelasticError(
                f"the server makes version {version}, and the standby has {state.applied.version}"
            )
        state.apply(mean, range(first, first + count))
        link.send(SERVER, (version,))


def work(
    link: Link,
    compute: Compute,
    receive: Callable[[torch.Tensor], None],
    told: Acknowledged,
) -> None:
    """Compute batches until the window is over. `receive` takes parameters."""
    batch, has = NONE, NONE
    body: torch.Tensor | None = None
    sent: list[int] = []
    while True:
        link.send(SERVER, (batch, has), body)
        batch, version, _ = link.head(SERVER)
        if version > has:
            for each in sent:
                told(each)
            sent.clear()
        if batch == NONE:
            return
        if version != has:
            receive(link.body(SERVER))
            has = version
        body = compute(batch)
        sent.append(batch)
