"""What a job has done in the regions that it was in before, for its next cluster to publish."""

from msgspec import Struct

from spotelastic.model.progress import Event, Report


class Earlier(Struct, frozen=True, kw_only=True):
    """What the cluster in the region before has published last."""

    region: str
    """Where the job was."""
    to: str
    """The region to which it was moved."""
    step: int
    """The step that it was moved with."""
    copied_usd: float = 0.0
    """US dollars for the bytes that were copied between the regions."""
    last_step: int = 0
    """The last step that was made there."""
    first_step_at: float = 0.0
    last_step_at: float = 0.0
    """When the first and the last step were made there (epoch seconds); 0 if there were none."""
    events: tuple[Event, ...] = ()
    report: Report | None = None


class Moving(Struct, frozen=True, kw_only=True):
    """A move that was begun, as the source's bucket has it until the move is undone."""

    region: str
    """The region that the job moves to."""
