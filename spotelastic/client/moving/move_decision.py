"""Decides the next step of a job's move to another region, from what both regions show (pure).

A move that was killed anywhere is run again, and goes on where it was: nothing is remembered but
what lies in the two buckets and clouds. `carry_out.py` carries the steps out.

Must never happen:

- a commit that was acknowledged is lost, or both regions train: the source is closed only when its
  newest commit is in the target, and the target is opened only when the source is closed
  (`commit/moving.py`);
- the target begins from an incomplete copy;
- a job that moves by itself goes on elsewhere after somebody has stopped it;
- something that costs money is left in either region when there is no next step: the source's
  cluster is taken down once the target trains, the target's when the move is undone. Where a job
  moves by itself, they are put to sleep in place of that (`aws/clusters/asleep.py`).
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from spotelastic_checkpoints.commit import moving
from spotelastic_checkpoints.commit.latest import ForwardPointer, Latest
from spotelastic_checkpoints.types import Commit

from spotelastic.errors import UsageError
from spotelastic.model.job import ENDED


class MoveStep(StrEnum):
    """The steps, in the order in which a move takes them."""

    STOP = "stop"
    """The group agrees on a step, commits it, and ends."""
    CLAIM = "claim"
    """Claim the source's storage, so that its newest commit stays the newest."""
    COPY = "copy"
    """Copy that commit, and what the source's cluster has recorded."""
    CLOSE = "close"
    """Replace the source's LATEST by a forward pointer."""
    OPEN = "open"
    """Give the target a LATEST."""
    MAKE = "make"
    """Create the target's cluster."""
    WAKE = "wake"
    """Wake it, in place of that."""
    AWAIT = "await"
    """Wait until it trains."""
    END_SOURCE = "end-source"
    """Take the source's cluster down."""
    SLEEP = "sleep"
    """Put it to sleep, in place of that."""
    # Only to undo a move.
    CLOSE_TARGET = "close-target"
    """Put a forward pointer to the source into the target."""
    REOPEN = "reopen"
    """Give the source a LATEST again."""
    END_TARGET = "end-target"
    """Take the target's cluster down."""
    TARGET_SLEEPS = "target-sleeps"
    """Put it to sleep, in place of that."""
    DROP = "drop"
    """Delete what was copied."""
    RESUME = "resume"
    """Restart the job in the source's cluster."""
    REMAKE = "remake"
    """Create the source's cluster again: it ends by itself once the source is closed."""
    SOURCE_WAKES = "source-wakes"
    """Wake it, in place of that."""


@dataclass(frozen=True, slots=True)
class RegionSide:
    """One of the two regions, as seen at one moment."""

    region: str
    latest: Latest | None = None
    """What LATEST says; a `ForwardPointer` where the run was moved elsewhere."""
    cluster: Literal["none", "left", "up", "asleep"] = "none"
    """"left": parts of a cluster, without a job. They cost money."""
    sleeps: bool = False
    """Whether the cluster is put to sleep here, in place of being taken down."""
    stopping: bool = False
    """Whether the cluster is marked to end: its controllers take it down by themselves."""
    state: str = ""
    """The job's state; empty if no controller has told any."""
    trains: bool = False
    """Whether a round of the job has begun."""
    step: int = 0
    """The newest step that was told."""
    reason: str = ""
    """Why the job is in that state."""

    @property
    def commit(self) -> Commit | None:
        """The newest commit of the storage."""
        return None if self.latest is None else self.latest.commit


@dataclass(frozen=True, slots=True)
class MoveSeen:
    """Both regions."""

    name: str
    source: RegionSide
    target: RegionSide
    copied: bool
    """Whether the source's newest commit is in the target, or there is none."""
    begun: bool = True
    """Whether a move between these two was begun and not undone."""
    reason: str = ""
    """Why the job moves by itself; empty if somebody moves it."""


def decide(seen: MoveSeen, *, back: bool, led: bool = False) -> MoveStep | None:
    """Return the next step of a move, or with `back` of undoing it; None if it is over.

    Raises `UsageError` where it is not over, and there is none.

    With `led` the source's cluster ends as soon as the target's is led, whether it trains or not.
    """
    return _backward(seen) if back else _forward(seen, led=led)


def is_closed(seen: MoveSeen) -> bool:
    """Return whether the source was closed, from when on a move can only go on or be undone."""
    return isinstance(seen.source.latest, ForwardPointer)


def _forward(seen: MoveSeen, *, led: bool) -> MoveStep | None:
    source, target = seen.source, seen.target
    here, there = source.latest, target.latest
    if led and target.cluster in ("none", "left"):
        raise UsageError(
            f"{seen.name} has no cluster in {target.region} that could be woken: "
            "`spotelastic up` makes it again"
        )
    if isinstance(here, ForwardPointer):
        return _after_the_close(seen, here, led=led)
    if there is not None and not isinstance(there, ForwardPointer):
        raise UsageError(
            f"{target.region} has checkpoints of a run {there.owner} that did not come from "
            f"{source.region}: delete them with `spotelastic down {seen.name} --delete-data "
            f"--region {target.region}`, or choose another region"
        )
    if source.cluster == "up" and source.state not in ENDED:
        return MoveStep.STOP
    if source.state in ("succeeded", "failed"):
        raise UsageError(f"the job of {seen.name} has {source.state}: there is nothing to move")
    if here is None or not moving.is_claimed_to_move(here):
        if _is_over(seen):
            raise UsageError(f"{seen.name} has {source.state}: {source.reason}")
        return MoveStep.CLAIM
    return MoveStep.CLOSE if seen.copied else MoveStep.COPY


def _is_over(seen: MoveSeen) -> bool:
    """Whether a job that moves by itself has ended, and not because it moves."""
    ended = seen.source.state in ENDED
    return bool(seen.reason) and ended and not seen.source.reason.startswith(seen.reason)


def _after_the_close(seen: MoveSeen, pointer: ForwardPointer, *, led: bool) -> MoveStep | None:
    source, target = seen.source, seen.target
    there = target.latest
    if pointer.region != target.region:
        raise UsageError(f"{seen.name} was moved from {source.region} to {pointer.region}")
    if there is None or isinstance(there, ForwardPointer):
        if there is not None and there.epoch > pointer.epoch:
            raise UsageError(
                f"this move is being undone: run `spotelastic move {seen.name} --back` again"
            )
        return MoveStep.OPEN if seen.copied else MoveStep.COPY
    if target.cluster == "asleep":
        return MoveStep.WAKE
    if target.cluster != "up" or not (target.state or target.sleeps):
        return MoveStep.MAKE
    if not (target.state if led else target.trains or target.state in ENDED):
        return MoveStep.AWAIT
    if source.sleeps:
        return MoveStep.SLEEP if source.cluster == "up" else None
    return MoveStep.END_SOURCE if source.cluster != "none" else None


def _backward(seen: MoveSeen) -> MoveStep | None:
    source, target = seen.source, seen.target
    here, there = source.latest, target.latest
    if isinstance(here, ForwardPointer):
        if here.region != target.region:
            raise UsageError(f"{seen.name} was moved from {source.region} to {here.region}")
        if isinstance(there, ForwardPointer) and there.epoch > here.epoch:
            return MoveStep.REOPEN
        if there is not None and not isinstance(there, ForwardPointer) and _trained(seen, here):
            raise UsageError(
                f"{seen.name} has trained in {target.region} since: bring it back with "
                f"`spotelastic move {seen.name} --region {source.region}`"
            )
        return MoveStep.CLOSE_TARGET
    if not seen.begun:
        raise UsageError(f"there is no move of {seen.name} to undo")
    if there is not None and not isinstance(there, ForwardPointer):
        raise UsageError(f"{target.region} has a run that did not come from here")
    if target.sleeps and target.cluster == "up":
        return MoveStep.TARGET_SLEEPS
    if target.cluster != "none" and not target.sleeps:
        return MoveStep.END_TARGET
    if seen.copied and here is not None and here.commit is not None:
        return MoveStep.DROP
    if source.cluster == "asleep":
        return MoveStep.SOURCE_WAKES
    if source.cluster != "up" or source.stopping or not source.state:
        return MoveStep.REMAKE
    return MoveStep.RESUME if source.state == "stopped" else None


def _trained(seen: MoveSeen, pointer: ForwardPointer) -> bool:
    moved = 0 if pointer.commit is None else pointer.commit.step
    return seen.target.commit != pointer.commit or seen.target.step > moved
