"""Keeps each node's last measurements of its own time, as nodes report them (pure)."""

from dataclasses import dataclass
from statistics import median

from spotelastic.model.progress import Progress

WINDOW = 6
"""Measurements from which a node is judged. One of them may say otherwise."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a node told of its own time, in seconds of a step."""

    number: int
    own: float
    waiting: float


@dataclass(frozen=True, slots=True)
class NodePace:
    """A node's measurements in one round, the newest last, and what follows from them."""

    round: int
    measurements: tuple[Measurement, ...] = ()
    least: float = 0.0
    """The own time, in seconds of a step, that all measurements but one reach; 0: too few."""
    usual: float = 0.0
    """The median of its own time."""
    most: float = 0.0
    """The own time that all measurements but one stay within."""
    step_time: float = 0.0
    """The median of its own time and its waiting together."""

    @property
    def known(self) -> bool:
        """Whether there are enough measurements."""
        return len(self.measurements) == WINDOW


def after(pace: NodePace | None, told: Progress) -> NodePace | None:
    """Return the pace after a report. A new round begins anew."""
    if pace is None or pace.round != told.round:
        pace = None
    measured = pace.measurements if pace is not None else ()
    if not told.measured or (measured and measured[-1].number == told.measured):
        return pace
    new = Measurement(told.measured, told.own_time, told.waiting_time)
    measured = (*measured, new)[-WINDOW:]
    if len(measured) < WINDOW:
        return NodePace(told.round, measured)
    own = sorted(each.own for each in measured)
    return NodePace(
        told.round,
        measured,
        least=own[1],
        usual=median(own),
        most=own[-2],
        step_time=median(each.own + each.waiting for each in measured),
    )
