"""Lets a worker and the daemon share the worker's progress through one small file of shared memory.

The worker publishes its step, times and losses in its page. The daemon writes the target step, the
schedule and how many points it has read. Each field has one writer and is an aligned 8-byte word,
so that no locks and no system calls are needed.
"""

import math
import mmap
import os
import struct
import sys
from enum import IntEnum
from pathlib import Path

import xxhash

from spotelastic_checkpoints.errors import ArenaFull
from spotelastic_checkpoints.types import Schedule, StepPoint, TimedValue, WorkerStep

_FIRST = 1 << 16
"""Bytes of what every version has in its pages, at the same places."""
SIZE = _FIRST + mmap.PAGESIZE
"""Bytes of a page."""
_RING_AT = 128
_RING = (_FIRST - _RING_AT) // 24
_OWN_TIME = _FIRST // 8 - 1
"""The word behind the ring: what part of a step is the worker's own work. It is one word, so that
it is never read in halves: the seconds, their share of the step in 65535ths, and how many
measurements there were.
"""
_TOTAL, _SAMPLES = _FIRST // 8, _FIRST // 8 + 1
"""The step that the run ends with, and the average samples per step of this worker; 0: the script
does not say.
"""
_LOGGED, _LOGGED_WORDS = _SAMPLES + 1, 6
"""The newest values that the script logs: of each its name in four words, when it was logged, and
the value. The time is 0 while the others are written, and where there is none.
"""
MOST_LOGGED, LONGEST_NAME = 20, 32
"""Names of logged values, and bytes of a name."""
_PACKED = struct.Struct("=fHH")
_SMOOTHING = 0.3
"""Weight of the newest value in the averages of step time, samples and stall."""
_NOT_A_NUMBER = -1
"""The word of a loss that is NaN. It is a NaN, too, but not the one of a loss that is not known."""


class Field(IntEnum):
    """The words of a page, by number."""

    ROUND = 0
    """Token of the round that the page was reset for."""
    RANK = 1
    """Global rank of the worker."""
    PRESENCE = 2
    """A `Presence`."""
    STEP = 3
    """Last finished step."""
    TARGET = 4
    """Step at which the worker seals a save and waits; 0 for none."""
    PROPOSAL = 5
    """Token of the proposal that the target belongs to."""
    STEP_TIME = 6
    """Average seconds per step."""
    FIRST_STEP_AT = 7
    """Epoch seconds at which the first step of the round was finished."""
    LAST_STEP_AT = 8
    """Epoch seconds at which the last step was finished."""
    WRITTEN = 9
    """Number of points written."""
    READY = 10
    """Number of points whose loss is known."""
    TAKEN = 11
    """Number of points that the daemon has passed on."""
    DEADLINE = 12
    """Epoch seconds at which this node will be gone; 0 without a notice."""
    SNAPSHOT_EVERY = 13
    """Interval of snapshots, in steps."""
    CHECKPOINT_EVERY = 14
    """Interval of checkpoints, in steps."""
    STALL = 15
    """Average seconds that a save stops training; negative while it is the last round's."""


class Presence(IntEnum):
    """Whether a worker is there: not yet, in its training loop, or not any more."""

    ABSENT = 0
    ATTACHED = 1
    LEFT = 2


def token(name: str) -> int:
    """Return a name as one word of a page."""
    return xxhash.xxh3_64_intdigest(name.encode()) >> 1


def _logged_words() -> range:
    """Return the words with the times of all values that can be logged."""
    first = _LOGGED + LONGEST_NAME // 8
    return range(first, first + MOST_LOGGED * _LOGGED_WORDS, _LOGGED_WORDS)


class WorkerPage:
    """A worker's page, mapped. The file is created where it does not exist, with all its memory.

    Memory taken later could be missing, and the worker would be ended by a SIGBUS. Raises
    `ArenaFull`.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, SIZE)
            memory = memoryview(mmap.mmap(descriptor, SIZE))
        except OSError as error:
            raise ArenaFull(f"no memory for {path}: {error.strerror}") from error
        finally:
            os.close(descriptor)
        self._memory, self._words = memory, memory.cast("q")
        self._reals = memory.cast("d")

    # -- the daemon -------------------------------------------------------------------------------

    def is_of(self, round_: str) -> bool:
        """Return whether the page was reset for this round, by this daemon or one before it."""
        return self._words[Field.ROUND] == token(round_)

    def reset(
        self,
        round_: str,
        rank: int,
        schedule: Schedule = Schedule(),  # noqa: B008
        deadline: float = 0.0,
    ) -> None:
        """Prepare the page for a new round, while no worker is there.

        The stall of the last round is kept as a negative number until a save of this round was
        measured, because a notice may come before that.
        """
        stall = self._reals[Field.STALL]
        for field in Field:
            self._words[field] = 0
        self._words[_OWN_TIME] = self._words[_TOTAL] = self._words[_SAMPLES] = 0
        for word in _logged_words():
            self._words[word] = 0
        self._reals[Field.STALL] = -abs(stall)
        self._words[Field.RANK] = rank
        self.set_schedule(schedule)
        self.set_deadline(deadline)
        # This comes last, because it declares everything else done.
        self._words[Field.ROUND] = token(round_)

    @property
    def target(self) -> int:
        """The step at which the worker has to seal a save and wait; 0 for none."""
        return self._words[Field.TARGET]

    def set_target(self, proposal: str, target: int) -> None:
        """Set the target of a proposal."""
        self._words[Field.PROPOSAL] = token(proposal)
        self._words[Field.TARGET] = target

    @property
    def schedule(self) -> Schedule:
        """When to save. It changes only while the worker waits at a target."""
        words = self._words
        return Schedule(words[Field.SNAPSHOT_EVERY], words[Field.CHECKPOINT_EVERY])

    def set_schedule(self, schedule: Schedule) -> None:
        """Set when to save."""
        self._words[Field.SNAPSHOT_EVERY] = schedule.snapshot_every
        self._words[Field.CHECKPOINT_EVERY] = schedule.checkpoint_every

    @property
    def deadline(self) -> float:
        """Epoch seconds at which this node will be gone; 0 without a notice."""
        return self._reals[Field.DEADLINE]

    def set_deadline(self, deadline: float) -> None:
        """Set when this node will be gone, in epoch seconds."""
        self._reals[Field.DEADLINE] = deadline

    def read(self, local_rank: int, waiting: bool = False) -> WorkerStep:
        """Return how far the worker is. `waiting` is what the daemon knows of it."""
        packed = self._words[_OWN_TIME].to_bytes(8, sys.byteorder, signed=True)
        own, share, measured = _PACKED.unpack(packed)
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
            measured=measured,
            own_time=own,
            waiting_time=own * 65535 / share - own if share else 0.0,
            total=self._words[_TOTAL],
            samples=self._reals[_SAMPLES],
            logged=self._logged(),
        )

    def _logged(self) -> dict[str, TimedValue]:
        found = {}
        for word in _logged_words():
            at, value = self._reals[word], self._reals[word + 1]
            name = bytes(self._memory[8 * word - LONGEST_NAME : 8 * word])
            if at and at == self._reals[word]:  # otherwise it is being written
                told = value if math.isfinite(value) else None
                found[name.rstrip(b"\0").decode("ascii", "replace")] = TimedValue(at, told)
        return found

    def take_points(self, *, all_written: bool) -> tuple[StepPoint, ...]:
        """Return the points since the last call.

        Points whose loss is not known yet are returned only if `all_written`.
        """
        end = self._words[Field.WRITTEN if all_written else Field.READY]
        start = max(self._words[Field.TAKEN], end - _RING)
        points = tuple(self._point(number) for number in range(start, end))
        self._words[Field.TAKEN] = end
        return points

    def _point(self, number: int) -> StepPoint:
        word = _RING_AT // 8 + number % _RING * 3
        loss = self._reals[word + 1]
        is_known = self._words[word + 1] == _NOT_A_NUMBER or not math.isnan(loss)
        return StepPoint(self._words[word], loss if is_known else None, self._reals[word + 2])

    def _put_loss(self, word: int, loss: float | None) -> None:
        if loss is not None and math.isnan(loss):
            self._words[word] = _NOT_A_NUMBER
        else:
            self._reals[word] = math.nan if loss is None else loss

    # -- the worker -------------------------------------------------------------------------------

    def enter(self, step: int) -> None:
        """Declare the worker present; training goes on from `step`."""
        self._words[Field.STEP] = step
        self._words[Field.PRESENCE] = Presence.ATTACHED

    def leave(self) -> None:
        """Declare that the worker has left its training loop."""
        self._words[Field.PRESENCE] = Presence.LEFT

    def publish(
        self, step: int, loss: float | None, now: float, total: int = 0, samples: float = 0.0
    ) -> int:
        """Declare that `step` of `total` was finished at `now` (epoch seconds).

        `samples` is how many samples the step had.

        Returns the number of its point. Read `target` after this, never before.
        """
        words, reals = self._words, self._reals
        number = words[Field.WRITTEN]
        word = _RING_AT // 8 + number % _RING * 3
        words[word] = step
        self._put_loss(word + 1, loss)
        reals[word + 2] = now
        words[Field.WRITTEN] = number + 1
        last = reals[Field.LAST_STEP_AT]
        words[_TOTAL] = total
        usual = reals[_SAMPLES] or samples
        reals[_SAMPLES] = usual + _SMOOTHING * (samples - usual)
        if last:
            average = reals[Field.STEP_TIME] or now - last
            reals[Field.STEP_TIME] = average + _SMOOTHING * (now - last - average)
        else:
            reals[Field.FIRST_STEP_AT] = now
        reals[Field.LAST_STEP_AT] = now
        words[Field.STEP] = step
        return number

    def log(self, number: int, name: str, value: float, now: float) -> None:
        """Publish the newest value of the `number`-th name, logged at `now` (epoch seconds)."""
        word = _logged_words()[number]
        self._reals[word] = 0.0
        encoded = name.encode("ascii").ljust(LONGEST_NAME, b"\0")
        self._memory[8 * word - LONGEST_NAME : 8 * word] = encoded
        self._reals[word + 1] = value
        self._reals[word] = now

    def saved(self, stall: float) -> None:
        """Count a save that stopped training for `stall` seconds."""
        average = max(self._reals[Field.STALL], 0.0) or stall
        self._reals[Field.STALL] = average + _SMOOTHING * (stall - average)

    def measured(self, number: int, own: float, waiting: float) -> None:
        """Publish the `number`-th measurement of a step's seconds.

        These are the seconds of this worker's own work, and those of its waiting for others.
        """
        share = max(1, round(own / (own + waiting) * 65535)) if own > 0 else 0
        packed = _PACKED.pack(own, share, (number - 1) % 65535 + 1)
        self._words[_OWN_TIME] = int.from_bytes(packed, sys.byteorder, signed=True)

    def amend(self, number: int, loss: float) -> None:
        """Set the loss of an earlier point."""
        if number >= self._words[Field.WRITTEN] - _RING:
            self._put_loss(_RING_AT // 8 + number % _RING * 3 + 1, loss)

    def ready(self, number: int) -> None:
        """Declare that all points below `number` have their final loss."""
        self._words[Field.READY] = number
