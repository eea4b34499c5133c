"""Names what stopped training between two runs: nodes that went, and workers that failed (pure).

Must never happen, and what prevents it here:

- a node that only lost a peer is named: failures that say no more than that (`blame`) name nobody;
- a row has the cause or the time of another loss of its node: a loss counts for the incarnation
  that was lost, and what happened after training had gone on explains no pause before;
- a pause is told again under another cause: nothing is read that was seen after its rows were
  final (`SETTLED_AFTER`).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from spotelastic.controller.accounting.ledger_events import SETTLED_AFTER
from spotelastic.controller.accounting.run_segments import Transition
from spotelastic.model.gpu import UNHEALTHY
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.progress import Event, Interruption
from spotelastic.model.round import Member, Round
from spotelastic.rendezvous.failures import blame

UNPLANNED = frozenset({"worker", "stall", "store", "loss"})


def troubles(
    transition: Transition, rounds: Sequence[Round], events: Sequence[Event]
) -> list[Interruption]:
    """Return what happened in one transition, at most once for each node: rows without their price.

    That is the nodes that went for a reason of their own and those whose worker was killed, else
    what failed first.
    """
    causes = {round.cause for round in transition.rounds}
    if causes == {"settings"}:
        return []
    failures = _Failures(transition, events)
    found: dict[str, Interruption] = {}
    missing: dict[str, Interruption] = {}
    for member, told in _members(transition, rounds, events):
        kind = _why_gone(member, transition, told, is_fallen=member.node in failures.killed)
        left_at = _left_at(member, transition)
        if kind is not None and kind is not InterruptionKind.WORKER:
            accounts = accounts_of(told, kind.traits.event)
            found.setdefault(member.node, _trouble(kind, member.node, accounts, left_at))
        elif kind is None and not _has(transition.rounds[-1], member):
            lost = Interruption(InterruptionKind.LOSS, member.node, left_at)
            missing.setdefault(member.node, lost)
    asked = {row.node for row in found.values() if row.kind is InterruptionKind.LEAVE}
    if transition.after is None and {m.node for m in transition.before.round.members} <= asked:
        return []  # the cluster was taken down: nobody was to go on
    for node, event in failures.killed.items():
        found.setdefault(node, observed(InterruptionKind.WORKER, node, [event]))
    if found or not causes & UNPLANNED:
        return list(found.values())
    if failures.first is not None:
        return [observed(InterruptionKind.WORKER, failures.first.node, [failures.first])]
    # Who told nothing and is not there any more is what the others have lost.
    return list(missing.values()) or failures.unexplained()


class _Failures:
    """The failures of workers in the rounds that ended in a transition."""

    def __init__(self, transition: Transition, events: Sequence[Event]) -> None:
        self._transition = transition
        self._rounds = {round.incarnation: round for round in transition.ended}
        told = [
            event
            for event in events
            if event.kind == "failure"
            and event.data.get("round") in self._rounds
            and _seen(event) < _final_at(transition)
        ]
        self._told = sorted(told, key=happened)
        named = {n for r in transition.rounds if r.cause in UNPLANNED - {"loss"} for n in r.nodes}
        own = [event for event in self._told if not blame.tells_of_peer(event)]
        killed = (e for e in reversed(own) if blame.is_kill(int(e.data.get("exit_code", 0))))
        self.killed = {event.node: event for event in killed}
        """The first one of each node that ended a worker from outside."""
        self.first = next(iter([*(e for e in own if e.node in named), *own]), None)
        """The first one that does not only tell of a peer, of those that rounds name if any."""
        self._named = named

    def unexplained(self) -> list[Interruption]:
        """Return what is known of a failure that only peers have told of.

        After it, all nodes are still there. Its node is the one that a round names and that told of
        no peer, or the only one that told nothing.
        """
        if not self._told and not self._named:
            return []  # a node was lost that was yet to train
        tellers = {event.node for event in self._told}
        rounds = [self._rounds[str(event.data["round"])] for event in self._told[:1]]
        silent = {member.node for round in rounds for member in round.members} - tellers
        stalls = {n for r in self._transition.rounds if r.cause == "stall" for n in r.nodes}
        suspects = sorted(self._named - tellers) or sorted(stalls) or sorted(silent)
        node = suspects[0] if len(suspects) == 1 else ""
        at = happened(self._told[0]) if self._told else self._transition.rounds[0].proposed_at
        return [Interruption(InterruptionKind.WORKER, node, at)]


def _members(
    transition: Transition, rounds: Sequence[Round], events: Sequence[Event]
) -> Iterator[tuple[Member, list[Event]]]:
    """Yield each member of an ended round, with what was told of it.

    That was told while the member was there, or of its end.
    """
    final_at = _final_at(transition)
    by_node = defaultdict[str, list[Event]](list)
    for event in events:
        if _seen(event) < final_at:
            by_node[event.node].append(event)
    known = set[tuple[str, str]]()
    for round in transition.ended:
        for member in round.members:
            if (member.node, member.incarnation) in known:
                continue
            known.add((member.node, member.incarnation))
            joined = min(each.proposed_at for each in rounds if _has(each, member))
            told = (event for event in by_node[member.node] if event.at >= joined)
            yield member, [e for e in told if _concerns(e, member, round, transition)]


def _concerns(event: Event, member: Member, round: Round, transition: Transition) -> bool:
    """Whether the event may tell why this member of the round went.

    A loss is of one incarnation, which may come back under a new lease, and is known later than it
    happened. A fault of a GPU is found after the failure. Any other notice has to be older than
    what it explains.
    """
    if event.kind == "loss":
        is_its = event.data.get("incarnation", member.incarnation) == member.incarnation
        before = transition.before
        # One that a node came back from before the round trained belongs to the pause before.
        begun = before.first_at if round is before.round else 0.0
        return is_its and happened(event) >= max(round.proposed_at, begun or 0.0)
    return event.kind == UNHEALTHY or happened(event) <= _went_on_at(transition)


def _why_gone(
    member: Member, transition: Transition, told: Sequence[Event], *, is_fallen: bool
) -> InterruptionKind | None:
    """Return why a member is not in the round after, or was not for a while.

    None if nothing is known.

    A node that had a notice counts as noticed even if it was killed while still needed. AWS reports
    a node that its group was told to end in the same way, but without a warning. A node that only
    answered too late has lost nothing: it explains a pause that nothing else explains. Of a node
    whose worker was killed, the others may have gone on before it was lost as well.
    """
    named = {round.cause for round in transition.rounds if member.node in round.nodes}
    went_on_at = _went_on_at(transition)
    was_lost = any(happened(event) <= went_on_at for event in accounts_of(told, "loss"))
    if _has(transition.rounds[-1], member):  # it may have come back while a round waited for it
        return InterruptionKind.LOSS if "loss" in named or was_lost else None
    kind = kind_told(told)
    if kind is not None and kind is not InterruptionKind.LOSS:
        return kind
    if "drain" in named:
        return InterruptionKind.SPOT_INTERRUPTION
    is_late = any(member.incarnation in round.missed for round in transition.rounds)
    if "loss" in named and (kind is not None or not is_late):
        return InterruptionKind.LOSS
    if kind is not None and not is_fallen:
        return InterruptionKind.LOSS
    if was_lost:
        return InterruptionKind.LOSS
    return InterruptionKind.WORKER if is_fallen else None


def kind_told(told: Sequence[Event]) -> InterruptionKind | None:
    """Return the kind of interruption that observers of a node report; None: they report none."""
    notices = [*accounts_of(told, "notice"), *accounts_of(told, UNHEALTHY)]
    if notices:
        kinds = [
            InterruptionKind(str(event.data.get("kind", InterruptionKind.SPOT_INTERRUPTION)))
            for event in notices
        ]
        return max(kinds, key=lambda kind: kind.traits.severity)
    losses = {str(event.data.get("kind", "")) for event in told if event.kind == "loss"}
    if InterruptionKind.BY_HAND in losses:
        return InterruptionKind.BY_HAND
    if losses:
        return InterruptionKind.LOSS
    left = any(event.kind == InterruptionKind.LEAVE.traits.event for event in told)
    return InterruptionKind.LEAVE if left else None


def _trouble(
    kind: InterruptionKind, node: str, accounts: Sequence[Event], left_at: float
) -> Interruption:
    """Return why a node went.

    A lease tells of a loss late: it had happened when the others went on without the node.
    """
    if not accounts:
        return Interruption(kind, node, left_at)
    latest = left_at if kind.traits.event == "loss" else float("inf")
    return observed(kind, node, accounts, latest)


def observed(
    kind: InterruptionKind, node: str, accounts: Sequence[Event], latest: float = float("inf")
) -> Interruption:
    """Return an interruption with its times.

    It was seen when the first observer saw it. It happened at the latest time that fits, and by
    `latest`: AWS's events name whole seconds, and a notice's document tells only when its two
    minutes end.
    """
    seen = min(_seen(event) for event in accounts)
    at = min(latest, max((at for at in map(happened, accounts) if at <= seen), default=seen))
    by: dict[str, float] = {}
    for event in accounts:
        source = str(event.data.get("source", ""))
        if source:
            after = max(0.0, _seen(event) - at)
            by[source] = round(min(after, by.get(source, after)), 3)
    told_by = min(by, key=by.__getitem__, default="")
    after = round(seen - at, 3)
    return Interruption(kind, node, at, after, told_by=told_by, seen_after_by=by)


def accounts_of(events: Iterable[Event], kind: str) -> list[Event]:
    """Return the events of one kind that report something that befell a node.

    A rebalance recommendation is reported as a notice too, but moves no node.
    """
    return [
        event for event in events if event.kind == kind and event.data.get("kind") != "rebalance"
    ]


def _has(round: Round, member: Member) -> bool:
    other = round.member(member.node)
    return other is not None and other.incarnation == member.incarnation


def _left_at(member: Member, transition: Transition) -> float:
    """Return when the others were about to go on without the member."""
    without = (round for round in transition.rounds if not _has(round, member))
    return next(without, transition.rounds[-1]).proposed_at


def _went_on_at(transition: Transition) -> float:
    """Return when training had gone on; infinite: it has not."""
    after = transition.after
    return after.first_at if after is not None and after.first_at else float("inf")


def _final_at(transition: Transition) -> float:
    """Return from when on nothing that is told changes what happened."""
    return min(_went_on_at(transition) + SETTLED_AFTER, transition.until)


def happened(event: Event) -> float:
    return float(event.data.get("at", event.at))


def _seen(event: Event) -> float:
    return float(event.data.get("seen_at", event.at))
