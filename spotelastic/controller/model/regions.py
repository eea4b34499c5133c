"""What is known of the regions that a job may train in, and what is decided about them: values."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from spotelastic.model.counting import HOUR


@dataclass(frozen=True, slots=True)
class RegionPolicy:
    """When a job moves from one region to another."""

    min_nodes: int
    """Fewest nodes that the job trains with."""
    max_nodes: int
    """Most nodes that it uses."""
    patience: float = 1200.0
    """Seconds with fewer than min nodes after which the job moves."""
    prefer_capacity: bool = True
    """Whether it also moves while it trains, where another region is worth more."""
    moves_per_day: int = 12
    """Most moves within 24 hours."""
    node_value: float = 1.0
    """US dollars that an hour of a node that trains is worth: what it costs on demand."""
    short_stay: float = HOUR / 2
    """A stay in which the job trained for fewer seconds was too short to be worth its move."""
    most_caution: int = 8
    """Largest factor by which a region is left alone for longer than others."""
    look_every: float = 60.0
    """Seconds between two looks at the regions."""


@dataclass(frozen=True, slots=True)
class RegionOffer:
    """One region as it is seen now."""

    region: str
    nodes: int | None
    """Nodes that it gives, or would give; None where nobody says so."""
    usd: float
    """US dollars for an hour of a spot node."""
    move_seconds: float = 0.0
    """Seconds without a step that a move there takes."""
    move_usd: float = 0.0
    """US dollars that a move there costs: the copy between buckets."""


@dataclass(frozen=True, slots=True)
class RegionHistory:
    """What a job has met in its regions so far. It goes with the job when that moves."""

    home: str
    """The region that the job is in."""
    since: float
    """When it came there (s)."""
    looked_at: float
    """Time of the last look (s)."""
    short_since: float | None = None
    """Since when there are fewer than min nodes; None while there are enough."""
    trained: float = 0.0
    """Seconds with at least min nodes since it came."""
    missed: Mapping[str, float] = field(default_factory=dict)
    """US dollars by which each other region would have been worth more since the job came here."""
    caution: Mapping[str, int] = field(default_factory=dict)
    """Factor, by region, by which the job waits longer before it moves there: 1 unless named."""
    moves: tuple[float, ...] = ()
    """Times of the moves of the last 24 hours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionsRecord:
    """What the bucket has of a job that moves by itself."""

    history: RegionHistory
    reason: str = ""
    """Why the job stays, or moves."""
    at: float = 0.0
    """When that was decided."""


@dataclass(frozen=True, slots=True)
class RegionDecision:
    """Whether the job moves."""

    to: str
    """The region that it moves to; empty: it stays."""
    reason: str
    """Why it moves, or why it stays, for people."""
