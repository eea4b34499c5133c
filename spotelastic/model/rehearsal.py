"""What a run has found by making a step again, and whether a job does so."""

from dataclasses import dataclass

MODES = ("auto", "off", "strict")
"""Values of `--rehearse`."""
REHEARSE = "SPOTELASTIC_REHEARSE"
"""Workers' environment variable with one of them. What the script says counts before it."""
OUTCOMES = ("equal", "noise", "different")
EVENT = "rehearsed"
"""Kind of the events that tell of a step that was made again. Their data is a `Rehearsal`."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A step that was made several times, and compared."""

    step: int
    ranks: int
    outcome: str
    """One of `OUTCOMES`: the same to the last bit, within the script's own noise, or not."""
    lines: tuple[str, ...] = ()
    """What people are told. Where it is different: a heading, each difference, what follows."""

    @property
    def differs(self) -> bool:
        return self.outcome == "different"

    @property
    def line(self) -> str:
        """All in one line."""
        return " ".join(self.lines)

    @property
    def text(self) -> str:
        """A line for each, below the first."""
        return "\n  ".join(self.lines)
