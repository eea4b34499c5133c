"""Makes a step of the run several times, to see whether it comes back as it was.

A step that is rehearsed is made like this; only the last attempt counts:

    FIRST    as it is; then the state is restored
    STRUCK   with a peer lost in a collective of the script's own, if it makes any before the vote
    VOTED    with a peer lost in the vote
    AGAIN    to its end: all ranks compare what it has left with what it left at first
    THIRD    only where that differs: restored once more, and made without a loss

Must never happen:

- A rehearsal changes what a run computes whose steps come back. All that it makes is put back or
  restored, and what differs is told.
- A real loss finds a rank at another step than the others. An attempt that does not count leaves
  the state as it was before the step, or "dirty".
"""

import contextlib
import os
import sys
import time
from collections.abc import Set
from enum import Enum
from typing import Any, Literal

import torch
import torch.distributed as dist
from spotelastic_checkpoints.types import Resume

from spotelastic.errors import RehearsalDiffers, UsageError
from spotelastic.model.in_place import REHEARSED
from spotelastic.torch_names import store_of_all
from spotelastic.training.data import randomness
from spotelastic.training.in_place import failures
from spotelastic.training.in_place.meeting import LoopParts
from spotelastic.training.in_place.undo import CARRIES, Undo
from spotelastic.training.rehearsal import outside, verdict
from spotelastic.training.rehearsal.collectives import Collectives
from spotelastic.training.rehearsal.fingerprint import StepFingerprint, differences, take
from spotelastic.training.rehearsal.foreign import Foreign
from spotelastic.training.rehearsal.verdict import RehearsalVerdict
from spotelastic.training.runtime.round_store import tell_all
from spotelastic.training.state.lasting import Lasting

VARIABLE = "SPOTELASTIC_REHEARSE"
"""Variable that says whether runs rehearse, where the script does not: a `Mode`."""
Mode = Literal["auto", "off", "strict"]
APART = 500
"""Steps after which it is tried again where it was not possible."""


_CAN = "spotelastic/rehearses-"
"""Beginning of a key in the round's store, by rank."""


class TrialStage(Enum):
    """What the attempt is for that is made next."""

    NONE = 0
    FIRST = 1
    STRUCK = 2
    VOTED = 3
    AGAIN = 4
    THIRD = 5


def mode(wanted: bool | str | None) -> Mode:
    """Return what the script, or else the environment, wants. Raises `UsageError` for others."""
    if isinstance(wanted, bool):
        return "auto" if wanted else "off"
    told = wanted if wanted is not None else os.environ.get(VARIABLE) or "auto"
    for known in ("auto", "off", "strict"):
        if told == known:
            return known
    raise UsageError(f"rehearse={told!r}: choose auto, off or strict")


class Rehearsing:
    """The rehearsals of one loop."""

    def __init__(self, loop: LoopParts, wanted: Mode) -> None:
        self._loop, self._mode = loop, wanted
        self.stage = TrialStage.NONE
        self.restores_first = False
        """Whether the state has to be restored before the next attempt."""
        self._resumed = 0
        """The step that the round has gone on from."""
        self._not_before = 0
        self._watching = contextlib.ExitStack()
        self._has_struck = False
        self._begin()

    def _begin(self) -> None:
        self._collectives = Collectives()
        self._source: Resume | None = None
        self._strikes_at = -1
        self._randomness: dict[str, Any] = {}
        self._foreign: Foreign | None = None
        self._outside: dict[str, outside.Variable] = {}
        self._after: dict[str, outside.Variable] = {}
        self._known: Set[str] = frozenset()
        self._changed: dict[str, str] = {}
        self._repeated: list[str] = []
        self._replaced: list[str] = []
        self._carried: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._end: StepFingerprint | None = None
        self._before = self._first = self._again = StepFingerprint()
        self._found: list[str] = []
        self._costs: list[str] = []
        self._begun = self._step_time = 0.0

    # -- between blocks ---------------------------------------------------------------------------

    def enters(self, step: int) -> None:
        """Tell the other ranks that this one can rehearse: a round goes on from a step."""
        # Those that have just come know of nothing that was not possible before.
        self._resumed, self._not_before = step, 0
        ranks = self._loop.ranks()
        if self._mode != "off" and ranks.group is not None:
            with contextlib.suppress(dist.DistError):  # the round is over: the next vote says so
                tell_all(f"{_CAN}{ranks.rank}", "")

    def _all_can(self) -> bool:
        """Return whether all ranks can.

        Those of another version, or with another setting, would not meet the others in a
        rehearsal's collectives. What each has told had arrived before its first vote.
        """
        ranks = self._loop.ranks()
        keys = [f"{_CAN}{rank}" for rank in range(ranks.world_size)]
        return ranks.group is None or bool(store_of_all().check(keys))

    @property
    def undoes(self) -> bool:
        """Whether attempts that are undone have come back as they were."""
        return not self._loop.own.rehearsals.restores

    def is_due(self, step: int) -> bool:
        """Return whether a step is rehearsed. It is the same on all ranks.

        What keeps itself (`Lasting`) has acknowledged updates, which a restore would take back.
        """
        if self._mode == "off" or step < self._not_before:
            return False
        if any(isinstance(each, Lasting) for each in self._loop.state.values.values()):
            return False
        return self._loop.own.rehearsals.is_due(step, self._loop.ranks().world_size, self._resumed)

    def prepare(self, step: int, undo: Undo, *, hindered: bool) -> None:
        """Keep the state there is, if the step is rehearsed. All ranks call this.

        `hindered`: a lost peer costs this process, so that no step of it is made again.
        """
        if self.stage is not TrialStage.NONE or not self.is_due(step):
            return
        end, ranks = self._end, self._loop.ranks()
        self._begin()
        if not self._all_can():
            self._not_before = step + APART
            return
        self._begun = time.perf_counter()
        waits = any(ranks.gather(hindered or self._loop.waits_after(step)))
        source = None if waits else self._loop.keep()
        if source is None:
            self._not_before = step + APART
            return
        self._source, self._carried = source, undo.carried()
        self._randomness = randomness.capture()
        self._before = take(self._loop.state)
        self._foreign = Foreign(self._loop.state)
        if end is not None:
            self._found += verdict.between(end, self._before)
        self.stage = TrialStage.FIRST

    def restore(self, undo: Undo) -> None:
        """Restore the state from before the step. All ranks call this."""
        undo.put_back_shape()
        assert self._source is not None
        self.restores_first = False
        self._loop.go_back(self._source)
        randomness.apply(self._randomness)
        restored = take(self._loop.state)
        self._found += verdict.not_restored(self._before, restored)

    def put_back(self) -> None:
        """Put back what steps beside the state, and gradients that no save has."""
        if self._foreign is not None:
            self._foreign.put_back()
        # The attempts before have shown what comes without these gradients.
        if self.stage is TrialStage.THIRD:
            for parameter, gradient in self._carried:
                parameter.grad = gradient

    def stepped(self, step: int) -> None:
        """Note what there is at the end of a step after which one is rehearsed."""
        self._end = take(self._loop.state) if self.is_due(step + 1) else None

    def give_up(self) -> None:
        """Leave it at what was made: a peer is lost, or the script has left its loop."""
        self._watching.close()
        self.stage, self.restores_first, self._has_struck = TrialStage.NONE, False, False
        self._begin()

    # -- in a block -------------------------------------------------------------------------------

    @property
    def is_made_again(self) -> bool:
        """Whether the attempt that begins is made again in any case."""
        return self.stage in (TrialStage.FIRST, TrialStage.STRUCK, TrialStage.VOTED)

    def begins(self) -> None:
        """Watch the collectives of a block."""
        if self.stage is not TrialStage.NONE:
            self._outside = self._carried_outside()
            if self.stage is TrialStage.FIRST:
                self._known = self._outside.keys()
            self._collectives = Collectives()
            if self.stage is TrialStage.STRUCK:
                self._collectives.strikes_at = self._strikes_at
            self._watching.enter_context(self._collectives.watched())

    def voting(self) -> contextlib.AbstractContextManager[None]:
        """Return what the vote is made in. Raises what a lost peer raises, where it is its turn."""
        if self._collectives.has_struck:
            self._found.append(
                "the block catches the error of a collective, and continues: a lost peer looks "
                "like any other error there. Let RuntimeError pass"
            )
        if self._collectives.has_struck or self.stage is TrialStage.VOTED:
            self._has_struck = True
            raise failures.Unwound
        return self._collectives.voting()

    def has_struck(self, error: BaseException | None) -> bool:
        """Return whether the block has ended by a loss that is not real."""
        self._watching.close()
        struck, self._has_struck = self._has_struck or self._collectives.has_struck, False
        if struck and error is not None:
            return failures.is_unwinding(error) or failures.is_of_collective(error)
        return struck

    def undone(self, problem: str) -> None:
        """Note that an attempt in which a peer was lost was put back.

        It was put back as far as there is no `problem`.
        """
        was_in_collective = self.stage is TrialStage.STRUCK
        self.stage = TrialStage.VOTED if was_in_collective else TrialStage.AGAIN
        if problem:
            self.restores_first = True
            self._costs.append(f"{problem}: a lost peer costs the steps since the last save")

    def failed(self, step: int, error: BaseException) -> None:
        """Say so where an attempt fails that is made again, after one that has not."""
        if self.stage in (TrialStage.NONE, TrialStage.FIRST):
            return
        line = (
            f"step {step} was made twice, and fails the second time: {type(error).__name__}. So it "
            "fails after an interruption, too: the block needs something that it leaves behind at "
            f'its end. See {verdict.PAGE}, "Steps that differ"; --rehearse off does not look'
        )
        error.add_note(f"[spotelastic] {line}")
        self._loop.tell(REHEARSED, step, "different", line)

    def made(self, step: int, loss: Any) -> bool:
        """Return whether an attempt that was made to its end is made again. All ranks call this."""
        found = take(self._loop.state, loss)
        if self.stage is TrialStage.FIRST:
            return self._made_first(found)
        if self.stage is not TrialStage.THIRD:  # nothing was left to strike, or all was struck
            self._again = found
            after = self._carried_outside()
            changed = outside.changed(self._outside, after)
            # What the step alone decides about, such as the last loss, is the same again.
            moved = outside.changed(self._after, after)
            self._repeated = sorted(self._changed.keys() & changed.keys() & moved.keys())
            self._replaced = sorted(self._outside.keys() - self._known)
            if any(self._loop.ranks().gather(bool(differences(self._first, found)))):
                self.stage, self.restores_first = TrialStage.THIRD, True
                return True
            self._judge(step, RehearsalVerdict())
        else:
            judged = verdict.of_three(self._before, self._first, self._again, found)
            self._judge(step, judged)
        return False

    def _made_first(self, found: StepFingerprint) -> bool:
        self._first, self._step_time = found, time.perf_counter() - self._begun
        self._after = self._carried_outside()
        self._changed = outside.changed(self._outside, self._after)
        ranks = self._loop.ranks()
        assert self._foreign is not None
        self._found += [
            f"a {name} that is not in the state is stepped: give it to the Checkpointer"
            for name in self._foreign.changed()
        ]
        # The last one: most may have gone wrong by then.
        self._strikes_at = min(ranks.gather(self._collectives.before_vote)) - 1
        if self._collectives.after_vote:
            self._costs.append(
                "a collective comes after the optimizer's step (make it before that, or after the "
                "block): a peer that is lost in it costs the steps since the last save"
            )
        elif self._collectives.passes_after_vote:
            self._costs.append(
                "a backward pass comes after an optimizer's step (make all passes first): a peer "
                "that is lost in it costs the steps since the last save"
            )
        if self._loop.builder.is_wanted:  # it is restored whatever happens
            self.stage = TrialStage.AGAIN
        else:
            self.stage = TrialStage.VOTED if self._strikes_at < 0 else TrialStage.STRUCK
        self.restores_first = True
        return True

    def _judge(self, step: int, judged: RehearsalVerdict) -> None:
        """Agree with all ranks on what was found, and tell it."""
        ranks, record = self._loop.ranks(), self._loop.own.rehearsals
        seconds = time.perf_counter() - self._begun
        if judged.differs and any(each.startswith(CARRIES) for each in self._costs):
            self._found.append(f"{CARRIES}: accumulate within the block, with se.microbatches()")
        if judged.differs:
            self._found += [
                f"the block changes {name}, which was in the state until that was put back: take "
                "it from the state in each block"
                for name in self._replaced
            ] + [
                f"{name} ({each.kind}) may hand out something else each time, and is not put back: "
                "take batches from checkpoint.batches(loader)"
                for name, each in self._after.items()
                if not each.digest
            ]
        if judged.differs and not judged.restores:
            self._found += [
                f"{name} ({kind}) changes in the block, and is not in the state"
                for name, kind in self._changed.items()
            ]
        else:
            self._costs += [
                f"the block changes {name} ({self._changed[name]}), which is not in the state: it "
                "is not put back when a step is repeated, and a new process begins without it"
                for name in self._repeated[: verdict.TOLD]
            ]
        own = RehearsalVerdict(
            judged.restores,
            (*self._found, *judged.differs),
            judged.noise,
            tuple(dict.fromkeys(self._costs)),
        )
        told = ranks.gather((own, seconds, self._step_time))
        found = verdict.worst([each for each, *_ in told])
        _, seconds, step_time = told[0]
        self._loop.own.rehearsals = record.rehearsed(
            step,
            ranks.world_size,
            seconds=seconds,
            step_time=step_time,
            restores=found.restores,
        )
        self.give_up()
        line = verdict.line(found, step, ranks.world_size)
        if ranks.rank == 0:
            self._loop.tell(REHEARSED, step, found.outcome, line)
        if found.differs and self._mode == "strict":
            raise RehearsalDiffers(f"step {step} does not come back as it was (--rehearse strict)")

    def _carried_outside(self) -> dict[str, outside.Variable]:
        """Return the variables of the script that are not in its state; they tell a cause."""
        try:
            return outside.carried(sys._getframe(1), self._loop.state.values)
        except Exception:  # the script may have anything
            return {}
