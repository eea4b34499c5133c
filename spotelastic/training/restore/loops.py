"""Knows where a script is in its loops: what stands after a loop's last step belongs to that step.

A scheduler's step, an evaluation: scripts do such things after a loop of `steps()`. The state that
is saved of a loop's last step has their effects, whatever the schedule: that save waits until the
script goes on. A state that had to be saved before, because nodes were about to come or go, is told
from others by what is kept beside it: how many epochs had ended, and whether a loop was over.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from spotelastic.errors import UsageError
from spotelastic.training.restore.own_values import OwnValues

ADVICE = "write `for epoch in checkpoint.epochs(epochs, steps_per_epoch)` (docs/how-to/in-place.md)"


@dataclass
class Loops:
    """The loops of steps and epochs of one script, as far as it has come in them."""

    own: OwnValues
    last_step: Callable[[], int]
    load: Callable[[bool], None]
    """Restores the state once more, with random numbers or without."""
    tell: Callable[[str], None]
    came: bool = False
    """Whether this process has come to others that were in the middle of their loops."""
    floor: int = -1
    """The step before which something was done in this process that does not come again."""
    end: int = 0
    """The step that the run ends with; 0: not known. Of several loops `epochs` alone tells it."""
    total: int | None = None
    """The step that the loop ends with that was begun last."""
    _passed: int | None = None
    """The end of a loop that this process found long over."""
    _entered_again: bool = False
    """Whether this process has gone through a loop that was over, to what stands after it."""
    _epoch_ends: int | None = None
    """The step with which the epoch ends that is being executed."""
    _had_epochs: bool = False
    _is_over: bool = False

    def begins(self, total: int) -> None:
        """Note that a loop of `steps(total)` begins.

        What this process did again before its first step is not to change the state a second time.
        """
        last = self.last_step()
        self._raise_floor()
        if not self._had_epochs:
            self.end = total if self.total in (None, total) else 0
        self.total, self._is_over = total, False
        if last > total and self.came:
            raise UsageError(
                f"this process came to the others at step {last}, and would do alone what stands "
                f"after the loop of steps({total}): {ADVICE}"
            )
        if last > total:
            self._passed = total
        elif self._passed is not None:
            passed, self._passed = self._passed, None
            self.load(True)
            self.tell(
                f"the run goes on from step {last}: what stands after the loop of steps({passed}), "
                f"which had ended before, was executed again: {ADVICE}"
            )
        if last < total and self._entered_again and self.own.loop_was_over:
            self.load(False)
        self._entered_again = last == total and self._epoch_ends is None
        self.came = False

    def over(self) -> None:
        """Note that a loop is over. What a last evaluation draws, training does not go on from."""
        self._is_over = True
        self._raise_floor()
        self.own.hold_randomness(self.last_step())

    def waits(self, step: int) -> bool:
        """Return whether the save of this step waits for what the script does after its loop."""
        return step == self.total

    @property
    def is_between(self) -> bool:
        """Whether a loop is over, and the script is at what stands after it."""
        return self._is_over and self._epoch_ends is None

    @property
    def is_at_an_end(self) -> bool:
        """Whether the end of an epoch of `epochs()` is being executed."""
        return self._epoch_ends == self.last_step()

    def problem(self, step: int) -> str:
        """Return why this process cannot go back to a step in place; empty if it can."""
        if step > self.floor:
            return ""
        return f"what it has done between two loops since step {step} has to be done again"

    def epochs(self, total: int, steps: int, ended: Callable[[bool], None]) -> Iterator[int]:
        """Yield the epochs that are left of `total`.

        `ended` is called when one has ended, and told whether others are left.
        """
        if self._had_epochs:
            raise UsageError("checkpoint.epochs() is called once: it goes over all of the epochs")
        self._had_epochs, self.end = True, total * steps
        self.own.epochs = begins_in(self.last_step(), steps, self.own.epochs)
        for epoch in range(self.own.epochs, total):
            self._epoch_ends, self.floor = (epoch + 1) * steps, epoch * steps if epoch else -1
            try:
                yield epoch
            except GeneratorExit:  # the script leaves the loop, as it does to stop early
                if self.is_at_an_end:
                    self._ended(epoch)
                raise
            if not self.is_at_an_end:
                raise UsageError(
                    f"checkpoint.epochs({total}, {steps}): epoch {epoch} ends with step "
                    f"{self._epoch_ends}, and the script has made {self.last_step()}: make an "
                    f"epoch's steps by checkpoint.steps((epoch + 1) * {steps})"
                )
            self._ended(epoch)
            ended(epoch + 1 < total)

    def _raise_floor(self) -> None:
        if self.total is not None:
            self.floor = max(self.floor, min(self.total, self.last_step()))

    def _ended(self, epoch: int) -> None:
        self._epoch_ends, self.own.epochs = None, epoch + 1
        self.own.hold_randomness(self.last_step())


def begins_in(step: int, steps: int, ended: int | None) -> int:
    """Return the epoch in which a run goes on that is at this step. An epoch has `steps` steps.

    `ended`: how many epochs had ended, with what stands after their steps; None where that is not
    known. Raises `UsageError` where these do not fit together.
    """
    if steps < 1:
        raise UsageError(f"checkpoint.epochs(): an epoch of {steps} steps")
    done, into = divmod(step, steps)
    possible = (done,) if into or not step else (done - 1, done)
    if ended is None:
        return possible[0]
    if ended not in possible:
        raise UsageError(
            f"checkpoint.epochs(): {ended} epochs had ended at step {step}, so an epoch cannot "
            f"have {steps} steps: their number has to stay the same, also with other numbers of "
            "workers (se.ElasticSampler)"
        )
    return ended
