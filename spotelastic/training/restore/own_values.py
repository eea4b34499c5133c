"""What is saved besides the script's state: the step, the seed, and each rank's random numbers."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from spotelastic.training.data import randomness
from spotelastic.training.restore.restored import RestoreSource
from spotelastic.training.restore.resuming import BRANCH, NO_BRANCH
from spotelastic.training.runtime.conditions import Conditions, refuse_others
from spotelastic.training.runtime.rehearsal_record import RehearsalRecord, of_script
from spotelastic.training.runtime.session import Ranks
from spotelastic.training.state.value_entries import ValueEntry, own_entry

EPOCHS, LOOP_OVER = "epochs", "loop-over"
"""Names of values."""


@dataclass
class OwnValues:
    """What is known of a run on every rank alike."""

    branch: int = NO_BRANCH
    """The step to which the run was sent back last."""
    rehearsals: RehearsalRecord = field(default_factory=lambda: of_script(None))
    """At which steps the run rehearses."""
    seed: int | None = None
    """Where random numbers come from when they cannot be restored; None until it is agreed on."""
    epochs: int | None = None
    """How many epochs have ended, with what is done at their end; None without `epochs()`."""
    loop_was_over: bool = False
    """Whether the state that was restored had been saved when a loop of steps was over."""
    conditions: Conditions | None = None
    """What all ranks have that decides the last bits; None where these may differ."""
    _held: tuple[int, Any] = (-1, None)
    """A step, and the random numbers that belong to it."""

    def agree(self, ranks: Ranks) -> None:
        """Have all ranks hold the first one's seed, unless they hold that of the run already.

        A script may seed each rank apart. What all share has to be the same everywhere, because
        any rank may read any other's copy.
        """
        if self.seed is None:
            self.seed = ranks.gather(torch.initial_seed())[0]

    def hold_randomness(self, step: int) -> None:
        """Note the random numbers that are saved with this step.

        They are these whatever is drawn before the save.
        """
        self._held = step, randomness.capture()

    def drawn(self, step: int) -> Any:
        """Return the random numbers that belong to a step, which is the last one."""
        return self._held[1] if self._held[0] == step else randomness.capture()

    def entries(
        self, ranks: Ranks, last_step: Callable[[], int], loop_is_over: Callable[[], bool]
    ) -> list[ValueEntry]:
        """Return the values that are saved besides the script's state."""
        return [
            own_entry(last_step, "step"),
            own_entry(lambda: self.seed, "seed"),
            own_entry(lambda: self.branch, BRANCH),
            own_entry(lambda: self.rehearsals.value(), "rehearsals"),  # noqa: PLW0108
            own_entry(lambda: self.epochs, EPOCHS),
            own_entry(loop_is_over, LOOP_OVER),
            *([own_entry(lambda: self.conditions, "conditions")] if self.conditions else []),
            own_entry(lambda: self.drawn(last_step()), f"rng-{ranks.rank}", rank=ranks.rank),
        ]

    def restore(self, ranks: Ranks, restored: RestoreSource, asked: int | None) -> None:
        """Take these values from a save, and restore this rank's random numbers.

        With another number of ranks, the random numbers are derived. `asked` is the step that the
        script asked for.
        """
        if self.conditions is not None:
            refuse_others(restored.own_value("conditions"), self.conditions)
        self.seed = restored.own_value("seed")
        self.rehearsals = of_script(restored.own_value("rehearsals"))
        branch = restored.own_value(BRANCH) if asked is None else asked
        self.branch = NO_BRANCH if branch is None else branch
        self.epochs = restored.own_value(EPOCHS)
        self.loop_was_over = bool(restored.own_value(LOOP_OVER))
        self._held = -1, None
        state = None
        if restored.world_size == ranks.world_size:
            state = restored.own_value(f"rng-{ranks.rank}")
        if state is not None:
            randomness.apply(state)
        else:
            randomness.derive(self.seed, restored.step, ranks.rank)
