"""Computes how often to save, from the cost of saving and the rate of setbacks (pure).

Applies Young's and Daly's optimum (J. W. Young, CACM 17, 1974; J. T. Daly, FGCS 22, 2006) twice:
to snapshots in memory, which cover failed workers and lost nodes, and to checkpoints in the object
store, which cover the loss of that memory.

Must never happen: ranks of a round save at different steps. So the holder alone decides, and its
decision is part of the round, or of an agreement that all ranks wait for.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from spotelastic_checkpoints.types import Schedule

from spotelastic.model.interval import Interval
from spotelastic.model.job import Settings
from spotelastic.model.progress import Progress
from spotelastic.model.round import Cause, Member, Past, Round
from spotelastic.rendezvous.decision import Moment
from spotelastic.rendezvous.view import RunState

START = Schedule(snapshot_every=10, checkpoint_every=50)
"""The schedule until something has been measured."""
PRIOR_EVENTS = 0.1
"""Weight, in events, of the rates that are assumed before a run has seen any event."""
SPOT_NODE, OWN_NODE = 24 * 3600.0, 30 * 24 * 3600.0
"""Assumed mean seconds until a spot node, or a node of the user's own, is lost or fails."""
AT_RISK = 600.0
"""Assumed mean seconds until a node is lost after a rebalance recommendation."""
PULLS = 1.25
"""Least time between two snapshots, in the time that a replica takes. Each is whole before the next
save, so that nodes have replicas of the same step.
"""
DRAG = 0.05
"""Largest share of training time that a concurrent upload costs (measured by `make bench`)."""
NEGLIGIBLE = 0.001
"""Share of training time below which the cost of saving is ignored."""
LONGEST = 1800.0
SNAPSHOTS, CHECKPOINTS = (1.0, LONGEST), (10.0, LONGEST)
"""Least and most seconds between two snapshots, and between two checkpoints."""
SETTLE = 10.0
"""Seconds of a round after which its measurements count."""
STEADY = 60.0
"""Seconds of a round before which measured intervals are not lengthened."""
WORTH, CLOSE = 1.5, 1.2
"""Factors below which a change of intervals is not worth the save that it takes: `WORTH` for
measured intervals, `CLOSE` for intervals that the user gave in seconds."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What steps and saves cost on the slowest node, in seconds; 0: not measured yet."""

    step_time: float = 0.0
    stall: float = 0.0
    """Seconds for which a snapshot keeps training waiting."""
    commit_time: float = 0.0
    """Seconds from a seal to its commit, while training goes on."""
    replica_time: float = 0.0
    """Seconds in which a node's shards are copied into its partner's memory; 0: they are not."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Setbacks per second of the whole group of nodes."""

    to_snapshot: float
    """Setbacks from which the group resumes from memory."""
    to_commit: float
    """Setbacks from which the group resumes from the object store."""


def optimum(cost: float, between: float) -> float:
    """Return the best seconds between saves of `cost` seconds.

    There is a setback every `between` seconds.

    Uses Daly's higher-order form, which holds while `cost` is below twice `between`.
    """
    if cost >= 2 * between:
        return between
    ratio = cost / (2 * between)
    return math.sqrt(2 * cost * between) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost


def rates(past: Past, nodes: Sequence[bool], at_risk: int, *, whole: bool) -> Rates:
    """Return how often the group is set back, from its past and from what is assumed of its nodes.

    `nodes` tells of each node in the round whether it is a spot instance. `whole`: the loss of a
    node is covered by the memory of others, because each holds the whole state, or keeps a replica.
    So only the loss of several at once leads back to a checkpoint. That counts as often as the loss
    of one node, because AWS takes capacity from a whole zone.
    """
    known = [SPOT_NODE if spot else OWN_NODE for spot in nodes]
    usual = len(known) / sum(1 / seconds for seconds in known)

    def per_node(events: int) -> float:
        return (PRIOR_EVENTS + events) / (PRIOR_EVENTS * usual + past.node_seconds)

    share = 1 if whole else len(nodes)
    return Rates(
        len(nodes) * per_node(past.losses + past.failures) + at_risk / AT_RISK,
        share * (per_node(past.losses) + at_risk / len(nodes) / AT_RISK),
    )


def schedule(settings: Settings, costs: Costs, often: Rates, current: Schedule) -> Schedule:
    """Return the schedule in steps: the user's own intervals, else the ones that pay.

    An interval that depends on something not measured yet stays as it is.
    """
    wished = _wished(settings, costs, often, current)
    memory, store = wished.snapshot_every, wished.checkpoint_every
    if settings.checkpoint_every == Interval() and memory:  # a commit is a snapshot, too
        least = _steps(Interval(), costs.step_time, _pause(costs), 0)
        store = max(1, round(store / memory), math.ceil(least / memory)) * memory
    elif settings.snapshot_every == Interval() and store:
        memory = min(memory, store)
    return Schedule(memory, store)


def _wished(settings: Settings, costs: Costs, often: Rates, current: Schedule) -> Schedule:
    """Return both intervals, each computed without regard to the other."""
    snapshot, checkpoint = settings.snapshot_every, settings.checkpoint_every
    snapshots = 0.0
    if costs.stall:
        least = max(SNAPSHOTS[0], PULLS * costs.replica_time)
        limits = least, max(least, SNAPSHOTS[1])
        snapshots = _seconds(costs.stall, often.to_snapshot, limits)
    memory = _steps(snapshot, costs.step_time, snapshots, current.snapshot_every)
    uploads = 0.0
    if costs.commit_time:
        least = _pause(costs)
        cost = costs.stall + DRAG * costs.commit_time
        uploads = _seconds(cost, often.to_commit, (least, max(least, CHECKPOINTS[1])))
    store = _steps(checkpoint, costs.step_time, uploads, current.checkpoint_every)
    return Schedule(memory, store)


def first(settings: Settings) -> Schedule:
    """Return the schedule of a run of which nothing is known yet."""
    return schedule(settings, Costs(), Rates(0.0, 0.0), START)


def following(at: Moment, round_: Round, members: Sequence[Member], past: Past) -> Schedule:
    """Return the schedule for the round of `members` after the started `round_`.

    It follows from the run's `past`.

    Risks of nodes that will not be in that round do not count.
    """
    if not members:
        return round_.schedule
    reports = told(at.seen, round_)
    often = _often(at.seen, [member.node for member in members], reports, past)
    return schedule(at.settings, _costs(reports), often, round_.schedule)


def change(at: Moment, round_: Round) -> Schedule | None:
    """Return other intervals for the rest of the round, or None while the present ones will do."""
    seen, current = at.seen, round_.schedule
    asked = seen.proposal is not None and seen.proposal.round == round_.incarnation
    age = at.now - max(seen.round_at, seen.proposal_at if asked else 0.0)
    if age < SETTLE:
        return None
    reports = told(seen, round_)
    costs = _costs(reports)
    often = _often(seen, [member.node for member in round_.members], reports, lived(at, round_))
    better = schedule(at.settings, costs, often, current)
    if _fixed(at.settings, better) != _fixed(at.settings, current):
        return better  # as the user says now
    if not costs.step_time:
        return None
    wished = _wished(at.settings, costs, often, current)
    changes = (
        _worth(at.settings.snapshot_every, current.snapshot_every, better.snapshot_every),
        # A wish near one and a half snapshots must not go back and forth between one and two.
        min(
            (
                _worth(at.settings.checkpoint_every, current.checkpoint_every, every)
                for every in (better.checkpoint_every, wished.checkpoint_every)
            ),
            key=abs,
        ),
    )
    shorter = min(changes) <= -1
    longer = max(changes) >= 1 and (age >= STEADY or current == first(at.settings))
    return better if shorter or longer else None


def describe(wanted: Schedule) -> str:
    """Return the schedule as one line for people."""
    memory, store = (
        f"every {steps:,} steps" if steps else "never"
        for steps in (wanted.snapshot_every, wanted.checkpoint_every)
    )
    return f"snapshots in memory {memory}, checkpoints in the object store {store}"


def lived(at: Moment, round_: Round) -> Past:
    """Return the run's past up to now, while the started `round_` trains."""
    age = max(0.0, at.now - at.seen.round_at)
    return replace(round_.past, node_seconds=round_.past.node_seconds + len(round_.members) * age)


def ended(past: Past, cause: Cause, nodes: int) -> Past:
    """Return `past` with the end of its last round added.

    The end has a cause, and a number of nodes that caused it.
    """
    if cause == "loss":
        return replace(past, losses=past.losses + nodes)
    if cause in ("worker", "stall", "store"):
        return replace(past, failures=past.failures + 1)
    return past


def told(seen: RunState, round_: Round) -> list[Progress]:
    """Return what the members reported of their progress in this round."""
    found = (seen.progress.get(member.node) for member in round_.members)
    return [each for each in found if each is not None and each.round == round_.number]


def _costs(told: Sequence[Progress]) -> Costs:
    def slowest(of: Callable[[Progress], float]) -> float:
        return max(map(of, told), default=0.0)

    return Costs(
        slowest(lambda each: each.step_time),
        slowest(lambda each: each.stall),
        slowest(lambda each: each.commit_time),
        slowest(lambda each: each.replica_time),
    )


def _often(seen: RunState, nodes: Sequence[str], told: Sequence[Progress], past: Past) -> Rates:
    """Return the setback rates of a round of these nodes."""
    live = (seen.nodes.get(name) for name in nodes)
    spot = [node is not None and node.node.spot for node in live]
    mine = set(nodes)
    at_risk = sum(each.at_risk for each in told if each.node in mine)
    # What each node alone holds is in another one's memory as well, if each keeps a replica.
    whole = bool(told) and all(each.whole or each.replica for each in told)
    return rates(past, spot, at_risk, whole=whole)


def _pause(costs: Costs) -> float:
    """Return the least seconds between two uploads, so that some training time is free of uploads.

    0: no upload has been measured.
    """
    return max(CHECKPOINTS[0], 2 * costs.commit_time) if costs.commit_time else 0.0


def _seconds(cost: float, rate: float, limits: tuple[float, float]) -> float:
    least, most = limits
    return min(max(min(optimum(cost, 1 / rate), cost / NEGLIGIBLE), least), most)


def _steps(asked: Interval, step_time: float, measured: float, current: int) -> int:
    if asked.steps is not None:
        return asked.steps
    seconds = measured if asked.seconds is None else asked.seconds
    if not step_time or not seconds:
        return current
    return _rounded(seconds / step_time)


def _rounded(steps: float) -> int:
    """Round to two significant digits, because the measurements support no more."""
    unit: int = 10 ** max(0, math.floor(math.log10(max(1.0, steps))) - 1)
    return max(1, round(steps / unit) * unit)


def _fixed(settings: Settings, of: Schedule) -> tuple[int, ...]:
    """Return the intervals that the user gave in steps."""
    pairs = (
        (settings.snapshot_every, of.snapshot_every),
        (settings.checkpoint_every, of.checkpoint_every),
    )
    return tuple(steps for asked, steps in pairs if asked.steps is not None)


def _worth(asked: Interval, old: int, new: int) -> float:
    """Return how large a change is: it is made from 1 up; negative means a shorter interval."""
    if not old or not new:
        return 0.0
    return math.log(new / old) / math.log(WORTH if asked.seconds is None else CLOSE)
