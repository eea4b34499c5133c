"""Defines a step as the script sees it, and how far an attempt at it has come."""

from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self

from spotelastic.model.in_place import Change, Enter
from spotelastic.training.in_place.guarding import Fault

AHEAD = (
    "a batch is taken before the block of its step, as by a prefetcher of the script's own: it may "
    "be the share of another rank then. Take it in the block"
)


class _Maker(Protocol):
    """Makes steps: see `steps.Steps`."""

    def begins(self, step: "Step") -> None: ...

    def ends(self, step: "Step", error: BaseException | None) -> bool: ...

    def votes(self, step: "Step") -> None: ...


class Step:
    """One attempt at a step of the training loop. Use it by `with`."""

    def __init__(self, number: int, steps: _Maker) -> None:
        self.number = number
        """The step that this block makes, counted from 1."""
        self.loss: Any = None
        """Set it in the block, to have it shown in the status and the loss curve."""
        self.samples = 0.0
        """Set it to how many samples, or tokens, this rank sees in the step, to have the speed of
        all ranks shown.
        """
        self.finished = False
        """Whether the step counts. After a block of which a rank was lost it is False, and the same
        step comes again.
        """
        self.rehearses = False
        """Whether the block is made again in any case: the run tries whether it comes back as it
        was.
        """
        self.skipped = False
        """Whether the step has changed nothing, as its loss or gradients could not be right
        (`guard`). It counts all the same, and the next one takes the next batch.
        """
        self.begun = False
        """Whether its block has been entered."""
        self._steps = steps

    @property
    def shown(self) -> Any:
        """The loss that people are shown: that of a step that was skipped is none of the run's."""
        return None if self.skipped else self.loss

    def vote(self) -> None:
        """Wait until all ranks have all gradients of the step.

        Call it in the block, where no optimizer of torch's begins to step once they are there: it
        does this by itself.
        """
        self._steps.votes(self)

    def __enter__(self) -> Self:
        self.begun = True
        self._steps.begins(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        return self._steps.ends(self, error)


@dataclass
class Attempt:
    """How far the block has come that is being executed."""

    step: Step
    voted: bool = False
    stepped: set[int] | None = field(default_factory=set)
    """Ids of the optimizers that have stepped; None: the script has others."""
    change: Change = "clean"
    problem: str = ""
    """Why what the attempt has changed cannot be put back."""
    order: Enter | None = None
    """What the agent said when this worker rested in the vote."""
    fault: Fault = Fault.NONE
    """What is wrong with the step on one of the ranks, as all know."""
    differs: str = ""
    """How ranks differ in an audit of the step, as all know."""
    goes_back: bool = False
    """Whether the run goes back instead."""

    @property
    def is_behind(self) -> bool:
        """Whether the other ranks have finished this step, in a round that is over."""
        order = self.order
        return order is not None and not order.restores and order.step == self.step.number
