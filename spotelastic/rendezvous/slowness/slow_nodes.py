"""Decides which nodes keep the others waiting, from every node's own time (pure).

A node is compared with the others of its round that have its instance type: unlike types are not
equally fast, and each does what it can. It is slow if its own time exceeds theirs by much more than
theirs differ (median and median deviation, which a few slow ones do not move), and by enough to be
felt. Two nodes have no median, so one has to be slower by half.

Must never happen:

- noise names a node: all of its last measurements but one have to be above the limit, over minutes,
  and the limit lies above what the others' spread explains;
- a node is named for what all do, such as compiling, or a round's first steps: its peers do, too;
- a node is named that does other work than its peers by design: pipelines are not measured, and
  nodes whose steps take unlike times are not compared.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from spotelastic.model.progress import Event, SlowNode
from spotelastic.rendezvous.decision import Action, ClearSlow, NameSlow
from spotelastic.rendezvous.slowness.paces import NodePace
from spotelastic.rendezvous.view import RunState

SLOW, OVER = "slow", "slow-over"
"""Kinds of the events that tell of a slow node, and of its end."""
SIGMA = 1.4826
"""Standard deviations in a median deviation, for values that scatter normally."""


FLOOR, FLOOR_OF_TWO = 0.25, 0.5
"""The least excess of a slow node, and that where there is one other node. Shares are of the
others' own time."""
DEVIATIONS = 4.0
"""The least excess in standard deviations of the others."""
SCATTER = 0.05
"""The standard deviation that is assumed at least."""
FELT = 0.1
"""The least excess as a share of a step, below which nobody gains by the node's end."""
ALIKE = 0.2
"""By how much the length of steps may differ between nodes that wait for each other."""
UP_AGAIN = 0.5
"""The share of the limit's excess below which a slow node keeps up again."""


@dataclass(frozen=True, slots=True)
class Excess:
    """A node's own time beside that of the others."""

    pace: NodePace
    others: float
    """Their median, in seconds of a step."""
    limit: float
    """The own time above which it is slow."""

    @property
    def is_slow(self) -> bool:
        return self.pace.least > self.limit

    @property
    def is_over(self) -> bool:
        return self.pace.most < self.others + UP_AGAIN * (self.limit - self.others)

    @property
    def factor(self) -> float:
        return self.pace.usual / self.others

    @property
    def speed(self) -> float:
        return 1.0 - max(0.0, self.pace.usual - self.others) / self.pace.step_time


def decide(seen: RunState, now: float) -> tuple[Action, ...]:
    """Return which nodes are named as slow, and which are no longer."""
    if seen.settings is None or seen.settings.slow_after <= 0:
        return ()
    if not (seen.paces or seen.slow):
        return ()
    peers = _peers(seen)
    return (*_over(seen, peers), *_named(seen, peers, now))


class _Alike:
    """The paces of nodes that are compared with each other, by node.

    Each is compared with all others, of which there may be thousands. So their values are sorted
    once, and a node's own is left out of the order.
    """

    def __init__(self, paces: Mapping[str, NodePace]) -> None:
        self.paces = paces
        self.usual = sorted(pace.usual for pace in paces.values())
        self._steps: list[float] = []
        self._deviations: dict[float, list[float]] = {}

    def step_time(self, pace: NodePace) -> float:
        """Return the median step of the others than the node with this pace."""
        self._steps = self._steps or sorted(each.step_time for each in self.paces.values())
        return _median_without(self._steps, pace.step_time)

    def middle(self, pace: NodePace) -> float:
        """Return the median of the others' own time."""
        return _median_without(self.usual, pace.usual)

    def deviation(self, pace: NodePace, middle: float) -> float:
        """Return the median deviation of the others' own time from its `middle`."""
        known = self._deviations.get(middle)
        if known is None:  # a few times: leaving one out hardly moves the middle
            known = self._deviations[middle] = sorted(abs(each - middle) for each in self.usual)
        return _median_without(known, abs(pace.usual - middle))


def _median_without(ordered: Sequence[float], value: float) -> float:
    """Return the median of sorted values without one that is equal to `value`."""
    gone, half = bisect_left(ordered, value), (len(ordered) - 1) // 2

    def at(index: int) -> float:
        return ordered[index + (index >= gone)]

    return at(half) if len(ordered) % 2 == 0 else (at(half - 1) + at(half)) / 2


Peers = Mapping[str, _Alike]
"""The nodes of a round that are compared with each other, by instance type."""


def _peers(seen: RunState) -> Peers:
    """Return the nodes that are compared with each other."""
    found: dict[str, dict[str, NodePace]] = {}
    round_ = seen.round
    if round_ is None or round_.phase != "started":
        return {}
    for member in round_.members:
        live, pace = seen.nodes.get(member.node), seen.paces.get(member.node)
        if live is None or pace is None or not pace.known or pace.round != round_.number:
            continue
        found.setdefault(live.node.type, {})[member.node] = pace
    return {type: _Alike(paces) for type, paces in found.items()}


def _over(seen: RunState, peers: Peers) -> Iterator[ClearSlow]:
    for name, slow in sorted(seen.slow.items()):
        live = seen.nodes.get(name)
        if live is None or live.node.incarnation != slow.incarnation:
            yield ClearSlow(slow, "it has left")
            continue
        alike = peers.get(live.node.type)
        if alike is None:
            continue
        excess = _excess(name, alike)
        if excess is not None and excess.is_over:
            yield ClearSlow(slow, "it keeps up again")
        elif alike.paces.keys() == {name} and _is_alone(seen, name, live.node.type):
            yield ClearSlow(slow, "no other node waits for it")


def _is_alone(seen: RunState, name: str, type: str) -> bool:
    """Whether the round has no other node of this type."""
    members = seen.round.members if seen.round is not None else ()
    others = (seen.nodes.get(member.node) for member in members if member.node != name)
    return not any(other is None or other.node.type == type for other in others)


def _named(seen: RunState, peers: Peers, now: float) -> Iterator[NameSlow]:
    for alike in peers.values():
        # Most are not worth a comparison with the others.
        suspicious = (1 + FLOOR) * alike.usual[(len(alike.usual) - 1) // 4]
        for name, pace in alike.paces.items():
            if pace.usual < suspicious or name in seen.slow or name in seen.drains:
                continue
            excess = _excess(name, alike)
            if excess is not None and excess.is_slow:
                incarnation = seen.nodes[name].node.incarnation
                factor, speed = round(excess.factor, 2), round(excess.speed, 3)
                yield NameSlow(SlowNode(name, incarnation, now, factor, speed))


def _excess(name: str, peers: _Alike) -> Excess | None:
    """Compare a node with its peers; None: it cannot be compared."""
    pace = peers.paces.get(name)
    if pace is None or len(peers.paces) == 1:
        return None
    step = peers.step_time(pace)
    if abs(pace.step_time - step) > ALIKE * max(pace.step_time, step):
        return None
    middle = peers.middle(pace)
    if middle <= 0:
        return None
    spread = SIGMA * peers.deviation(pace, middle)
    floor = FLOOR if len(peers.paces) > 2 else FLOOR_OF_TWO
    deviations = DEVIATIONS * max(spread, SCATTER * middle)
    return Excess(pace, middle, middle + max(floor * middle, deviations, FELT * pace.step_time))


def named(slow: SlowNode) -> Event:
    """Return the event that tells of a slow node."""
    data = {"factor": slow.factor, "speed": slow.speed, "incarnation": slow.incarnation}
    return Event(slow.at, SLOW, slow.line, slow.node, data)


def cleared(slow: SlowNode, reason: str, now: float) -> Event:
    """Return the event that tells that a node is slow no longer."""
    data = {"incarnation": slow.incarnation, "since": slow.at}
    return Event(now, OVER, _over_line(slow, reason), slow.node, data)


def _over_line(slow: SlowNode, reason: str) -> str:
    return f"node {slow.node} is slow no longer: {reason}"


def lines(actions: Iterable[Action]) -> Iterator[str]:
    """Yield what people are told of these actions on the holder's machine.

    Where there is no controller, they see it nowhere else.
    """
    for action in actions:
        match action:
            case NameSlow(slow):
                yield slow.line
            case ClearSlow(slow, reason):
                yield _over_line(slow, reason)
