"""Follows the save that is being copied while training goes on."""

import os
import time
from typing import Any

import torch
from spotelastic_checkpoints.protocol.worker_client import WorkerClient
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from spotelastic.training.save.overlap import Copying


class Beside:
    """The last save, while it is being copied. Until then the client belongs to the copying thread.

    Every optimizer waits for the copy before it changes anything.
    """

    def __init__(self, *, wanted: bool) -> None:
        self.wanted = wanted
        """Whether saves are copied beside training."""
        self.stall = 0.0
        """Seconds for which the last save kept training waiting."""
        self.copying: Copying | None = None
        self._call = 0.0
        """Seconds that the call took which began this save."""
        self._hook: RemovableHandle | None = None
        self._process = 0
        """The process that saves. One forked from it has nothing to protect."""

    def protect(self) -> None:
        """See to it that optimizers wait from now on."""
        if self._hook is None:
            self._process = os.getpid()
            # The hook is called, not traced, where a step is compiled. What that imports,
            # optimizers import.
            hook = torch.compiler.disable(self._before_step)  # type: ignore[no-untyped-call]
            self._hook = register_optimizer_step_pre_hook(hook)

    def begun(self, client: WorkerClient, copying: Copying | None, stall: float) -> None:
        """Note that a save was made, or is being copied. `stall` is what the call took."""
        self.copying, self.stall = copying, stall
        if copying is None:
            client.page.saved(stall)
        else:
            self._call = stall

    def settle(self, client: WorkerClient) -> bool:
        """Wait until the save that is being copied is sealed. Returns False if it has failed."""
        copying = self.copying
        if copying is None:
            return True
        copying.settle()
        self.copying = None
        if copying.error is None:
            # This is what an agreed save would take, for which training waits.
            client.page.saved(self._call + copying.effort)
            return True
        self.wanted = False
        client.complain(
            f"a save that was copied during training was dropped: {copying.error}; "
            "from now on training waits for each copy"
        )
        return False

    def close(self) -> None:
        """Let optimizers go on without looking."""
        if self._hook is not None:
            self._hook.remove()

    def _before_step(self, *_: Any) -> None:
        if self.copying is None or os.getpid() != self._process:
            return
        begun = time.perf_counter()
        self.copying.guard()
        self.stall += time.perf_counter() - begun
