"""Ranks of a parameter server as threads, of which any may be lost at any message.

What they do is the product's own; the messages between them, and what all agree on, are simulated.
"""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from spotelastic.training.parameter_server import vectors
from spotelastic.training.parameter_server.link import NUMBERS, Head, Link
from spotelastic.training.parameter_server.order import Order, Rules
from spotelastic.training.parameter_server.roles import Serving, stand_by, work, work_alone
from spotelastic.training.parameter_server.served_state import ServedState
from spotelastic.training.parameter_server.server import newest_of, standby_of


class RankLost(Exception):
    """This rank is lost."""


class Wires:
    """What is on its way between the ranks of one attempt, until one of them is lost."""

    def __init__(self, lost: Collection[int], after: int, delivers: bool) -> None:
        """The ranks `lost` are so after so many of the first one's messages. `delivers`: what they
        had sent still arrives."""
        self._lost, self._left, self._delivers = tuple(lost), after, delivers
        self._queues: dict[tuple[int, int], deque[Any]] = defaultdict(deque)
        self._changed = threading.Condition()
        self.broken = False

    def passes(self, rank: int) -> None:
        """A rank is about to send, to receive, or to go on after that."""
        with self._changed:
            if self._lost and rank == self._lost[0] and not self.broken:
                self._left -= 1
                self.broken = self._left < 0
                self._changed.notify_all()
            if self.broken and rank in self._lost:
                raise RankLost

    def put(self, source: int, target: int, what: Any) -> None:
        with self._changed:
            self._queues[source, target].append(what)
            self._changed.notify_all()

    def get(self, source: int, target: int) -> Any:
        with self._changed:
            queue = self._queues[source, target]
            self._changed.wait_for(lambda: queue or self.broken)
            if self.broken and target in self._lost:
                raise RankLost
            if self.broken and not (self._delivers and queue):
                raise RuntimeError("Connection closed by peer")
            return queue.popleft()


class WireLink(Link):
    """A rank's messages, over `Wires`."""

    def __init__(self, wires: Wires, rank: int) -> None:
        self._wires, self._rank = wires, rank

    def send(self, rank: int, head: Sequence[int], body: torch.Tensor | None = None) -> None:
        self._wires.passes(self._rank)
        numbers = (*head, *[0] * (NUMBERS - len(head)))
        self._wires.put(self._rank, rank, (numbers, None if body is None else body.clone()))
        self._wires.passes(self._rank)

    def head(self, rank: int) -> Head:
        self._wires.passes(self._rank)
        head, body = self._wires.get(rank, self._rank)
        if body is not None:
            self._wires.put(rank, -1 - self._rank, body)
        self._wires.passes(self._rank)
        return tuple(head)

    def body(self, rank: int) -> torch.Tensor:
        found: torch.Tensor = self._wires.get(rank, -1 - self._rank)
        return found


@dataclass
class RankProcess:
    """A process with what it holds."""

    node: int
    state: ServedState
    acknowledged: list[int] = field(default_factory=list)


Model = Callable[[], torch.nn.Module]
LossOf = Callable[[torch.nn.Module, int], torch.Tensor]


@dataclass
class ServedCluster:
    """Ranks that train one window after the other."""

    rules: Rules
    make: Callable[[], ServedState]
    loss_of: LossOf
    updates: int
    ranks: list[RankProcess] = field(default_factory=list)
    saved: dict[str, Any] | None = None
    """What the last window has saved."""
    windows: int = 0
    acknowledged: list[int] = field(default_factory=list)
    _nodes: int = 0

    def comes(self) -> None:
        """A node comes, with what was saved."""
        state = self.make()
        if self.saved is not None:
            state.load_state_dict(self.saved)
        self.ranks.append(RankProcess(self._nodes, state))
        self._nodes += 1

    def agrees(self, *, begins: bool = False) -> None:
        """All ranks take the newest copy."""
        labels = [each.state.label for each in self.ranks]
        newest = self.ranks[newest_of(labels)].state
        if len({*labels}) > 1 or not newest.label.epoch:
            data = newest.packed()
            for each in self.ranks:
                if each.state is not newest:
                    each.state.unpack(data)
        epoch = newest.label.epoch + begins
        for each in self.ranks:
            each.state.agreed(epoch)

    def attempt(
        self, lost: Collection[int] = (), after: int = 0, *, delivers: bool = False
    ) -> bool:
        """Make the next window, unless ranks are lost in it. Returns whether it counts."""
        self.agrees(begins=True)
        wires = Wires(lost, after, delivers)
        for each in self.ranks:
            each.state.begin(self.windows + 1, self.updates)
        threads = [
            threading.Thread(target=self._runs, args=(rank, wires), name="inbox")
            for rank in range(len(self.ranks))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for each in self.ranks:  # a worker that is lost has told of what it knew
            self.acknowledged += each.acknowledged
            each.acknowledged.clear()
        if wires.broken:
            self.ranks = [each for at, each in enumerate(self.ranks) if at not in lost]
            return False
        self.agrees()
        self.windows += 1
        for each in self.ranks:
            each.state.keep()
        self.saved = self.ranks[0].state.state_dict()
        return True

    def _runs(self, rank: int, wires: Wires) -> None:
        try:
            self._does(rank, wires)
        except RankLost:
            pass
        except RuntimeError as error:
            assert wires.broken and "closed by peer" in str(error)

    def _does(self, rank: int, wires: Wires) -> None:
        process, link = self.ranks[rank], WireLink(wires, rank)
        state = process.state
        if state.applied.version >= state.target:
            return
        model = self.make().model
        told = process.acknowledged.append

        def compute(batch: int) -> torch.Tensor:
            torch_loss = self.loss_of(model, batch)
            model.zero_grad()
            torch_loss.backward()
            return vectors.of_gradients(model, torch_loss)

        def receive(parameters: torch.Tensor) -> None:
            vectors.put(parameters, model)

        def compute_newest(batch: int) -> torch.Tensor:
            receive(state.parameters())
            return compute(batch)

        nodes = [each.node for each in self.ranks]
        standby = standby_of(nodes)
        order = Order(self.rules, state.applied, state.target)
        if len(nodes) == 1:
            work_alone(state, order, compute_newest, told)
        elif rank == 0:
            workers = tuple(each for each in range(1, len(nodes)) if each != standby)
            Serving(state, order, link, workers, standby).serve()
        elif rank == standby:
            stand_by(state, link)
        else:
            work(link, compute, receive, told)
