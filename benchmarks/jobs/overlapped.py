"""Measures saves beside training: how much of their stall is left.

The state is a typical one: parameters, and as many bytes of optimizer state. Forward and backward
are multiplications on one core, for as long as a few copies of the state take. Another core is
free.
"""

import contextlib
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from common.measuring import machine_at_rest
from jobs.node import DEADLINE, Crash, Node, node
from jobs.s3_servers import TENSORS, Server
from jobs.states import Shape, WarmCopy

import spotelastic as se

COPIES = 5
"""Copies of the state that take as long as forward and backward."""
BETWEEN = 3
"""Steps from one save to the next."""


@dataclass(frozen=True, slots=True)
class Stalls:
    """Stalls and their comparisons, in seconds."""

    copy: float
    """A warm copy of the state after the first save."""
    later: float
    """The best of the warm copies before the later saves."""
    first: float
    """Stall of the first save: in the call, and where the optimizer steps after it."""
    steady: float
    """The best stall of the later saves."""
    lost: float
    """By how much longer a step with a copy takes: its stall, and the share of cores and memory."""
    bare: float
    """A step without a save."""


class Training:
    def __init__(self, shape: Shape) -> None:
        half = Shape(shape.nbytes // 2, shape.tensors // 2)
        self.parameters = torch.nn.ParameterList([*half.make().values()])
        self.optimizer = torch.optim.SGD(self.parameters, lr=0.1, momentum=0.9)
        # Parameters of one shape share it: it is read alone, and is not what is measured.
        gradients = {p.shape: torch.full_like(p, 1e-3) for p in self.parameters}
        for parameter in self.parameters:
            parameter.grad = gradients[parameter.shape]
        self.optimizer.step()
        kept = [state["momentum_buffer"] for state in self.optimizer.state.values()]
        tensors = [*(p.detach() for p in self.parameters), *kept]
        self.warm = WarmCopy({str(number): tensor for number, tensor in enumerate(tensors)})
        self.copy = min(self.warm.seconds() for _ in range(3))
        self._weights = torch.rand(384, 384)
        begun, self._turns = time.perf_counter(), 0
        torch.set_num_threads(1)
        while time.perf_counter() - begun < COPIES * self.copy:
            self._turn()
            self._turns += 1

    @property
    def state(self) -> dict[str, object]:
        return {"model": self.parameters, "optimizer": self.optimizer}

    def step(self) -> float:
        begun = time.perf_counter()
        for _ in range(self._turns):
            self._turn()
        self.optimizer.step()
        return time.perf_counter() - begun

    def _turn(self) -> None:
        torch.mm(self._weights, self._weights)

    def copied(self) -> float:
        """Return a copy made by all cores."""
        torch.set_num_threads(torch.get_num_interop_threads())
        try:
            return self.warm.seconds()
        finally:
            torch.set_num_threads(1)


def stalls(server: Server, shape: Shape, saves: int) -> Stalls:
    training = Training(shape)
    with node(server.url("ours"), slots=2) as here:
        here.begin("r1", epoch=here.claim().epoch)
        with contextlib.suppress(Crash), se.Checkpointer(training.state) as checkpoint:
            here.make_ready(checkpoint)
            found = list(_saves(server, here, checkpoint, training, saves))
            raise Crash
    (first, copy, _, _), *later = found
    bare = statistics.median(bare for _, _, _, bare in later)
    return Stalls(
        copy,
        min(copied for _, copied, _, _ in later),
        first,
        min(stall for stall, _, _, _ in later),
        statistics.median(beside for _, _, beside, _ in later) - bare,
        bare,
    )


def _saves(
    server: Server, here: Node, checkpoint: se.Checkpointer, training: Training, saves: int
) -> Iterator[tuple[float, float, float, float]]:
    """Return for each save: its stall, a copy, the step in which it went on, and one without a
    save."""
    step = 1
    for _ in range(saves):
        bare = statistics.median(training.step() for _ in range(BETWEEN))
        step += 1
        begun = time.perf_counter()
        checkpoint.step(step)
        training.step()
        beside = time.perf_counter() - begun
        stall = checkpoint.stall
        if not checkpoint.wait(DEADLINE):
            raise RuntimeError(f"not committed: {here.client.status().error}")
        newest = here.client.status().snapshots[-1].step
        if newest != step:
            raise RuntimeError(f"step {newest} is sealed, not {step}")
        server.empty(above=TENSORS)
        machine_at_rest()
        yield stall, training.copied(), beside, bare
