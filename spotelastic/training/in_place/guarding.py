"""Keeps steps out of a run whose loss or gradients cannot be right (`--guard`).

Each rank looks at its own loss and gradients before an optimizer steps with them, and says in the
step vote if they are at fault. If those of one rank are, the step is undone on all ranks, and
counts as skipped. After a few in a row the run goes back to a save from before them, and leaves
their batches out.

Must never happen:

- Some ranks skip a step that others make. All learn in the vote that one has seen a fault. They
  vote once more before they count the step as skipped, so that all know of it by then. If a rank is
  lost in between, nobody has made the step or counted it, and all begin it again or restore.
- A step counts as skipped that a scaler of gradients leaves out by itself: no optimizer steps then,
  or one that is told of it (`found_inf`).
"""

import math
import os
import statistics
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from spotelastic import torch_names
from spotelastic.errors import SpotelasticError
from spotelastic.model.in_place import GUARD, SKIPPED
from spotelastic.training.data import sampler as samplers
from spotelastic.training.data.sampler import ElasticSampler, Place
from spotelastic.training.in_place.meeting import LoopParts
from spotelastic.training.state.state import State

IN_A_ROW = 3
"""Steps skipped in a row after which the run goes back."""
RETURNS = 3
"""How often it does without `HISTORY` steps made in between. Then the state it has is at fault."""
WARM_UP, HISTORY = 20, 100
"""Steps that are needed to say what is usual, and the newest ones that are looked at."""
SPREADS = 20.0
"""How many times the usual distance from the median a value is above it to be far out."""
LOSS_ABOVE, NORM_ABOVE = 1.0, 9.0
"""How many times the median it is above it besides."""


class Fault(IntEnum):
    """What is wrong with a step; of several, the largest is told."""

    NONE = 0
    NORM_FAR = 1
    LOSS_FAR = 2
    NORM_NOT_FINITE = 3
    LOSS_NOT_FINITE = 4

    @property
    def line(self) -> str:
        what = "loss" if self in (Fault.LOSS_FAR, Fault.LOSS_NOT_FINITE) else "gradient norm"
        is_far = self in (Fault.LOSS_FAR, Fault.NORM_FAR)
        return f"the {what} is {'far out of its history' if is_far else 'NaN or infinite'}"


@dataclass(frozen=True, slots=True)
class Reading:
    """What a rank has seen of a step; None: nothing that could be judged."""

    loss: float | None = None
    norm: float | None = None


def decide(seen: Reading, losses: Sequence[float], norms: Sequence[float]) -> Fault:
    """Return what is wrong with a step, given those of the steps that were made before it."""
    if seen.loss is not None and not math.isfinite(seen.loss):
        return Fault.LOSS_NOT_FINITE
    if seen.norm is not None and not math.isfinite(seen.norm):
        return Fault.NORM_NOT_FINITE
    if seen.loss is not None and _is_far(seen.loss, losses, LOSS_ABOVE):
        return Fault.LOSS_FAR
    if seen.norm is not None and _is_far(seen.norm, norms, NORM_ABOVE):
        return Fault.NORM_FAR
    return Fault.NONE


def _is_far(value: float, history: Sequence[float], above: float) -> bool:
    if len(history) < WARM_UP:
        return False
    middle = statistics.median(history)
    spread = statistics.median(abs(each - middle) for each in history)
    return value - middle > max(SPREADS * spread, above * abs(middle))


def is_wanted(told: bool | None) -> bool:
    """Return whether steps are guarded, as the script says, or else the environment."""
    return os.environ.get(GUARD) == "1" if told is None else told


class Guard:
    """Looks at the steps of one loop."""

    def __init__(self, loop: LoopParts) -> None:
        self._loop, self._state = loop, loop.state
        self._losses, self._norms = deque[float](maxlen=HISTORY), deque[float](maxlen=HISTORY)
        self._clipped: list[torch.Tensor] = []
        self._coming: torch.Tensor | None = None
        self._device = torch.device("cpu")
        self._has_loss = False
        self._seen = Reading()
        self._left: dict[str, set[Place]] = {}
        """The batches of the steps that were skipped in a row, by the sampler's name."""
        self.in_a_row = 0
        self._returns = self._made = 0
        """How often the run has gone back, and how many steps it has made since."""
        self._stop_noting = torch_names.note_clipped_norms(self._note)

    def close(self) -> None:
        """Look at no more gradients."""
        self._stop_noting()

    def begins(self) -> None:
        """Begin a step, of which nothing is known."""
        self._clipped.clear()
        self._coming, self._seen = None, Reading()

    def look(self, optimizer: Any, loss: Any) -> None:
        """Have a device compute what is judged. Nothing waits for it here.

        `optimizer` is about to step; None: it is one of the script's own. What a script has clipped
        is judged by what it was before.
        """
        gradients = [*_gradients(self._state)]
        if not gradients:
            return
        norm = _norm(gradients)
        if (scale := getattr(optimizer, "grad_scale", None)) is not None:
            norm = norm / scale.to(norm.device)  # a fused optimizer unscales by itself
        samplers_ = (v for v in self._state.values.values() if isinstance(v, ElasticSampler))
        clipped = (each.pieces.norm for each in samplers_ if each.pieces is not None)
        for each in (*self._clipped, *(each for each in clipped if each is not None)):
            norm = torch.maximum(norm, each.to(norm))
        value, left_out = _as_tensor(loss), getattr(optimizer, "found_inf", None)
        self._has_loss = value is not None
        zero = torch.zeros_like(norm)
        parts = [zero if part is None else part for part in (left_out, value)]
        told = torch.stack([norm, *(part.detach().to(norm).reshape(()) for part in parts)])
        self._device, self._coming = told.device, told.to("cpu", non_blocking=True)

    def judge(self) -> Fault:
        """Return what is wrong with the step, once the device has computed what was looked at."""
        if self._coming is None:
            return Fault.NONE
        if self._device.type == "cuda":  # the vote has waited for it already, where there is one
            torch.cuda.current_stream(self._device).synchronize()
        norm, left_out, loss = self._coming.tolist()
        self._seen = Reading() if left_out else Reading(loss if self._has_loss else None, norm)
        return decide(self._seen, self._losses, self._norms)

    def made(self) -> None:
        """Count a step that was made."""
        for value, history in ((self._seen.loss, self._losses), (self._seen.norm, self._norms)):
            if value is not None:
                history.append(value)
        self.forget_row()
        self._made += 1
        if self._made >= HISTORY:
            self._returns = 0

    def forget_row(self) -> None:
        """Begin to count anew: a step was made, or another one was restored."""
        self.in_a_row = 0
        self._left.clear()

    @property
    def is_enough(self) -> bool:
        """Whether the run goes back if this step is skipped, too."""
        return self.in_a_row + 1 >= IN_A_ROW

    def skipped(self, step: int, fault: Fault, *, back: bool) -> str:
        """Count a step that was skipped, and tell people of it. Returns the line.

        If the run goes `back`, the batches of the steps that were skipped in a row are left out.
        Raises `SpotelasticError` where it has done so too often.
        """
        self.in_a_row += 1
        for name, value in self._state.values.items():
            if isinstance(value, ElasticSampler):
                self._left.setdefault(name, set()).add((value.epoch, value.consumed))
        line = f"step {step} was skipped (--guard): {fault.line}{self._figures()}"
        if back:
            first = step - self.in_a_row + 1
            line += f"; the run goes back to a save from before step {first}"
            line += ", and leaves their batches out" if self._left else ""
            samplers.leave_out(self._state.values, self._left)
            self.forget_row()
            self._returns, self._made = self._returns + 1, 0
            if self._returns > RETURNS:
                raise SpotelasticError(
                    f"{line}: that was so after {RETURNS} other batches, too. What the save has is "
                    "at fault, or the data: go back further with checkpoint.restore(step=...), or "
                    "leave --guard out"
                )
        if self._loop.ranks().rank == 0:
            self._loop.tell(SKIPPED, step, "back" if back else "skipped", line)
        return line

    def _note(self, norm: Any) -> None:
        if isinstance(norm, torch.Tensor) and not isinstance(norm, DTensor):
            self._clipped.append(norm.detach())

    def _figures(self) -> str:
        seen = (("loss", self._seen.loss, self._losses), ("norm", self._seen.norm, self._norms))
        told = [
            f"{name} {value:.4g}" + (f", usually {statistics.median(of):.4g}" if of else "")
            for name, value, of in seen
            if value is not None
        ]
        return f" ({'; '.join(told)})" if told else ""


def _gradients(state: State) -> Iterator[torch.Tensor]:
    """Yield the gradients that there are of all that is trained, as far as this rank has them."""
    seen = set[int]()
    for value in state.values.values():
        found: Any = ()
        if isinstance(value, torch.nn.Module):
            found = value.parameters()
        elif isinstance(value, torch.optim.Optimizer):
            found = (each for group in value.param_groups for each in group["params"])
        for parameter in found:
            gradient = parameter.grad
            if gradient is None or id(parameter) in seen:
                continue
            seen.add(id(parameter))
            gradient = gradient.detach()
            if isinstance(gradient, DTensor):
                gradient = gradient.to_local()
            yield gradient.coalesce().values() if gradient.is_sparse else gradient


def _norm(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the norm of all. That of a tensor of half precision is beyond its range, at times."""
    halves = [each for each in gradients if each.dtype == torch.float16]
    norms = [torch.linalg.vector_norm(each, dtype=torch.float32) for each in halves]
    others = [each for each in gradients if each.dtype != torch.float16]
    return torch.nn.utils.get_total_norm([*norms, *others])


def _as_tensor(loss: Any) -> torch.Tensor | None:
    """Return a loss as the script gives it; None if it has not, or nothing of one element."""
    if isinstance(loss, torch.Tensor):
        return loss if loss.numel() == 1 and not isinstance(loss, DTensor) else None
    return torch.tensor(float(loss)) if isinstance(loss, int | float) else None
