"""Publishes the loss of each step without making training wait for a GPU."""

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from spotelastic_checkpoints.memory.worker_page import WorkerPage


@dataclass(slots=True)
class _Pending:
    """A loss on its way from a GPU."""

    point: int
    value: torch.Tensor
    copied: torch.Event


class Losses:
    """Writes losses to a worker's page: from the CPU at once, from a GPU when they have arrived."""

    def __init__(self, page: WorkerPage) -> None:
        self._page = page
        self._pending: deque[_Pending] = deque()

    def publish(
        self, step: int, loss: Any, now: float, total: int = 0, samples: float = 0.0
    ) -> None:
        """Publish a step of `total`. `loss` is None, a number, or a tensor of one element."""
        on_gpu = isinstance(loss, torch.Tensor) and loss.is_cuda
        if on_gpu:
            number = self._page.publish(step, None, now, total, samples)
            arriving = loss.detach().to("cpu", non_blocking=True)
            copied = torch.cuda.current_stream(loss.device).record_event()
            self._pending.append(_Pending(number, arriving, copied))
        else:
            value = loss.item() if isinstance(loss, torch.Tensor) else loss
            known = None if value is None else float(value)
            number = self._page.publish(step, known, now, total, samples)
        while self._pending and self._pending[0].copied.query():
            arrived = self._pending.popleft()
            self._page.amend(arrived.point, float(arrived.value))
        self._page.ready(self._pending[0].point if self._pending else number + 1)

    def finish(self) -> None:
        """Wait for all losses that have not arrived, at the end of the script."""
        for pending in self._pending:
            pending.copied.synchronize()
            self._page.amend(pending.point, float(pending.value))
            self._page.ready(pending.point + 1)
        self._pending.clear()
