"""Provides `ParameterServer`: one rank holds the parameters, and the others train them.

    server = ParameterServer(model, optimizer, loss_of, updates=50)
    with se.Checkpointer({"server": server.state}) as checkpoint:
        for step in checkpoint.steps(windows):
            with step:
                step.loss = server.window(step)

Rank 0 serves, a rank of another node stands by, and the others compute gradients. Ranks are those
of the round: if the server's node is lost, the standby, or whoever is rank 0 then, goes on with the
newest copy that one of the ranks has.
"""

import copy
import math
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from spotelastic.errors import UsageError
from spotelastic.training.in_place.attempts import Step
from spotelastic.training.parameter_server import vectors
from spotelastic.training.parameter_server.link import Link
from spotelastic.training.parameter_server.order import Mode, Order, Rules
from spotelastic.training.parameter_server.roles import (
    SERVER,
    Serving,
    WindowLoss,
    stand_by,
    work,
    work_alone,
)
from spotelastic.training.parameter_server.served_state import Label, ServedState

LossOf = Callable[[torch.nn.Module, int], torch.Tensor]
"""The script's function: returns the loss of a model on the batch of this number, a scalar."""


class ParameterServer:
    """Trains a model by workers that push gradients to, and pull parameters from, rank 0.

    All ranks construct it alike, after `init_process_group("gloo")` if there is one, and give its
    `state` to the Checkpointer. Each step is a window of `updates` updates, at whose end all ranks
    have the same state.

    `loss_of(model, batch)` returns the loss of the batch with this number, counted from 0 over the
    whole run. It is called on workers, with a model of the same kind. Random numbers in it depend
    on the batch alone.

    `mode` says when gradients become updates. "synchronous": the mean over `batches` batches, all
    computed on the same parameters, whoever computes them. "bounded": each by itself, at most
    `staleness` updates after the parameters that it was computed on. "asynchronous": each by
    itself, as it comes.

    `acknowledged(batch)` is called on the worker that has computed a batch, once the update that it
    is part of outlives the loss of the server.

    Raises `UsageError` for options that do not belong together.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_of: LossOf,
        *,
        mode: Mode = "synchronous",
        updates: int = 50,
        batches: int | None = None,
        staleness: int | None = None,
        scheduler: Any = None,
        acknowledged: Callable[[int], None] | None = None,
    ) -> None:
        self._rules = _rules(mode, updates, batches, staleness)
        _check(model)
        self.state = ServedState(model, optimizer, scheduler)
        """What is saved: an entry of the Checkpointer's state."""
        self._updates = updates
        self._loss_of = loss_of
        self._told = acknowledged or (lambda _: None)
        self._working: torch.nn.Module | None = None
        """The model that this rank computes gradients on."""

    def window(self, step: Step) -> float | None:
        """Make the updates of a step, in its block. Returns the mean loss, on the rank that serves.

        Updates that were made when a rank is lost in it stay made: the attempt that follows goes on
        from there.
        """
        state = self.state
        nodes = self._agree(begins=True)
        state.begin(step.number, self._updates)
        link = Link(state.model)  # its last messages may be on their way until all agree
        losses = self._train(nodes, link)
        self._agree()
        step.vote()
        state.keep()
        return losses.mean

    def _train(self, nodes: Sequence[str], link: Link) -> WindowLoss:
        """Do this rank's part of the window, until it is over."""
        state, rank, world = self.state, _rank(), len(nodes)
        if state.applied.version >= state.target:
            return WindowLoss()
        order = Order(self._rules, state.applied, state.target)
        if world == 1:
            return work_alone(state, order, self._compute_newest, self._told)
        standby = standby_of(nodes)
        if rank == SERVER:
            workers = tuple(each for each in range(1, world) if each != standby)
            server = Serving(state, order, link, workers, standby)
            server.serve()
            return server.losses
        if rank == standby:
            stand_by(state, link)
        else:
            work(link, self._compute, self._receive, self._told)
        return WindowLoss()

    # -- one copy for all --------------------------------------------------------------------------

    def _agree(self, *, begins: bool = False) -> list[str]:
        """Have all ranks take the newest copy that one of them has. Returns each rank's node.

        A rank replaces its own copy only by a whole one. So if a rank is lost meanwhile, there is
        still a newest copy.
        """
        state = self.state
        if not dist.is_initialized() or dist.get_world_size() == 1:
            state.agreed(state.epoch + begins)
            return [""]
        found: list[Any] = [None] * dist.get_world_size()
        node = os.environ.get("SPOTELASTIC_NODE") or socket.gethostname()
        dist.all_gather_object(found, (state.label, node))
        labels = [label for label, _ in found]
        newest = newest_of(labels)
        # Two models that were just made need not be the same.
        if len({*labels}) > 1 or not labels[newest].epoch:
            has_it = _rank() == newest
            data = _broadcast(state.packed() if has_it else None, newest)
            if not has_it:
                state.unpack(data)
        state.agreed(labels[newest].epoch + begins)
        return [node for _, node in found]

    # -- gradients ---------------------------------------------------------------------------------

    def _receive(self, parameters: torch.Tensor) -> None:
        """Put parameters into the model that this rank computes gradients on."""
        if self._working is None:
            self._working = copy.deepcopy(self.state.model)
        vectors.put(parameters, self._working)

    def _compute(self, batch: int) -> torch.Tensor:
        """Return the gradient of a batch as one vector, with the loss as its last number."""
        model = self._working
        assert model is not None
        torch.manual_seed(batch)
        loss = self._loss_of(model, batch)
        model.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        return vectors.of_gradients(model, loss)

    def _compute_newest(self, batch: int) -> torch.Tensor:
        self._receive(self.state.parameters())
        return self._compute(batch)


def standby_of(nodes: Sequence[object]) -> int | None:
    """Return the rank that stands by.

    It is the first one of another node than the server's, if there is one. With two ranks there is
    none, because one has to work.
    """
    if len(nodes) < 3:
        return None
    others = (rank for rank, node in enumerate(nodes) if node != nodes[SERVER])
    return next(others, 1)


def newest_of(labels: Sequence[Label]) -> int:
    """Return the first rank that has the newest copy."""
    return max(range(len(labels)), key=lambda rank: (labels[rank], -rank))


def _rules(mode: Mode, updates: int, batches: int | None, staleness: int | None) -> Rules:
    if mode not in ("synchronous", "bounded", "asynchronous"):
        raise UsageError(f"mode={mode!r}: it is synchronous, bounded or asynchronous")
    if updates < 1:
        raise UsageError(f"updates={updates}: a window has at least one update")
    if batches is not None and (mode != "synchronous" or batches < 1):
        raise UsageError(
            f"batches={batches}: the number of batches of each update, at least 1, and only with "
            'mode="synchronous"'
        )
    if (staleness is None) == (mode == "bounded") or (staleness is not None and staleness < 0):
        raise UsageError(
            f'staleness={staleness}: mode="bounded" needs it, and no other mode has it; 0 or more'
        )
    return Rules(mode, batches or 1, math.inf if staleness is None else staleness)


def _check(model: torch.nn.Module) -> None:
    """Raise `UsageError` for a model whose workers would change more than parameters."""
    for name, part in model.named_modules():
        if getattr(part, "track_running_stats", False):
            raise UsageError(
                f"{name or 'the model'} keeps running statistics, which stay on the workers: use "
                "GroupNorm or LayerNorm, or track_running_stats=False"
            )
    if not vectors.trained(model):
        raise UsageError("the model has no parameter that is trained")


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _broadcast(data: torch.Tensor | None, source: int) -> torch.Tensor:
    """Return the bytes that the source has."""
    size = torch.tensor([0 if data is None else data.numel()])
    dist.broadcast(size, source)
    if data is None:
        data = torch.empty(int(size), dtype=torch.uint8)
    dist.broadcast(data, source)
    return data
