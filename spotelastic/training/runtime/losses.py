"""Publishes the loss of each step without making training wait for a GPU."""

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from spotelastic_checkpoints.memory.worker_page import WorkerPage


@dataclass(slots=True)
class Arriving:
    """A number on its way from a GPU."""

    value: torch.Tensor
    copied: torch.Event


def arriving(value: torch.Tensor) -> Arriving:
    """Have a number come from a GPU, without waiting for it."""
    copy = value.detach().to("cpu", non_blocking=True)
    return Arriving(copy, torch.cuda.current_stream(value.device).record_event())


class Losses:
    """Writes losses to a worker's page: from the CPU at once, from a GPU when they have arrived."""

    def __init__(self, page: WorkerPage) -> None:
        self._page = page
        self._pending: deque[tuple[int, Arriving]] = deque()
        """Losses that have not arrived, each with its point of the curve."""

    def publish(
        self, step: int, loss: Any, now: float, total: int = 0, samples: float = 0.0
    ) -> None:
        """Publish a step of `total`. `loss` is None, a number, or a tensor of one element."""
        on_gpu = isinstance(loss, torch.Tensor) and loss.is_cuda
        if on_gpu:
            number = self._page.publish(step, None, now, total, samples)
            self._pending.append((number, arriving(loss)))
        else:
            value = loss.item() if isinstance(loss, torch.Tensor) else loss
            known = None if value is None else float(value)
            number = self._page.publish(step, known, now, total, samples)
        while self._pending and self._pending[0][1].copied.query():
            point, arrived = self._pending.popleft()
            self._page.amend(point, float(arrived.value))
        self._page.ready(self._pending[0][0] if self._pending else number + 1)

    def finish(self) -> None:
        """Wait for all losses that have not arrived, at the end of the script."""
        for point, pending in self._pending:
            pending.copied.synchronize()
            self._page.amend(point, float(pending.value))
            self._page.ready(point + 1)
        self._pending.clear()
