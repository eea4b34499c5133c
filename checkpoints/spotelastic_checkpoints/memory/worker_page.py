"""A worker's page: how far it is, and how far it may go. Shared memory, no locks, no calls.

One writer per field: the worker writes its step, times and points, the daemon the target, the
schedule, and the place up to which it has read the points. All fields are aligned 8-byte words.
"""

import math
import mmap
import os
from enum import IntEnum
from pathlib import Path

import xxhash

from spotelastic_checkpoints.errors import ArenaFull
from spotelastic_checkpoints.types import Schedule, StepPoint, WorkerStep

SIZE = 1 << 16
_RING_AT = 128
_RING = (SIZE - _RING_AT) // 24
_SMOOTHING = 0.3
"""Weight of the newest step in the step time."""


class Field(IntEnum):
    """Word numbers."""

    ROUND = 0
    RANK = 1
    PRESENCE = 2
    STEP = 3
    TARGET = 4
    PROPOSAL = 5
    STEP_TIME = 6
    FIRST_STEP_AT = 7
    LAST_STEP_AT = 8
    WRITTEN = 9
    """Points written."""
    READY = 10
    """Points whose loss is known."""
    TAKEN = 11
    """Points that the daemon has passed on."""
    DEADLINE = 12
    """When this node will be gone."""
    SNAPSHOT_EVERY = 13
    CHECKPOINT_EVERY = 14
    STALL = 15


class Presence(IntEnum):
    ABSENT = 0
    ATTACHED = 1
    LEFT = 2


def token(name: str) -> int:
    """A name as one word of a page."""
    return xxhash.xxh3_64_intdigest(name.encode()) >> 1


class WorkerPage:
    """Created where it does not exist, with all its memory: a worker that found none later, where
    others have filled it, would be ended by a SIGBUS. Raises `ArenaFull`."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, SIZE)
            memory = memoryview(mmap.mmap(descriptor, SIZE))
        except OSError as error:
            raise ArenaFull(f"no memory for {path}: {error.strerror}") from error
        finally:
            os.close(descriptor)
        self._words = memory.cast("q")
        self._reals = memory.cast("d")

    # -- the daemon -------------------------------------------------------------------------------

    def is_of(self, round_: str) -> bool:
        """Whether it was reset for this round, by whichever daemon."""
        return self._words[Field.ROUND] == token(round_)

    def reset(
        self,
        round_: str,
        rank: int,
        schedule: Schedule = Schedule(),  # noqa: B008
        deadline: float = 0.0,
    ) -> None:
        """For a new round, while no worker is there. How long a save took in the last round stands
        there, as a negative number, until one of this round has: a notice may come before."""
        stall = self._reals[Field.STALL]
        for field in Field:
            self._words[field] = 0
        self._reals[Field.STALL] = -abs(stall)
        self._words[Field.RANK] = rank
        self.set_schedule(schedule)
        self.set_deadline(deadline)
        self._words[Field.ROUND] = token(round_)  # last: it says that all of this is done

    @property
    def target(self) -> int:
        return self._words[Field.TARGET]

    def set_target(self, proposal: str, target: int) -> None:
        self._words[Field.PROPOSAL] = token(proposal)
        self._words[Field.TARGET] = target

    @property
    def schedule(self) -> Schedule:
        """Changed only while the worker waits at a target."""
        words = self._words
        return Schedule(words[Field.SNAPSHOT_EVERY], words[Field.CHECKPOINT_EVERY])

    def set_schedule(self, schedule: Schedule) -> None:
        self._words[Field.SNAPSHOT_EVERY] = schedule.snapshot_every
        self._words[Field.CHECKPOINT_EVERY] = schedule.checkpoint_every

    @property
    def deadline(self) -> float:
        """Epoch seconds at which this node will be gone; 0 where it has no notice."""
        return self._reals[Field.DEADLINE]

    def set_deadline(self, deadline: float) -> None:
        self._reals[Field.DEADLINE] = deadline

    def read(self, local_rank: int, waiting: bool = False) -> WorkerStep:
        return WorkerStep(
            rank=self._words[Field.RANK],
            local_rank=local_rank,
            step=self._words[Field.STEP],
            step_time=self._reals[Field.STEP_TIME],
            first_step_at=self._reals[Field.FIRST_STEP_AT],
            last_step_at=self._reals[Field.LAST_STEP_AT],
            attached=self._words[Field.PRESENCE] == Presence.ATTACHED,
            waiting=waiting,
            stall=abs(self._reals[Field.STALL]),
        )

    def take_points(self, *, all_written: bool) -> tuple[StepPoint, ...]:
        """Points since the last call; those without a loss yet only if `all_written`."""
        end = self._words[Field.WRITTEN if all_written else Field.READY]
        start = max(self._words[Field.TAKEN], end - _RING)
        points = tuple(self._point(number) for number in range(start, end))
        self._words[Field.TAKEN] = end
        return points

    def _point(self, number: int) -> StepPoint:
        word = _RING_AT // 8 + number % _RING * 3
        loss = self._reals[word + 1]
        return StepPoint(
            self._words[word], None if math.isnan(loss) else loss, self._reals[word + 2]
        )

    # -- the worker -------------------------------------------------------------------------------

    def enter(self, step: int) -> None:
        """Present, with `step` as the step that training goes on from."""
        self._words[Field.STEP] = step
        self._words[Field.PRESENCE] = Presence.ATTACHED

    def leave(self) -> None:
        self._words[Field.PRESENCE] = Presence.LEFT

    def publish(self, step: int, loss: float | None, now: float) -> int:
        """Step `step` is done at `now` (epoch seconds). Returns the number of its point.

        Read `target` after this, never before.
        """
        words, reals = self._words, self._reals
        number = words[Field.WRITTEN]
        word = _RING_AT // 8 + number % _RING * 3
        words[word] = step
        reals[word + 1] = math.nan if loss is None else loss
        reals[word + 2] = now
        words[Field.WRITTEN] = number + 1
        last = reals[Field.LAST_STEP_AT]
        if last:
            average = reals[Field.STEP_TIME] or now - last
            reals[Field.STEP_TIME] = average + _SMOOTHING * (now - last - average)
        else:
            reals[Field.FIRST_STEP_AT] = now
        reals[Field.LAST_STEP_AT] = now
        words[Field.STEP] = step
        return number

    def saved(self, stall: float) -> None:
        """A save kept training waiting for so many seconds."""
        average = max(self._reals[Field.STALL], 0.0) or stall
        self._reals[Field.STALL] = average + _SMOOTHING * (stall - average)

    def amend(self, number: int, loss: float) -> None:
        """The loss of an earlier point is known now."""
        if number >= self._words[Field.WRITTEN] - _RING:
            self._reals[_RING_AT // 8 + number % _RING * 3 + 1] = loss

    def ready(self, number: int) -> None:
        """All points below `number` have the loss that they will have."""
        self._words[Field.READY] = number
