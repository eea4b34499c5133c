"""Agreement on a save step without a collective (docs/protocols.md, Agreement on a save step).

The holder writes a `Proposal`; each member answers with a `Vote`. A proposal without target asks
for steps; one with a target is confirmed, raised, sealed, or cancelled.
"""

from dataclasses import dataclass

from spotelastic_checkpoints.types import Schedule


@dataclass(frozen=True, slots=True)
class Proposal:
    """The planned save that a planned change waits for."""

    id: str
    round: str
    """Incarnation of the round it belongs to; void in any other."""
    reason: str
    target: int = 0
    """The step to seal and wait at; 0 while steps are being asked for."""
    deadline: float = 0.0
    """When the newest complete slot serves instead."""
    cancelled: bool = False
    raised: int = 0
    """How often the target had to be raised."""
    schedule: Schedule | None = None
    """Other intervals, which hold from the target on; no new round is formed then."""
    applied: bool = False
    """All have sealed and wait at the target: `schedule` holds for those who are let go now."""


@dataclass(frozen=True, slots=True)
class Vote:
    """One member's standing on a proposal; overwritten as it advances."""

    node: str
    proposal: str
    step: int
    """The highest step that one of its workers has published."""
    step_time: float = 0.0
    """Seconds a step takes, as measured by its workers."""
    aimed: int = 0
    """The target that its workers' pages hold; 0 if none."""
    confirmed: int = 0
    """The target that all its workers are certain to see before they pass it; 0 if none."""
    sealed: int = 0
    """The target at which all its workers have sealed and wait; 0 if none."""
    refused: bool = False
    """Its workers cannot agree (no checkpointer, or it has been left): cancel."""
    plain: bool = False
    """It was refused because no worker has come to a Checkpointer."""
