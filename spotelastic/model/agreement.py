"""The values with which a round agrees on a save step: the holder's proposal, each member's vote.

A proposal without a target asks for steps. One with a target is confirmed, raised, sealed or
cancelled. See "Agreement on a step" in the protocols page.
"""

from dataclasses import dataclass

from spotelastic_checkpoints.types import Schedule


@dataclass(frozen=True, slots=True)
class Proposal:
    """A save at one step of all ranks, which a planned change waits for."""

    id: str
    round: str
    """Incarnation of the round that the proposal belongs to; it is void in any other."""
    reason: str
    target: int = 0
    """The step to seal and wait at; 0 while steps are being asked for."""
    deadline: float = 0.0
    """When the change stops waiting and goes on with the newest complete snapshot."""
    cancelled: bool = False
    raised: int = 0
    """How many times the target had to be raised."""
    schedule: Schedule | None = None
    """New intervals that hold from the target on, if the proposal only changes those."""
    applied: bool = False
    """Whether all members sealed the target, so that `schedule` holds when they go on."""


@dataclass(frozen=True, slots=True)
class Vote:
    """One member's answer to a proposal; overwritten as the member advances."""

    node: str
    proposal: str
    step: int
    """The highest step that one of the member's workers has published."""
    step_time: float = 0.0
    """Seconds per step, as measured by the workers."""
    aimed: int = 0
    """The target that the workers' pages hold; 0 if none."""
    confirmed: int = 0
    """The target that all workers are certain to see before they pass it; 0 if none."""
    sealed: int = 0
    """The target at which all workers have sealed and wait; 0 if none."""
    refused: bool = False
    """Whether the workers cannot agree, because they have no Checkpointer or have left it."""
    plain: bool = False
    """Whether it was refused because no worker has entered a Checkpointer."""
